// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A GPU has the features that its self-test found exact, and the TPCs that it found.

mod common;

use common::Tenant;
use gct_core::error::Error;
use gct_core::mask::TpcMask;
use gctd::testing::Daemon;

const GPU: &str = "GPU-00112233-4455-6677-8899-aabbccddeef0";

/// Returns a result of this release.
fn result(masks: &str, atoms: &str) -> String {
    let release = env!("CARGO_PKG_VERSION");
    format!(
        "gctgroup-selftest {release}\ngpu {GPU}\ndriver 1.2\ntpcs 0-3,9\nmasks {masks}\n\
         atoms {atoms}\nend\n"
    )
}

/// What a daemon announces of four limits, what it knows of the TPCs, and what it answers a mask.
type Announced = ([bool; 4], Result<String, i32>, Result<(), i32>);

fn announced(test: &str, file: &str, text: &str) -> Announced {
    announced_of(&Daemon::with_selftest(test, None, file, text))
}

fn announced_of(daemon: &Daemon) -> Announced {
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    let features = client.read("gpus/0/features").unwrap();
    let has = |file: &str| features.lines().any(|line| line == file);
    (
        ["tpc.mask", "atom.duration", "compute.weight", "gmem.limit"].map(has),
        client.read("gpus/0/tpcs.list"),
        client.write("web/0/tpc.mask", "0-1"),
    )
}

const UNKNOWN: Result<String, i32> = Err(Error::Unknown.errno());
const REFUSED: Result<(), i32> = Err(Error::Unsupported.errno());

#[test]
fn what_is_exact_is_a_feature() {
    let file = format!("{GPU}.1.2");
    let found: Result<String, i32> = Ok("0-3,9\n".to_owned());
    assert_eq!(
        announced("exact", &file, &result("exact", "exact")),
        ([true; 4], found.clone(), Ok(()))
    );
    assert_eq!(
        announced(
            "atoms",
            &file,
            &result("exact", "failed: no launch was split")
        ),
        ([true, false, true, true], found, Ok(()))
    );
}

/// Launches are split where a self-test has tried it and found it exact, and nowhere else: not on
/// an unknown GPU whose TPCs an administrator names, though `atom.duration` is announced there.
#[test]
fn only_what_a_self_test_has_tried_is_split() {
    let file = format!("{GPU}.1.2");
    let tried = |test: &str, tpcs: Option<&[u8]>, text: &str| {
        let tpcs = tpcs.map(|list| TpcMask::parse(list).unwrap());
        let daemon = Daemon::with_selftest(test, tpcs, &file, text);
        let mut tenant = Tenant::of(&daemon);
        let gpu = tenant.cuda(0);
        gpu.page.limits().unwrap().1.launches.tried
    };
    assert!(tried("tried", None, &result("exact", "exact")));
    assert!(!tried("tried-atoms", None, &result("exact", "failed: x")));
    assert!(!tried("tried-masks", None, &result("failed: x", "exact")));
    assert!(!tried("tried-named", Some(b"0-7"), ""));
}

/// Checks that nothing overrides a self-test that failed, also not TPCs that are known.
#[test]
fn a_gpu_that_masks_wrongly_has_no_limits_on_launches() {
    let (file, text) = (format!("{GPU}.1.2"), result("failed: x", "exact"));
    let named = TpcMask::parse(b"0-7").ok();
    for (test, tpcs, list) in [
        ("wrong", None, UNKNOWN),
        ("wrong-named", named, Ok("0-7\n".to_owned())),
    ] {
        let daemon = Daemon::with_selftest(test, tpcs, &file, &text);
        let none = ([false, false, false, true], list, REFUSED);
        assert_eq!(announced_of(&daemon), none, "{test}");
    }
}

#[test]
fn a_result_that_cannot_be_used_counts_as_none() {
    let whole = result("exact", "exact");
    let none = ([false, false, false, true], UNKNOWN, REFUSED);
    let cut = whole.trim_end_matches("end\n");
    for (test, file, text) in [
        ("cut", format!("{GPU}.1.2"), cut),
        ("garbage", format!("{GPU}.1.2"), "\u{0}\u{1}"),
        ("driver", format!("{GPU}.1.3"), &whole),
        ("gpu", format!("{}.1.2", GPU.replace('f', "e")), &whole),
    ] {
        assert_eq!(announced(test, &file, text), none, "{test}");
    }
}
