// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shares GPUs among the containers of a Kubernetes node.
//!
//! The plugin announces slots of named profiles to the kubelet and writes CDI specs. Runtimes
//! execute this program as a hook, which makes the container's group before its first process runs.
//!
//! ```text
//! tree -> gpus -> inventory <- profiles        every few seconds, by keeper
//!                 inventory -> service         -> registration -> kubelet
//!                 inventory -> cdi             -> runtime -> hooks: bundle, groups, records
//!                 keeper -> dra                -> API server, kubelet: claims
//!                 keeper -> nri             <-> runtime: pods with annotations
//!                 inventory -> mps             daemons of GPUs that are shared side by side
//! nvml -> keeper                               compute capability, and GPUs to recover
//! cgroups, pods -> groups, records             what hooks did not see, by keeper
//! ```

pub mod api;
pub mod bundle;
pub mod cdi;
pub mod cgroup;
pub mod container;
pub mod dra;
pub mod driver;
pub mod gpus;
pub mod groups;
pub mod inventory;
pub mod keeper;
pub mod mps;
pub mod nri;
pub mod nvml;
pub mod place;
pub mod pods;
pub mod prefer;
pub mod profiles;
pub mod records;
pub mod registration;
pub mod runtime;
pub mod service;
pub mod shares;
pub mod socket;
