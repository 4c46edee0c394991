// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A software NVIDIA GPU, seen from the PCIe bus.
//!
//! The crate holds every decision the device takes and knows nothing of
//! sockets, files or threads: guest memory, interrupts and time come in
//! through the traits of [`platform`], and the front end hands over bytes that
//! the guest read or wrote. [`Gpu`] is where the units meet.
//!
//! It models the contract between the driver and the device, not silicon:
//! that the driver accepts an answer says nothing about a real GPU.
//!
//! The guest is not trusted. Whatever it writes, no access may panic, loop
//! without a bound or fail; what makes no sense is ignored and logged once.

#![forbid(unsafe_code)]

pub mod abi;
mod bar0;
mod bars;
pub mod bits;
pub mod ce;
pub mod chip;
pub mod compute;
pub mod firmware;
pub mod fsp;
pub mod gmmu;
pub mod gpu;
pub mod gsp;
pub mod host;
pub mod intr;
pub mod journal;
pub mod memory;
pub mod mmio;
pub mod pci;
pub mod platform;
pub mod pramin;
pub mod recorder;
pub mod registers;
pub mod regs;
pub mod sparse;
pub mod timer;
pub mod twod;

#[cfg(test)]
mod testing;

pub use chip::ChipDescription;
pub use gpu::{Aperture, Gpu};
pub use host::execute::Progress;
