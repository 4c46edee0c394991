// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the group of a pod's container, and finds the container that a group's name means.
//!
//! ```text
//! k8s_NAMESPACE_POD_CONTAINER_ID       ID: the beginning of the container's id in the runtime
//! ```
//!
//! No name of Kubernetes has a `_`. Long names are shortened, so two containers may have one name
//! but for the id. Then neither is found: a wrong pod is worse than none.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::api::PodResources;

/// Prefix of the groups of pods' containers. No other program may use it.
pub const POD_PREFIX: &str = "k8s_";

/// Longest name of a group.
const NAME_MAX: usize = 64;
/// Digits of the container's id in a name.
const ID_DIGITS: usize = 12;
/// Characters at the end of a shortened name that stay: there the replicas of a pod differ, as in
/// `web-6d4cf56db6-x7x2p`.
const END_KEPT: usize = 6;

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodContainer {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
}

impl PodContainer {
    /// Returns the name of its group in the runtime's container `id`.
    pub fn group(&self, id: &str) -> String {
        format!("{}_{}", self.stem(), digits(id))
    }

    /// Returns the name of its group up to the id.
    fn stem(&self) -> String {
        let parts = [&self.namespace, &self.pod, &self.container];
        let space = NAME_MAX - POD_PREFIX.len() - ID_DIGITS - parts.len();
        format!("{POD_PREFIX}{}", fit(parts, space).join("_"))
    }
}

/// Returns what a group's name has of a container's id.
pub fn digits(id: &str) -> String {
    let digits = id.chars().filter(char::is_ascii_alphanumeric);
    digits.take(ID_DIGITS).collect()
}

/// Shortens the longest part before its end until all together have `space` bytes.
fn fit(parts: [&String; 3], space: usize) -> [String; 3] {
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

/// The containers of a node, by their groups.
#[derive(Clone, Debug, Default)]
pub struct Containers(HashMap<String, Option<PodContainer>>);

impl Containers {
    /// Takes the containers of the kubelet's pods.
    pub fn new(pods: Vec<PodResources>) -> Self {
        let mut by_stem = HashMap::new();
        for container in containers(pods) {
            by_stem
                .entry(container.stem())
                .and_modify(|found| *found = None)
                .or_insert(Some(container));
        }
        Self(by_stem)
    }

    /// Returns the container that a group is named after, if exactly one has that name.
    pub fn of_group(&self, group: &str) -> Option<&PodContainer> {
        let (stem, _) = group.rsplit_once('_')?;
        self.0.get(stem)?.as_ref()
    }
}

/// Returns each container of the pods.
pub fn containers(pods: Vec<PodResources>) -> impl Iterator<Item = PodContainer> {
    pods.into_iter().flat_map(|pod| {
        let containers = pod.containers.into_iter();
        containers.map(move |container| PodContainer {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: container.name,
        })
    })
}

#[cfg(test)]
mod tests {
    use gct_core::iface::parse;

    use super::*;
    use crate::api::ContainerResources;

    const ID: &str = "3b5f0c1d9e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c";

    fn of(namespace: &str, pod: &str, container: &str) -> PodContainer {
        let [namespace, pod, container] = [namespace, pod, container].map(str::to_owned);
        PodContainer {
            namespace,
            pod,
            container,
        }
    }

    fn listed(container: &PodContainer) -> PodResources {
        PodResources {
            name: container.pod.clone(),
            namespace: container.namespace.clone(),
            containers: vec![ContainerResources {
                name: container.container.clone(),
                devices: vec![],
            }],
        }
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
            let group = of(namespace, pod, container).group(ID);
            assert!(parse::name(group.as_bytes()).is_ok(), "{group}");
        }
        assert_eq!(of("a", &long, "c").group(ID).len(), NAME_MAX);
    }

    #[test]
    fn a_shortened_name_keeps_the_end_by_which_replicas_differ() {
        let group = of("production", "llama-inference-6d4cf56db6-x7x2p", "server").group(ID);
        assert_eq!(
            group,
            "k8s_production_llama-inference-6d4cf56-x7x2p_server_3b5f0c1d9e8a"
        );
    }

    #[test]
    fn a_groups_container_is_found_by_its_name_unless_two_have_it() {
        let short = of("default", "web-0", "server");
        let long = of("production", "llama-inference-6d4cf56db6-x7x2p", "server");
        // It differs where the name is shortened.
        let same = of("production", "llama-inference-6d4cf56dff-x7x2p", "server");
        assert_eq!(long.stem(), same.stem());
        let known = Containers::new([&short, &long].map(listed).to_vec());
        assert_eq!(known.of_group(&short.group(ID)), Some(&short));
        assert_eq!(known.of_group(&long.group(ID)), Some(&long));
        for group in ["", "web", "k8s_default_web-0_server", "ctr_3b5f0c1d9e8a"] {
            assert_eq!(known.of_group(group), None, "{group}");
        }
        let known = Containers::new([&short, &long, &same].map(listed).to_vec());
        assert_eq!(known.of_group(&long.group(ID)), None);
        assert_eq!(known.of_group(&short.group("ff")), Some(&short));
    }
}
