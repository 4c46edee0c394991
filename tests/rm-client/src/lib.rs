// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A client of NVIDIA's resource manager, through the ioctls that libcuda uses.
//!
//! - [`Control`] is an open `/dev/nvidiactl`; a [`Client`] is made through it.
//! - [`Gpu`] opens a GPU for a client: its file, device and subdevice.
//! - [`Session`] adds what work needs: address space, channel group, ring, doorbell.
//! - [`Uvm`] can own the address space, as it does for libcuda.
//!
//! Nothing is freed when a value is dropped, but for files and mappings: tests
//! decide what is freed, in which order, or that the process dies instead. The
//! driver frees what is left when the control file is closed.

pub mod abi;
mod client;
mod gpu;
pub mod layout;
pub mod numbers;
mod queue;
mod raw;
mod session;
mod sys;
mod uvm;

pub use abi::{Handle, Release};
pub use client::{Client, Control, Error};
pub use gpu::{Gpu, Memory};
pub use queue::Queue;
pub use raw::{forge, Forgery};
pub use session::{Engine, Session};
pub use sys::Mapping;
pub use uvm::Uvm;
