// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A kubelet's side of the list of pods, for tests.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::api::services::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use crate::api::{ListPodResourcesRequest, ListPodResourcesResponse, PodResources};

/// The pods that a kubelet lists. A clone has the same ones.
#[derive(Clone, Debug, Default)]
pub struct Lister(Arc<Mutex<Vec<PodResources>>>);

impl Lister {
    /// Sets the pods.
    pub fn set(&self, pods: Vec<PodResources>) {
        *self.lock() = pods;
    }

    /// Lists them at a socket, which it binds, until the task is aborted.
    ///
    /// # Panics
    ///
    /// If the socket exists, or no runtime runs.
    pub fn serve(&self, socket: &Path) -> JoinHandle<()> {
        let listener = UnixListener::bind(socket).expect("a new socket");
        let lister = PodResourcesListerServer::new(self.clone());
        let served =
            Server::builder().serve_with_incoming(lister, UnixListenerStream::new(listener));
        tokio::spawn(async { served.await.expect("a server of a bound socket") })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PodResources>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let pod_resources = self.lock().clone();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }
}
