// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads what a tenant wrote into a channel, and writes what the GPU gets instead.
//!
//! | module | from | to |
//! |---|---|---|
//! | [`gpfifo`] | 64-bit entries of a ring | segments of words |
//! | [`method`], [`methods`] | words of a segment | bursts of methods, by name |
//! | [`qmd`] | 256 or 384 bytes | named fields, one module per layout version |
//! | [`tracker`] | bursts of a channel | calls that schedule a QMD, and where its words are |
//! | [`launch`] | a QMD | geometry, resources, effects, waits |
//! | [`mask`] | a set of TPCs | the QMD's mask, united with the tenant's own |
//! | [`occupancy`] | a launch | number of blocks that are resident at once |
//! | [`atom`] | a grid and a number | the part that each atom runs |
//! | [`join`] | a QMD and a part | the atom's QMD, and the join that keeps the launch's effects |
//! | [`rewrite`] | a segment and orders | the segment to publish, in the caller's buffer |
//! | [`graph`] | stored QMDs | what a replay launches, and how to mask it |
//! | [`transfer`] | the registers of a copy engine | pieces of a copy |
//! | [`precedence`] | a QMD | its place in the order in which the GPU starts launches |
//! | [`stats`], [`limits`] | | counts with reasons; every maximum |
//!
//! Nothing here allocates, blocks, panics or trusts a word. A segment is read once and every index
//! is checked. What is not understood passes through unchanged and is counted with a
//! [`Reason`](reason::Reason). `gctgroup-docs/submission.md` states the rules of masks and splits,
//! and the measurement behind each.

pub mod atom;
pub mod gpfifo;
pub mod graph;
mod inline;
pub mod join;
pub mod launch;
pub mod limits;
pub mod mask;
pub mod method;
pub mod methods;
pub mod occupancy;
pub mod precedence;
pub mod qmd;
pub mod reason;
pub mod rewrite;
pub mod selftest;
pub mod stats;
pub mod tracker;
pub mod transfer;

#[cfg(test)]
mod tests;
