// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks the kubelet which containers have a slot.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use tonic::transport::Endpoint;

use crate::api::services::pod_resources_lister_client::PodResourcesListerClient;
use crate::api::{ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse};
use crate::container::PodContainer;
use crate::profiles::VENDOR;

/// The kubelet's socket, below its folder.
const SOCKET: &str = "pod-resources/kubelet.sock";
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of an answer. A pod has some 200.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Returns the containers with a slot, or `None` if the kubelet does not answer.
pub async fn list(kubelet: &Path) -> Option<HashSet<PodContainer>> {
    let socket = kubelet.join(SOCKET);
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).ok()?;
    let endpoint = endpoint.connect_timeout(CALL_TIMEOUT).timeout(CALL_TIMEOUT);
    let channel = endpoint.connect().await.ok()?;
    let client = PodResourcesListerClient::new(channel);
    let mut client = client.max_decoding_message_size(ANSWER_BYTES_MAX);
    let answer = client.list(ListPodResourcesRequest {}).await.ok()?;
    Some(with_a_slot(answer.into_inner()))
}

fn with_a_slot(answer: ListPodResourcesResponse) -> HashSet<PodContainer> {
    let pods = answer.pod_resources.into_iter();
    let containers = pods.flat_map(|pod| {
        let with = pod.containers.into_iter().filter(has_slot);
        with.map(move |container| PodContainer {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: container.name,
        })
    });
    containers.collect()
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
