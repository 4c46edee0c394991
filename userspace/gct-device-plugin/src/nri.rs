// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads pods' annotations for KAI, NVIDIA's GPU fractioning and HAMi, as a plugin of the container
//! runtime (NRI, the node resource interface of containerd and CRI-O).
//!
//! ```text
//! runtime -> trunk, api -> plugin           a container is created, stopped, or runs already
//!            annotations -> shares          what its pod asks for, and what it gets
//!            cdi -> adjust -> runtime       nodes, mounts, environment, hooks: as of a profile
//!            groups                         containers that ran before the plugin
//! ```
//!
//! A container gets its group from the same hooks as one of a profile, so it needs the plugin only
//! while it is created.

pub mod adjust;
pub mod annotations;
pub mod api;
pub mod plugin;
pub mod shares;
pub mod trunk;
mod worker;

/// What the records call the shares of annotations. No profile has such a name.
pub const PROFILE: &str = "nri:annotations";
