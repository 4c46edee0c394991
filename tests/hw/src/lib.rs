// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs GPU programs as children: bare, under the user-space mode, or under NVIDIA's MPS.
//!
//! The tests on a GPU (`gct-hw`) and the benchmarks (`gct-bench`) share it.

pub mod daemon;
pub mod kit;
pub mod mps;
pub mod served;
