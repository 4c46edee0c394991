// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads from a ResourceClaim what the scheduler gave it, and makes limits of that.
//!
//! Memory and TPCs are what the claim consumes. Further limits come from the DeviceClass, whose
//! author is the administrator:
//!
//! ```yaml
//! config:
//! - opaque:
//!     driver: gctgroup.dev
//!     parameters: {limits: {compute.priority: "2"}}
//! ```

use std::collections::BTreeMap;

use anyhow::{bail, ensure, Context, Result};
use gct_core::iface::File;
use serde::Deserialize;

use super::slice::{self, MEMORY, TPCS};
use super::{quantity, DRIVER};
use crate::profiles::{self, Limit};

/// A claim, as far as it is read.
#[derive(Debug, Deserialize)]
pub struct ResourceClaim {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    uid: String,
}

#[derive(Debug, Default, Deserialize)]
struct Status {
    allocation: Option<Allocation>,
}

#[derive(Debug, Deserialize)]
struct Allocation {
    #[serde(default)]
    devices: Devices,
}

#[derive(Debug, Default, Deserialize)]
struct Devices {
    #[serde(default)]
    results: Vec<Allocated>,
    #[serde(default)]
    config: Vec<Config>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Allocated {
    request: String,
    driver: String,
    pool: String,
    device: String,
    #[serde(default, rename = "shareID")]
    share_id: Option<String>,
    #[serde(default)]
    admin_access: Option<bool>,
    #[serde(default)]
    consumed_capacity: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
struct Config {
    source: String,
    #[serde(default)]
    requests: Option<Vec<String>>,
    opaque: Option<Opaque>,
}

#[derive(Debug, Deserialize)]
struct Opaque {
    driver: String,
    parameters: serde_json::Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    limits: BTreeMap<String, String>,
}

/// A share of a GPU that a claim has.
#[derive(Clone, Debug, PartialEq)]
pub struct Granted {
    /// The request of the claim.
    pub request: String,
    /// The GPU's index.
    pub gpu: u32,
    /// The scheduler's name for the share.
    pub share_id: Option<String>,
    /// The limits, in the order in which they are written.
    pub limits: Vec<Limit>,
}

impl ResourceClaim {
    /// Returns what the claim has on a node.
    ///
    /// # Errors
    ///
    /// Fails if it is another claim of that name, is not allocated, or asks for what cannot be
    /// enforced.
    pub fn granted(&self, uid: &str, node: &str) -> Result<Vec<Granted>> {
        ensure!(self.metadata.uid == uid, "another claim has its name");
        let allocation = self.status.allocation.as_ref();
        let devices = &allocation.context("it is not allocated")?.devices;
        let own = devices
            .results
            .iter()
            .filter(|result| result.driver == DRIVER);
        own.map(|result| {
            ensure!(result.pool == node, "it is allocated on {}", result.pool);
            let limits = limits(result, &devices.config)
                .with_context(|| format!("request {}", result.request))?;
            let gpu = slice::gpu_of(&result.device);
            Ok(Granted {
                request: result.request.clone(),
                gpu: gpu.with_context(|| format!("there is no device {}", result.device))?,
                share_id: result.share_id.clone(),
                limits,
            })
        })
        .collect()
    }
}

fn limits(result: &Allocated, config: &[Config]) -> Result<Vec<Limit>> {
    ensure!(
        result.admin_access != Some(true),
        "adminAccess would be access without a limit"
    );
    let mut limits = Vec::new();
    for (name, amount) in result.consumed_capacity.iter().flatten() {
        let file = match name.as_str() {
            MEMORY => "gmem.limit",
            TPCS => "tpc.quota",
            _ => bail!("there is no capacity {name}"),
        };
        let number = quantity::parse(amount).with_context(|| format!("{name} of {amount}"))?;
        limits.push(profiles::limit(file, &number.to_string())?);
    }
    ensure!(!limits.is_empty(), "it consumes no capacity");
    for config in config.iter().filter(|config| is_for(config, result)) {
        let Some(opaque) = config
            .opaque
            .as_ref()
            .filter(|opaque| opaque.driver == DRIVER)
        else {
            continue;
        };
        // Whoever writes the claim would choose its own priority.
        ensure!(
            config.source == "FromClass",
            "its limits come from the DeviceClass, not from the claim"
        );
        let parameters: Parameters = serde_json::from_value(opaque.parameters.clone())
            .context("the parameters of the DeviceClass")?;
        for (file, value) in &parameters.limits {
            let limit = profiles::limit(file, value)?;
            let is_there = |other: &Limit| other.entry.file == limit.entry.file;
            ensure!(!limits.iter().any(is_there), "{file} has two values");
            limits.push(limit);
        }
    }
    // A quota is reserved within the mask, so the mask comes first.
    limits.sort_by_key(|limit| limit.entry.file != File::TpcMask);
    Ok(limits)
}

/// Returns whether a configuration is for a result. A request of several alternatives is named
/// `request/alternative`.
fn is_for(config: &Config, result: &Allocated) -> bool {
    let requests = config.requests.as_deref().unwrap_or_default();
    let main = result.request.split('/').next().unwrap_or_default();
    let is_meant = |request: &String| *request == result.request || request == main;
    requests.is_empty() || requests.iter().any(is_meant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Value};

    fn claim(results: Value, config: Value) -> ResourceClaim {
        let allocation = json!({ "devices": { "results": results, "config": config } });
        let claim = json!({ "metadata": { "uid": "u1" }, "status": { "allocation": allocation } });
        serde_json::from_value(claim).unwrap()
    }

    fn result(device: &str) -> Value {
        json!({
            "request": "gpu", "driver": DRIVER, "pool": "node1", "device": device,
            "shareID": "s", "consumedCapacity": { "memory": "20Gi", "tpcs": "16" },
        })
    }

    fn config(source: &str, limits: Value) -> Value {
        let opaque = json!({ "driver": DRIVER, "parameters": { "limits": limits } });
        json!({ "source": source, "requests": [], "opaque": opaque })
    }

    fn shown(granted: &Granted) -> Vec<String> {
        let limits = granted.limits.iter();
        limits
            .map(|limit| format!("{}={}", limit.entry.name, limit.content))
            .collect()
    }

    #[test]
    fn what_a_claim_consumes_is_its_limit() {
        let other = json!({ "request": "nic", "driver": "other", "pool": "x", "device": "y" });
        let class = config(
            "FromClass",
            json!({ "compute.priority": "2", "tpc.mask": "0-31" }),
        );
        let claim = claim(json!([result("gpu1"), other]), json!([class]));
        let granted = claim.granted("u1", "node1").unwrap();
        let [granted] = &granted[..] else {
            panic!("{granted:?}")
        };
        assert_eq!((granted.request.as_str(), granted.gpu), ("gpu", 1));
        assert_eq!(granted.share_id.as_deref(), Some("s"));
        assert_eq!(
            shown(granted),
            [
                "tpc.mask=0-31",
                "gmem.limit=21474836480",
                "tpc.quota=16",
                "compute.priority=2"
            ]
        );
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        let with = |key: &str, value: Value| {
            let mut result = result("gpu0");
            result[key] = value;
            claim(json!([result]), json!([]))
        };
        let consumed = |capacity: Value| with("consumedCapacity", capacity);
        let configured =
            |source, limits| claim(json!([result("gpu0")]), json!([config(source, limits)]));
        for (claim, says) in [
            (with("pool", json!("node2")), "it is allocated on node2"),
            (with("device", json!("gpu")), "there is no device gpu"),
            (with("adminAccess", json!(true)), "without a limit"),
            (consumed(json!({})), "consumes no capacity"),
            (
                with("consumedCapacity", Value::Null),
                "consumes no capacity",
            ),
            (consumed(json!({ "cores": "1" })), "no capacity cores"),
            (consumed(json!({ "memory": "1.5Gi" })), "memory of 1.5Gi"),
            (
                configured("FromClaim", json!({ "compute.priority": "0" })),
                "from the DeviceClass",
            ),
            (
                configured("FromClass", json!({ "gmem.limit": "1G" })),
                "two values",
            ),
            (
                configured("FromClass", json!({ "compute.freeze": "1" })),
                "no limit compute.freeze",
            ),
        ] {
            let error = format!("{:#}", claim.granted("u1", "node1").unwrap_err());
            assert!(error.contains(says), "{error}, not {says}");
        }
        let claim = claim(json!([result("gpu0")]), json!([]));
        assert!(claim.granted("u2", "node1").is_err());
        let pending: ResourceClaim =
            serde_json::from_value(json!({ "metadata": { "uid": "u1" } })).unwrap();
        let error = pending.granted("u1", "node1").unwrap_err().to_string();
        assert!(error.contains("not allocated"), "{error}");
    }
}
