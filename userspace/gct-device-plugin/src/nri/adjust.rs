// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Says in NRI's words what a CDI spec would say to the runtime. Runtimes before NRI 0.7 find no
//! device of CDI for a plugin.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::{ensure, Context, Result};
use rustix::fs::{major, minor};
use serde::Deserialize;
use serde_json::Value;

use super::api::{
    ContainerAdjustment, Device, Hook, Hooks, KeyValue, LinuxAdjustment, Mount, OptionalInt,
};

/// Edits of a CDI spec, as `cdi.rs` writes them.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Edits {
    device_nodes: Vec<EditsNode>,
    env: Vec<String>,
    mounts: Vec<EditsMount>,
    hooks: Vec<EditsHook>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EditsNode {
    path: String,
    host_path: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EditsMount {
    host_path: String,
    container_path: String,
    options: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EditsHook {
    hook_name: String,
    path: String,
    args: Vec<String>,
    timeout: u32,
}

/// Returns the adjustment that does all of the edits.
///
/// # Errors
///
/// Fails if a node of theirs is none.
pub fn adjustment(edits: Vec<Value>) -> Result<ContainerAdjustment> {
    let (mut adjust, mut hooks) = (ContainerAdjustment::default(), Hooks::default());
    let mut devices = Vec::new();
    for edits in edits {
        let edits: Edits = serde_json::from_value(edits)?;
        for node in &edits.device_nodes {
            devices.push(device(node)?);
        }
        let variables = edits
            .env
            .iter()
            .filter_map(|variable| variable.split_once('='));
        adjust.env.extend(variables.map(|(key, value)| KeyValue {
            key: key.to_owned(),
            value: value.to_owned(),
        }));
        adjust
            .mounts
            .extend(edits.mounts.into_iter().map(|mount| Mount {
                destination: mount.container_path,
                kind: "bind".to_owned(),
                source: mount.host_path,
                options: mount.options,
            }));
        for hook in edits.hooks {
            let stage = match hook.hook_name.as_str() {
                "createRuntime" => &mut hooks.create_runtime,
                _ => &mut hooks.poststop,
            };
            stage.push(Hook {
                path: hook.path,
                args: hook.args,
                timeout: Some(OptionalInt {
                    value: i64::from(hook.timeout),
                }),
            });
        }
    }
    adjust.hooks = Some(hooks);
    adjust.linux = Some(LinuxAdjustment { devices });
    Ok(adjust)
}

fn device(node: &EditsNode) -> Result<Device> {
    let host = Path::new(node.host_path.as_ref().unwrap_or(&node.path));
    let facts = fs::metadata(host).with_context(|| format!("{}", host.display()))?;
    ensure!(
        facts.file_type().is_char_device(),
        "{} is no device",
        host.display()
    );
    Ok(Device {
        path: node.path.clone(),
        kind: "c".to_owned(),
        major: i64::from(major(facts.rdev())),
        minor: i64::from(minor(facts.rdev())),
    })
}
