// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Registers at the runtime, and answers its calls.
//!
//! The runtime waits for each answer, 2 s by default, with all its containers. So whatever may wait
//! for the tree is the worker's, and CreateContainer leaves the group to the hooks.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use gct_client::one_line;
use gct_kubelet::group::PodContainer;
use prost::Message as _;
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::api::{
    self, ConfigureResponse, Container, ContainerRequest, CreateContainerResponse, PodSandbox,
    RegisterPluginRequest, Request, Response, StateChangeEvent, Status, SynchronizeRequest,
    SynchronizeResponse,
};
use super::trunk::{Message, Trunk, TO_PLUGIN, TO_RUNTIME};
use super::worker::Worker;
use super::{adjust, annotations, shares, PROFILE};
use crate::cdi::Host;
use crate::container::State;
use crate::gpus::{Gpu, Offer};
use crate::groups::{self, Adopted};
use crate::profiles::{Annotations, Limit};
use crate::records::{Records, Share};

/// The plugin's name and its place among others. Two digits, in whose order they are asked.
const NAME: &str = "gctgroup";
const INDEX: &str = "50";
/// Time between two tries to register.
const RETRY: Duration = Duration::from_secs(1);

/// Codes of gRPC: an error without a better one, and a call that is not known.
const UNKNOWN: i32 = 2;
const UNIMPLEMENTED: i32 = 12;

/// The plugin of the runtime.
#[derive(Debug)]
pub struct Plugin {
    host: Arc<Host>,
    allowed: Arc<Annotations>,
    /// The GPUs of annotations.
    gpus: watch::Receiver<Vec<Offer>>,
    /// What the messages of Synchronize have said so far, until the last. A pod may come in a later
    /// one than its containers.
    pods: HashMap<String, PodSandbox>,
    containers: Vec<Container>,
    worker: Worker,
    /// Containers that were adopted without a guarantee.
    without: Arc<AtomicU64>,
}

/// A GPU, and the limits there.
type Shares = Vec<(Gpu, Vec<Limit>)>;

impl Plugin {
    /// Returns a plugin that does not run yet.
    pub fn new(host: Arc<Host>, allowed: Annotations, gpus: watch::Receiver<Vec<Offer>>) -> Self {
        Self {
            host,
            allowed: Arc::new(allowed),
            gpus,
            pods: HashMap::new(),
            containers: Vec::new(),
            worker: Worker::start(),
            without: Arc::default(),
        }
    }

