// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks the kubelet for its pods.

use std::path::Path;
use std::time::Duration;

use tonic::transport::Endpoint;

use crate::api::services::pod_resources_lister_client::PodResourcesListerClient;
use crate::api::{ListPodResourcesRequest, PodResources};

/// Most time of a connection, and of an answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of an answer. A pod has some 200.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Why the kubelet's pods are not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens at the socket.
    #[error("nobody listens at the kubelet's socket")]
    Connection(#[from] tonic::transport::Error),
    /// The kubelet refused, or did not answer in time.
    #[error("the kubelet did not list its pods: {}", .0.message())]
    Answer(Box<tonic::Status>),
}

/// Returns the pods of the kubelet that listens at `socket`, with the devices of their containers.
///
/// # Errors
///
/// Fails if the kubelet does not answer within 5 s.
pub async fn list(socket: &Path) -> Result<Vec<PodResources>, Error> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    let endpoint = endpoint.connect_timeout(CALL_TIMEOUT).timeout(CALL_TIMEOUT);
    let client = PodResourcesListerClient::new(endpoint.connect().await?);
    let mut client = client.max_decoding_message_size(ANSWER_BYTES_MAX);
    let answer = client.list(ListPodResourcesRequest {}).await;
    let answer = answer.map_err(|status| Error::Answer(Box::new(status)))?;
    Ok(answer.into_inner().pod_resources)
}
