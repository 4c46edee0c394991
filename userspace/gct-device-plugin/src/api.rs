// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the kubelet's messages and services for device plugins (`v1beta1`).
//!
//! Numbers and types are those of Kubernetes' published API. Fields that nobody here reads or
//! writes are left out; a decoder skips them.

use std::collections::HashMap;

/// The version of the device plugins' API.
pub const VERSION: &str = "v1beta1";
/// [`Device::health`] of a device that may be allocated.
pub const HEALTHY: &str = "Healthy";
/// [`Device::health`] of a device that may not be allocated.
pub const UNHEALTHY: &str = "Unhealthy";

/// An answer without content.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

/// What a plugin wants to be asked.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct DevicePluginOptions {
    /// The kubelet calls `PreStartContainer`.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// The kubelet calls `GetPreferredAllocation`.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// Names a plugin to the kubelet.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterRequest {
    /// [`VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// The file name of the plugin's socket in the kubelet's folder.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// The resource that pods ask for.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// The answer of `GetDevicePluginOptions`.
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// All devices of a resource.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListAndWatchResponse {
    /// The devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// The NUMA nodes of a device.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TopologyInfo {
    /// The nodes.
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

/// A NUMA node.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct NumaNode {
    /// Its number.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// A device that the kubelet hands to one container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// Its name, at most 63 characters.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
    /// Where it is.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<TopologyInfo>,
}

/// Announces the start of a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreStartContainerRequest {
    /// The container's devices.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

/// Lets the container start.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct PreStartContainerResponse {}

/// Asks which of the free devices the plugin would take.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferredAllocationRequest {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerPreferredAllocationRequest>,
}

/// The same of one container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerPreferredAllocationRequest {
    /// The free devices.
    #[prost(string, repeated, tag = "1")]
    pub available: Vec<String>,
    /// Those that must be among the preferred.
    #[prost(string, repeated, tag = "2")]
    pub must_include: Vec<String>,
    /// How many the container gets.
    #[prost(int32, tag = "3")]
    pub size: i32,
}

/// Which of the free devices the plugin would take.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferredAllocationResponse {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerPreferredAllocationResponse>,
}

/// The same of one container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerPreferredAllocationResponse {
    /// The preferred devices.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

/// Gives devices to containers of a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateRequest {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerAllocateRequest>,
}

/// The same of one container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAllocateRequest {
    /// The container's devices.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

/// What the runtime gives to the containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateResponse {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocateResponse>,
}

/// The same of one container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAllocateResponse {
    /// Annotations for the runtime. A kubelet before 1.28 names CDI devices only there.
    #[prost(map = "string, string", tag = "4")]
    pub annotations: HashMap<String, String>,
    /// CDI devices.
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

/// A CDI device.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CdiDevice {
    /// Its qualified name, such as `gctgroup.dev/small=gpu0`.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The services' clients and servers.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod services {
    include!(concat!(env!("OUT_DIR"), "/v1beta1.Registration.rs"));
    include!(concat!(env!("OUT_DIR"), "/v1beta1.DevicePlugin.rs"));
}