    /// Serves the runtime at a socket, and waits for one that starts anew.
    pub async fn run(mut self, socket: &Path) {
        let mut said = String::new();
        loop {
            let ended = match UnixStream::connect(socket).await {
                Ok(stream) => self.serve(stream).await,
                Err(error) => Err(error.into()),
            };
            let Err(error) = ended;
            let says = format!("{}: {error:#}: tries again", socket.display());
            if said != says {
                log(&says);
                said = says;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn serve(&mut self, stream: UnixStream) -> Result<std::convert::Infallible> {
        let mut trunk = Trunk::new(stream);
        self.pods.clear();
        self.containers.clear();
        let register = RegisterPluginRequest {
            plugin_name: NAME.to_owned(),
            plugin_idx: INDEX.to_owned(),
        };
        let request = Request {
            service: api::RUNTIME.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: register.encode_to_vec(),
        };
        trunk.send(TO_RUNTIME, &Message::Call(1, request)).await?;
        loop {
            match trunk.receive().await? {
                Message::Answer(_, response) => match response.status {
                    Some(Status { code, message }) if code != 0 => {
                        bail!("the runtime refuses the plugin: {message}")
                    }
                    _ => log("registered"),
                },
                Message::Call(stream, request) => {
                    let response = self.answer(&request);
                    trunk
                        .send(TO_PLUGIN, &Message::Answer(stream, response))
                        .await?;
                }
            }
        }
    }

    /// Answers a call of the runtime.
    fn answer(&mut self, request: &Request) -> Response {
        let failed = |code, message| Response {
            status: Some(Status { code, message }),
            payload: Vec::new(),
        };
        if request.service != api::PLUGIN {
            return failed(UNIMPLEMENTED, format!("no service {}", request.service));
        }
        let payload = match request.method.as_str() {
            "Configure" => {
                let events = [
                    api::CREATE_CONTAINER,
                    api::STOP_CONTAINER,
                    api::REMOVE_CONTAINER,
                ];
                let events = events.iter().fold(0, |mask, event| mask | 1 << (event - 1));
                Ok(ConfigureResponse { events }.encode_to_vec())
            }
            "Synchronize" => self.synchronize(&request.payload),
            "CreateContainer" => self.create(&request.payload),
            "StopContainer" | "RemoveContainer" => self.stop(&request.payload),
            "StateChange" => self.state_change(&request.payload),
            "Shutdown" => Ok(Vec::new()),
            other => return failed(UNIMPLEMENTED, format!("no method {other}")),
        };
        match payload {
            Ok(payload) => Response {
                status: None,
                payload,
            },
            Err(error) => failed(UNKNOWN, format!("gctgroup: {error:#}")),
        }
    }

    /// Gives containers that run a group, if annotations ask for one and no hook has made it.
    fn synchronize(&mut self, payload: &[u8]) -> Result<Vec<u8>> {
        let request = SynchronizeRequest::decode(payload)?;
        let pods = request.pods.into_iter();
        self.pods.extend(pods.map(|pod| (pod.id.clone(), pod)));
        self.containers.extend(request.containers);
        let more = request.more;
        if !more {
            self.adopt_all();
        }
        Ok(SynchronizeResponse { more }.encode_to_vec())
    }

    fn adopt_all(&mut self) {
        let pods = std::mem::take(&mut self.pods);
        for container in std::mem::take(&mut self.containers) {
            let Some(pod) = pods.get(&container.pod_sandbox_id) else {
                continue;
            };
            if container.state == api::STOPPED || container.pid == 0 {
                continue;
            }
            let name = name(pod, &container);
            let adopted = match self.shares(pod, &container) {
                Ok(None) => Ok(()),
                Ok(Some(shares)) => self.adopt(name.clone(), container, &shares),
                Err(error) => Err(error),
            };
            if let Err(error) = adopted {
                log(&format!("{} is not adopted: {error:#}", shown(&name)));
            }
        }
    }

    /// Has a container that runs given its group, unless it has one.
    fn adopt(&self, name: PodContainer, container: Container, shares: &Shares) -> Result<()> {
        let share = |(gpu, limits): &(Gpu, Vec<Limit>)| {
            let limits = limits.iter();
            let share = Share {
                profile: PROFILE.to_owned(),
                limits: limits
                    .map(|limit| (limit.entry.name.to_owned(), limit.content.to_string()))
                    .collect(),
                mps: false,
                claim: None,
                slots: Some(self.allowed.slots),
            };
            (gpu.index, share)
        };
        let shares: Vec<(u32, Share)> = shares.iter().map(share).collect();
        let (host, without) = (Arc::clone(&self.host), Arc::clone(&self.without));
        let state = State::of_pod(&container.id, container.pid, name.clone());
        self.worker.adopt(&container.id, move || {
            adopt(&host, &shown(&name), &state, shares, &without);
        })
    }

    fn create(&self, payload: &[u8]) -> Result<Vec<u8>> {
        let (pod, container) = of(ContainerRequest::decode(payload)?)?;
        let adjust = match self.shares(&pod, &container)? {
            None => None,
            Some(shares) => {
                let edits = self.host.share_edits(PROFILE, self.allowed.slots, &shares);
                Some(adjust::adjustment(edits)?)
            }
        };
        Ok(CreateContainerResponse { adjust }.encode_to_vec())
    }

    /// Returns what the annotations give a container, if they give it anything.
    fn shares(&self, pod: &PodSandbox, container: &Container) -> Result<Option<Shares>> {
        let asks = annotations::asks(&pod.annotations, &container.name, &container.env);
        if asks.as_ref().is_ok_and(Vec::is_empty) {
            return Ok(None);
        }
        if let Some(profile) = self.profile(container) {
            // It has what its annotations gave it when it was created.
            if profile == PROFILE {
                return Ok(None);
            }
            let name = shown(&name(pod, container));
            log(&format!(
                "{name} has a device of gctgroup: its annotations count for nothing"
            ));
            return Ok(None);
        }
        let healthy: Vec<Gpu> = self
            .gpus
            .borrow()
            .iter()
            .filter(|offer| offer.fault.is_none())
            .map(|offer| offer.gpu.clone())
            .collect();
        shares::shares(&asks?, &self.allowed, &healthy).map(Some)
    }

    /// Returns what the container has a share of, if a hook of this program makes its group.
    fn profile<'a>(&self, container: &'a Container) -> Option<&'a str> {
        let hooks = container
            .hooks
            .iter()
            .flat_map(|hooks| &hooks.create_runtime);
        let own = hooks.filter(|hook| Path::new(&hook.path) == self.host.hook);
        let mut arguments = own.flat_map(|hook| &hook.args);
        arguments.find_map(|argument| argument.strip_prefix("--profile="))
    }

    /// Removes the group of a container that has ended. The hook of one that was adopted does not.
    fn stop(&self, payload: &[u8]) -> Result<Vec<u8>> {
        let (pod, container) = of(ContainerRequest::decode(payload)?)?;
        self.release(&pod, &container);
        Ok(Vec::new())
    }

    fn state_change(&self, payload: &[u8]) -> Result<Vec<u8>> {
        let event = StateChangeEvent::decode(payload)?;
        if event.event == api::REMOVE_CONTAINER {
            let (pod, container) = of(ContainerRequest {
                pod: event.pod,
                container: event.container,
            })?;
            self.release(&pod, &container);
        }
        Ok(Vec::new())
    }

    fn release(&self, pod: &PodSandbox, container: &Container) {
        let (host, name) = (Arc::clone(&self.host), name(pod, container));
        let state = State::of_pod(&container.id, 0, name.clone());
        let has_group = Records::exists(&host.places.state, &state.group());
        self.worker.release(&container.id, has_group, move || {
            let places = &host.places;
            let released = groups::is_known(places, &state).and_then(|is_known| match is_known {
                true => groups::release(places, &state),
                false => Ok(()),
            });
            if let Err(error) = released {
                log(&format!("{}: {}", shown(&name), one_line(error.as_ref())));
            }
        });
    }
}

/// Makes the group of a container that runs, unless it has one.
fn adopt(host: &Host, name: &str, state: &State, shares: Vec<(u32, Share)>, lost: &AtomicU64) {
    let limits = match host.places.dir {
        Some(_) => ": programs that run have no library, and so no limits",
        None => "",
    };
    match groups::adopt(&host.places, state, shares.into_iter()) {
        Ok(Adopted::Before) => {}
        Ok(Adopted::Now) => log(&format!("adopted {name}{limits}")),
        Ok(Adopted::WithoutGuarantee(error)) => {
            let count = lost.fetch_add(1, Ordering::Relaxed) + 1;
            log(&format!(
                "adopted {name} without its guarantee ({count} so far): {error:#}{limits}"
            ));
        }
        Err(error) => log(&format!("{name} is not adopted: {error:#}")),
    }
}

fn of(request: ContainerRequest) -> Result<(PodSandbox, Container)> {
    // Without its pod a container is not found again: its cgroup says when it is gone.
    let pod = request.pod.context("there is no pod")?;
    Ok((pod, request.container.context("there is no container")?))
}

fn name(pod: &PodSandbox, container: &Container) -> PodContainer {
    PodContainer {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        container: container.name.clone(),
    }
}

fn shown(name: &PodContainer) -> String {
    let PodContainer {
        namespace,
        pod,
        container,
    } = name;
    format!("{namespace}/{pod}/{container}")
}

fn log(message: &str) {
    eprintln!("gct-device-plugin: nri: {message}");
}
