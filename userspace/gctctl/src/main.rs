// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Not filled in yet.
fn main() {}
