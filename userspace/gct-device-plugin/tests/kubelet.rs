// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The plugin beside a kubelet that restarts, empties its folder and forgets, on a daemon's tree.

#[allow(
    dead_code,
    unused_imports,
    reason = "not every test program needs all of it"
)]
mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{until, Behaviour, Kubelet, Node, WAIT};
use gct_kubelet::api::{ContainerDevices, ContainerResources, PodResources};
use tonic::Code;

const PROFILES: &str = "\
    [profile.small]\nslots = 4\ngpus = [0]\ntpc.quota = 8\ngmem.limit = '1G'\n\
    [profile.wide]\nslots = 2\nplace = 'pack'\ntpc.quota = 4\n";
const SMALL: &str = "gctgroup.dev/small";
const WIDE: &str = "gctgroup.dev/wide";

/// Starts a node's plugin and a kubelet that knows it.
async fn started(test: &str) -> (Node, Kubelet) {
    let mut node = Node::new(test, PROFILES);
    let kubelet = Kubelet::start(&node.kubelet_folder(), Behaviour::Proper);
    node.start_plugin();
    kubelet.until_healthy(SMALL, 4).await;
    kubelet.until_healthy(WIDE, 4).await;
    (node, kubelet)
}

#[tokio::test]
async fn a_container_gets_the_limits_of_its_profile() {
    let (node, kubelet) = started("limits").await;
    let (devices, names) = kubelet.admit(SMALL, 1).await.unwrap();
    assert_eq!(
        (devices[0].as_str(), names[0].as_str()),
        ("gpu0-0", "gctgroup.dev/small=gpu0")
    );
    assert!(node.create(1, &names));
    let preloads = node.folder.join("bundles/1/rootfs/etc/ld.so.preload");
    assert_eq!(
        std::fs::read_to_string(preloads).unwrap(),
        "/usr/lib/gctgroup/libgct_preload.so\n"
    );
    let group = "k8s_default_pod1_main_c1";
    assert_eq!(node.groups(), [group]);
    assert_eq!(node.read(&format!("{group}/group.cgroup")), "/kubepods/c1");
    assert_eq!(node.read(&format!("{group}/0/gmem.limit")), "1073741824");
    assert_eq!(node.read(&format!("{group}/0/tpc.quota")), "8");
    assert_eq!(node.read(&format!("{group}/1/tpc.quota")), "none");
    assert!(node.stop(1, &names));
    assert_eq!(node.groups(), [] as [&str; 0]);
}

#[tokio::test]
async fn a_container_has_slots_of_different_gpus() {
    let (node, kubelet) = started("gpus").await;
    let (devices, names) = kubelet.admit(WIDE, 2).await.unwrap();
    assert_eq!(devices, ["gpu0-0", "gpu1-0"]);
    assert!(node.create(1, &names));
    assert_eq!(node.read("k8s_default_pod1_main_c1/0/tpc.quota"), "4");
    assert_eq!(node.read("k8s_default_pod1_main_c1/1/tpc.quota"), "4");
    // This profile has one GPU only.
    let refused = kubelet.admit(SMALL, 2).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("one slot of a GPU"), "{refused}");
}

