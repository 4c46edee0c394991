// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the kubelet's messages to drivers: registration (`pluginregistration`), and claims
//! (`dra/v1` and `dra/v1beta1`, whose messages are the same).

use std::collections::HashMap;

/// [`PluginInfo::kind`] of a driver.
pub const KIND: &str = "DRAPlugin";
/// The services that a driver has at its endpoint.
pub const VERSIONS: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];

/// Asks a plugin who it is.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct InfoRequest {}

/// Says who a plugin is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PluginInfo {
    /// [`KIND`].
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The driver's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The path of its other socket.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// [`VERSIONS`].
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// Says whether the kubelet took the plugin.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegistrationStatus {
    /// It did.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// Why it did not.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// An answer without content.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct RegistrationStatusResponse {}

/// Names a claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Claim {
    /// Its namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Its uid.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// Asks for what containers of these claims need, or for its removal.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClaimsRequest {
    /// The claims.
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// A device of a claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreparedDevice {
    /// The requests of the claim that got it.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    /// Its pool.
    #[prost(string, tag = "2")]
    pub pool_name: String,
    /// Its name in the pool.
    #[prost(string, tag = "3")]
    pub device_name: String,
    /// The CDI devices that a container gets.
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    /// Which of the device's shares it is. Kubelets before 1.34 skip it.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// What one claim has.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreparedClaim {
    /// Its devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<PreparedDevice>,
    /// Why it has none.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// What the claims have, by uid.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PrepareResponse {
    /// The claims.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, PreparedClaim>,
}

/// Whether one claim has nothing any more.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UnpreparedClaim {
    /// Why it still has something.
    #[prost(string, tag = "1")]
    pub error: String,
}

/// The same of the claims, by uid.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UnprepareResponse {
    /// The claims.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, UnpreparedClaim>,
}

/// The services' clients and servers.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod services {
    /// Registration at the kubelet's plugin watcher.
    pub mod registration {
        include!(concat!(
            env!("OUT_DIR"),
            "/pluginregistration.Registration.rs"
        ));
    }
    /// Claims, since Kubernetes 1.34.
    pub mod v1 {
        include!(concat!(
            env!("OUT_DIR"),
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin.rs"
        ));
    }
    /// Claims, before.
    pub mod v1beta1 {
        include!(concat!(
            env!("OUT_DIR"),
            "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin.rs"
        ));
    }
}
