// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Implements a client of NVIDIA's resource manager (RM), through the ioctls that libcuda uses.
//!
//! - [`Control`] is an open `/dev/nvidiactl`; it allocates a [`Client`].
//! - [`Gpu`] opens a GPU for a client: its file, device and subdevice.
//! - [`Session`] adds what work needs: address space, channel group, ring, doorbell.
//! - [`Launcher`] submits segments to the compute engine, [`Capture`] those of real programs.
//! - [`Uvm`] can own the address space, as with libcuda.
//!
//! Dropping a value frees only files and mappings. Tests decide which objects are freed and in
//! which order, or that the process dies instead. The driver frees the rest when the control file
//! is closed.

pub mod abi;
mod capture;
mod client;
mod export;
mod gpu;
mod grid;
mod launcher;
pub mod layout;
mod mapped;
pub mod numbers;
mod queue;
mod raw;
mod read_only;
mod replay;
mod rights;
mod rules;
mod runlist;
mod session;
mod sys;
mod touch;
mod uvm;

pub use abi::{Handle, Release};
pub use capture::Capture;
pub use client::{Client, Control, Error};
pub use gpu::{Gpu, Memory};
pub use grid::Grid;
pub use launcher::{Launcher, SegmentMemory};
pub use mapped::Mapped;
pub use queue::Queue;
pub use raw::{forge, Forgery};
pub use replay::{replay, Replayed};
pub use rules::{open_controls, PTE_WORDS};
pub use session::{Engine, Session};
pub use sys::Mapping;
pub use touch::{Access, Toucher};
pub use uvm::Uvm;
