// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every file of the core's table appears in the tree with its mode, default and values.

use gct_core::error::Error;
use gct_core::iface::files::{self, Entry, Mode, Place};
use gct_core::iface::{parse, show, Value};
use gct_core::mask::TpcMask;
use gctd::testing::{Client, Daemon, TPCS};
use gctd_ipc::ENFORCED;

/// Starts a daemon with two GPUs and a group.
fn setup(test: &str) -> (Daemon, Client) {
    let daemon = Daemon::new(test, 2);
    let client = daemon.client();
    client.write("control", "create web\n").unwrap();
    (daemon, client)
}

const DIRECTORIES: [(&str, Place); 4] = [
    ("", Place::Root),
    ("gpus/1", Place::Gpu),
    ("web", Place::Group),
    ("web/1", Place::Pool),
];

#[test]
fn each_directory_has_the_files_of_its_place() {
    let (_daemon, client) = setup("files");
    for (path, place) in DIRECTORIES {
        let names = client.list(path).unwrap();
        let found: Vec<&str> = names.iter().map(String::as_str).collect();
        let files = files::of(place).map(|entry| entry.name);
        let dirs: &[&str] = match place {
            Place::Root => &["gpus/", "web/"],
            Place::Group => &["0/", "1/"],
            _ => &[],
        };
        let expected: Vec<&str> = dirs.iter().copied().chain(files).collect();
        assert_eq!(found, expected, "{path}");
    }
    assert_eq!(client.list("gpus"), Ok(vec!["0/".into(), "1/".into()]));
    assert_eq!(client.list("nobody"), Err(libc::ENOENT));
    assert_eq!(client.list("version"), Err(libc::ENOTDIR));
    assert_eq!(client.read("web"), Err(libc::EISDIR));
    assert_eq!(client.read("web/0/version"), Err(libc::ENOENT));
    assert_eq!(client.read("web/0/gmem.limit/x"), Err(libc::ENOENT));
}

#[test]
fn each_file_has_its_mode_and_its_default() {
    let (_daemon, client) = setup("modes");
    let access = Err(Error::Access.errno());
    for (directory, place) in DIRECTORIES {
        for entry in files::of(place) {
            let path = format!("{directory}/{}", entry.name);
            let text = client.read(&path);
            match entry.mode {
                Mode::Write => assert_eq!(text, Err(Error::Access.errno()), "{path}"),
                _ => shows_default(entry, &path, text),
            }
            if entry.mode == Mode::Read {
                assert_eq!(client.write(&path, "1"), access, "{path}");
            }
        }
    }
}

#[track_caller]
fn shows_default(entry: &Entry, path: &str, text: Result<String, i32>) {
    match text {
        Ok(text) => {
            assert!(text.is_empty() || text.ends_with('\n'), "{path} {text:?}");
            if !entry.default.is_empty() {
                assert_eq!(text.trim_end(), entry.default, "{path}");
            }
        }
        Err(errno) => assert!(
            entry.errors.iter().any(|error| error.errno() == errno),
            "{path} answers {errno}, which the table does not list"
        ),
    }
}

#[test]
fn gpu_files_show_what_the_driver_reported() {
    let (_daemon, client) = setup("gpus");
    let read = |file: &str| client.read(&format!("gpus/1/{file}"));
    assert_eq!(read("pci"), Ok("0000:01:00.0\n".into()));
    assert_eq!(read("minor"), Ok("1\n".into()));
    assert_eq!(read("name"), Ok("NVIDIA H200\n".into()));
    assert_eq!(read("mode"), Ok("user\n".into()));
    let uuid = "GPU-00112233-4455-6677-8899-aabbccddeef1\n";
    assert_eq!(read("uuid"), Ok(uuid.into()));
    let mut features = String::new();
    ENFORCED.show(&mut features).unwrap();
    assert_eq!(read("features"), Ok(features));
    assert_eq!(read("tpcs"), Ok("66\n".into()));
    assert_eq!(read("tpcs.list"), Ok(format!("{TPCS}\n")));
}

/// Checks that a GPU of which nothing is known has limits on memory, and none on launches.
#[test]
fn an_unknown_gpu_has_limits_on_memory_alone() {
    let daemon = Daemon::with_tpcs("unknown", 1, TpcMask::EMPTY);
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    for file in ["tpcs", "tpcs.list"] {
        let read = client.read(&format!("gpus/0/{file}"));
        assert_eq!(read, Err(Error::Unknown.errno()), "{file}");
    }
    for (file, value) in [
        ("tpc.mask", "0-3"),
        ("tpc.quota", "4"),
        ("tpc.steal", "0"),
        ("atom.duration", "50"),
        ("compute.priority", "3"),
    ] {
        let path = format!("web/0/{file}");
        let written = client.write(&path, value);
        assert_eq!(written, Err(Error::Unsupported.errno()), "{file}");
        assert_eq!(
            client.read(&path),
            Err(Error::Unsupported.errno()),
            "{file}"
        );
    }
    for (file, value) in [("gmem.limit", "1G"), ("compute.timeslice", "2ms")] {
        assert_eq!(client.write(&format!("web/0/{file}"), value), Ok(()));
    }
}

