// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A runtime's side of NRI: it lets a plugin register and calls it.

use std::fs;
use std::path::Path;

use gct_device_plugin::nri::api::{
    self, ConfigureResponse, Container, ContainerAdjustment, ContainerRequest,
    CreateContainerResponse, PodSandbox, RegisterPluginRequest, Request, Response,
    StateChangeEvent, SynchronizeRequest, SynchronizeResponse,
};
use gct_device_plugin::nri::trunk::{Message, Trunk, TO_PLUGIN, TO_RUNTIME};
use prost::Message as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::WAIT;

/// A runtime that a plugin has registered with.
pub(crate) struct Runtime {
    trunk: Trunk<UnixStream>,
    stream: u32,
}

/// Returns the pod `pod<n>` with annotations, and its container `main`.
pub(crate) fn pod(n: u32, annotations: &[(&str, &str)]) -> (PodSandbox, Container) {
    let annotations = annotations.iter();
    let pod = PodSandbox {
        id: format!("p{n}"),
        name: format!("pod{n}"),
        namespace: "default".to_owned(),
        annotations: annotations
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    };
    let container = Container {
        id: format!("c{n}"),
        pod_sandbox_id: pod.id.clone(),
        name: "main".to_owned(),
        state: 3,
        pid: n,
        ..Container::default()
    };
    (pod, container)
}

impl Runtime {
    /// Starts at a socket, waits for the plugin and tells it what runs, each pod in a message.
    pub(crate) async fn start(socket: &Path, running: &[(PodSandbox, Container)]) -> Self {
        let _ = fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let accepted = timeout(WAIT, listener.accept()).await.expect("a plugin");
        let trunk = Trunk::new(accepted.unwrap().0);
        let mut runtime = Self { trunk, stream: 1 };
        let Message::Call(stream, request) = runtime.trunk.receive().await.unwrap() else {
            panic!("no call");
        };
        assert_eq!(
            (request.service.as_str(), request.method.as_str()),
            (api::RUNTIME, "RegisterPlugin")
        );
        let plugin = RegisterPluginRequest::decode(&request.payload[..]).unwrap();
        assert_eq!(
            (plugin.plugin_name.as_str(), plugin.plugin_idx.as_str()),
            ("gctgroup", "50")
        );
        let answer = Message::Answer(stream, Response::default());
        runtime.trunk.send(TO_RUNTIME, &answer).await.unwrap();
        let configured = runtime.call("Configure", Vec::new()).await.unwrap();
        let events = ConfigureResponse::decode(&configured[..]).unwrap().events;
        assert_eq!(events, 1 << 3 | 1 << 9 | 1 << 10);
        for (n, (pod, container)) in (1..).zip(running) {
            let request = SynchronizeRequest {
                pods: vec![pod.clone()],
                containers: vec![container.clone()],
                more: n < running.len(),
            };
            let response = runtime
                .call("Synchronize", request.encode_to_vec())
                .await
                .unwrap();
            let response = SynchronizeResponse::decode(&response[..]).unwrap();
            assert_eq!(response.more, request.more);
        }
        runtime
    }

    /// Calls the plugin. An error is its message.
    pub(crate) async fn call(&mut self, method: &str, payload: Vec<u8>) -> Result<Vec<u8>, String> {
        let request = Request {
            service: api::PLUGIN.to_owned(),
            method: method.to_owned(),
            payload,
        };
        let stream = self.stream;
        self.stream += 2;
        let call = Message::Call(stream, request);
        self.trunk.send(TO_PLUGIN, &call).await.unwrap();
        let answer = timeout(WAIT, self.trunk.receive())
            .await
            .expect("an answer");
        match answer.unwrap() {
            Message::Answer(to, response) if to == stream => match response.status {
                None => Ok(response.payload),
                Some(status) => Err(status.message),
            },
            other => panic!("{other:?}"),
        }
    }

    /// Returns how the plugin adjusts a container that is created.
    pub(crate) async fn create(
        &mut self,
        (pod, container): (PodSandbox, Container),
    ) -> Result<Option<ContainerAdjustment>, String> {
        let request = ContainerRequest {
            pod: Some(pod),
            container: Some(container),
        };
        let response = self
            .call("CreateContainer", request.encode_to_vec())
            .await?;
        Ok(CreateContainerResponse::decode(&response[..])
            .unwrap()
            .adjust)
    }

    /// Tells the plugin that a container has stopped.
    pub(crate) async fn stopped(&mut self, (pod, container): (PodSandbox, Container)) {
        let request = ContainerRequest {
            pod: Some(pod),
            container: Some(container),
        };
        self.call("StopContainer", request.encode_to_vec())
            .await
            .unwrap();
    }

    /// Tells the plugin that a container is removed.
    pub(crate) async fn removed(&mut self, (pod, container): (PodSandbox, Container)) {
        let event = StateChangeEvent {
            event: api::REMOVE_CONTAINER,
            pod: Some(pod),
            container: Some(container),
        };
        self.call("StateChange", event.encode_to_vec())
            .await
            .unwrap();
    }
}
