// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads what a runtime tells its hooks of a container, and names the container's group.

use std::collections::HashMap;

use anyhow::{ensure, Context, Result};
use gct_core::iface::parse;
use serde::Deserialize;

/// Prefix of the groups of pods' containers. No other program may use it.
pub const POD_PREFIX: &str = "k8s_";
/// Prefix of the groups of other containers.
pub const OTHER_PREFIX: &str = "ctr_";

/// Longest name of a group.
const NAME_MAX: usize = 64;
/// Digits of the container's id in a name.
const ID_DIGITS: usize = 12;
/// Characters at the end of a shortened name that stay: there the replicas of a pod differ, as in
/// `web-6d4cf56db6-x7x2p`.
const END_KEPT: usize = 6;

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

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, Deserialize)]
pub struct PodContainer {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
}

/// The state of a container, as the OCI runtime specification has it.
#[derive(Clone, Debug, Deserialize)]
pub struct State {
    /// The container's id.
    pub id: String,
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
        let id: String = self
            .id
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(ID_DIGITS)
            .collect();
        let group = match self.pod_container() {
            Some(names) => {
                let parts = [names.namespace, names.pod, names.container];
                let space = NAME_MAX - POD_PREFIX.len() - ID_DIGITS - parts.len();
                format!("{POD_PREFIX}{}_{id}", fit(parts, space).join("_"))
            }
            None => format!("{OTHER_PREFIX}{id}"),
        };
        debug_assert!(parse::name(group.as_bytes()).is_ok(), "{group}");
        group
    }
}

/// Returns whether a group is a container's.
pub fn is_group(name: &str) -> bool {
    name.starts_with(POD_PREFIX) || name.starts_with(OTHER_PREFIX)
}

/// Shortens the longest part before its end until all together have `space` bytes.
fn fit(parts: [String; 3], space: usize) -> [String; 3] {
    let known = |c: char| {
        if c.is_ascii_alphanumeric() || c == '.' || c == '-' {
            c
        } else {
            '-'
        }
    };
    let mut parts = parts.map(|part| part.chars().map(known).collect::<String>());
    while parts.iter().map(String::len).sum::<usize>() > space {
        let longest = parts.iter_mut().max_by_key(|part| part.len());
        longest.map(|part| part.remove(part.len().saturating_sub(END_KEPT + 1)));
    }
    parts
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
    fn names_of_any_length_and_content_make_a_valid_group() {
        let long = "x".repeat(253);
        for (namespace, pod, container) in [
            (&long[..63], &long[..], &long[..63]),
            ("a", &long, "c"),
            ("", "", ""),
            ("a/b", "\u{e9}\n", "c d"),
        ] {
            let group = state(namespace, pod, container).group();
            assert!(parse::name(group.as_bytes()).is_ok(), "{group}");
        }
        assert_eq!(state("a", &long, "c").group().len(), NAME_MAX);
    }

    #[test]
    fn a_shortened_name_keeps_the_end_by_which_replicas_differ() {
        let group = state("production", "llama-inference-6d4cf56db6-x7x2p", "server").group();
        assert_eq!(
            group,
            "k8s_production_llama-inference-6d4cf56-x7x2p_server_3b5f0c1d9e8a"
        );
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
