// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the measured operations: a plain copy of a segment, and the steps of the submission
//! path.

use std::hint::black_box;

use crate::segment::Segment;
use gct_core::submit::mask::DisabledTpcs;
use gct_core::submit::rewrite::{self, Cut, Order, Output, Placement};
use gct_core::submit::stats::Counters;
use gct_core::submit::tracker::{QmdCall, Tracker};

/// Hopper's channel class.
const CHANNEL_CLASS: u16 = 0xc86f;
/// Address of the QMDs of joins and atoms.
const SLOT_VA: u64 = 0x10_0000_0000;
/// Maximum number of calls of one segment.
const TABLE: usize = 16;
/// Number of atoms of a split launch.
const ATOMS: u32 = 8;

/// An operation, in the order of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Copies the segment. The baseline.
    Copy,
    /// Finds the launches, changes nothing.
    Find,
    /// Finds the launches and masks them in place.
    Mask,
    /// Finds the launches, masks them and splits them into eight.
    Split,
}

impl Operation {
    pub(crate) const ALL: [Self; 4] = [Self::Copy, Self::Find, Self::Mask, Self::Split];

    /// Returns the name in commands and results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Find => "find",
            Self::Mask => "mask",
            Self::Split => "split",
        }
    }

    /// Returns the largest acceptable ratio to the copy, if there is one.
    pub(crate) const fn goal(self) -> Option<f64> {
        match self {
            Self::Copy | Self::Find => None,
            Self::Mask => Some(3.0),
            Self::Split => Some(12.0),
        }
    }
}

/// The state that the operations use, built once.
pub(crate) struct Bench {
    tracker: Tracker,
    found: [QmdCall; TABLE],
    counters: Counters,
    buffer: Vec<u32>,
    output: Vec<u32>,
    cuts: Vec<Cut>,
    masks: [Order<'static>; TABLE],
    splits: [Order<'static>; TABLE],
}

impl Bench {
    pub(crate) fn new() -> Self {
        // Half of the bits. Built once, for the life of the program.
        let mask = DisabledTpcs::keep_only(128, 0..64).expect("a Hopper has 128 bits");
        let mask: &DisabledTpcs = Box::leak(Box::new(mask));
        let order = |atoms| Order {
            mask: Some(mask),
            atoms,
            ..Order::default()
        };
        Self {
            tracker: Tracker::new(CHANNEL_CLASS),
            found: [QmdCall::NONE; TABLE],
            counters: Counters::new(),
            buffer: vec![0; 1 << 14],
            output: vec![0; 1 << 16],
            cuts: vec![Cut::NONE; 256],
            masks: [order(1); TABLE],
            splits: [order(ATOMS); TABLE],
        }
    }

    /// Runs an operation on the segments of a capture in order, as its channel would. Every launch
    /// gets the same order: the cost of a policy's decision is not measured here.
    pub(crate) fn run(&mut self, operation: Operation, segments: &mut [Segment]) {
        match operation {
            Operation::Copy => segments.iter().for_each(|segment| self.copy(segment)),
            Operation::Find => segments.iter().for_each(|segment| {
                black_box(self.find(segment));
            }),
            Operation::Mask => segments.iter_mut().for_each(|segment| self.mask(segment)),
            Operation::Split => segments.iter().for_each(|segment| self.split(segment)),
        }
    }

    fn copy(&mut self, segment: &[u32]) {
        if let Some(buffer) = self.buffer.get_mut(..segment.len()) {
            buffer.copy_from_slice(black_box(segment));
        }
        black_box(&mut self.buffer);
    }

    fn find(&mut self, segment: &[u32]) -> usize {
        let segment = black_box(segment);
        let scan = self
            .tracker
            .scan(segment, &mut self.found, &mut self.counters);
        scan.found
    }

    fn mask(&mut self, segment: &mut [u32]) {
        let found = self.find(segment);
        rewrite::in_place(
            segment,
            &self.found[..found],
            &self.masks,
            &mut self.counters,
        );
        black_box(segment);
    }

    fn split(&mut self, segment: &[u32]) {
        let found = self.find(segment);
        let output = Output {
            words: &mut self.output,
            slot_va: SLOT_VA,
            slots: 256,
            placement: Placement::Upload,
            cuts: &mut self.cuts,
            done: None,
        };
        let emitted = rewrite::emit(
            segment,
            &self.found[..found],
            &self.splits,
            output,
            &mut self.counters,
        );
        black_box(emitted.expect("room for every capture"));
        black_box(&mut self.output);
    }
}
