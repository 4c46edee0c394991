// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs `gct-load` as a child, bare or under the user-space mode, beside others, with or
//! without NVIDIA's MPS. For benchmarks and for the tests on a GPU.

pub mod daemon;
pub mod kit;
pub mod mps;
pub mod served;
