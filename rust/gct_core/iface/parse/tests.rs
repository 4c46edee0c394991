// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::iface::files::{self, Mode};
use crate::iface::show;
use proptest::prelude::*;
use std::format;
use std::string::{String, ToString};
use std::vec;

fn shown(value: &Value) -> String {
    let mut out = String::new();
    show::value(value, &mut out).unwrap();
    out
}

fn ok(format: Format, text: &str) -> String {
    shown(&value(format, text.as_bytes()).unwrap_or_else(|e| panic!("{text:?}: {e:?}")))
}

fn refuses(format: Format, error: Error, texts: &[&str]) {
    for text in texts {
        assert_eq!(
            value(format, text.as_bytes()),
            Err(error),
            "{format:?} {text:?}"
        );
    }
}

#[test]
fn what_echo_and_printf_send() {
    for text in ["7", "7\n", " 7", "7 \n", "\t7\t\n", "7\n\n", "007"] {
        assert_eq!(ok(Format::Priority, text), "7\n", "{text:?}");
    }
}

#[test]
fn no_form_takes_junk() {
    let junk: [&[u8]; 17] = [
        b"",
        b" ",
        b"\n",
        b"\0",
        b"1\0",
        b"1\n2",
        b"1\r\n",
        b"-1",
        b"+1",
        b"0x10",
        b"1.5",
        b"1e3",
        b"\xff",
        b"\xc3\xa9",
        b"max max",
        b"MAX",
        b"nope",
    ];
    for format in Format::VALUES {
        for text in junk {
            assert_eq!(
                value(format, text),
                Err(Error::Syntax),
                "{format:?} {text:?}"
            );
        }
    }
}

#[test]
fn a_write_that_is_too_long_is_refused_whole() {
    let mut text = vec![b' '; limits::WRITE_LEN_MAX - 1];
    text.push(b'1');
    assert_eq!(value(Format::Switch, &text), Ok(Value::Switch(true)));
    text.push(b'\n');
    assert_eq!(value(Format::Switch, &text), Err(Error::Syntax));
}

#[test]
fn bytes_and_their_suffixes() {
    assert_eq!(ok(Format::Bytes, "0"), "0\n");
    assert_eq!(ok(Format::Bytes, "4K"), "4096\n");
    assert_eq!(ok(Format::BytesOrMax, "3g"), "3221225472\n");
    assert_eq!(ok(Format::BytesOrMax, "max"), "max\n");
    assert_eq!(
        ok(Format::Bytes, "18446744073709551615"),
        "18446744073709551615\n"
    );
    refuses(
        Format::Bytes,
        Error::Range,
        &["18446744073709551616", "18014398509481984K"],
    );
    refuses(
        Format::Bytes,
        Error::Syntax,
        &["max", "K", "1 K", "1KB", "1KiB", "1T", "1M1"],
    );
}

#[test]
fn durations_and_their_suffixes() {
    assert_eq!(ok(Format::Timeslice, "20"), "20\n");
    assert_eq!(ok(Format::Timeslice, "2ms"), "2000\n");
    assert_eq!(ok(Format::Timeslice, "1s"), "1000000\n");
    assert_eq!(ok(Format::Timeslice, "500us"), "500\n");
    assert_eq!(ok(Format::Timeslice, "default"), "default\n");
    refuses(
        Format::Timeslice,
        Error::Range,
        &["0", "19", "1000001", "2s", "18446744073709551615s"],
    );
    refuses(
        Format::Timeslice,
        Error::Syntax,
        &["ms", "2 ms", "2m", "max", "2msus"],
    );
    assert_eq!(ok(Format::UsOrOff, "off"), "off\n");
    assert_eq!(ok(Format::UsOrOff, "5"), "5\n");
    refuses(Format::UsOrOff, Error::Range, &["0", "4", "1000001"]);
}

#[test]
fn numbers_at_both_ends() {
    for (format, low, high) in [
        (Format::Priority, 0, 15),
        (Format::Weight, 1, 10_000),
        (Format::Switch, 0, 1),
        (Format::SwitchOrDefault, 0, 1),
        (Format::Percent, 0, 100),
        (Format::TpcsOrNone, 0, 256),
    ] {
        for good in [low, high] {
            assert_eq!(ok(format, &good.to_string()), format!("{good}\n"));
        }
        refuses(
            format,
            Error::Range,
            &[&(high + 1).to_string(), "18446744073709551616"],
        );
    }
    refuses(Format::Weight, Error::Range, &["0"]);
    assert_eq!(ok(Format::TpcsOrNone, "none"), "none\n");
    refuses(Format::TpcsOrNone, Error::Syntax, &["max", "default"]);
    assert_eq!(ok(Format::SwitchOrDefault, "default"), "default\n");
    refuses(Format::SwitchOrDefault, Error::Syntax, &["max", "off"]);
    refuses(Format::Percent, Error::Syntax, &["5%"]);
}

