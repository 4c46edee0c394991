// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the node's ResourceSlice what the node offers.
//!
//! A kubelet that starts deletes the slices of its node, and drivers publish them again. So the
//! slice is compared with the API server's when the GPUs change, when the kubelet has registered
//! the driver, and every [`LOOK`].
//!
//! An API server without the gate DRADeviceTaints drops taints and says nothing. Its answer shows
//! it: then a GPU that is not healthy is left out of the slice, until the plugin starts anew.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper::Method;
use serde_json::{json, Value};
use tokio::sync::{watch, Notify};
use tokio::time::sleep;

use super::client::Server;
use super::slice::{self, About};
use crate::driver::Driver;
use crate::gpus::Offer;

const LOOK: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(5);

/// The node's slice at the API server.
#[derive(Debug)]
pub struct Publisher {
    /// The API server.
    pub server: Server,
    /// The node.
    pub node: String,
    /// The driver's files, which say its version.
    pub driver: Driver,
    /// The GPUs that claims may use.
    pub gpus: watch::Receiver<Vec<Offer>>,
    /// Rung when the slice may be gone.
    pub bell: Arc<Notify>,
    /// Whether the API server keeps taints, as far as is known.
    pub taints: bool,
}

impl Publisher {
    /// Publishes for ever.
    pub async fn run(mut self) {
        let mut said = String::new();
        loop {
            let gpus = self.gpus.borrow_and_update().clone();
            let (message, wait) = match self.publish(&gpus).await {
                Ok(true) => ("published the ResourceSlice".to_owned(), LOOK),
                Ok(false) => (String::new(), LOOK),
                Err(error) => (format!("no ResourceSlice: {error:#}"), RETRY),
            };
            if !message.is_empty() && message != said {
                eprintln!("gct-device-plugin: {message}");
            }
            said = message;
            let bell = Arc::clone(&self.bell);
            tokio::select! {
                _ = sleep(wait) => {}
                () = bell.notified() => {}
                changed = self.gpus.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Makes the API server's slice offer these GPUs. Returns whether it did not.
    async fn publish(&mut self, offers: &[Offer]) -> Result<bool> {
        let kept = self.write(offers).await?;
        let Some((written, kept)) = kept else {
            return Ok(false);
        };
        if slice::tainted(&kept["spec"]) < slice::tainted(&written) {
            self.taints = false;
            eprintln!(
                "gct-device-plugin: the API server keeps no device taints (gate DRADeviceTaints): \
                 GPUs that are not healthy are left out of the ResourceSlice"
            );
            self.write(offers).await?;
        }
        Ok(true)
    }

    /// Writes the slice unless it is there. Returns its specification, and the server's answer.
    async fn write(&self, offers: &[Offer]) -> Result<Option<(Value, Value)>> {
        let all = format!("/apis/{}/resourceslices", slice::API_VERSION);
        let name = slice::name(&self.node);
        let own = format!("{all}/{name}");
        let loaded = self.driver.loaded();
        let about = About {
            node: &self.node,
            driver: loaded.as_deref(),
            taints: self.taints,
        };
        let Some(mut there) = self.server.call(Method::GET, &own, None).await? else {
            let metadata = json!({ "name": name, "ownerReferences": [self.owner().await?] });
            let spec = slice::spec(&about, offers, 1);
            let new = json!({
                "apiVersion": slice::API_VERSION,
                "kind": "ResourceSlice",
                "metadata": metadata,
                "spec": spec,
            });
            let made = self.server.call(Method::POST, &all, Some(&new)).await?;
            let made = made.context("the API server knows no resource.k8s.io/v1")?;
            return Ok(Some((spec, made)));
        };
        let generation = there["spec"]["pool"]["generation"].as_u64().unwrap_or(0);
        let spec = slice::spec(&about, offers, generation.saturating_add(1));
        if slice::same(&there["spec"], &spec) {
            return Ok(None);
        }
        there["spec"] = spec.clone();
        let put = self.server.call(Method::PUT, &own, Some(&there)).await?;
        let put = put.context("it was deleted meanwhile")?;
        Ok(Some((spec, put)))
    }

    /// Returns the node as the slice's owner: the slice goes with it.
    async fn owner(&self) -> Result<Value> {
        let path = format!("/api/v1/nodes/{}", self.node);
        let node = self.server.call(Method::GET, &path, None).await?;
        let node = node.with_context(|| format!("there is no node {}", self.node))?;
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "name": self.node,
            "uid": node["metadata"]["uid"],
            "controller": true,
        }))
    }
}
