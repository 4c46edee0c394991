// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes the node's ResourceSlice: its GPUs, and what claims can have of each.
//!
//! A GPU's memory and TPCs are capacities that several claims consume. One that asks for neither
//! gets all, so nobody is without a limit by leaving it out.

use serde_json::{json, Map, Value};

use super::{quantity, DRIVER};
use crate::gpus::Gpu;

/// The version of the API.
pub const API_VERSION: &str = "resource.k8s.io/v1";
/// The capacities, and the files of the tree that bound them.
pub const MEMORY: &str = "memory";
/// See [`MEMORY`].
pub const TPCS: &str = "tpcs";

const MIB: u64 = 1 << 20;

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

/// Returns a GPU as a device of the pool. One whose TPCs are yet to be known is none: a claim on it
/// would consume no TPCs, and have no quota ever.
fn device(gpu: &Gpu) -> Option<Value> {
    if gpu.advice().is_some() {
        return None;
    }
    Some(json!({
        "name": device_name(gpu.index),
        "allowMultipleAllocations": true,
        "attributes": {
            "index": { "int": gpu.index },
            "mode": { "string": if gpu.health.is_some() { "kernel" } else { "user" } },
            "resource.kubernetes.io/pciBusID": { "string": gpu.pci },
        },
        "capacity": capacity(gpu)?,
    }))
}

/// Returns the specification of the node's slice. GPUs that enforce nothing yet are left out.
pub fn spec(node: &str, gpus: &[Gpu], generation: u64) -> Value {
    let devices: Vec<Value> = gpus.iter().filter_map(device).collect();
    json!({
        "driver": DRIVER,
        "nodeName": node,
        "pool": { "name": node, "generation": generation, "resourceSliceCount": 1 },
        "devices": devices,
    })
}

/// Returns the name of the node's slice.
pub fn name(node: &str) -> String {
    format!("{node}-{DRIVER}")
}

/// Returns whether two specifications offer the same. Their generations may differ, and so may the
/// forms of their quantities.
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

    #[test]
    fn what_is_not_enforced_is_not_offered() {
        let all = spec("node1", &[gpu(0)], 1);
        let capacity = &all["devices"][0]["capacity"];
        assert_eq!(capacity[MEMORY]["value"], "81920Mi");
        assert_eq!(capacity[TPCS]["requestPolicy"]["default"], "66");
        let mut without = gpu(1);
        without.features.remove("tpc.quota");
        let capacity = &spec("node1", &[without.clone()], 1)["devices"][0]["capacity"];
        assert!(capacity[TPCS].is_null() && capacity[MEMORY].is_object());
        without.features.clear();
        assert_eq!(spec("node1", &[without], 1)["devices"], json!([]));
    }

    #[test]
    fn a_gpu_is_offered_when_its_tpcs_are_known() {
        let mut unused = gpu(0);
        unused.tpcs = None;
        unused.features = ["gmem.limit".to_owned(), "channel.owned".to_owned()].into();
        assert_eq!(spec("node1", &[unused.clone()], 1)["devices"], json!([]));
        unused.tpcs = Some(66);
        unused.features.insert("tpc.quota".to_owned());
        let capacity = &spec("node1", &[unused.clone()], 1)["devices"][0]["capacity"];
        assert_eq!(capacity[TPCS]["value"], "66");
        // One that does not use its TPCs, or a daemon that cannot ask for them.
        unused.tpcs = None;
        unused.features = ["gmem.limit".to_owned()].into();
        let capacity = &spec("node1", &[unused], 1)["devices"][0]["capacity"];
        assert!(capacity[MEMORY].is_object());
    }

    #[test]
    fn a_slice_is_the_same_in_the_form_of_the_server() {
        let ours = spec("node1", &[gpu(0)], 1);
        let text = ours.to_string().replace("81920Mi", "80Gi");
        let mut theirs: Value = text.parse().unwrap();
        theirs["pool"]["generation"] = json!(7);
        assert!(same(&ours, &theirs));
        assert!(!same(&ours, &spec("node1", &[gpu(0), gpu(1)], 1)));
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
