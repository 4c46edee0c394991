// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Annotations of pods: the plugin beside a container runtime that the tests play.

#[allow(
    dead_code,
    unused_imports,
    reason = "not every test program needs all of it"
)]
mod common;

use std::fs;
use std::os::unix::fs::symlink;

use common::{pod, until, Node, Runtime};
use gct_device_plugin::nri::api::{Container, ContainerAdjustment, Hook, Hooks, PodSandbox};
use gctd::testing::Daemon;
use serde_json::json;

const ALLOWED: &str = "\
    [nri]\ngpus = [0]\ngmem.limit = '200M'\ngmem.low = '160M'\ngmem.pageable = 1\n\
    [profile.small]\ngpus = [1]\n";
const REQUEST: &str = "nvidia.com/container.main.gpu-memory.request";
const LIMIT: &str = "nvidia.com/container.main.gpu-memory.limit";
const PORTION: &str = "nvidia.com/container.main.gpu-compute.portion";
const GROUP: &str = "k8s_default_pod1_main_c1";

/// Starts the plugin of a node whose device nodes are some of the machine's.
fn node(test: &str, profiles: &str) -> Node {
    let mut node = Node::on(Daemon::with_memory(&format!("dp-nri-{test}"), 2), profiles);
    for name in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"] {
        let path = node.folder.join("dev").join(name);
        fs::remove_file(&path).unwrap();
        symlink("/dev/null", path).unwrap();
    }
    node.start_plugin();
    node
}

/// Starts what the runtime of a node creates by an adjustment. Returns whether it may run.
fn starts(node: &Node, n: u32, adjust: &ContainerAdjustment) -> bool {
    node.make(n);
    let hooks = adjust.hooks.as_ref().unwrap();
    let json = |hook: &Hook| json!({ "path": hook.path, "args": hook.args });
    hooks
        .create_runtime
        .iter()
        .all(|hook| node.hook(&json(hook), n))
}

