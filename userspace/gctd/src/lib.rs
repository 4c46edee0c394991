// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The daemon of the user-space mode. It owns groups and limits where the driver cannot be
//! replaced.
//!
//! [`gct_core`] decides everything, as in the kernel module. The daemon connects it to:
//!
//! - tenants: the preload library reports a process's ioctls on a Unix socket and reads its
//!   limits from a page of shared memory ([`gctd_ipc`]);
//! - administrators: `gctctl` writes the tree through a second socket, programs through FUSE.

mod budget;
mod cgroups;
mod clocks;
mod connection;
mod daemon;
mod driver_limits;
mod errno;
mod fuse;
pub mod gpus;
mod kept;
mod listeners;
pub mod notify;
mod options;
mod peer;
mod process;
mod server;
mod shared;
mod tenants;
#[cfg(feature = "testing")]
pub mod testing;
mod timer;
mod tree;
mod turns;
mod wire;

pub use fuse::Mount;
pub use options::Options;
pub use server::{Server, Stopper};