#[test]
fn duty_cycles() {
    assert_eq!(ok(Format::Bandwidth, "20000 100000"), "20000 100000\n");
    assert_eq!(ok(Format::Bandwidth, "20ms\t100ms"), "20000 100000\n");
    assert_eq!(ok(Format::Bandwidth, "1000 1000"), "1000 1000\n");
    assert_eq!(ok(Format::Bandwidth, "max"), "max\n");
    refuses(
        Format::Bandwidth,
        Error::Range,
        &["19 1000", "1001 1000", "500 999", "20 1000001"],
    );
    refuses(
        Format::Bandwidth,
        Error::Syntax,
        &["20000", "1 2 3", "max 100000", "20000,100000"],
    );
}

#[test]
fn masks() {
    assert_eq!(ok(Format::TpcList, "0-31,40"), "0-31,40\n");
    assert_eq!(ok(Format::TpcList, "all"), "all\n");
    refuses(Format::TpcList, Error::Range, &["256"]);
    refuses(Format::TpcList, Error::Syntax, &["0 1", "none", "1-0"]);
}

#[test]
fn forms_without_a_value_are_not_written_as_one() {
    for format in [
        Format::Line,
        Format::Words,
        Format::Stat,
        Format::Pids,
        Format::Command,
        Format::Cgroup,
        Format::CpuList,
    ] {
        assert_eq!(value(format, b"1"), Err(Error::Access));
    }
}

#[test]
fn lists_of_processors() {
    for good in ["0", "0-3", "0-3,8,10-10", "8191\n"] {
        assert_eq!(cpus(good.as_bytes()).unwrap().as_str(), good.trim());
    }
    assert!(cpus(b"all\n").unwrap().is_empty());
    for bad in [
        "", "3-0", "1-2-3", ",", "0,", "a", "-1", "0 1", "0-", "none",
    ] {
        assert_eq!(cpus(bad.as_bytes()), Err(Error::Syntax), "{bad:?}");
    }
    let long = ["0"; 65].join(",");
    for far in ["8192", "0-99999999999999999999", long.as_str()] {
        assert_eq!(cpus(far.as_bytes()), Err(Error::Range), "{far:?}");
    }
}

#[test]
fn names() {
    let longest = "a".repeat(limits::NAME_LEN_MAX);
    for good in ["a", "_", "web-1.2_x", "Gpus", longest.as_str()] {
        assert_eq!(name(good.as_bytes()).unwrap().as_str(), good);
    }
    let too_long = "a".repeat(limits::NAME_LEN_MAX + 1);
    for bad in [
        "",
        "1",
        "1a",
        ".",
        "..",
        "-a",
        "a/b",
        "a b",
        "a\n",
        "\u{e9}",
        "gpus",
        "control",
        "version",
        "events",
        too_long.as_str(),
    ] {
        assert_eq!(name(bad.as_bytes()), Err(Error::Syntax), "{bad:?}");
    }
    assert_eq!(name(b"a\xff"), Err(Error::Syntax));
}

#[test]
fn commands() {
    let web = Name::new("web").unwrap();
    assert_eq!(command(b"create web\n"), Ok(Command::Create(web)));
    assert_eq!(command(b"  remove \t web"), Ok(Command::Remove(web)));
    for bad in [
        "",
        "create",
        "create ",
        "createweb",
        "destroy web",
        "create a b",
        "create a\nremove a",
        "CREATE a",
        "create 1",
    ] {
        assert_eq!(command(bad.as_bytes()), Err(Error::Syntax), "{bad:?}");
    }
}

