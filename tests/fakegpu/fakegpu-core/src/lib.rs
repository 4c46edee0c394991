// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models an NVIDIA GPU in software, as seen from the PCIe bus.
//!
//! The crate makes every decision of the device and knows no sockets, files or threads. Guest
//! memory, interrupts and time come in through the traits of [`platform`]. The front end passes the
//! guest's accesses on. [`Gpu`] connects the units.
//!
//! The crate models the contract between the driver and the device, not silicon: an answer that the
//! driver accepts proves nothing about a real GPU.
//!
//! The guest is not trusted. None of its accesses may panic, loop without a bound or fail.
//! Malformed input is ignored and logged once.

#![forbid(unsafe_code)]

pub mod abi;
mod bar0;
mod bars;
pub mod bits;
pub mod ce;
pub mod chip;
pub mod compute;
pub mod copies;
pub mod faults;
pub mod firmware;
pub mod fsp;
pub mod gmmu;
pub mod gpu;
pub mod gsp;
pub mod host;
pub mod intr;
pub mod journal;
pub mod kernels;
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
pub mod tlb;
pub mod touch;
pub mod twod;

#[cfg(test)]
mod testing;

pub use chip::ChipDescription;
pub use gpu::{Aperture, Gpu};
pub use host::execute::Progress;
