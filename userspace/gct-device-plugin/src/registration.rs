// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves one profile at a socket in the kubelet's folder and keeps it registered.
//!
//! A starting kubelet empties its folder. It may do so between the plugin's bind and its own, or
//! after it has accepted a registration, and then never connects. So a registration counts only
//! while
//!
//! ```text
//! the plugin's socket   is the file that the plugin made
//! the kubelet's socket  is the file at which the plugin registered
//! ListAndWatch          has a stream, STREAM_WAIT after the registration
//! ```
//!
//! and the first two are looked at every POLL. A look is two calls of stat(2).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{sleep, Instant};
use tonic::transport::{Endpoint, Server};

use crate::api::services::device_plugin_server::DevicePluginServer;
use crate::api::services::registration_client::RegistrationClient;
use crate::api::{RegisterRequest, VERSION};
use crate::service::{Service, OPTIONS};
use crate::socket::{identity, needs_new_start, Identity, Serving, NEW_START};

const POLL: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_secs(1);
const STREAM_WAIT: Duration = Duration::from_secs(5);
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The folder in which the kubelet and the plugins have their sockets, below the kubelet's.
const FOLDER: &str = "device-plugins";
const KUBELET: &str = "kubelet.sock";

/// A profile's place at the kubelet.
#[derive(Debug)]
pub struct Registration {
    service: Service,
    folder: PathBuf,
    endpoint: String,
    said: Option<String>,
}

impl Registration {
    /// Returns the registration of a service, in the kubelet's folder.
    pub fn new(service: Service, kubelet: &Path) -> Self {
        Self {
            folder: kubelet.join(FOLDER),
            endpoint: format!("gctgroup-{}.sock", service.profile.name),
            service,
            said: None,
        }
    }

    /// Serves and registers for ever.
    ///
    /// # Errors
    ///
    /// Ends when only a new start helps.
    pub async fn run(mut self) -> Result<()> {
        loop {
            match self.serve() {
                Ok(serving) => self.keep(&serving).await,
                Err(error) if needs_new_start(&error, &[&self.folder]) => {
                    return Err(error).context(format!("{}: {NEW_START}", self.folder.display()));
                }
                // A kubelet that has never run has not made its folder. It may make it by now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.say(format!(
                        "waits for a kubelet to make {}",
                        self.folder.display()
                    ));
                }
                Err(error) => {
                    let socket = self.folder.join(&self.endpoint);
                    self.say(format!("cannot serve at {}: {error}", socket.display()));
                }
            }
            sleep(POLL).await;
        }
    }

    fn serve(&self) -> io::Result<Serving> {
        let server = DevicePluginServer::new(self.service.clone());
        Serving::start(self.folder.join(&self.endpoint), |incoming| async move {
            let _ = Server::builder()
                .serve_with_incoming(server, incoming)
                .await;
        })
    }

    /// Registers whenever the kubelet does not know the plugin. Returns when the socket is gone.
    async fn keep(&mut self, serving: &Serving) {
        let kubelet = self.folder.join(KUBELET);
        let mut registered: Option<(Identity, Instant)> = None;
        while serving.is_intact() {
            let now = identity(&kubelet);
            let is_known = registered.is_some_and(|(file, since)| {
                let is_heard = self.service.streams.load(Ordering::SeqCst) > 0;
                Some(file) == now && (is_heard || since.elapsed() < STREAM_WAIT)
            });
            let Some(now) = now.filter(|_| !is_known) else {
                sleep(POLL).await;
                continue;
            };
            match self.register(&kubelet).await {
                Ok(()) => {
                    registered = Some((now, Instant::now()));
                    self.said = None;
                    self.say("registered".to_owned());
                }
                Err(problem) => {
                    registered = None;
                    self.say(format!("the kubelet did not register it: {problem}"));
                    sleep(RETRY).await;
                }
            }
        }
        self.say("its socket is gone".to_owned());
    }

    async fn register(&self, kubelet: &Path) -> Result<(), String> {
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: self.endpoint.clone(),
            resource_name: self.service.profile.resource(),
            options: Some(OPTIONS),
        };
        let channel = Endpoint::from_shared(format!("unix://{}", kubelet.display()))
            .map_err(|error| error.to_string())?
            .connect_timeout(CALL_TIMEOUT)
            .timeout(CALL_TIMEOUT)
            .connect()
            .await
            .map_err(|error| error.to_string())?;
        let answer = RegistrationClient::new(channel).register(request).await;
        answer
            .map(|_| ())
            .map_err(|status| status.message().to_owned())
    }

    /// Logs what is new. A kubelet that is away is not said each second.
    fn say(&mut self, what: String) {
        if self.said.as_ref() != Some(&what) {
            eprintln!(
                "gct-device-plugin: {}: {what}",
                self.service.profile.resource()
            );
            self.said = Some(what);
        }
    }
}
