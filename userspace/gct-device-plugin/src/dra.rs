// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shares GPUs by claims: the kubelet plugin of a driver for dynamic resource allocation
//! (`resource.k8s.io/v1`).
//!
//! ```text
//! tree -> keeper -> slice   -> API server           the GPUs and what is to be had of them
//! kubelet -> prepare        <- API server: claim    what the scheduler gave
//!            prepare -> cdi -> runtime -> hooks      a group for the claim's container
//! ```
//!
//! The scheduler counts: it takes each claim's memory and TPCs from the GPU's capacity. The driver
//! makes them limits of the container's group.

pub mod api;
pub mod claim;
pub mod client;
pub mod plugin;
pub mod publish;
pub mod quantity;
pub mod slice;

/// The driver's name: that of the devices' vendor.
pub const DRIVER: &str = crate::profiles::VENDOR;
