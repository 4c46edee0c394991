// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The submission path: what a tenant wrote into a channel, and what the GPU should get instead.
//!
//! | module | from | to |
//! |---|---|---|
//! | [`gpfifo`] | a ring's 64-bit entries | segments of words |
//! | [`method`], [`methods`] | a segment's words | bursts of methods, by name |
//! | [`qmd`] | 256 or 384 bytes | named fields, one module per layout version |
//! | [`tracker`] | a channel's bursts | the calls that schedule a QMD, with the place of its words |
//! | [`launch`] | a QMD | geometry, resources, effects, waits |
//! | [`mask`] | a set of TPCs | the QMD's mask, united with the tenant's own |
//! | [`occupancy`] | a launch | how many of its blocks are resident at once |
//! | [`atom`] | a grid and a number | which part each atom runs |
//! | [`join`] | a QMD and a part | the atom's QMD, and the join that keeps the launch's effects |
//! | [`rewrite`] | a segment and orders | the segment to publish, in the caller's buffer |
//! | [`graph`] | stored QMDs | what a replay launches, and how to mask it |
//! | [`stats`], [`limits`] | | counts with reasons; every maximum |
//!
//! Nothing here allocates, blocks, panics, or trusts a word: a segment is read once, every index is checked, and what is
//! not understood is passed through as it is and counted with a [`Reason`](stats::Reason). Which rules hold for masks and
//! splits, and which measurement stands behind each, is in `gctgroup-docs/submission.md`.

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
pub mod qmd;
pub mod rewrite;
pub mod selftest;
pub mod stats;
pub mod tracker;

#[cfg(test)]
mod tests;
