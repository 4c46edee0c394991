// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks the kubelet which pods it has, and names the groups of their containers.

pub mod api;
pub mod group;
pub mod pods;
#[cfg(feature = "testing")]
pub mod testing;
