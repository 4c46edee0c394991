// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes the node's ResourceSlice: its GPUs, and what claims can have of each.
//!
//! A GPU's memory and TPCs are capacities that several claims consume. One that asks for neither
//! gets all, so nobody is without a limit by leaving it out.
//!
//! Attributes have the names, types and values of NVIDIA's driver for GPUs, so that the selectors
//! that people have keep working:
//!
//! ```text
//! uuid, productName, architecture        strings
//! cudaComputeCapability, driverVersion   versions, of three numbers
//! resource.kubernetes.io/numaNode        a number, as the one of any other driver
//! ```
//!
//! A GPU that is not healthy has a taint, by which no new claim gets it.

use serde_json::{json, Map, Value};

use super::{quantity, DRIVER};
use crate::gpus::{Gpu, Offer};
use crate::profiles::VENDOR;

/// The version of the API.
pub const API_VERSION: &str = "resource.k8s.io/v1";
/// The capacities, and the files of the tree that bound them.
pub const MEMORY: &str = "memory";
/// See [`MEMORY`].
pub const TPCS: &str = "tpcs";

const MIB: u64 = 1 << 20;
/// Longest text of an attribute.
const TEXT_MAX: usize = 64;

/// What a slice is written for.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The node.
    pub node: &'a str,
    /// The version of its driver, if one is loaded.
    pub driver: Option<&'a str>,
    /// Whether the API server keeps taints. Without, what is not healthy is left out.
    pub taints: bool,
}

/// Returns the name of a GPU in the pool.
pub fn device_name(gpu: u32) -> String {
    format!("gpu{gpu}")
}

/// Returns the GPU of a name in the pool.
pub fn gpu_of(device: &str) -> Option<u32> {
    let gpu = device.strip_prefix("gpu")?.parse().ok()?;
    (device_name(gpu) == device).then_some(gpu)
}

/// Returns what claims can have of a GPU, or `None` if it enforces neither.
fn capacity(gpu: &Gpu) -> Option<Value> {
    let consumable = |value: String, step: &str| {
        json!({
            "value": value,
            "requestPolicy": {
                "default": value,
                "validRange": { "min": step, "step": step },
            },
        })
    };
    let mut all = Map::new();
    // A default must be a multiple of the step.
    let mib = gpu.memory.map(|bytes| bytes / MIB).filter(|mib| *mib > 0);
    if let Some(mib) = mib.filter(|_| gpu.features.contains("gmem.limit")) {
        all.insert(MEMORY.to_owned(), consumable(format!("{mib}Mi"), "1Mi"));
    }
    let tpcs = gpu.tpcs.filter(|tpcs| *tpcs > 0);
    if let Some(tpcs) = tpcs.filter(|_| gpu.features.contains("tpc.quota")) {
        all.insert(TPCS.to_owned(), consumable(tpcs.to_string(), "1"));
    }
    (!all.is_empty()).then_some(Value::Object(all))
}

/// Returns the attributes of a GPU. What is not known, or cannot be an attribute, is left out.
fn attributes(gpu: &Gpu, driver: Option<&str>) -> Value {
    let mut all = Map::new();
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            all.insert(name.to_owned(), value);
        }
    };
    let text = |text: &str| (text.len() <= TEXT_MAX).then(|| json!({ "string": text }));
    let number = |version: &str| Some(json!({ "version": semantic(version)? }));
    let mode = if gpu.health.is_some() {
        "kernel"
    } else {
        "user"
    };
    add("index", Some(json!({ "int": gpu.index })));
    add("mode", text(mode));
    add("uuid", gpu.uuid.as_deref().and_then(text));
    add("productName", gpu.name.as_deref().and_then(text));
    let architecture = gpu.architecture.as_deref().map(proper);
    add("architecture", architecture.as_deref().and_then(text));
    let capability = gpu.capability.as_deref();
    add("cudaComputeCapability", capability.and_then(number));
    add("driverVersion", driver.and_then(number));
    let node = gpu.numa_node.map(|node| json!({ "int": node }));
    add("resource.kubernetes.io/numaNode", node);
    add("resource.kubernetes.io/pciBusID", text(&gpu.pci));
    Value::Object(all)
}

