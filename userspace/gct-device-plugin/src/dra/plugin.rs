// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Answers the kubelet's calls for claims.
//!
//! ```text
//! plugins_registry/gctgroup.dev-reg.sock    the kubelet asks for the driver's name and socket
//! plugins/gctgroup.dev/dra.sock             the kubelet prepares and unprepares claims
//! ```
//!
//! A prepared claim is a CDI spec. That file has all of the claim's state, so nothing is lost when
//! the plugin ends. Each request of a claim is a device of its own and belongs to one container at
//! a time: each of several would get all of its share. The hook of a second container fails.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{ensure, Context as _, Result};
use hyper::Method;
use tokio::sync::{watch, Notify};
use tokio::time::sleep;
use tonic::body::Body;
use tonic::codegen::{http, BoxFuture, Context, Poll, Service};
use tonic::transport::Server as GrpcServer;
use tonic::{Request, Response, Status};

use super::api::services::registration::registration_server::{Registration, RegistrationServer};
use super::api::services::{v1, v1beta1};
use super::api::*;
use super::claim::ResourceClaim;
use super::client::Server;
use super::slice;
use super::DRIVER;
use crate::cdi::{ClaimDevice, Host};
use crate::gpus::{Gpu, Offer};
use crate::profiles::Sharing;
use crate::socket::{needs_new_start, Serving, NEW_START};

const POLL: Duration = Duration::from_millis(200);

/// The folder, below the kubelet's, in which it finds drivers.
const REGISTRY: &str = "plugins_registry";

/// Longest uid of a claim: the API server's have 36 characters.
const UID_MAX: usize = 64;

/// The driver of a node.
#[derive(Clone, Debug)]
pub struct Driver {
    /// What CDI specs need.
    pub host: Arc<Host>,
    /// The API server.
    pub server: Server,
    /// The node.
    pub node: String,
    /// The GPUs that claims may use.
    pub gpus: watch::Receiver<Vec<Offer>>,
    /// How containers share a GPU.
    pub share: Sharing,
    /// Rung when the kubelet has registered the driver.
    pub bell: Arc<Notify>,
    /// The driver's socket.
    pub endpoint: PathBuf,
}

type Answer<T> = Result<Response<T>, Status>;

impl Driver {
    /// Serves in the kubelet's folders for ever.
    ///
    /// # Errors
    ///
    /// Ends when only a new start helps.
    pub async fn run(self, kubelet: PathBuf) -> Result<()> {
        let registry = kubelet.join(REGISTRY);
        let folder = self.endpoint.parent().unwrap_or(&kubelet);
        // The driver makes its folder in one of the kubelet's.
        let plugins = folder.parent().unwrap_or(&kubelet);
        let mut said = String::new();
        loop {
            let message = match self.serve(&registry, folder) {
                Ok(serving) => {
                    while serving.iter().all(Serving::is_intact) {
                        sleep(POLL).await;
                    }
                    "a socket for claims is gone".to_owned()
                }
                Err(error) if needs_new_start(&error, &[&registry, plugins]) => {
                    return Err(error).context(format!("{}: {NEW_START}", registry.display()));
                }
                Err(error) => format!("claims cannot be served: {error}"),
            };
            if message != said {
                eprintln!("gct-device-plugin: {message}");
            }
            said = message;
            sleep(POLL).await;
        }
    }

    /// Serves claims, and then says so to the kubelet.
    fn serve(&self, registry: &Path, folder: &Path) -> io::Result<[Serving; 2]> {
        fs::create_dir_all(registry)?;
        fs::create_dir_all(folder)?;
        let claims = Versions {
            new: v1::d_r_a_plugin_server::DRAPluginServer::new(self.clone()),
            old: v1beta1::d_r_a_plugin_server::DRAPluginServer::new(self.clone()),
        };
        let claims = Serving::start(self.endpoint.clone(), |incoming| async move {
            let _ = GrpcServer::builder()
                .serve_with_incoming(claims, incoming)
                .await;
        })?;
        let registration = RegistrationServer::new(self.clone());
        let path = registry.join(format!("{DRIVER}-reg.sock"));
        let registration = Serving::start(path, |incoming| async move {
            let _ = GrpcServer::builder()
                .serve_with_incoming(registration, incoming)
                .await;
        })?;
        Ok([claims, registration])
    }

    async fn prepare(&self, claim: &Claim) -> Result<Vec<PreparedDevice>> {
        check_uid(&claim.uid)?;
        let path = format!(
            "/apis/{}/namespaces/{}/resourceclaims/{}",
            slice::API_VERSION,
            claim.namespace,
            claim.name
        );
        let found = self.server.call(Method::GET, &path, None).await?;
        let found: ResourceClaim = serde_json::from_value(found.context("there is no such claim")?)
            .context("the API server's claim")?;
        let mut devices = Vec::new();
        let mut prepared = Vec::new();
        for granted in found.granted(&claim.uid, &self.node)? {
            let request = || format!("request {}", granted.request);
            self.share.check(&granted.limits).with_context(request)?;
            self.check_mps(granted.gpu).await?;
            let device = ClaimDevice {
                name: format!("{}-{}", claim.uid, devices.len()),
                gpu: self.healthy(granted.gpu)?,
                limits: granted.limits,
                share: self.share,
            };
            prepared.push(PreparedDevice {
                request_names: vec![granted.request],
                pool_name: self.node.clone(),
                device_name: slice::device_name(granted.gpu),
                cdi_device_ids: vec![device.qualified()],
                share_id: granted.share_id,
            });
            devices.push(device);
        }
        self.host.write_claim(&claim.uid, &devices)?;
        Ok(prepared)
    }