/// Values of many forms. The daemon must answer as the core's parser does.
const SAMPLES: &[&str] = &[
    "0",
    "1",
    "7",
    "8",
    "19",
    "20",
    "100",
    "1000",
    "10001",
    "1000001",
    "max",
    "all",
    "off",
    "default",
    "none",
    "1K",
    "512M",
    "16E",
    "0-3",
    "0-31,40",
    "255",
    "256",
    "2ms",
    "1s",
    "1000 10000",
    "20 1000",
    "5000 1000",
    "18446744073709551616",
    "-1",
    "1.5",
    "0x10",
    "",
    "\n",
    "8\n8",
    "8\0",
    "max max",
    "\u{e9}",
];

/// Returns whether the GPU has a TPC of the mask, and as many TPCs as the quota.
fn exists(value: &Result<Value, Error>) -> bool {
    let tpcs = TpcMask::parse(TPCS.as_bytes()).unwrap();
    match value {
        Ok(Value::TpcList(Some(mask))) => !mask.and(&tpcs).is_empty(),
        Ok(Value::TpcsOrNone(Some(quota))) => u32::from(quota.get()) <= tpcs.count(),
        _ => true,
    }
}

#[test]
fn limits_accept_valid_values_and_refuse_others() {
    let (_daemon, client) = setup("limits");
    let settable = |entry: &&Entry| entry.mode == Mode::ReadWrite && entry.name != "gmem.peak";
    for entry in files::of(Place::Pool).filter(settable) {
        let path = format!("web/1/{}", entry.name);
        let can = entry.feature.is_none_or(|feature| ENFORCED.has(feature));
        for sample in SAMPLES {
            let before = client.read(&path);
            assert_eq!(before.is_ok(), can, "{path}");
            let parsed = parse::value(entry.format, sample.as_bytes());
            let shown = parsed.map(|value| {
                let mut text = String::new();
                show::value(&value, &mut text).unwrap();
                text
            });
            let expected = match shown {
                Ok(_) if !exists(&parsed) => Err(Error::Range),
                Ok(text) if can => Ok(text),
                Ok(_) => Err(Error::Unsupported),
                Err(error) => Err(error),
            };
            let context = format!("{path} {sample:?}");
            let written = client.write(&path, sample);
            assert_eq!(
                written,
                expected.clone().map(|_| ()).map_err(Error::errno),
                "{context}"
            );
            assert_eq!(client.read(&path), expected.or(before), "{context}");
        }
    }
    assert_eq!(client.write("web/1/gmem.peak", "1"), Ok(()));
}

#[test]
fn a_text_beyond_the_maximum_is_refused() {
    let (_daemon, client) = setup("long");
    for length in [1025, 4096, 16_000] {
        for path in [
            "control",
            "web/group.procs",
            "web/group.cgroup",
            "web/0/tpc.mask",
        ] {
            let written = client.write(path, vec![b'1'; length]);
            assert_eq!(written, Err(Error::Syntax.errno()), "{path} {length}");
        }
    }
}

#[test]
fn groups_come_and_go() {
    let (_daemon, client) = setup("groups");
    let long = "n".repeat(65);
    for bad in ["", "1", "..", "a/b", "gpus", "control", "a b", &long] {
        let written = client.write("control", format!("create {bad}"));
        assert_eq!(written, Err(Error::Syntax.errno()), "{bad}");
    }
    let control = |text: &str| client.write("control", text);
    assert_eq!(control("create web"), Err(Error::Exists.errno()));
    assert_eq!(control("remove never"), Err(Error::NotFound.errno()));
    assert_eq!(client.write("web/group.cgroup", "/a"), Ok(()));
    assert_eq!(control("create db"), Ok(()));
    assert_eq!(
        client.write("db/group.cgroup", "/a"),
        Err(Error::Exists.errno())
    );
    for _ in 0..20 {
        assert_eq!(control("remove web"), Ok(()));
        assert_eq!(client.list("web"), Err(libc::ENOENT));
        assert_eq!(control("create web"), Ok(()));
        assert_eq!(client.read("web/group.cgroup"), Ok("none\n".into()));
    }
    let nobody = client.write("web/group.procs", "2147483647");
    assert_eq!(nobody, Err(Error::NoProcess.errno()));
    assert_eq!(client.write("web/group.procs", "0"), Ok(()));
    let own = format!("{}\n", std::process::id());
    assert_eq!(client.read("web/group.procs"), Ok(own));
    assert_eq!(control("remove web"), Err(Error::Busy.errno()));
}

#[test]
fn a_thousand_groups() {
    let daemon = Daemon::new("thousand", 4);
    let client = daemon.client();
    for n in 0..1000 {
        client.write("control", format!("create group{n}")).unwrap();
        let mask = format!("0-{}", n % 200);
        client.write(&format!("group{n}/3/tpc.mask"), mask).unwrap();
    }
    assert_eq!(client.list("").unwrap().len(), 1000 + 1 + 3);
    assert_eq!(client.read("group777/3/tpc.mask"), Ok("0-177\n".into()));
    for n in 0..1000 {
        client.write("control", format!("remove group{n}")).unwrap();
    }
    assert_eq!(client.list("").unwrap().len(), 1 + 3);
}
