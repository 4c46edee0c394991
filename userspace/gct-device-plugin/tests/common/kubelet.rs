// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A kubelet's side of the device plugins' API.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use gct_device_plugin::api::services::device_plugin_client::DevicePluginClient;
use gct_device_plugin::api::services::registration_server::{Registration, RegistrationServer};
use gct_device_plugin::api::*;
use gct_kubelet::api::PodResources;
use gct_kubelet::testing::Lister;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use super::{empty, until};

/// What the kubelet does when a plugin registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// It connects and lists.
    Proper,
    /// The first time it empties its folder, as one that is still starting does.
    EmptiesOnce,
    /// The first time it never connects.
    ForgetsOnce,
}

#[derive(Debug, Default)]
struct Known {
    /// The devices of each resource with their health.
    devices: BTreeMap<String, BTreeMap<String, bool>>,
    clients: HashMap<String, DevicePluginClient<Channel>>,
    used: BTreeSet<(String, String)>,
    registrations: usize,
    tasks: Vec<JoinHandle<()>>,
}

/// A kubelet. Dropping it stops it.
pub(crate) struct Kubelet {
    known: Arc<Mutex<Known>>,
    pods: Lister,
    servers: Vec<JoinHandle<()>>,
}

struct Registry {
    folder: PathBuf,
    behaviour: Behaviour,
    known: Arc<Mutex<Known>>,
}

impl Kubelet {
    /// Starts a kubelet. It empties its folder first.
    pub(crate) fn start(kubelet: &Path, behaviour: Behaviour) -> Self {
        let folder = kubelet.join("device-plugins");
        empty(&folder);
        empty(&kubelet.join("pod-resources"));
        let known: Arc<Mutex<Known>> = Arc::default();
        let pods = Lister::default();
        let registry = RegistrationServer::new(Registry {
            folder: folder.clone(),
            behaviour,
            known: Arc::clone(&known),
        });
        let plugins = UnixListener::bind(folder.join("kubelet.sock")).unwrap();
        let plugins =
            Server::builder().serve_with_incoming(registry, UnixListenerStream::new(plugins));
        let servers = vec![
            tokio::spawn(async { plugins.await.unwrap() }),
            pods.serve(&kubelet.join("pod-resources/kubelet.sock")),
        ];
        Self {
            known,
            pods,
            servers,
        }
    }

    /// Returns how often plugins have registered.
    pub(crate) fn registrations(&self) -> usize {
        self.known.lock().unwrap().registrations
    }