    /// Returns a GPU that claims may use. A claim that tolerates the taint of one that is not
    /// healthy does not get it either.
    fn healthy(&self, index: u32) -> Result<Gpu> {
        let offers = self.gpus.borrow();
        let found = offers.iter().find(|offer| offer.gpu.index == index);
        let healthy = found.filter(|offer| offer.fault.is_none());
        let healthy = healthy.map(|offer| offer.gpu.clone());
        healthy.with_context(|| match found.and_then(|offer| offer.fault.as_ref()) {
            Some(fault) => format!("GPU {index} is not healthy: {fault}"),
            None => format!("GPU {index} is not healthy"),
        })
    }

    /// Checks that the MPS daemon of a GPU answers, if there is to be one. Without it a container
    /// would run in turns, unseen.
    async fn check_mps(&self, gpu: u32) -> Result<()> {
        if self.share == Sharing::Turns {
            return Ok(());
        }
        let control = Arc::clone(&self.host.mps);
        let answers = tokio::task::spawn_blocking(move || control.answers(gpu)).await?;
        ensure!(answers, "the MPS daemon of GPU {gpu} does not answer");
        Ok(())
    }

    fn unprepare(&self, claim: &Claim) -> Result<()> {
        check_uid(&claim.uid)?;
        self.host.remove_claim(&claim.uid)?;
        Ok(())
    }

    async fn prepare_all(&self, request: ClaimsRequest) -> PrepareResponse {
        let mut claims = HashMap::new();
        for claim in &request.claims {
            let prepared = match self.prepare(claim).await {
                Ok(devices) => PreparedClaim {
                    devices,
                    error: String::new(),
                },
                Err(error) => PreparedClaim {
                    devices: Vec::new(),
                    error: format!("claim {}/{}: {error:#}", claim.namespace, claim.name),
                },
            };
            claims.insert(claim.uid.clone(), prepared);
        }
        PrepareResponse { claims }
    }

    fn unprepare_all(&self, request: &ClaimsRequest) -> UnprepareResponse {
        let unprepared = request.claims.iter().map(|claim| {
            let error = self.unprepare(claim).err();
            let error = error.map_or_else(String::new, |error| format!("{error:#}"));
            (claim.uid.clone(), UnpreparedClaim { error })
        });
        UnprepareResponse {
            claims: unprepared.collect(),
        }
    }
}

/// Both versions of the service at one socket. A request's path begins with its version's name.
#[derive(Clone, Debug)]
struct Versions {
    new: v1::d_r_a_plugin_server::DRAPluginServer<Driver>,
    old: v1beta1::d_r_a_plugin_server::DRAPluginServer<Driver>,
}

impl Service<http::Request<Body>> for Versions {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let old = format!("/{}/", v1beta1::d_r_a_plugin_server::SERVICE_NAME);
        match request.uri().path().starts_with(&old) {
            true => self.old.call(request),
            // The newer version also refuses unknown paths.
            false => self.new.call(request),
        }
    }
}

/// Checks that a uid can be a part of a file's name.
fn check_uid(uid: &str) -> Result<()> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    ensure!(
        !uid.is_empty() && uid.len() <= UID_MAX && uid.bytes().all(inner),
        "{uid:?} is no uid"
    );
    Ok(())
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Answer<PluginInfo> {
        Ok(Response::new(PluginInfo {
            kind: KIND.to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: VERSIONS.map(str::to_owned).into(),
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Answer<RegistrationStatusResponse> {
        let status = status.into_inner();
        match status.plugin_registered {
            true => eprintln!("gct-device-plugin: {DRIVER}: registered for claims"),
            false => eprintln!(
                "gct-device-plugin: {DRIVER}: the kubelet did not register it for claims: {}",
                status.error
            ),
        }
        self.bell.notify_one();
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Answers the calls of one version of the service. The messages are the same in all.
macro_rules! answer_claims {
    ($version:ident) => {
        #[tonic::async_trait]
        impl $version::d_r_a_plugin_server::DRAPlugin for Driver {
            async fn node_prepare_resources(
                &self,
                request: Request<ClaimsRequest>,
            ) -> Answer<PrepareResponse> {
                Ok(Response::new(self.prepare_all(request.into_inner()).await))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<ClaimsRequest>,
            ) -> Answer<UnprepareResponse> {
                Ok(Response::new(self.unprepare_all(request.get_ref())))
            }
        }
    };
}

answer_claims!(v1);
answer_claims!(v1beta1);