/// Returns NVIDIA's spelling of an architecture.
fn proper(architecture: &str) -> String {
    if architecture == "ada" {
        return "Ada Lovelace".to_owned();
    }
    let mut letters = architecture.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Returns a version as attributes have it: three numbers without zeros in front. NVIDIA writes
/// two, or `580.65.06`.
fn semantic(version: &str) -> Option<String> {
    let mut numbers = [0u32; 3];
    let mut parts = version.split('.');
    for (number, part) in numbers.iter_mut().zip(&mut parts) {
        *number = part.parse().ok()?;
    }
    let [major, minor, patch] = numbers;
    let is_whole = parts.next().is_none();
    is_whole.then(|| format!("{major}.{minor}.{patch}"))
}

/// Returns a GPU as a device of the pool. One whose TPCs are yet to be known is none: a claim on it
/// would consume no TPCs, and have no quota ever.
fn device(offer: &Offer, about: &About<'_>) -> Option<Value> {
    let gpu = &offer.gpu;
    let is_out = offer.fault.is_some() && !about.taints;
    if gpu.advice().is_some() || is_out {
        return None;
    }
    let mut device = json!({
        "name": device_name(gpu.index),
        "allowMultipleAllocations": true,
        "attributes": attributes(gpu, about.driver),
        "capacity": capacity(gpu)?,
    });
    if let Some(fault) = &offer.fault {
        let key = format!("{VENDOR}/unhealthy");
        device["taints"] = json!([{ "key": key, "value": fault, "effect": "NoSchedule" }]);
    }
    Some(device)
}

/// Returns the specification of the node's slice. GPUs that enforce nothing yet are left out.
pub fn spec(about: &About<'_>, offers: &[Offer], generation: u64) -> Value {
    let node = about.node;
    let devices = offers.iter().filter_map(|offer| device(offer, about));
    json!({
        "driver": DRIVER,
        "nodeName": node,
        "pool": { "name": node, "generation": generation, "resourceSliceCount": 1 },
        "devices": devices.collect::<Vec<Value>>(),
    })
}

/// Returns how many devices of a specification have taints. An API server without the gate
/// DRADeviceTaints drops them.
pub fn tainted(spec: &Value) -> usize {
    let devices = spec["devices"].as_array().into_iter().flatten();
    let with = devices.filter(|device| {
        device["taints"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    });
    with.count()
}

/// Returns the name of the node's slice.
pub fn name(node: &str) -> String {
    format!("{node}-{DRIVER}")
}

/// Returns whether two specifications offer the same. Their generations may differ, and so may the
/// forms of their quantities, and the server adds times to taints.
pub fn same(one: &Value, other: &Value) -> bool {
    normal(one) == normal(other)
}

fn normal(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if let Some(pool) = spec.get_mut("pool").and_then(Value::as_object_mut) {
        pool.remove("generation");
    }
    let devices = spec.get_mut("devices").and_then(Value::as_array_mut);
    for device in devices.into_iter().flatten() {
        if let Some(capacity) = device.get_mut("capacity") {
            as_numbers(capacity);
        }
        let taints = device.get_mut("taints").and_then(Value::as_array_mut);
        for taint in taints.into_iter().flatten() {
            taint.as_object_mut().map(|taint| taint.remove("timeAdded"));
        }
    }
    spec
}

fn as_numbers(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(number) = quantity::parse(text) {
                *value = json!(number);
            }
        }
        Value::Object(fields) => fields.values_mut().for_each(as_numbers),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32) -> Gpu {
        Gpu {
            index,
            pci: "0000:01:00.0".to_owned(),
            features: ["gmem.limit".to_owned(), "tpc.quota".to_owned()].into(),
            tpcs: Some(66),
            memory: Some((80 << 30) + 4096),
            ..Gpu::default()
        }
    }

    const ABOUT: About<'_> = About {
        node: "node1",
        driver: Some("580.65.06"),
        taints: true,
    };

    fn spec(gpus: &[Gpu], generation: u64) -> Value {
        let offers = gpus.iter().map(|gpu| Offer {
            gpu: gpu.clone(),
            fault: None,
        });
        super::spec(&ABOUT, &offers.collect::<Vec<_>>(), generation)
    }

    #[test]
    fn attributes_have_the_names_and_types_of_nvidias_driver() {
        let known = Gpu {
            uuid: Some("GPU-1".to_owned()),
            name: Some("NVIDIA H200".to_owned()),
            architecture: Some("hopper".to_owned()),
            capability: Some("9.0".to_owned()),
            numa_node: Some(1),
            ..gpu(0)
        };
        let all = &spec(&[known], 1)["devices"][0]["attributes"];
        let wanted = json!({
            "index": { "int": 0 },
            "mode": { "string": "user" },
            "uuid": { "string": "GPU-1" },
            "productName": { "string": "NVIDIA H200" },
            "architecture": { "string": "Hopper" },
            "cudaComputeCapability": { "version": "9.0.0" },
            "driverVersion": { "version": "580.65.6" },
            "resource.kubernetes.io/numaNode": { "int": 1 },
            "resource.kubernetes.io/pciBusID": { "string": "0000:01:00.0" },
        });
        assert_eq!(*all, wanted);
        // What is not known is left out, and so is what the API server would refuse.
        let unknown = Gpu {
            name: Some("x".repeat(65)),
            capability: Some("9".repeat(11)),
            ..gpu(0)
        };
        let all = &spec(&[unknown], 1)["devices"][0]["attributes"];
        assert_eq!(all.as_object().unwrap().len(), 4, "{all}");
        assert_eq!(proper("ada"), "Ada Lovelace");
        let versions = ["580.142", "1.2.3.4", "", "a.b"].map(semantic);
        assert_eq!(versions, [Some("580.142.0".to_owned()), None, None, None]);
    }

    #[test]
    fn a_gpu_that_is_not_healthy_has_a_taint_or_is_left_out() {
        let offer = Offer {
            gpu: gpu(0),
            fault: Some("gpu-reset".to_owned()),
        };
        let offers = [offer];
        let with = super::spec(&ABOUT, &offers, 1);
        let taint = json!({ "key": "gctgroup.dev/unhealthy", "value": "gpu-reset", "effect": "NoSchedule" });
        assert_eq!(with["devices"][0]["taints"], json!([taint]));
        assert_eq!((tainted(&with), tainted(&spec(&[gpu(0)], 1))), (1, 0));
        let mut theirs = with.clone();
        theirs["devices"][0]["taints"][0]["timeAdded"] = json!("2026-11-29T14:00:00Z");
        assert!(same(&with, &theirs));
        theirs["devices"][0]["taints"][0]["value"] = json!("xid-79");
        assert!(!same(&with, &theirs));
        let about = About {
            taints: false,
            ..ABOUT
        };
        assert_eq!(super::spec(&about, &offers, 1)["devices"], json!([]));
    }

    #[test]
    fn what_is_not_enforced_is_not_offered() {
        let all = spec(&[gpu(0)], 1);
        let capacity = &all["devices"][0]["capacity"];
        assert_eq!(capacity[MEMORY]["value"], "81920Mi");
        assert_eq!(capacity[TPCS]["requestPolicy"]["default"], "66");
        let mut without = gpu(1);
        without.features.remove("tpc.quota");
        let capacity = &spec(&[without.clone()], 1)["devices"][0]["capacity"];
        assert!(capacity[TPCS].is_null() && capacity[MEMORY].is_object());
        without.features.clear();
        assert_eq!(spec(&[without], 1)["devices"], json!([]));
    }

    #[test]
    fn a_gpu_is_offered_when_its_tpcs_are_known() {
        let mut unused = gpu(0);
        unused.tpcs = None;
        unused.features = ["gmem.limit".to_owned(), "channel.owned".to_owned()].into();
        assert_eq!(spec(&[unused.clone()], 1)["devices"], json!([]));
        unused.tpcs = Some(66);
        unused.features.insert("tpc.quota".to_owned());
        let capacity = &spec(&[unused.clone()], 1)["devices"][0]["capacity"];
        assert_eq!(capacity[TPCS]["value"], "66");
        // One that does not use its TPCs, or a daemon that cannot ask for them.
        unused.tpcs = None;
        unused.features = ["gmem.limit".to_owned()].into();
        let capacity = &spec(&[unused], 1)["devices"][0]["capacity"];
        assert!(capacity[MEMORY].is_object());
    }

    #[test]
    fn a_slice_is_the_same_in_the_form_of_the_server() {
        let ours = spec(&[gpu(0)], 1);
        let text = ours.to_string().replace("81920Mi", "80Gi");
        let mut theirs: Value = text.parse().unwrap();
        theirs["pool"]["generation"] = json!(7);
        assert!(same(&ours, &theirs));
        assert!(!same(&ours, &spec(&[gpu(0), gpu(1)], 1)));
        theirs["devices"][0]["capacity"][TPCS]["value"] = json!("65");
        assert!(!same(&ours, &theirs));
    }

    #[test]
    fn a_device_has_one_name() {
        assert_eq!(gpu_of(&device_name(12)), Some(12));
        for text in ["", "gpu", "gpu01", "gpu+1", "12", "gpu1-0"] {
            assert_eq!(gpu_of(text), None, "{text}");
        }
    }
}
