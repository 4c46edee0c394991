// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads submissions that were captured on a GPU, and finds the memory that they need.
//!
//! A capture runs unchanged: its memory is mapped at the addresses that its words name. No program
//! is there, since the software GPU runs none.

use gct_client::capture::{self, BadCapture};
use gct_core::submit::rewrite::fills;
use gct_model::{ChannelId, Config, Fault, GuestMemory, Machine, SparseMemory};
use std::collections::BTreeSet;

/// A captured submission.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Each segment with the number of its channel.
    segments: Vec<(u32, Vec<u32>)>,
}

impl Capture {
    /// Size of a piece of memory, to which its address is aligned.
    pub const BLOCK: u64 = 0x1_0000;

    /// Parses captures, one after the other.
    ///
    /// # Errors
    ///
    /// If a line is malformed.
    pub fn parse(texts: &[&str]) -> Result<Self, BadCapture> {
        let mut segments = Vec::new();
        for text in texts {
            let records = capture::parse(text)?.into_iter();
            segments.extend(records.map(|record| (record.channel, record.words)));
        }
        Ok(Self { segments })
    }

    /// Replaces words by as many others, wherever they follow each other.
    #[must_use]
    pub fn replaced<const N: usize>(mut self, from: [u32; N], to: [u32; N]) -> Self {
        for (_, words) in &mut self.segments {
            for at in 0..words.len() {
                let found = words.get_mut(at..).and_then(<[u32]>::first_chunk_mut);
                if let Some(found) = found.filter(|found| **found == from) {
                    *found = to;
                }
            }
        }
        self
    }

    /// Returns the segments, each with the number of its channel.
    pub fn segments(&self) -> &[(u32, Vec<u32>)] {
        &self.segments
    }

    /// Returns the numbers of its channels.
    pub fn channels(&self) -> BTreeSet<u32> {
        self.segments.iter().map(|(channel, _)| *channel).collect()
    }

    /// Returns the addresses of all pieces of memory that the submission reads or writes, by its
    /// fills, too.
    pub fn blocks(&self) -> BTreeSet<u64> {
        /// Pages that a submission may write to.
        const PAGES_MAX: usize = 1 << 10;
        let memory = Touched {
            memory: SparseMemory::new(PAGES_MAX),
            blocks: BTreeSet::new(),
        };
        let mut machine = Machine::new(memory, Config::default());
        for (channel, words) in &self.segments {
            let mut filled = words.clone();
            filled.resize(words.len() + fills::ADDED_WORDS, 0);
            let length = fills::expand(&mut filled, words.len());
            machine.submit(ChannelId(*channel), &filled[..length]);
        }
        machine.run();
        machine.into_parts().1.blocks
    }
}

/// Memory that remembers which pieces were accessed.
struct Touched {
    memory: SparseMemory,
    blocks: BTreeSet<u64>,
}

impl Touched {
    fn touch(&mut self, address: u64, bytes: usize) {
        let last = address.saturating_add(bytes as u64).saturating_sub(1);
        let ends = [address, last].map(|at| at & !(Capture::BLOCK - 1));
        // No access of a launch is as long as a piece.
        self.blocks.extend(ends);
    }
}

impl GuestMemory for Touched {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.touch(address, into.len());
        self.memory.read(address, into)
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Fault> {
        self.touch(address, from.len());
        self.memory.write(address, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_replaced_where_they_follow_each_other() {
        let text = include_str!("../../fixtures/captures/graph_single.pbcap");
        let words = |capture: &Capture| capture.segments()[0].1[16..].to_vec();
        let capture = Capture::parse(&[text]).unwrap();
        assert_eq!(words(&capture), [0x0460_ffe0, 0x54, 4]);
        let capture = capture.replaced([0x54, 4], [7, 8]).replaced([4], [9]);
        assert_eq!(words(&capture), [0x0460_ffe0, 7, 8]);
        assert_eq!(
            words(&capture.replaced([8, 4], [1, 2])),
            [0x0460_ffe0, 7, 8]
        );
    }

    #[test]
    fn a_launch_needs_its_descriptor_its_constants_and_its_semaphores() {
        let text = include_str!("../../fixtures/captures/one_launch.pbcap");
        let blocks = Capture::parse(&[text]).unwrap().blocks();
        for needed in [
            0x2_04e0_0000,
            0x2_04e1_0000,
            0x7f69_a62f_0000,
            0x2_0460_0000,
        ] {
            assert!(blocks.contains(&needed), "{blocks:x?}");
        }
    }

    #[test]
    fn a_fill_needs_what_it_fills() {
        let text = include_str!("../../fixtures/captures/graph_clusters.pbcap");
        let blocks = Capture::parse(&[text]).unwrap().blocks();
        assert!(blocks.contains(&0x7f3c_d9e0_0000), "{blocks:x?}");
    }
}
