// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The daemon of the user-space mode: it owns groups and limits where the driver cannot be
//! replaced.
//!
//! It decides nothing: [`gct_core`] does, as in the kernel module. The preloads report their
//! processes' ioctls of the resource manager on a Unix socket and get their limits through a
//! page of shared memory ([`gctd_ipc`]); `gctctl` reads the tree on the same socket and writes it
//! on another, and programs do through FUSE.

mod authority;
mod budget;
mod connection;
mod daemon;
mod doors;
mod files;
mod fuse;
pub mod gpus;
mod managed;
mod process;
mod server;
mod tenants;
#[cfg(feature = "testing")]
pub mod testing;
mod tree;
mod trial;

pub use fuse::Mount;
pub use server::{Options, Server, Stopper};