/// Two containers of one profile run on GPU 0, three of another on GPU 1.
#[tokio::test]
async fn a_container_that_runs_counts_once() {
    let profiles = "[profile.light]\nslots = 3\n[profile.heavy]\nslots = 3\n";
    let mut node = Node::new("once", profiles);
    let kubelet = Kubelet::start(&node.kubelet_folder(), Behaviour::Proper);
    node.start_plugin();
    kubelet.until_healthy("gctgroup.dev/light", 6).await;
    let devices = [
        "light=gpu0",
        "light=gpu0",
        "heavy=gpu1",
        "heavy=gpu1",
        "heavy=gpu1",
    ];
    for (n, device) in (1..).zip(devices) {
        assert!(node.create(n, &[format!("gctgroup.dev/{device}")]));
    }
    let free = ["gpu0-2", "gpu1-0", "gpu1-1", "gpu1-2"].map(str::to_owned);
    // The plugin sees the containers one after the other, and those on GPU 1 last.
    let started = Instant::now();
    while kubelet
        .preferred("gctgroup.dev/light", &free, 1)
        .await
        .unwrap()
        != ["gpu0-2"]
    {
        assert!(started.elapsed() < WAIT, "GPU 0 has fewer tenants");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn one_too_many_waits_until_another_goes() {
    let (node, kubelet) = started("full").await;
    let mut all = Vec::new();
    for n in 1..=4 {
        let (devices, names) = kubelet.admit(SMALL, 1).await.unwrap();
        assert!(node.create(n, &names));
        all.push((devices, names));
    }
    assert_eq!(node.groups().len(), 4);
    let refused = kubelet.admit(SMALL, 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    // The second goes, and its runtime forgets the hook.
    node.vanish(2);
    kubelet.free(SMALL, &all[1].0);
    let (devices, names) = kubelet.admit(SMALL, 1).await.unwrap();
    assert_eq!(devices, all[1].0);
    assert!(node.create(5, &names));
    until("the old group is gone", || node.groups().len() == 4).await;
    assert!(!node
        .groups()
        .contains(&"k8s_default_pod2_main_c2".to_owned()));
}

#[tokio::test]
async fn a_kubelet_that_restarts_has_the_plugin_again() {
    let (node, mut kubelet) = started("restart").await;
    let names = kubelet.admit(SMALL, 1).await.unwrap().1;
    assert!(node.create(1, &names));
    for _ in 0..5 {
        drop(kubelet);
        kubelet = Kubelet::start(&node.kubelet_folder(), Behaviour::Proper);
        kubelet.until_healthy(SMALL, 4).await;
        kubelet.until_healthy(WIDE, 4).await;
    }
    assert_eq!(node.groups().len(), 1, "what runs is not touched");
    kubelet.admit(SMALL, 1).await.unwrap();
}

#[tokio::test]
async fn the_plugin_waits_for_a_node_s_first_kubelet() {
    let mut node = Node::new("first", PROFILES);
    let folder = node.kubelet_folder().join("device-plugins");
    fs::remove_dir(&folder).unwrap();
    node.start_plugin();
    let waits = format!("{SMALL}: waits for a kubelet to make {}", folder.display());
    until("it says so", || node.file("plugin.log").contains(&waits)).await;
    fs::create_dir(&folder).unwrap();
    let kubelet = Kubelet::start(&node.kubelet_folder(), Behaviour::Proper);
    kubelet.until_healthy(SMALL, 4).await;
    let log = node.file("plugin.log");
    assert_eq!(log.matches(&waits).count(), 1, "{log}");
    assert!(!log.contains("cannot serve"), "{log}");
}

#[tokio::test]
async fn a_kubelet_that_empties_its_folder_has_the_plugin_again() {
    let (node, kubelet) = started("emptied").await;
    fs::remove_file(node.endpoint("small")).unwrap();
    until("the plugin registers again", || {
        kubelet.registrations() == 3
    })
    .await;
    kubelet.until_healthy(SMALL, 4).await;
    assert!(node.endpoint("small").exists());
    kubelet.admit(SMALL, 1).await.unwrap();
}

#[tokio::test]
async fn a_registration_whose_socket_was_deleted_is_repeated() {
    let mut node = Node::new("race", "[profile.small]\nslots = 4\n");
    node.start_plugin();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let kubelet = Kubelet::start(&node.kubelet_folder(), Behaviour::EmptiesOnce);
    kubelet.until_healthy(SMALL, 8).await;
    assert_eq!(kubelet.registrations(), 2);
}

#[tokio::test]
async fn a_registration_that_the_kubelet_forgets_is_repeated() {
    let mut node = Node::new("forgets", "[profile.small]\nslots = 4\n");
    let kubelet = Kubelet::start(&node.kubelet_folder(), Behaviour::ForgetsOnce);
    node.start_plugin();
    kubelet.until_healthy(SMALL, 8).await;
    assert_eq!(kubelet.registrations(), 2);
}

#[tokio::test]
async fn a_plugin_that_crashes_finds_its_groups_and_removes_those_of_ended_containers() {
    let (mut node, kubelet) = started("crash").await;
    let mut names = Vec::new();
    for n in 1..=3 {
        names = kubelet.admit(SMALL, 1).await.unwrap().1;
        assert!(node.create(n, &names));
    }
    node.kill_plugin();
    kubelet.until_healthy(SMALL, 0).await;
    // Without the plugin, hooks work. One container ends in order, one does not.
    assert!(node.create(4, &names));
    assert!(node.stop(1, &names));
    node.vanish(2);
    assert_eq!(node.groups().len(), 3);
    node.start_plugin();
    kubelet.until_healthy(SMALL, 4).await;
    let left = ["k8s_default_pod3_main_c3", "k8s_default_pod4_main_c4"];
    until("the ended container's group is gone", || {
        node.groups() == left
    })
    .await;
    assert_eq!(node.read(&format!("{}/0/tpc.quota", left[0])), "8");
}

#[tokio::test]
async fn a_removed_profile_cannot_be_had_and_its_containers_run_on() {
    let (mut node, kubelet) = started("removed").await;
    let names = kubelet.admit(SMALL, 1).await.unwrap().1;
    assert!(node.create(1, &names));
    node.kill_plugin();
    // Another program's, and no spec at all.
    let others = [
        ("gctgroup.dev_made.json", r#"{"kind":"example.com/made"}"#),
        ("gctgroup.dev_broken.json", "{"),
        ("example.json", r#"{"kind":"gctgroup.dev/example"}"#),
    ];
    let path = |file: &str| node.folder.join("cdi").join(file);
    for (file, text) in others {
        fs::write(path(file), text).unwrap();
    }
    let (_, wide) = PROFILES.split_once("[profile.wide]").unwrap();
    let profiles = format!("[profile.wide]{wide}[profile.tiny]\ntpc.quota = 2\n");
    fs::write(node.folder.join("profiles.toml"), profiles).unwrap();
    let removed = path("gctgroup.dev_small.json");
    assert!(removed.exists());
    node.start_plugin();
    kubelet.until_healthy("gctgroup.dev/tiny", 2).await;
    assert!(!removed.exists());
    for file in ["gctgroup.dev_wide.json", "gctgroup.dev_tiny.json"] {
        assert!(node.folder.join("cdi").join(file).exists(), "{file}");
    }
    for (file, text) in others {
        assert_eq!(node.file(&format!("cdi/{file}")), text);
    }
    // What runs keeps its limits, also when the daemon starts anew, until it ends.
    let group = "k8s_default_pod1_main_c1";
    node.daemon.reboot();
    until("the group is back", || node.groups() == [group]).await;
    until("its limit is back", || {
        node.read(&format!("{group}/0/tpc.quota")) == "8"
    })
    .await;
    node.vanish(1);
    until("the group is gone", || node.groups().is_empty()).await;
}

#[tokio::test]
async fn what_is_left_of_an_unknown_pod_goes() {
    let (node, kubelet) = started("pods").await;
    let names = kubelet.admit(SMALL, 1).await.unwrap().1;
    assert!(node.create(1, &names));
    let devices = ContainerDevices {
        resource_name: SMALL.to_owned(),
        device_ids: vec!["gpu0-0".to_owned()],
    };
    kubelet.set_pods(vec![PodResources {
        name: "pod1".to_owned(),
        namespace: "default".to_owned(),
        containers: vec![ContainerResources {
            name: "main".to_owned(),
            devices: vec![devices],
        }],
    }]);
    fs::write(
        node.folder.join("cgroups/kubepods/c1/cgroup.events"),
        "populated 0\n",
    )
    .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(node.groups().len(), 1, "the kubelet knows it");
    kubelet.set_pods(vec![]);
    until("the group is gone", || node.groups().is_empty()).await;
}

#[tokio::test]
async fn without_the_tree_no_device_is_healthy_and_its_groups_come_back() {
    let (mut node, kubelet) = started("tree").await;
    let names = kubelet.admit(SMALL, 1).await.unwrap().1;
    assert!(node.create(1, &names));
    node.daemon.stop();
    kubelet.until_healthy(SMALL, 0).await;
    assert_eq!(kubelet.devices(SMALL), 4);
    assert!(
        !node.create(2, &names),
        "no container starts without its limits"
    );
    node.vanish(2);
    node.daemon.reboot();
    kubelet.until_healthy(SMALL, 4).await;
    let group = "k8s_default_pod1_main_c1";
    until("the group is back", || node.groups() == [group]).await;
    until("its limit is back", || {
        node.read(&format!("{group}/0/tpc.quota")) == "8"
    })
    .await;
}

#[tokio::test]
async fn a_gpu_whose_node_goes_is_unhealthy() {
    let (node, kubelet) = started("node").await;
    let path = node.folder.join("dev/nvidia0");
    fs::remove_file(&path).unwrap();
    kubelet.until_healthy(SMALL, 0).await;
    kubelet.until_healthy(WIDE, 2).await;
    assert_eq!(kubelet.healthy(WIDE), ["gpu1-0", "gpu1-1"]);
    fs::write(&path, "").unwrap();
    kubelet.until_healthy(SMALL, 4).await;
}

#[tokio::test]
async fn a_gpu_that_nvml_wants_recovered_is_unhealthy_until_it_is() {
    let mut node = Node::new("needs", PROFILES);
    let told = node.install_nvml().join("needs.0000:00:00.0");
    fs::write(&told, "2").unwrap();
    let kubelet = Kubelet::start(&node.kubelet_folder(), Behaviour::Proper);
    node.start_plugin();
    kubelet.until_healthy(WIDE, 2).await;
    assert_eq!(kubelet.healthy(SMALL).len(), 0);
    assert_eq!(kubelet.healthy(WIDE), ["gpu1-0", "gpu1-1"]);
    // It is too sick to say so again.
    fs::write(told.with_file_name("sick.0000:00:00.0"), "").unwrap();
    fs::remove_file(&told).unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(kubelet.healthy(SMALL).len(), 0);
    fs::remove_file(told.with_file_name("sick.0000:00:00.0")).unwrap();
    kubelet.until_healthy(SMALL, 4).await;
}

#[tokio::test]
async fn a_plugin_that_is_stopped_leaves_the_containers() {
    let (mut node, kubelet) = started("stop").await;
    let names = kubelet.admit(SMALL, 1).await.unwrap().1;
    assert!(node.create(1, &names));
    assert!(node.stop_plugin());
    assert!(!node.endpoint("small").exists() && !node.endpoint("wide").exists());
    assert_eq!(node.groups().len(), 1);
    kubelet.until_healthy(SMALL, 0).await;
}

#[test]
fn profiles_that_do_not_fit_do_not_start() {
    let node = Node::new("profiles", "[profile.small]\nslots = 9\ntpc.quota = 8\n");
    let output = node.command().output().unwrap();
    assert!(!output.status.success());
    let says = String::from_utf8(output.stderr).unwrap();
    assert!(says.contains("are 72 TPCs, and it has 66"), "{says}");
}

#[tokio::test]
async fn what_nvml_said_last_holds_when_it_cannot_be_loaded() {
    let mut node = Node::new("needs", PROFILES);
    let told = node.install_nvml().join("needs.0000:00:00.0");
    fs::write(&told, "2").unwrap();
    let kubelet = Kubelet::start(&node.kubelet_folder(), Behaviour::Proper);
    node.start_plugin();
    kubelet.until_healthy(WIDE, 2).await;
    assert_eq!(kubelet.healthy(SMALL).len(), 0);
    let library = node
        .folder
        .join("driver/usr/lib64/libnvidia-ml.so.580.65.06");
    fs::write(library.with_extension("new"), "none").unwrap();
    fs::rename(library.with_extension("new"), &library).unwrap();
    until("a message", || {
        node.file("plugin.log").contains("cannot be used")
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(
        kubelet.healthy(SMALL).len(),
        0,
        "it needs a reboot all the same"
    );
}