    /// Returns the healthy devices of a resource.
    pub(crate) fn healthy(&self, resource: &str) -> Vec<String> {
        let known = self.known.lock().unwrap();
        let devices = known.devices.get(resource).into_iter().flatten();
        devices
            .filter(|(_, healthy)| **healthy)
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Returns how many devices of a resource there are, whatever their health.
    pub(crate) fn devices(&self, resource: &str) -> usize {
        self.known
            .lock()
            .unwrap()
            .devices
            .get(resource)
            .map_or(0, BTreeMap::len)
    }

    pub(crate) async fn until_healthy(&self, resource: &str, count: usize) {
        until(&format!("{count} of {resource}"), || {
            self.healthy(resource).len() == count
        })
        .await;
    }

    /// Asks the plugin which `size` of the available devices it prefers.
    pub(crate) async fn preferred(
        &self,
        resource: &str,
        available: &[String],
        size: i32,
    ) -> Result<Vec<String>, Status> {
        let client = self.known.lock().unwrap().clients.get(resource).cloned();
        let request = ContainerPreferredAllocationRequest {
            available: available.to_vec(),
            must_include: vec![],
            size,
        };
        let answer = client
            .unwrap()
            .get_preferred_allocation(PreferredAllocationRequest {
                container_requests: vec![request],
            })
            .await?;
        let mut responses = answer.into_inner().container_responses;
        Ok(responses.remove(0).device_ids)
    }

    /// Admits a container with `size` devices, as the kubelet does, and returns their CDI names.
    pub(crate) async fn admit(
        &self,
        resource: &str,
        size: i32,
    ) -> Result<(Vec<String>, Vec<String>), Status> {
        let healthy = self.healthy(resource);
        let (mut client, available) = {
            let known = self.known.lock().unwrap();
            let is_free = |id: &String| !known.used.contains(&(resource.to_owned(), id.clone()));
            let client = known.clients.get(resource).cloned();
            (
                client.unwrap(),
                healthy.into_iter().filter(is_free).collect::<Vec<_>>(),
            )
        };
        if available.len() < usize::try_from(size).unwrap() {
            return Err(Status::resource_exhausted(format!(
                "Insufficient {resource}"
            )));
        }
        let device_ids = self.preferred(resource, &available, size).await?;
        assert_eq!(device_ids.len(), usize::try_from(size).unwrap());
        let answer = client
            .allocate(AllocateRequest {
                container_requests: vec![ContainerAllocateRequest {
                    device_ids: device_ids.clone(),
                }],
            })
            .await?
            .into_inner();
        let request = PreStartContainerRequest {
            device_ids: device_ids.clone(),
        };
        client.pre_start_container(request).await?;
        let response = &answer.container_responses[0];
        let names: Vec<String> = response
            .cdi_devices
            .iter()
            .map(|device| device.name.clone())
            .collect();
        let annotation: Vec<&String> = response.annotations.values().collect();
        assert_eq!(
            annotation,
            [&names.join(",")],
            "old kubelets read the annotation"
        );
        let mut known = self.known.lock().unwrap();
        known.used.extend(
            device_ids
                .iter()
                .map(|id| (resource.to_owned(), id.clone())),
        );
        Ok((device_ids, names))
    }

    /// Takes a container's devices back.
    pub(crate) fn free(&self, resource: &str, devices: &[String]) {
        let mut known = self.known.lock().unwrap();
        for id in devices {
            known.used.remove(&(resource.to_owned(), id.clone()));
        }
    }

    /// Sets the pods that the kubelet lists.
    pub(crate) fn set_pods(&self, pods: Vec<PodResources>) {
        self.pods.set(pods);
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.servers.iter().for_each(JoinHandle::abort);
        self.known
            .lock()
            .unwrap()
            .tasks
            .iter()
            .for_each(JoinHandle::abort);
    }
}

#[tonic::async_trait]
impl Registration for Registry {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        if request.version != VERSION {
            return Err(Status::invalid_argument("unsupported version"));
        }
        let mut known = self.known.lock().unwrap();
        known.registrations += 1;
        let is_first = known.registrations == 1;
        match self.behaviour {
            Behaviour::EmptiesOnce if is_first => {
                let _ = std::fs::remove_file(self.folder.join(&request.endpoint));
            }
            Behaviour::ForgetsOnce if is_first => {}
            _ => {
                let path = self.folder.join(&request.endpoint);
                let all = Arc::clone(&self.known);
                known
                    .tasks
                    .push(tokio::spawn(watch(path, request.resource_name, all)));
            }
        }
        Ok(Response::new(Empty {}))
    }
}

/// Follows the devices of a resource until its plugin goes.
async fn watch(path: PathBuf, resource: String, known: Arc<Mutex<Known>>) {
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
    let Ok(channel) = endpoint.connect().await else {
        return;
    };
    let mut client = DevicePluginClient::new(channel);
    let options = client
        .get_device_plugin_options(Empty {})
        .await
        .unwrap()
        .into_inner();
    assert!(options.pre_start_required && options.get_preferred_allocation_available);
    known
        .lock()
        .unwrap()
        .clients
        .insert(resource.clone(), client.clone());
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    while let Ok(Some(list)) = lists.message().await {
        let devices = list.devices.into_iter().map(|device| {
            assert!(device.id.len() <= 63);
            (device.id, device.health == HEALTHY)
        });
        known
            .lock()
            .unwrap()
            .devices
            .insert(resource.clone(), devices.collect());
    }
    // The kubelet keeps the devices, and allocates none of them.
    if let Some(devices) = known.lock().unwrap().devices.get_mut(&resource) {
        devices.values_mut().for_each(|healthy| *healthy = false);
    }
}
