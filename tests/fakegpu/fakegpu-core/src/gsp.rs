// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The GPU system processor (GSP), on which NVIDIA's firmware runs RM's other
//! half. The driver is its client: it sends remote calls through a queue.

pub mod boot;
pub mod control;
mod errors;
mod graphics;
mod identity;
pub mod msgq;
pub mod objects;
pub mod refusals;
pub mod rpc;
mod scheduling;
mod spaces;
pub mod tables;

pub use rpc::Gsp;

#[cfg(test)]
mod tests;
