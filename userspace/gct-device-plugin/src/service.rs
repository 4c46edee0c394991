// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Answers the kubelet's calls for one profile.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::bail;
use gct_client::one_line;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::api::services::device_plugin_server::DevicePlugin;
use crate::api::*;
use crate::inventory::Slot;
use crate::mps::Control;
use crate::place::Places;
use crate::prefer::Running;
use crate::profiles::{Profile, Sharing};
use crate::{cdi, groups, prefer};

/// The options of every profile's service.
pub const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: true,
    get_preferred_allocation_available: true,
};

/// A slot, as the kubelet is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotState {
    /// The slot.
    pub slot: Slot,
    /// Whether its GPU is healthy.
    pub is_healthy: bool,
    /// The NUMA node of its GPU.
    pub numa_node: Option<i64>,
}

/// The containers that ran when the keeper last looked.
pub type Tenants = Arc<Mutex<Running>>;

/// The service of one profile.
#[derive(Clone, Debug)]
pub struct Service {
    /// The profile.
    pub profile: Arc<Profile>,
    /// Its slots now.
    pub slots: watch::Receiver<Vec<SlotState>>,
    /// Open streams of `ListAndWatch`.
    pub streams: Arc<AtomicUsize>,
    /// Who is on which GPU.
    pub tenants: Tenants,
    /// Where the groups are.
    pub places: Arc<Places>,
    /// The MPS daemons.
    pub mps: Arc<Control>,
}

/// Counts a stream until it is dropped.
struct OpenStream(Arc<AtomicUsize>);

impl OpenStream {
    fn new(streams: Arc<AtomicUsize>) -> Self {
        streams.fetch_add(1, Ordering::SeqCst);
        Self(streams)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn list(slots: &[SlotState]) -> ListAndWatchResponse {
    let device = |state: &SlotState| Device {
        id: state.slot.to_string(),
        health: if state.is_healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
        topology: state.numa_node.map(|id| TopologyInfo {
            nodes: vec![NumaNode { id }],
        }),
    };
    ListAndWatchResponse {
        devices: slots.iter().map(device).collect(),
    }
}

fn parse(ids: &[String]) -> Result<Vec<Slot>, Status> {
    let slot = |id: &String| {
        let unknown = |()| Status::invalid_argument(format!("there is no device {id:?}"));
        id.parse().map_err(unknown)
    };
    ids.iter().map(slot).collect()
}

impl Service {
    fn allocate_one(&self, ids: &[String]) -> Result<ContainerAllocateResponse, Status> {
        let slots = parse(ids)?;
        let states = self.slots.borrow();
        let mut gpus = BTreeSet::new();
        for slot in slots {
            match states.iter().find(|state| state.slot == slot) {
                Some(state) if state.is_healthy => {}
                Some(_) => {
                    return Err(Status::unavailable(format!(
                        "GPU {} is not healthy",
                        slot.gpu
                    )))
                }
                None => {
                    return Err(Status::invalid_argument(format!(
                        "there is no device {slot}"
                    )))
                }
            }
            if !gpus.insert(slot.gpu) {
                return Err(Status::failed_precondition(format!(
                    "a container has one slot of a GPU: {} cannot be had more than once on GPU {}",
                    self.profile.resource(),
                    slot.gpu
                )));
            }
        }
        if self.profile.share == Sharing::Mps && gpus.len() > 1 {
            return Err(Status::failed_precondition(
                "a container can use one GPU under MPS",
            ));
        }
        let names: Vec<String> = gpus
            .iter()
            .map(|gpu| cdi::device(&self.profile, *gpu))
            .collect();
        Ok(ContainerAllocateResponse {
            annotations: [(cdi::annotation(&self.profile), names.join(","))].into(),
            cdi_devices: names.into_iter().map(|name| CdiDevice { name }).collect(),
        })
    }

    fn prefer_one(
        &self,
        request: &ContainerPreferredAllocationRequest,
    ) -> Result<Vec<String>, Status> {
        let available = parse(&request.available)?;
        let must = parse(&request.must_include)?;
        let size = usize::try_from(request.size)
            .map_err(|_| Status::invalid_argument("a negative number of devices"))?;
        let tenants = {
            let running = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
            let slots = self.slots.borrow();
            let taken = slots
                .iter()
                .map(|state| state.slot)
                .filter(|slot| !available.contains(slot));
            prefer::tenants(&self.profile.name, &running, taken.map(|slot| slot.gpu))
        };
        let chosen = prefer::choose(self.profile.place, &available, &must, size, &tenants);
        Ok(chosen.iter().map(Slot::to_string).collect())
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Answer<DevicePluginOptions> {
        Ok(Response::new(OPTIONS))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Answer<Self::ListAndWatchStream> {
        let open = OpenStream::new(Arc::clone(&self.streams));
        let lists = WatchStream::new(self.slots.clone()).map(move |slots| {
            let _ = &open;
            Ok(list(&slots))
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Answer<PreferredAllocationResponse> {
        let requests = request.into_inner().container_requests;
        let answers = requests.iter().map(|request| {
            let device_ids = self.prefer_one(request)?;
            Ok(ContainerPreferredAllocationResponse { device_ids })
        });
        let container_responses = answers.collect::<Result<_, Status>>()?;
        Ok(Response::new(PreferredAllocationResponse {
            container_responses,
        }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Answer<AllocateResponse> {
        let requests = request.into_inner().container_requests;
        let answers = requests
            .iter()
            .map(|request| self.allocate_one(&request.device_ids));
        let container_responses = answers.collect::<Result<_, Status>>()?;
        Ok(Response::new(AllocateResponse {
            container_responses,
        }))
    }

    /// Frees what ended containers hold, so that this one finds its quota free. Without the daemon
    /// of its GPU the container would run in turns, unseen: it does not start.
    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Answer<PreStartContainerResponse> {
        let slots = parse(&request.into_inner().device_ids)?;
        let service = self.clone();
        let pass = tokio::task::spawn_blocking(move || {
            if service.profile.share == Sharing::Mps {
                let silent = slots.iter().find(|slot| !service.mps.answers(slot.gpu));
                if let Some(slot) = silent {
                    bail!("the MPS daemon of GPU {} does not answer", slot.gpu);
                }
            }
            groups::reconcile(&service.places, None)
        });
        match pass.await {
            Ok(Ok(_)) => Ok(Response::new(PreStartContainerResponse {})),
            Ok(Err(error)) => Err(Status::unavailable(one_line(error.as_ref()))),
            Err(error) => Err(Status::internal(error.to_string())),
        }
    }
}
