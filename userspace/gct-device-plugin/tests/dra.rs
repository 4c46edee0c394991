// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Claims: the plugin beside an API server and a kubelet that the tests play.

#[allow(
    dead_code,
    unused_imports,
    reason = "not every test program needs all of it"
)]
mod common;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use common::{until, ApiServer, Node};
use gct_device_plugin::dra::api::services::registration::registration_client::RegistrationClient;
use gct_device_plugin::dra::api::services::{v1, v1beta1};
use gct_device_plugin::dra::api::*;
use rustix::process::{kill_process, Signal};
use serde_json::{json, Value};
use tonic::transport::{Channel, Endpoint};

const PROFILES: &str = "[dra]\ngpus = [0, 1]\n";

/// The slice, for the job `kubernetes`, which checks it against the published schema.
const GOLDEN: &str = "../../tests/kubernetes/resourceslice.json";

struct Cluster {
    node: Node,
    api: ApiServer,
}

/// Connects to a socket, as soon as somebody serves there. One that crashed leaves its file.
async fn connect(path: PathBuf) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
    for _ in 0..1000 {
        if let Ok(channel) = endpoint.connect().await {
            return channel;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody serves at {}", path.display());
}

impl Cluster {
    /// Starts the plugin; the API server has its slice.
    async fn start(test: &str) -> Self {
        let cluster = Self::start_plugin(test, |_| {}).await;
        cluster.until_devices(2).await;
        cluster
    }

    /// Starts the plugin on a node that is prepared by a function.
    async fn start_plugin(test: &str, prepare: impl Fn(&Node)) -> Self {
        Self::start_with(test, PROFILES, prepare).await
    }

    async fn start_with(test: &str, profiles: &str, prepare: impl Fn(&Node)) -> Self {
        let api = ApiServer::start("node1").await;
        let mut node = Node::new(&format!("dra-{test}"), profiles);
        prepare(&node);
        fs::write(node.folder.join("token"), "secret\n").unwrap();
        node.arguments = ["--node", "node1", "--api-server", &api.url, "--api-token"]
            .map(str::to_owned)
            .into();
        let token = node.folder.join("token");
        node.arguments.push(token.display().to_string());
        node.start_plugin();
        Self { node, api }
    }

    /// Returns the taint of each device of the slice: `value effect`, or nothing.
    fn taints(&self) -> Vec<String> {
        let slices = self.api.slices();
        let devices = slices
            .first()
            .and_then(|slice| slice["spec"]["devices"].as_array());
        let taint = |device: &Value| {
            let taint = &device["taints"][0];
            match taint["key"].as_str() {
                Some("gctgroup.dev/unhealthy") => format!("{} {}", taint["value"], taint["effect"]),
                _ => String::new(),
            }
        };
        devices.into_iter().flatten().map(taint).collect()
    }

    async fn until_tainted(&self, taints: [&str; 2]) {
        let wanted = taints.map(|value| match value {
            "" => String::new(),
            value => format!("\"{value}\" \"NoSchedule\""),
        });
        until(&format!("{taints:?}"), || self.taints() == wanted).await;
    }

    async fn until_devices(&self, count: usize) {
        until(&format!("a slice with {count} devices"), || {
            let slices = self.api.slices();
            let devices = |slice: &Value| slice["spec"]["devices"].as_array().unwrap().len();
            slices.len() == 1 && devices(&slices[0]) == count
        })
        .await;
    }

    /// Does what the kubelet's plugin watcher does with a new socket. Returns the endpoint.
    async fn register(&self) -> PathBuf {
        let socket = self
            .node
            .kubelet_folder()
            .join("plugins_registry/gctgroup.dev-reg.sock");
        let mut client = RegistrationClient::new(connect(socket).await);
        let info = client.get_info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!(
            (info.kind.as_str(), info.name.as_str()),
            ("DRAPlugin", "gctgroup.dev")
        );
        assert_eq!(
            info.supported_versions,
            ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        );
        let status = RegistrationStatus {
            plugin_registered: true,
            error: String::new(),
        };
        client.notify_registration_status(status).await.unwrap();
        info.endpoint.into()
    }

    async fn kubelet(&self) -> v1::d_r_a_plugin_client::DRAPluginClient<Channel> {
        v1::d_r_a_plugin_client::DRAPluginClient::new(connect(self.register().await).await)
    }

    /// Allocates a claim and prepares it. Returns its CDI devices, or why there are none.
    async fn prepare(&self, name: &str, results: Value) -> Result<Vec<String>, String> {
        self.api.allocate(name, &format!("uid-{name}"), results);
        self.prepare_allocated(name).await
    }

    async fn prepare_allocated(&self, name: &str) -> Result<Vec<String>, String> {
        let answer = self
            .kubelet()
            .await
            .node_prepare_resources(request(name))
            .await
            .unwrap();
        let mut claims = answer.into_inner().claims;
        let claim = claims.remove(&format!("uid-{name}")).unwrap();
        if !claim.error.is_empty() {
            assert!(claim.devices.is_empty());
            return Err(claim.error);
        }
        for device in &claim.devices {
            let request = &device.request_names[..];
            assert_eq!((device.pool_name.as_str(), request.len()), ("node1", 1));
            assert_eq!(device.share_id, Some(format!("share-of-{}", request[0])));
        }
        let devices = claim.devices.into_iter();
        Ok(devices.flat_map(|device| device.cdi_device_ids).collect())
    }
}

fn request(name: &str) -> ClaimsRequest {
    ClaimsRequest {
        claims: vec![Claim {
            namespace: "default".to_owned(),
            uid: format!("uid-{name}"),
            name: name.to_owned(),
        }],
    }
}

fn result(gpu: u32, memory: &str, tpcs: &str) -> Value {
    named(&format!("gpu{gpu}"), gpu, memory, tpcs)
}

/// Returns what the scheduler gave a request.
fn named(request: &str, gpu: u32, memory: &str, tpcs: &str) -> Value {
    json!({
        "request": request,
        "driver": "gctgroup.dev",
        "pool": "node1",
        "device": format!("gpu{gpu}"),
        "shareID": format!("share-of-{request}"),
        "consumedCapacity": { "memory": memory, "tpcs": tpcs },
    })
}

#[tokio::test]
async fn the_slice_offers_the_gpus_and_comes_back() {
    let cluster = Cluster::start_plugin("slice", |node| {
        node.install_nvml();
        let gpu = node.folder.join("sys/bus/pci/devices/0000:01:00.0");
        fs::create_dir_all(&gpu).unwrap();
        fs::write(gpu.join("numa_node"), "1\n").unwrap();
    });
    let cluster = cluster.await;
    cluster.until_devices(2).await;
    let mut slice = cluster.api.slices().remove(0);
    slice["metadata"]["resourceVersion"].take();
    let text = format!("{slice:#}\n");
    if std::env::var_os("GCT_BLESS").is_some() {
        fs::write(GOLDEN, &text).unwrap();
    }
    assert_eq!(
        fs::read_to_string(GOLDEN).unwrap(),
        text,
        "GCT_BLESS=1 writes it anew"
    );
    // Nothing changes, and nothing is written.
    cluster.register().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(cluster.api.slices()[0]["metadata"]["resourceVersion"], "1");
    // A GPU whose node goes has a taint. Without the node of UVM all have.
    let uvm = "uvm-missing";
    for (generation, node, taints) in [
        (2, "dev/nvidia1", ["", "node-gone"]),
        (4, "dev/nvidia-uvm", [uvm, uvm]),
    ] {
        let path = cluster.node.folder.join(node);
        fs::remove_file(&path).unwrap();
        cluster.until_tainted(taints).await;
        let pool = &cluster.api.slices()[0]["spec"]["pool"];
        assert_eq!(pool["generation"], generation);
        fs::write(&path, "").unwrap();
        cluster.until_tainted(["", ""]).await;
    }
    // A kubelet that starts deletes the slices of its node and registers the driver.
    cluster.api.delete_slices();
    cluster.register().await;
    cluster.until_devices(2).await;
}

#[tokio::test]
async fn a_gpu_that_nvml_wants_recovered_gets_no_claim_until_it_is() {
    let cluster = Cluster::start_plugin("needs", |node| {
        node.install_nvml();
    });
    let cluster = cluster.await;
    cluster.until_devices(2).await;
    let told = cluster.node.folder.join("nvml");
    let open = told.join("open");
    until("NVML to be open", || open.exists()).await;
    // Files appear whole.
    let tell = |name: &str, text: &str| {
        fs::write(told.join("new"), text).unwrap();
        fs::rename(told.join("new"), told.join(name)).unwrap();
    };
    for (name, text, taint) in [
        ("needs.0000:01:00.0", "1", "gpu-reset"),
        ("needs.0000:01:00.0", "4", "drain-and-reset"),
        ("needs.0000:01:00.0", "77", "action-77"),
        ("lost.0000:01:00.0", "", "gpu-lost"),
    ] {
        tell(name, text);
        cluster.until_tainted(["", taint]).await;
        // It stands in nobody's way who resets the GPU.
        until("NVML to be closed", || !open.exists()).await;
    }
    let refused = cluster.prepare("late", json!([result(1, "1Gi", "8")]));
    let error = refused.await.unwrap_err();
    assert!(error.contains("GPU 1 is not healthy: gpu-lost"), "{error}");
    let other = cluster
        .prepare("other", json!([result(0, "1Gi", "8")]))
        .await;
    assert!(other.is_ok(), "{other:?}");
    for name in ["lost", "needs"] {
        fs::remove_file(told.join(format!("{name}.0000:01:00.0"))).unwrap();
    }
    cluster.until_tainted(["", ""]).await;
    let again = cluster
        .prepare("late", json!([result(1, "1Gi", "8")]))
        .await;
    assert!(again.is_ok(), "{again:?}");
    let log = cluster.node.file("plugin.log");
    assert!(
        log.contains("GPU 1 is unhealthy: NVML says gpu-reset"),
        "{log}"
    );
}

/// Ends the MPS daemons of a node, and the plugin first, which would start new ones.
struct Daemons(Cluster);

impl Drop for Daemons {
    fn drop(&mut self) {
        self.0.node.end_plugin();
        for pid in [0, 1].iter().filter_map(|gpu| self.0.node.mps_daemon(*gpu)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[tokio::test]
async fn claims_of_a_gpu_run_side_by_side_under_mps() {
    let profiles = "[dra]\nshare = 'mps'\n";
    let cluster = Cluster::start_with("mps", profiles, Node::install_mps).await;
    let cluster = Daemons(cluster);
    let Daemons(cluster) = &cluster;
    cluster.until_devices(2).await;
    cluster.until_tainted(["", ""]).await;
    let node = &cluster.node;
    let one = cluster.prepare("one", json!([result(0, "1Gi", "8")])).await;
    let two = cluster.prepare("two", json!([result(0, "2Gi", "4")])).await;
    let (one, two) = (one.unwrap(), two.unwrap());
    assert!(node.create(1, &one) && node.create(2, &two));
    for (names, pod, tpcs) in [(&one, 1, "8"), (&two, 2, "4")] {
        let edits = node.edits(&names[0]);
        assert_eq!(edits["env"][0], "CUDA_MPS_PIPE_DIRECTORY=/run/gctgroup/mps");
        let pipe = node.folder.join("mps/gpu0/pipe");
        assert_eq!(edits["mounts"][0]["hostPath"], pipe.to_str().unwrap());
        let quota = format!("k8s_default_pod{pod}_main_c{pod}/0/tpc.quota");
        assert_eq!(node.read(&quota), tpcs);
    }
    // A program has one daemon.
    let other = cluster
        .prepare("other", json!([result(1, "1Gi", "1")]))
        .await;
    assert!(!node.create(1, &other.unwrap()));
    let limits = json!({ "compute.timeslice": "2ms" });
    let opaque = json!({ "driver": "gctgroup.dev", "parameters": { "limits": limits } });
    let config = json!([{ "source": "FromClass", "requests": [], "opaque": opaque }]);
    let devices = json!({ "results": [result(0, "1Gi", "1")], "config": config });
    cluster.api.allocate_with("turns", "uid-turns", devices);
    let error = cluster.prepare_allocated("turns").await.unwrap_err();
    assert!(error.contains("compute.timeslice bounds turns"), "{error}");
    // Without its daemon a GPU is not healthy.
    fs::remove_file(node.folder.join("nvidia-cuda-mps-control")).unwrap();
    kill_process(node.mps_daemon(0).unwrap(), Signal::KILL).unwrap();
    until("a taint", || cluster.taints()[0].contains("mps")).await;
    let late = cluster
        .prepare("late", json!([result(0, "1Gi", "1")]))
        .await;
    let error = late.unwrap_err();
    assert!(
        error.contains("MPS daemon of GPU 0 does not answer"),
        "{error}"
    );
}

#[tokio::test]
async fn without_taints_a_gpu_that_is_not_healthy_is_not_offered() {
    let cluster = Cluster::start("no-taints").await;
    cluster.api.drop_taints();
    let path = cluster.node.folder.join("dev/nvidia1");
    fs::remove_file(&path).unwrap();
    cluster.until_devices(1).await;
    let slice = &cluster.api.slices()[0];
    assert_eq!(slice["spec"]["devices"][0]["name"], "gpu0");
    // It is not written again and again.
    let requests = cluster.api.requests();
    let version = slice["metadata"]["resourceVersion"].clone();
    cluster.register().await;
    until("a look", || cluster.api.requests() > requests).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        cluster.api.slices()[0]["metadata"]["resourceVersion"],
        version
    );
    fs::write(&path, "").unwrap();
    cluster.until_devices(2).await;
    let log = cluster.node.file("plugin.log");
    assert_eq!(log.matches("keeps no device taints").count(), 1, "{log}");
}

#[tokio::test]
async fn a_claim_is_the_group_of_its_container() {
    let cluster = Cluster::start("claim").await;
    let results = json!([result(0, "1Gi", "8"), result(1, "2Gi", "4")]);
    let names = cluster.prepare("both", results).await.unwrap();
    assert_eq!(
        names,
        [
            "gctgroup.dev/claim=uid-both-0",
            "gctgroup.dev/claim=uid-both-1"
        ]
    );
    let node = &cluster.node;
    assert!(node.create(1, &names));
    let group = "k8s_default_pod1_main_c1";
    for (file, value) in [
        ("0/gmem.limit", "1073741824"),
        ("0/tpc.quota", "8"),
        ("1/gmem.limit", "2147483648"),
        ("1/tpc.quota", "4"),
    ] {
        assert_eq!(node.read(&format!("{group}/{file}")), value, "{file}");
    }
    // Another container would have all of it once more.
    assert!(!node.create(2, &names));
    assert_eq!(node.groups(), [group]);
    assert!(node.stop(1, &names));
    assert!(node.create(3, &names));
    assert!(node.stop(3, &names));
    // The kubelet may say it twice, and after a restart of both.
    for _ in 0..2 {
        let mut kubelet = cluster.kubelet().await;
        let answer = kubelet
            .node_unprepare_resources(request("both"))
            .await
            .unwrap();
        assert_eq!(answer.into_inner().claims["uid-both"].error, "");
    }
    let specs = fs::read_dir(node.folder.join("cdi")).unwrap();
    assert_eq!(specs.count(), 0);
    assert!(node.groups().is_empty());
}

#[tokio::test]
async fn shares_of_one_gpu_are_one_containers_or_two() {
    let cluster = Cluster::start("shares").await;
    let results = json!([named("left", 0, "1Gi", "8"), named("right", 0, "2Gi", "4")]);
    let names = cluster.prepare("both", results).await.unwrap();
    let node = &cluster.node;
    let limits = |n: u32| {
        let file = |name: &str| node.read(&format!("k8s_default_pod{n}_main_c{n}/0/{name}"));
        (file("gmem.limit"), file("tpc.quota"))
    };
    let is = |memory: u64, tpcs: u32| ((memory << 30).to_string(), tpcs.to_string());
    assert!(node.create(1, &names));
    assert_eq!(limits(1), is(3, 12));
    for name in &names {
        assert!(!node.create(2, std::slice::from_ref(name)));
    }
    assert!(node.stop(1, &names));
    // A container whose entry of `claims` names one request has that one's share.
    assert!(node.create(3, &names[..1]));
    assert!(node.create(4, &names[1..]));
    assert_eq!((limits(3), limits(4)), (is(1, 8), is(2, 4)));
}

#[tokio::test]
async fn claims_have_no_device_when_the_file_has_no_dra() {
    let mut cluster = Cluster::start("removed").await;
    let names = cluster.prepare("one", json!([result(0, "1Gi", "8")]));
    let names = names.await.unwrap();
    let node = &mut cluster.node;
    node.kill_plugin();
    let folder = node.folder.clone();
    let path = |name: &str| folder.join(name);
    // The name that a claim would have, but of another vendor.
    let foreign = path("cdi/gctgroup.dev_claim_uid-foreign.json");
    fs::write(&foreign, r#"{"kind":"other.example/claim","devices":[]}"#).unwrap();
    let claim = path("cdi/gctgroup.dev_claim_uid-one.json");
    assert!(claim.exists() && node.create(1, &names));
    fs::write(path("profiles.toml"), "[profile.claim]\n").unwrap();
    let profile = path("cdi/gctgroup.dev_claim.json");
    node.start_plugin();
    until("the spec of the profile", || profile.exists()).await;
    assert!(!claim.exists() && foreign.exists());
    let log = node.file("plugin.log");
    assert!(
        log.contains("claim uid-one: the file has no [dra]"),
        "{log}"
    );
    // What runs keeps its limits.
    let node = &cluster.node;
    assert_eq!(node.read("k8s_default_pod1_main_c1/0/tpc.quota"), "8");
}

#[tokio::test]
async fn a_claim_that_cannot_be_kept_is_refused() {
    let cluster = Cluster::start("refused").await;
    for (name, results, says) in [
        (
            "else",
            json!([{ "request": "r", "driver": "gctgroup.dev", "pool": "node2", "device": "gpu0" }]),
            "on node2",
        ),
        (
            "none",
            json!([{ "request": "r", "driver": "gctgroup.dev", "pool": "node1", "device": "gpu0" }]),
            "no capacity",
        ),
        (
            "gone",
            json!([result(7, "1Gi", "1")]),
            "GPU 7 is not healthy",
        ),
    ] {
        let error = cluster.prepare(name, results).await.unwrap_err();
        assert!(error.contains(says) && error.contains(name), "{error}");
    }
    let mut kubelet = cluster.kubelet().await;
    let answer = kubelet
        .node_prepare_resources(request("unknown"))
        .await
        .unwrap();
    let error = &answer.into_inner().claims["uid-unknown"].error;
    assert!(error.contains("no such claim"), "{error}");
    let mut hostile = request("both");
    hostile.claims[0].uid = "../../etc/x".to_owned();
    let answer = kubelet.node_unprepare_resources(hostile).await.unwrap();
    assert!(answer.into_inner().claims["../../etc/x"]
        .error
        .contains("no uid"));
}

#[tokio::test]
async fn a_kubelet_of_1_33_prepares_claims() {
    let cluster = Cluster::start("beta").await;
    cluster
        .api
        .allocate("old", "uid-old", json!([result(0, "1Gi", "8")]));
    let channel = connect(cluster.register().await).await;
    let mut kubelet = v1beta1::d_r_a_plugin_client::DRAPluginClient::new(channel);
    let answer = kubelet
        .node_prepare_resources(request("old"))
        .await
        .unwrap();
    let claim = &answer.into_inner().claims["uid-old"];
    assert_eq!(
        claim.devices[0].cdi_device_ids,
        ["gctgroup.dev/claim=uid-old-0"]
    );
}

#[tokio::test]
async fn a_claim_outlives_a_plugin_that_crashes() {
    let mut cluster = Cluster::start("crash").await;
    let names = cluster
        .prepare("one", json!([result(0, "1Gi", "8")]))
        .await
        .unwrap();
    cluster.node.kill_plugin();
    assert!(cluster.node.create(1, &names));
    cluster.node.start_plugin();
    let mut kubelet = cluster.kubelet().await;
    let again = kubelet
        .node_prepare_resources(request("one"))
        .await
        .unwrap();
    assert_eq!(
        again.into_inner().claims["uid-one"].devices[0].cdi_device_ids,
        names
    );
    assert_eq!(cluster.node.groups(), ["k8s_default_pod1_main_c1"]);
}
