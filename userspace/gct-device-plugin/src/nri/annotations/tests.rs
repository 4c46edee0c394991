// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;

fn map(pairs: &[(&str, &str)]) -> Map {
    let pairs = pairs.iter();
    pairs
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// Asks for the container `main`, whose environment has a line.
fn main_of(pairs: &[(&str, &str)], env: &str) -> Result<Vec<Ask>> {
    asks(
        &map(pairs),
        "main",
        &["PATH=/bin".to_owned(), env.to_owned()],
    )
}

fn one(gpu: Option<&str>, request: Memory, limit: Memory, portion: Option<u32>) -> Vec<Ask> {
    let gpu = gpu.map(str::to_owned);
    vec![Ask {
        gpu,
        request,
        limit,
        portion,
    }]
}

const REQUEST: &str = "nvidia.com/container.main.gpu-memory.request";
const LIMIT: &str = "nvidia.com/container.main.gpu-memory.limit";
const PORTION: &str = "nvidia.com/container.main.gpu-compute.portion";
const MODE: &str = "nvidia.com/container.main.gpu-compute.mode";
const DEVICES: &str = "nvidia.com/container.main.gpus.devices";

#[test]
fn a_request_is_the_limit_and_a_limit_the_request_where_the_other_is_missing() {
    let (two, four) = (Memory::Bytes(2 << 30), Memory::Bytes(4 << 30));
    for (pairs, request, limit) in [
        (&[(REQUEST, "2Gi")][..], two, two),
        (&[(LIMIT, "4096Mi")], four, four),
        (&[(REQUEST, "2Gi"), (LIMIT, "4Gi")], two, four),
        // A part of a MiB counts as one.
        (
            &[(LIMIT, "1000M")],
            Memory::Bytes(954 << 20),
            Memory::Bytes(954 << 20),
        ),
    ] {
        assert_eq!(
            main_of(pairs, "").unwrap(),
            one(None, request, limit, None),
            "{pairs:?}"
        );
    }
    let other = [
        ("nvidia.com/container.side.gpu-memory.limit", "1Gi"),
        ("other", "x"),
    ];
    assert_eq!(main_of(&other, "").unwrap(), []);
    assert_eq!(main_of(&[], "NVIDIA_VISIBLE_DEVICES=all").unwrap(), []);
}

#[test]
fn portion_mode_and_devices_are_read() {
    let pairs = [
        (LIMIT, "1Gi"),
        (PORTION, "0.25"),
        (MODE, "time-slicing"),
        (DEVICES, " GPU-a, 1"),
    ];
    let found = main_of(&pairs, "NVIDIA_VISIBLE_DEVICES=GPU-z").unwrap();
    let gib = Memory::Bytes(1 << 30);
    let both = [Some("GPU-a"), Some("1")].map(|gpu| one(gpu, gib, gib, Some(250_000)));
    assert_eq!(found, both.concat());
}

#[test]
fn kai_s_are_for_the_container_that_is_named_or_has_gpus() {
    let two = Memory::Bytes(2000 << 20);
    let named = [
        ("gpu-memory", "2000"),
        ("gpu-fraction-container-name", "main"),
    ];
    assert_eq!(main_of(&named, "").unwrap(), one(None, two, two, None));
    let others = [
        ("gpu-memory", "2000"),
        ("gpu-fraction-container-name", "side"),
    ];
    assert_eq!(
        main_of(&others, "NVIDIA_VISIBLE_DEVICES=GPU-a").unwrap(),
        []
    );
    let half = Memory::Portion(500_000);
    let fraction = [("gpu-fraction", "0.5")];
    let given = main_of(&fraction, "NVIDIA_VISIBLE_DEVICES=GPU-a").unwrap();
    assert_eq!(given, one(Some("GPU-a"), half, half, None));
    for image in [
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_VISIBLE_DEVICES=void",
        "NVIDIA_VISIBLE_DEVICES=",
    ] {
        assert_eq!(main_of(&fraction, image).unwrap(), [], "{image}");
    }
}

#[test]
fn hami_s_are_read_in_pods_of_one_container() {
    let text = "GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,1,0:;";
    let memory = Memory::Bytes(3000 << 20);
    let mib = Memory::Bytes(1 << 20);
    let both = [
        one(Some("GPU-a"), memory, memory, Some(300_000)),
        one(Some("GPU-b"), mib, mib, None),
    ];
    assert_eq!(main_of(&[(HAMI, text)], "").unwrap(), both.concat());
    assert_eq!(main_of(&[(HAMI, ";")], "").unwrap(), []);
}

#[test]
fn every_mistake_names_its_annotation() {
    for (pairs, says) in [
        (
            &[(REQUEST, "")][..],
            "annotation nvidia.com/container.main.gpu-memory.request: \"\"",
        ),
        (&[(LIMIT, "-1Gi")], "\"-1Gi\" is no whole number of bytes"),
        (&[(LIMIT, "1.5Gi")], "\"1.5Gi\" is no whole number of bytes"),
        (&[(LIMIT, "0")], "from 1Mi on"),
        (&[(LIMIT, "1048575")], "from 1Mi on"),
        (&[(LIMIT, "18446744073709551615")], "is no whole number"),
        (&[(LIMIT, "18446744073709551616")], "is no whole number"),
        (&[(LIMIT, "99999999999Pi")], "is no whole number"),
        (&[(LIMIT, "max")], "is no whole number"),
        (
            &[(LIMIT, "1Gi"), (REQUEST, "2Gi")],
            "gpu-memory.request is more than its limit",
        ),
        (&[(PORTION, "0.5")], "gpu-compute.portion needs"),
        (&[(DEVICES, "")], "gpus.devices needs"),
        (&[(LIMIT, "1Gi"), (PORTION, "0")], "is no fraction"),
        (&[(LIMIT, "1Gi"), (PORTION, "0.0000001")], "is no fraction"),
        (&[(LIMIT, "1Gi"), (PORTION, "1.1")], "is no fraction"),
        (&[(LIMIT, "1Gi"), (PORTION, "4295.0")], "is no fraction"),
        (&[(LIMIT, "1Gi"), (PORTION, "-0.5")], "is no fraction"),
        (&[(LIMIT, "1Gi"), (PORTION, ".5")], "is no fraction"),
        (&[(LIMIT, "1Gi"), (PORTION, "1.")], "is no fraction"),
        (&[(LIMIT, "1Gi"), (PORTION, "0.5.5")], "is no fraction"),
        (&[(LIMIT, "1Gi"), (PORTION, "NaN")], "is no fraction"),
        (&[(LIMIT, "1Gi"), (MODE, "sm-sharing")], "shared by turns"),
        (&[(LIMIT, "1Gi"), (MODE, "")], "is not time-slicing"),
        (
            &[("nvidia.com/container.main.gpu-memory.requests", "1Gi")],
            "there is no annotation nvidia.com/container.main.gpu-memory.requests",
        ),
        (
            &[("gpu-memory", "1"), ("gpu-fraction", "0.5")],
            "exclude each other",
        ),
        (&[(HAMI, "GPU-a,NVIDIA,1,0:;;")], "pods of one container"),
        (&[(HAMI, "GPU-a,NVIDIA,1:;")], "is UUID,NVIDIA,MiB,percent"),
        (&[(HAMI, "GPU-a,MLU,1,0:;")], "is UUID,NVIDIA,MiB,percent"),
        (&[(HAMI, ",NVIDIA,1,0:;")], "is UUID,NVIDIA,MiB,percent"),
        (&[(HAMI, "GPU-a,NVIDIA,0,0:;")], "no number of MiB"),
        (
            &[(HAMI, "GPU-a,NVIDIA,17592186044416,0:;")],
            "no number of MiB",
        ),
        (
            &[(HAMI, "GPU-a,NVIDIA,1,101:;")],
            "is UUID,NVIDIA,MiB,percent",
        ),
        (
            &[(HAMI, "GPU-a,NVIDIA,1,0:;"), (LIMIT, "1Gi")],
            "both ask for container main",
        ),
    ] {
        let error = format!("{:#}", main_of(pairs, "").expect_err(&format!("{pairs:?}")));
        assert!(error.contains(says), "{pairs:?}: {error}");
    }
    for (key, value, says) in [
        (
            "gpu-memory",
            "2Gi",
            "gpu-memory: \"2Gi\" is no number of MiB",
        ),
        ("gpu-memory", "0", "is no number of MiB"),
        ("gpu-memory", "+1", "is no number of MiB"),
        (
            "gpu-fraction",
            "50%",
            "gpu-fraction: \"50%\" is no fraction",
        ),
    ] {
        let pairs = [(key, value), ("gpu-fraction-container-name", "main")];
        let error = format!("{:#}", main_of(&pairs, "").expect_err(value));
        assert!(error.contains(says), "{error}");
        // It is nobody else's mistake.
        assert_eq!(asks(&map(&pairs), "side", &[]).unwrap(), []);
    }
}
