// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Simulates the tenants of a GPU, in virtual time.

pub(crate) mod channel;
pub(crate) mod clocks;
mod conservation;
mod exact;
pub(crate) mod goals;
pub(crate) mod gpu;
mod hints;
pub(crate) mod law;
pub(crate) mod lengths;
mod measured;
pub(crate) mod memory;
pub(crate) mod scenario;
pub(crate) mod script;
mod sizing;
pub(crate) mod tenant;
pub(crate) mod tree;
mod weights;
mod whole;
pub(crate) mod world;
