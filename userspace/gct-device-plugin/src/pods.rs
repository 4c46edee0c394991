// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks the kubelet which containers have a slot.

use std::collections::HashSet;
use std::path::Path;

use gct_kubelet::api::ContainerResources;
use gct_kubelet::group::{containers, PodContainer};

use crate::profiles::VENDOR;

/// The kubelet's socket, below its folder.
const SOCKET: &str = "pod-resources/kubelet.sock";

/// Returns the containers with a slot, or `None` if the kubelet does not answer.
pub async fn list(kubelet: &Path) -> Option<HashSet<PodContainer>> {
    let mut pods = gct_kubelet::pods::list(&kubelet.join(SOCKET)).await.ok()?;
    for pod in &mut pods {
        pod.containers.retain(has_slot);
    }
    Some(containers(pods).collect())
}

fn has_slot(container: &ContainerResources) -> bool {
    let mut names = container
        .devices
        .iter()
        .map(|devices| devices.resource_name.as_str());
    names.any(|name| {
        name.strip_prefix(VENDOR)
            .is_some_and(|rest| rest.starts_with('/'))
    })
}