#[tokio::test]
async fn a_container_gets_what_its_pod_s_annotations_say() {
    let node = node("limits", ALLOWED);
    let mut runtime = Runtime::start(&node.folder.join("nri.sock"), &[]).await;
    let asks = [(REQUEST, "64Mi"), (LIMIT, "128Mi"), (PORTION, "0.5")];
    let adjust = runtime.create(pod(1, &asks)).await.unwrap().unwrap();
    let devices = &adjust.linux.as_ref().unwrap().devices;
    let paths: Vec<&str> = devices.iter().map(|device| device.path.as_str()).collect();
    assert_eq!(paths, ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"]);
    assert_eq!(
        (devices[0].kind.as_str(), devices[0].major, devices[0].minor),
        ("c", 1, 3)
    );
    let variable = |name| {
        adjust
            .env
            .iter()
            .find(|variable| variable.key == name)
            .unwrap()
    };
    assert_eq!(variable("NVIDIA_VISIBLE_DEVICES").value, "void");
    assert_eq!(
        variable("GCTGROUP_SOCKET").value,
        "/run/gctgroup/tenants/gctd.sock"
    );
    let mut mounts = adjust.mounts.iter().map(|mount| mount.destination.as_str());
    assert!(mounts.any(|path| path == "/usr/lib/gctgroup/libgct_preload.so"));
    assert_eq!(adjust.hooks.as_ref().unwrap().poststop.len(), 1);

    assert!(starts(&node, 1, &adjust));
    let preloads = node.file("bundles/1/rootfs/etc/ld.so.preload");
    assert_eq!(preloads, "/usr/lib/gctgroup/libgct_preload.so\n");
    assert_eq!(node.read(&format!("{GROUP}/group.cgroup")), "/kubepods/c1");
    for (file, value) in [
        ("gmem.limit", "134217728"),
        ("gmem.low", "67108864"),
        ("gmem.pageable", "1"),
        ("compute.max", "10000 20000"),
    ] {
        assert_eq!(node.read(&format!("{GROUP}/0/{file}")), value, "{file}");
    }
    // Its cgroup is still there, so nobody but the runtime says that it has ended.
    runtime.stopped(pod(1, &asks)).await;
    until("the group is gone", || node.groups().is_empty()).await;
    assert!(starts(&node, 1, &adjust));
    runtime.removed(pod(1, &asks)).await;
    until("the group is gone", || node.groups().is_empty()).await;
}

#[tokio::test]
async fn what_may_not_be_had_says_why_and_harms_nobody() {
    let node = node("refused", ALLOWED);
    let mut runtime = Runtime::start(&node.folder.join("nri.sock"), &[]).await;
    for (annotations, says) in [
        (
            &[(LIMIT, "201Mi")][..],
            "GPU 0: 210763776 bytes are asked for, and a container may have 209715200",
        ),
        (
            &[(REQUEST, "161Mi")],
            "a container may be guaranteed 167772160",
        ),
        (
            &[
                (LIMIT, "64M"),
                ("nvidia.com/container.main.gpus.devices", "1"),
            ],
            "\"1\" is no healthy GPU for annotations",
        ),
        (&[(LIMIT, "much")], "no whole number of bytes"),
        (
            &[
                (LIMIT, "64Mi"),
                ("gpu-memory", "64"),
                ("gpu-fraction-container-name", "main"),
            ],
            "both ask for container main",
        ),
    ] {
        let error = runtime.create(pod(1, annotations)).await.unwrap_err();
        assert!(
            error.starts_with("gctgroup: ") && error.contains(says),
            "{error}"
        );
    }
    assert_eq!(runtime.create(pod(2, &[])).await.unwrap(), None);
    let error = runtime.call("Dance", Vec::new()).await.unwrap_err();
    assert_eq!(error, "no method Dance");
    let error = runtime
        .call("CreateContainer", vec![255])
        .await
        .unwrap_err();
    assert!(error.contains("varint"), "{error}");
    // All of it over the same connection.
    let given = runtime.create(pod(1, &[(LIMIT, "64Mi")])).await.unwrap();
    assert!(given.is_some());
}

#[tokio::test]
async fn a_container_with_a_profile_s_device_keeps_its_profile() {
    let node = node("profile", ALLOWED);
    let mut runtime = Runtime::start(&node.folder.join("nri.sock"), &[]).await;
    let (pod, mut container) = pod(1, &[(LIMIT, "much")]);
    let edits = loop {
        if node.folder.join("cdi/gctgroup.dev_small.json").exists() {
            break node.edits("gctgroup.dev/small=gpu1");
        }
        tokio::task::yield_now().await;
    };
    let hook = &edits["hooks"][0];
    let args = hook["args"].as_array().unwrap().iter();
    container.hooks = Some(Hooks {
        create_runtime: vec![Hook {
            path: hook["path"].as_str().unwrap().to_owned(),
            args: args.map(|arg| arg.as_str().unwrap().to_owned()).collect(),
            timeout: None,
        }],
        poststop: vec![],
    });
    assert_eq!(runtime.create((pod, container)).await.unwrap(), None);
    until("it says so", || {
        let says = "default/pod1/main has a device of gctgroup: its annotations count for nothing";
        node.file("plugin.log").contains(says)
    })
    .await;
}

#[tokio::test]
async fn more_than_the_gpu_has_is_not_guaranteed() {
    let node = node("sum", ALLOWED);
    let mut runtime = Runtime::start(&node.folder.join("nri.sock"), &[]).await;
    let asks = [(REQUEST, "150Mi")];
    for n in [1, 2] {
        let adjust = runtime.create(pod(n, &asks)).await.unwrap().unwrap();
        // The GPU has 256 MiB.
        assert_eq!(starts(&node, n, &adjust), n == 1);
    }
    assert_eq!(node.groups(), [GROUP]);
    let adjust = runtime.create(pod(3, &[(REQUEST, "100Mi")])).await.unwrap();
    assert!(starts(&node, 3, &adjust.unwrap()));
    // What a container had that is gone is free.
    node.vanish(1);
    let adjust = runtime.create(pod(2, &asks)).await.unwrap().unwrap();
    assert!(starts(&node, 2, &adjust));
}

#[tokio::test]
async fn containers_that_run_are_adopted_and_a_runtime_may_start_anew() {
    let mut node = node("adopt", ALLOWED);
    let socket = node.folder.join("nri.sock");
    let running = [
        pod(2, &[]),
        pod(1, &[(LIMIT, "64Mi")]),
        pod(3, &[(LIMIT, "much")]),
    ];
    for n in 1..=3 {
        node.make(n);
    }
    let runtime = Runtime::start(&socket, &running).await;
    until("its group is made", || node.groups() == [GROUP]).await;
    until("its limit is set", || {
        node.read(&format!("{GROUP}/0/gmem.limit")) == "67108864"
    })
    .await;
    until("it says so", || {
        let log = node.file("plugin.log");
        log.contains("adopted default/pod1/main")
            && log.contains("default/pod3/main is not adopted")
    })
    .await;
    drop(runtime);
    let runtime = Runtime::start(&socket, &running).await;
    node.kill_plugin();
    drop(runtime);
    node.start_plugin();
    let mut runtime = Runtime::start(&socket, &running).await;
    assert_eq!(node.groups(), [GROUP]);
    runtime.stopped(running[1].clone()).await;
    until("the group is gone", || node.groups().is_empty()).await;
    // The plugin's second life found it with its group.
    assert!(!node.file("plugin.log").contains("adopted default/pod1"));
}

#[tokio::test]
async fn without_nri_in_the_profiles_nothing_registers() {
    let node = node("none", "[profile.small]\n");
    let socket = node.folder.join("nri.sock");
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    until("the plugin runs", || {
        node.folder.join("cdi/gctgroup.dev_small.json").exists()
    })
    .await;
    let waited = std::time::Duration::from_millis(300);
    assert!(tokio::time::timeout(waited, listener.accept())
        .await
        .is_err());
}

#[test]
fn a_gpu_is_for_annotations_or_for_a_profile() {
    let node = Node::new("nri-apart", "[nri]\n[profile.small]\ngpus = [1]\n");
    let output = node.command().output().unwrap();
    let says = String::from_utf8(output.stderr).unwrap();
    assert!(
        says.contains("GPU 1 is for annotations and for profile small"),
        "{says}"
    );
}

#[tokio::test]
async fn a_pod_may_come_in_a_later_message_than_its_container() {
    use gct_device_plugin::nri::api::SynchronizeRequest;
    use prost::Message as _;
    let node = node("split", ALLOWED);
    let mut runtime = Runtime::start(&node.folder.join("nri.sock"), &[]).await;
    node.make(1);
    let (p, c) = pod(1, &[(LIMIT, "64Mi")]);
    let (other, _) = pod(2, &[]);
    for (pods, containers, more) in [(vec![other], vec![c], true), (vec![p], vec![], false)] {
        let request = SynchronizeRequest {
            pods,
            containers,
            more,
        };
        runtime
            .call("Synchronize", request.encode_to_vec())
            .await
            .unwrap();
    }
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(node.groups(), [GROUP]);
}

#[tokio::test]
async fn a_container_of_annotations_is_no_other_s_when_the_plugin_registers_again() {
    let node = node("log", ALLOWED);
    let socket = node.folder.join("nri.sock");
    let mut runtime = Runtime::start(&socket, &[]).await;
    let asks = [(LIMIT, "64Mi")];
    let adjust = runtime.create(pod(1, &asks)).await.unwrap().unwrap();
    assert!(starts(&node, 1, &adjust));
    drop(runtime);
    let (p, mut c) = pod(1, &asks);
    c.hooks = adjust.hooks.clone();
    let _runtime = Runtime::start(&socket, &[(p, c)]).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let log = node.file("plugin.log");
    assert!(!log.contains("count for nothing"), "{log}");
}

#[tokio::test]
async fn a_pid_that_another_container_has_by_now_is_not_adopted() {
    let node = node("pid", ALLOWED);
    node.make(9);
    // Container c1 has ended, and its pid is one of c9.
    let (p, mut c) = pod(1, &[(LIMIT, "64Mi")]);
    c.pid = 9;
    let _runtime = Runtime::start(&node.folder.join("nri.sock"), &[(p, c)]).await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let bound: Vec<String> = node
        .groups()
        .iter()
        .map(|group| format!("{group} {}", node.read(&format!("{group}/group.cgroup"))))
        .collect();
    assert_eq!(bound, [""; 0]);
}

/// A pod that asks for a guarantee on some GPUs.
fn asks(n: u32, gpus: &str) -> (PodSandbox, Container) {
    let devices = "nvidia.com/container.main.gpus.devices";
    pod(n, &[(REQUEST, "150Mi"), (devices, gpus)])
}

#[tokio::test]
async fn a_container_that_runs_and_finds_no_slot_is_adopted_with_its_limit() {
    let node = node("half", "[nri]\ngpus = [0, 1]\nslots = 1\n");
    let (taken, both) = (asks(2, "1"), asks(1, "0,1"));
    for n in [1, 2] {
        node.make(n);
    }
    let _runtime = Runtime::start(&node.folder.join("nri.sock"), &[taken, both]).await;
    let says = "adopted default/pod1/main without its guarantee (1 so far): GPU 1 has 1 containers";
    until("it says so", || node.file("plugin.log").contains(says)).await;
    assert_eq!(node.groups().len(), 2);
    let limits = ["0/gmem.limit", "1/gmem.limit"].map(|file| node.read(&format!("{GROUP}/{file}")));
    assert_eq!(limits[0], limits[1]);
    assert_ne!(limits[0], "max");
}

#[tokio::test]
async fn a_container_is_adopted_with_its_limit_if_its_guarantee_cannot_be_had() {
    let profiles = "[nri]\ngpus = [0, 1]\ngmem.limit = '200M'\ngmem.low = '160M'\n";
    let node = node("low", profiles);
    // The GPU has 256 MiB.
    let (taken, both) = (asks(2, "1"), asks(1, "0,1"));
    for n in [1, 2] {
        node.make(n);
    }
    let mut runtime = Runtime::start(&node.folder.join("nri.sock"), &[taken, both.clone()]).await;
    until("it says so", || {
        let log = node.file("plugin.log");
        log.contains("adopted default/pod1/main without its guarantee (1 so far): GPU 1")
            && log.contains("adopted default/pod2/main: programs")
    })
    .await;
    let limits = ["0/gmem.limit", "0/gmem.low", "1/gmem.limit", "1/gmem.low"];
    let limits = limits.map(|file| node.read(&format!("{GROUP}/{file}")));
    let bytes = (150u64 << 20).to_string();
    assert_eq!(limits, [&bytes, &bytes, &bytes, "0"]);
    runtime.stopped(both).await;
    until("the group is gone", || node.groups().len() == 1).await;
}

#[tokio::test]
async fn a_gpu_has_so_many_containers_by_annotations_and_one_more_does_not_start() {
    let node = node("slots", &ALLOWED.replace("[nri]", "[nri]\nslots = 2"));
    let mut runtime = Runtime::start(&node.folder.join("nri.sock"), &[]).await;
    let starts = async |runtime: &mut Runtime, n| {
        let adjust = runtime.create(pod(n, &[(LIMIT, "1Mi")])).await.unwrap();
        starts(&node, n, &adjust.unwrap())
    };
    for n in 1..=4 {
        assert_eq!(starts(&mut runtime, n).await, n <= 2, "{n}");
    }
    assert_eq!(node.groups().len(), 2);
    // The first two go on, and what one had is free.
    runtime.stopped(pod(1, &[])).await;
    until("the group is gone", || node.groups().len() == 1).await;
    assert!(starts(&mut runtime, 3).await);
    assert!(!starts(&mut runtime, 4).await);
}
