// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models the GPU system processor (GSP), which runs NVIDIA's firmware, the other half of RM. The
//! driver is its client and sends remote calls through a queue.

pub mod boot;
mod classes;
pub mod control;
mod errors;
mod graphics;
mod identity;
pub mod msgq;
pub mod objects;
pub mod refusals;
mod replayable;
pub mod rpc;
mod scheduling;
mod spaces;
pub mod tables;

pub use rpc::Gsp;

#[cfg(test)]
mod tests;
