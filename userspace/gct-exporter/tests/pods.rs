// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Groups of pods' containers have the names that the kubelet says. Without it they lack these
//! labels and nothing else.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::openmetrics::Page;
use common::Exporter;
use gct_kubelet::api::{ContainerResources, PodResources};
use gct_kubelet::testing::Lister;
use gctd::testing::Daemon;
use tokio::runtime;
use tokio::task::JoinHandle;

/// Most time until something is seen. The exporter asks every 5 s.
const WAIT: Duration = Duration::from_secs(120);
const WEB: &str = "k8s_default_web-0_server_3b5f0c1d9e8a";
const UP: &str = "gctgroup_exporter_kubelet_up";

fn pod(namespace: &str, name: &str, container: &str) -> PodResources {
    let container = ContainerResources {
        name: container.to_owned(),
        devices: vec![],
    };
    PodResources {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        containers: vec![container],
    }
}

/// Starts a kubelet at a socket.
fn start(socket: &Path, pods: Vec<PodResources>) -> JoinHandle<()> {
    let _ = fs::remove_file(socket);
    let lister = Lister::default();
    lister.set(pods);
    lister.serve(socket)
}

/// A daemon with two groups, and an exporter that asks at a socket.
struct Node {
    daemon: Daemon,
    socket: PathBuf,
}

impl Node {
    fn new(test: &str) -> Self {
        let daemon = Daemon::new(test, 1);
        let admin = daemon.client();
        for group in [WEB, "byhand"] {
            admin.write("control", format!("create {group}")).unwrap();
        }
        let socket = daemon.directory.join("kubelet.sock");
        Self { daemon, socket }
    }

    fn exporter(&self) -> Exporter {
        self.exporter_with(&[])
    }

    fn exporter_with(&self, options: &[&str]) -> Exporter {
        let mut all = vec![
            "--dir".as_ref(),
            self.daemon.directory.as_os_str(),
            "--pod-resources".as_ref(),
            self.socket.as_os_str(),
        ];
        all.extend(options.iter().map(OsStr::new));
        Exporter::new(&all)
    }
}

fn block_on(future: impl Future<Output = ()>) {
    let mut builder = runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(future);
}

/// Waits for a page on which something is seen. The kubelet answers meanwhile.
async fn until(exporter: &Exporter, what: &str, seen: impl Fn(&Page) -> bool) -> Page {
    let started = Instant::now();
    loop {
        let page = exporter.page();
        if seen(&page) {
            return page;
        }
        assert!(started.elapsed() < WAIT, "{what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns the identity of a group without and with its pod.
fn info(group: &str, names: &str) -> String {
    format!(
        "gctgroup_group_info{{cgroup=\"\",{}container_id=\"\",group=\"{group}\",{}pod_uid=\"\",qos=\"\"}}",
        if names.is_empty() { "" } else { "container=\"server\"," },
        names
    )
}

#[test]
fn a_group_has_the_names_of_its_pod_also_after_the_kubelet_has_gone() {
    let node = Node::new("exporter-pods");
    let named = info(WEB, "namespace=\"default\",pod=\"web-0\",");
    let bare = info("byhand", "");
    block_on(async {
        let others = [pod("default", "web-1", "server"), pod("", "", "")];
        let pods = [pod("default", "web-0", "server")].into_iter();
        let kubelet = start(&node.socket, pods.chain(others).collect());
        let exporter = node.exporter();
        let page = until(&exporter, "an answer", |page| page.get(UP) == Some(1.0)).await;
        assert_eq!(page.series("gctgroup_group_info"), [&*named, &*bare]);
        kubelet.abort();
        fs::remove_file(&node.socket).unwrap();
        let page = until(&exporter, "its end", |page| page.get(UP) == Some(0.0)).await;
        assert_eq!(page.series("gctgroup_group_info"), [&*named, &*bare]);
        // It comes back without the pod.
        let _kubelet = start(&node.socket, vec![]);
        let page = until(&exporter, "an answer", |page| page.get(UP) == Some(1.0)).await;
        assert_eq!(page.series("gctgroup_group_info"), [bare, info(WEB, "")]);
    });
}

#[test]
fn with_dcgms_labels_a_sample_names_gpu_and_pod() {
    let node = Node::new("exporter-dcgm");
    let gpu = "UUID=\"GPU-00112233-4455-6677-8899-aabbccddeef0\",";
    let model = "modelName=\"NVIDIA H200\"";
    let pod = "namespace=\"default\",pod=\"web-0\"";
    block_on(async {
        let pods = vec![self::pod("default", "web-0", "server")];
        let _kubelet = start(&node.socket, pods);
        let exporter = node.exporter_with(&["--dcgm-labels"]);
        let page = until(&exporter, "an answer", |page| page.get(UP) == Some(1.0)).await;
        let is = |metric: &str, series: &[String]| assert_eq!(page.series(metric), series);
        is(
            "gctgroup_gpu_tpcs",
            &[format!("gctgroup_gpu_tpcs{{{gpu}gpu=\"0\",{model}}}")],
        );
        let metric = "gctgroup_group_memory_usage_bytes";
        is(
            metric,
            &[
                format!(
                    "{metric}{{{gpu}container=\"server\",gpu=\"0\",group=\"{WEB}\",{model},{pod}}}"
                ),
                format!("{metric}{{{gpu}gpu=\"0\",group=\"byhand\",{model}}}"),
            ],
        );
        let metric = "gctgroup_group_processes";
        is(
            metric,
            &[
                format!("{metric}{{container=\"server\",group=\"{WEB}\",{pod}}}"),
                format!("{metric}{{group=\"byhand\"}}"),
            ],
        );
        // Who joins with the identities goes on.
        let named = info(WEB, "namespace=\"default\",pod=\"web-0\",");
        is("gctgroup_group_info", &[named, info("byhand", "")]);
        // Series are what they were without the option.
        let plain = node.exporter().page();
        let metric = "gctgroup_group_memory_usage_bytes";
        let bare = [WEB, "byhand"].map(|group| format!("{metric}{{gpu=\"0\",group=\"{group}\"}}"));
        let mut found = plain.series(metric).to_vec();
        found.sort();
        let mut bare = bare.to_vec();
        bare.sort();
        assert_eq!(found, bare);
    });
}

#[test]
fn a_kubelet_that_is_not_there_or_hangs_costs_the_labels_alone() {
    let node = Node::new("exporter-no-kubelet");
    let without = [info("byhand", ""), info(WEB, "")];
    block_on(async {
        let exporter = node.exporter();
        let page = until(&exporter, "no answer", |page| page.get(UP) == Some(0.0)).await;
        assert_eq!(page.get("gctgroup_up"), Some(1.0));
        assert_eq!(page.get("gctgroup_exporter_read_errors_total"), Some(0.0));
        assert_eq!(page.series("gctgroup_group_info"), without);
    });
    // It takes connections and says nothing. The page comes meanwhile.
    let _hangs = std::os::unix::net::UnixListener::bind(&node.socket).unwrap();
    let page = node.exporter().page();
    assert_eq!(page.get("gctgroup_up"), Some(1.0));
    assert_eq!(page.series("gctgroup_group_info"), without);
    assert_ne!(page.get(UP), Some(1.0));
}
