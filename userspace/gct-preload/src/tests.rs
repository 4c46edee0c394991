// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the whole way from a submission to a simulated GPU.

mod graph;
mod paced;