#[test]
fn pids() {
    assert_eq!(pid(b"0\n"), Ok(PidArg::Own));
    assert_eq!(pid(b"1"), Ok(PidArg::Pid(1)));
    assert_eq!(pid(b"2147483647"), Ok(PidArg::Pid(2_147_483_647)));
    for none in ["2147483648", "4294967296", "99999999999999999999"] {
        assert_eq!(pid(none.as_bytes()), Err(Error::NoProcess), "{none}");
    }
    for bad in ["", "-1", "1 2", "self", "1\n2"] {
        assert_eq!(pid(bad.as_bytes()), Err(Error::Syntax), "{bad:?}");
    }
}

#[test]
fn cgroup_paths() {
    let longest = format!("/{}", "a".repeat(limits::CGROUP_LEN_MAX - 1));
    for good in [
        "/",
        "/a",
        "/kubepods.slice/pod-1/cri:x.scope",
        longest.as_str(),
    ] {
        let path = cgroup(good.as_bytes()).unwrap().unwrap();
        assert_eq!(path.as_str(), good);
    }
    assert_eq!(cgroup(b"none\n"), Ok(None));
    for bad in [
        "", "a", "//", "/a/", "/a//b", "/./a", "/a/..", "/a b", "/a\nb", "/\u{e9}", "/a\0",
    ] {
        assert_eq!(cgroup(bad.as_bytes()), Err(Error::Syntax), "{bad:?}");
    }
    assert_eq!(cgroup(format!("{longest}b").as_bytes()), Err(Error::Range));
}

#[test]
fn the_version_line_is_read_back() {
    let mut line = String::new();
    show::version(&mut line).unwrap();
    let version = super::version(line.as_bytes()).unwrap();
    assert_eq!(
        (version.release, version.abi),
        (super::super::VERSION, super::super::ABI)
    );
    for bad in [
        "gctgroup",
        "gctgroup 1.2 abi 1",
        "gctgroup 1.2.3.4 abi 1",
        "gvm 1.2.3 abi 1",
        "gctgroup 1.2.3 api 1",
        "gctgroup 1.2.3 abi 1 x",
    ] {
        assert_eq!(super::version(bad.as_bytes()), Err(Error::Syntax), "{bad}");
    }
}

#[test]
fn stat_lines() {
    assert_eq!(stat_line(b"usage_usec 12\n"), Ok(("usage_usec", 12)));
    let parts = stat_line(b"passed.old-form 1");
    assert_eq!(parts, Ok(("passed.old-form", 1)));
    for bad in [
        "", "a", "a ", " 1", "a: 1", "A 1", "a 1 2", "a -1", "a 1\n\n",
    ] {
        assert_eq!(stat_line(bad.as_bytes()), Err(Error::Syntax), "{bad:?}");
    }
    assert_eq!(stat_line(b"a 18446744073709551616"), Err(Error::Range));
}

#[test]
fn defaults_of_the_table_are_values_of_their_files() {
    for entry in files::FILES {
        if entry.mode == Mode::ReadWrite
            && Format::VALUES.contains(&entry.format)
            && !entry.default.is_empty()
        {
            assert_eq!(
                ok(entry.format, entry.default),
                format!("{}\n", entry.default),
                "{}",
                entry.name
            );
        }
    }
}

proptest! {
    /// Checks that a printed value parses as the same value.
    #[test]
    fn what_is_read_can_be_written_back(pick in 0..Format::VALUES.len(), text in "[0-9]{1,6}( [0-9]{1,7}|-[0-9]{1,3}|,[0-9]{1,3}|[KMG]|ms|us)?|max|off|all|none|default") {
        let format = Format::VALUES[pick];
        if let Ok(first) = value(format, text.as_bytes()) {
            let line = shown(&first);
            prop_assert!(line.len() <= limits::WRITE_LEN_MAX);
            prop_assert_eq!(value(format, line.as_bytes()), Ok(first));
        }
    }

    /// Checks that a parser returns for any bytes.
    #[test]
    fn any_bytes_get_an_answer(text in prop::collection::vec(any::<u8>(), 0..80)) {
        for format in Format::VALUES {
            if let Ok(first) = value(format, &text) {
                prop_assert_eq!(value(format, shown(&first).as_bytes()), Ok(first));
            }
        }
        if let Ok(Command::Create(good) | Command::Remove(good)) = command(&text) {
            prop_assert_eq!(name(good.as_bytes()), Ok(good));
        }
        if let Ok(Some(path)) = cgroup(&text) {
            prop_assert_eq!(cgroup(path.as_bytes()), Ok(Some(path)));
        }
        let _ = (pid(&text), super::version(&text), stat_line(&text));
    }
}
