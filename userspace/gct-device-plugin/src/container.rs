// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads what a runtime tells its hooks of a container, and names the container's group.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use gct_core::iface::parse;
use gct_kubelet::group::{digits, PodContainer, POD_PREFIX};
use serde::Deserialize;

/// Prefix of the groups of other containers.
pub const OTHER_PREFIX: &str = "ctr_";

/// Annotations with namespace, pod and container: of containerd, then of CRI-O.
const NAMES: [[&str; 3]; 2] = [
    [
        "io.kubernetes.cri.sandbox-namespace",
        "io.kubernetes.cri.sandbox-name",
        "io.kubernetes.cri.container-name",
    ],
    [
        "io.kubernetes.pod.namespace",
        "io.kubernetes.pod.name",
        "io.kubernetes.container.name",
    ],
];

/// The state of a container, as the OCI runtime specification has it.
#[derive(Clone, Debug, Deserialize)]
pub struct State {
    /// The container's id.
    pub id: String,
    /// The folder of its configuration.
    #[serde(default)]
    pub bundle: PathBuf,
    /// Its first process; absent once it has stopped.
    #[serde(default)]
    pub pid: u32,
    /// Annotations of the container.
    #[serde(default)]
    pub annotations: HashMap<String, String>,
}

impl State {
    /// Parses the text that a runtime writes to its hook's input.
    ///
    /// # Errors
    ///
    /// Fails if it is no state of a container.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let state: Self =
            serde_json::from_slice(text).context("The input is no state of a container")?;
        ensure!(!state.id.is_empty(), "The container has no id");
        Ok(state)
    }

    /// Returns the state of a pod's container, as containerd's hooks have it but for the bundle.
    pub fn of_pod(id: &str, pid: u32, container: PodContainer) -> Self {
        let PodContainer {
            namespace,
            pod,
            container,
        } = container;
        let names = NAMES[0].map(str::to_owned);
        Self {
            id: id.to_owned(),
            bundle: PathBuf::new(),
            pid,
            annotations: names.into_iter().zip([namespace, pod, container]).collect(),
        }
    }

    /// Returns the pod's container that it is, if it is one.
    pub fn pod_container(&self) -> Option<PodContainer> {
        NAMES.iter().find_map(|names| {
            let [namespace, pod, container] = names.map(|name| self.annotations.get(name).cloned());
            Some(PodContainer {
                namespace: namespace?,
                pod: pod?,
                container: container?,
            })
        })
    }

    /// Returns the name of the container's group: its pod and its own, and of its id so much that
    /// the name is its own even if the container before it is still there.
    pub fn group(&self) -> String {
        let group = match self.pod_container() {
            Some(container) => container.group(&self.id),
            None => format!("{OTHER_PREFIX}{}", digits(&self.id)),
        };
        debug_assert!(parse::name(group.as_bytes()).is_ok(), "{group}");
        group
    }
}

/// Returns whether a group is a container's.
pub fn is_group(name: &str) -> bool {
    name.starts_with(POD_PREFIX) || name.starts_with(OTHER_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3b5f0c1d9e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c";

    fn state(namespace: &str, pod: &str, container: &str) -> State {
        let annotations = json(namespace, pod, container);
        State::parse(
            format!(r#"{{"id":"{ID}","pid":7,"status":"created","annotations":{annotations}}}"#)
                .as_bytes(),
        )
        .unwrap()
    }

    fn json(namespace: &str, pod: &str, container: &str) -> serde_json::Value {
        serde_json::json!({
            "io.kubernetes.cri.sandbox-namespace": namespace,
            "io.kubernetes.cri.sandbox-name": pod,
            "io.kubernetes.cri.container-name": container,
        })
    }

    #[test]
    fn a_group_is_named_after_pod_and_container() {
        let state = state("default", "web-0", "server");
        assert_eq!(state.group(), "k8s_default_web-0_server_3b5f0c1d9e8a");
        assert!(is_group(&state.group()));
        let plain = State::parse(format!(r#"{{"id":"{ID}"}}"#).as_bytes()).unwrap();
        assert_eq!(plain.group(), "ctr_3b5f0c1d9e8a");
    }

    #[test]
    fn the_annotations_of_another_runtime_name_the_pod_too() {
        let state: State = serde_json::from_value(serde_json::json!({
            "id": ID,
            "annotations": {
                "io.kubernetes.pod.namespace": "a",
                "io.kubernetes.pod.name": "b",
                "io.kubernetes.container.name": "c",
            },
        }))
        .unwrap();
        assert_eq!(state.group(), "k8s_a_b_c_3b5f0c1d9e8a");
    }

    #[test]
    fn what_is_no_state_is_refused() {
        for text in ["", "{}", r#"{"id":""}"#, "[]", r#"{"id":1}"#] {
            assert!(State::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
