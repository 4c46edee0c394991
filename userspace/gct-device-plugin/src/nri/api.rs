// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Describes the messages of ttrpc and of NRI's `v1alpha1`, as far as the plugin uses them.
//!
//! Names and numbers are those of containerd/ttrpc and of containerd/nri 0.6 (containerd 1.7).
//! Newer ones add fields, which are skipped.

use std::collections::HashMap;

use prost::Message;

/// The service that the runtime serves to plugins.
pub const RUNTIME: &str = "nri.pkg.api.v1alpha1.Runtime";
/// The service that a plugin serves to the runtime.
pub const PLUGIN: &str = "nri.pkg.api.v1alpha1.Plugin";

/// Numbers of events.
pub const CREATE_CONTAINER: i32 = 4;
/// A container has stopped.
pub const STOP_CONTAINER: i32 = 10;
/// A container is removed.
pub const REMOVE_CONTAINER: i32 = 11;

/// The state of a container that has ended, in [`Container::state`].
pub const STOPPED: i32 = 4;

/// A call of ttrpc.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// The service.
    #[prost(string, tag = "1")]
    pub service: String,
    /// The method.
    #[prost(string, tag = "2")]
    pub method: String,
    /// The method's message.
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
}

/// An answer of ttrpc.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    /// Why there is none, if there is none.
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    /// The method's message.
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

/// An error, with a code of gRPC.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// The code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// What is wrong.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// Says who the plugin is.
#[derive(Clone, PartialEq, Message)]
pub struct RegisterPluginRequest {
    /// Its name.
    #[prost(string, tag = "1")]
    pub plugin_name: String,
    /// Its place among the plugins: two digits.
    #[prost(string, tag = "2")]
    pub plugin_idx: String,
}

/// Says what the plugin is told of.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigureResponse {
    /// A bit for each event: that of event N is N - 1.
    #[prost(int32, tag = "2")]
    pub events: i32,
}

/// What there is.
#[derive(Clone, PartialEq, Message)]
pub struct SynchronizeRequest {
    /// The pods.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<PodSandbox>,
    /// Their containers.
    #[prost(message, repeated, tag = "2")]
    pub containers: Vec<Container>,
    /// Whether another such message follows, since NRI 0.7.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// The answer to it.
#[derive(Clone, PartialEq, Message)]
pub struct SynchronizeResponse {
    /// Whether the plugin takes another one.
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// Of an event: a container, and its pod. Also of the methods CreateContainer and StopContainer.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerRequest {
    /// The pod.
    #[prost(message, optional, tag = "1")]
    pub pod: Option<PodSandbox>,
    /// The container.
    #[prost(message, optional, tag = "2")]
    pub container: Option<Container>,
}

/// An event without an answer.
#[derive(Clone, PartialEq, Message)]
pub struct StateChangeEvent {
    /// Its number.
    #[prost(int32, tag = "1")]
    pub event: i32,
    /// The pod.
    #[prost(message, optional, tag = "2")]
    pub pod: Option<PodSandbox>,
    /// The container.
    #[prost(message, optional, tag = "3")]
    pub container: Option<Container>,
}

/// What the plugin changes in a container.
#[derive(Clone, PartialEq, Message)]
pub struct CreateContainerResponse {
    /// The changes.
    #[prost(message, optional, tag = "1")]
    pub adjust: Option<ContainerAdjustment>,
}

/// A pod.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandbox {
    /// Its id in the runtime.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "4")]
    pub namespace: String,
    /// Its annotations.
    #[prost(map = "string, string", tag = "6")]
    pub annotations: HashMap<String, String>,
}

/// A container.
#[derive(Clone, PartialEq, Message)]
pub struct Container {
    /// Its id in the runtime.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its pod's.
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    /// Its name in the pod.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Its state.
    #[prost(int32, tag = "4")]
    pub state: i32,
    /// Its environment.
    #[prost(string, repeated, tag = "8")]
    pub env: Vec<String>,
    /// Its hooks.
    #[prost(message, optional, tag = "10")]
    pub hooks: Option<Hooks>,
    /// Its first process.
    #[prost(uint32, tag = "12")]
    pub pid: u32,
}

/// Changes of a container.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerAdjustment {
    /// More mounts.
    #[prost(message, repeated, tag = "3")]
    pub mounts: Vec<Mount>,
    /// Variables, in place of others of the same name.
    #[prost(message, repeated, tag = "4")]
    pub env: Vec<KeyValue>,
    /// More hooks.
    #[prost(message, optional, tag = "5")]
    pub hooks: Option<Hooks>,
    /// More devices.
    #[prost(message, optional, tag = "6")]
    pub linux: Option<LinuxAdjustment>,
}

/// Changes of a container on Linux.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxAdjustment {
    /// More device nodes, which the container may open.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// A device node.
#[derive(Clone, PartialEq, Message)]
pub struct Device {
    /// Its path in the container.
    #[prost(string, tag = "1")]
    pub path: String,
    /// `c` for one of characters.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// Its major number.
    #[prost(int64, tag = "3")]
    pub major: i64,
    /// Its minor number.
    #[prost(int64, tag = "4")]
    pub minor: i64,
}

/// A mount.
#[derive(Clone, PartialEq, Message)]
pub struct Mount {
    /// Its path in the container.
    #[prost(string, tag = "1")]
    pub destination: String,
    /// Its type.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// The path on the host.
    #[prost(string, tag = "3")]
    pub source: String,
    /// Its options.
    #[prost(string, repeated, tag = "4")]
    pub options: Vec<String>,
}

/// A variable.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// The hooks of the stages that the plugin uses.
#[derive(Clone, PartialEq, Message)]
pub struct Hooks {
    /// Before the first process.
    #[prost(message, repeated, tag = "2")]
    pub create_runtime: Vec<Hook>,
    /// After the last.
    #[prost(message, repeated, tag = "6")]
    pub poststop: Vec<Hook>,
}

/// A program that the runtime executes.
#[derive(Clone, PartialEq, Message)]
pub struct Hook {
    /// Its path on the host.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Its arguments, its name first.
    #[prost(string, repeated, tag = "2")]
    pub args: Vec<String>,
    /// Most seconds that it may take.
    #[prost(message, optional, tag = "4")]
    pub timeout: Option<OptionalInt>,
}

/// A number that may be left out.
#[derive(Clone, PartialEq, Message)]
pub struct OptionalInt {
    /// The number.
    #[prost(int64, tag = "1")]
    pub value: i64,
}
