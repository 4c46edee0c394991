// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the messages and the service of the kubelet's list of pods with their devices
//! (PodResources, `v1`).
//!
//! Numbers and types are those of Kubernetes' published API. Fields that nobody here reads or
//! writes are left out; a decoder skips them.

/// Asks for all pods with their devices.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ListPodResourcesRequest {}

/// All pods with their devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListPodResourcesResponse {
    /// The pods.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// A pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// A container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its devices.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

/// Devices of one resource that a container has.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerDevices {
    /// The resource.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// The devices.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

/// The service's client and server.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod services {
    include!(concat!(env!("OUT_DIR"), "/v1.PodResourcesLister.rs"));
}
