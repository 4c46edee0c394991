// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds what the command line configures.

use crate::gpus::Ask;
use gct_core::mask::TpcMask;
use gct_core::units::Bytes;
use std::path::PathBuf;

/// The configuration of a daemon.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of its sockets.
    pub directory: PathBuf,
    /// The directory in which the driver lists its GPUs.
    pub gpus: PathBuf,
    /// The directory of the results of `gctctl selftest`.
    pub selftests: PathBuf,
    /// The TPCs of every GPU; `None` to ask the resource manager.
    pub tpcs: Option<TpcMask>,
    /// Whether it may change clocks.
    pub clocks: bool,
    /// Whether the driver is to limit the memory of cgroups that are bound to groups.
    pub driver_limits: bool,
    /// The directory of cgroups.
    pub cgroups: PathBuf,
    /// The memory of every GPU that the resource manager does not describe.
    pub memory: Option<Bytes>,
    /// How to ask the resource manager about a GPU.
    pub ask: Ask,
}
