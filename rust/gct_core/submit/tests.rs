// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the submission path on the host: captures, and properties over random segments.

mod captures;
mod detached;
mod encodings;
mod fast;
mod fills;
mod graphs;
mod masks;
mod orders;
mod pieces;
mod random;
mod rewriting;
mod sources;
mod splits;
mod transfers;
mod unroll;

use super::selftest;

#[test]
fn the_vectors_that_the_kernel_runs_hold() {
    let mut memory = selftest::Memory::EMPTY;
    assert_eq!(selftest::run(&mut memory), Ok(()));
}
