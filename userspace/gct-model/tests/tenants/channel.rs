// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds both sides of a tenant's channel: rings, USERD and pushbuffers.

use super::memory::Ram;
use crate::common::{Qmd, Segment, COPY};
use crate::rings::Sides;
use gct_core::lane::words::{Control, Side, Words};
use gct_core::submit::gpfifo::{self, Entry, Fetch};
use gct_model::qmd::V04_00;

/// Entries of either ring.
pub(crate) const ENTRIES: u32 = 32;

/// The word that the tenant's launches release.
pub(crate) const RELEASE: usize = 0;
/// The tenant's segments: one for each entry.
const SEGMENTS: usize = 64;
const SEGMENT_WORDS: usize = 128;
/// The tenant's descriptors. More than entries, since one is in use until its launch has ended.
const QMDS: usize = SEGMENTS + ENTRIES as usize * SEGMENT_WORDS;
const QMD_WORDS: usize = 128;
const QMD_COUNT: u32 = 2 * ENTRIES;
/// Words of all of it.
pub(crate) const WORDS: usize = QMDS + QMD_COUNT as usize * QMD_WORDS;

/// The group of launches as programs write them, on streams of the highest priority.
pub(crate) const UNPLACED: u32 = 8;

/// A kernel: what the blocks of a launch run, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    pub(crate) program: u32,
    pub(crate) blocks: u32,
    pub(crate) block_ns: u64,
}

/// A channel on the tenant's side and on the real one.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) sides: Sides,
    fetch: Fetch,
    /// The last PCAS_A.
    descriptor: u64,
}

/// What the GPU has fetched.
pub(crate) struct Fetched {
    pub(crate) words: Vec<u32>,
    /// The descriptors that it schedules.
    pub(crate) scheduled: Vec<u64>,
}

impl Channel {
    pub(crate) fn new() -> Self {
        Self {
            sides: Sides::new(ENTRIES),
            fetch: Fetch::new(),
            descriptor: 0,
        }
    }

    /// Returns whether the tenant's ring has room.
    pub(crate) fn has_room(&self) -> bool {
        let put = self.sides.control(Side::Tenant, Control::Put).get();
        (put + 1) % ENTRIES != self.sides.control(Side::Tenant, Control::Get).get()
    }

    /// Launches a kernel as the tenant, its `number`th launch, which releases that number.
    pub(crate) fn launch(&self, ram: &Ram, kernel: &Kernel, number: u32) {
        let put = self.sides.control(Side::Tenant, Control::Put);
        let at = SEGMENTS + put.get() as usize * SEGMENT_WORDS;
        let qmd_at = QMDS + (number % QMD_COUNT) as usize * QMD_WORDS;
        let mut qmd = Qmd::grid(kernel.program, [kernel.blocks, 1, 1]);
        let release = u32::try_from(Ram::va(RELEASE)).expect("a low address");
        qmd.put(V04_00.threads[0], 1024)
            .put(V04_00.group, UNPLACED)
            .release(0, release, number);
        let mut segment = Segment::default();
        segment.launch(Ram::va(qmd_at), &qmd, COPY);
        assert!(segment.0.len() <= SEGMENT_WORDS);
        assert!(ram.write(&(at, SEGMENT_WORDS), 0, &segment.0));
        let segment = gpfifo::Segment {
            va: Ram::va(at),
            words: u32::try_from(segment.0.len()).expect("a short one"),
            subroutine: false,
            wait: false,
            conditional: false,
        };
        self.sides.rings[Side::Tenant as usize][put.get() as usize]
            .set(Entry::Segment(segment).encode());
        put.set((put.get() + 1) % ENTRIES);
    }

    /// Fetches the next published entry as the GPU.
    pub(crate) fn fetch(&mut self, ram: &Ram) -> Option<Fetched> {
        let get = self.sides.control(Side::Real, Control::Get).get();
        if get == self.sides.control(Side::Real, Control::Put).get() {
            return None;
        }
        let entry = self.sides.rings[Side::Real as usize][get as usize].get();
        self.sides
            .control(Side::Real, Control::Get)
            .set((get + 1) % ENTRIES);
        let mut words = Vec::new();
        if let Entry::Segment(segment) = self.fetch.decode(entry) {
            words.resize(segment.words as usize, 0);
            let view = ram.find(segment.va, words.len()).expect("own memory");
            assert!(ram.read(&view, &mut words));
        }
        let scheduled = self.scheduled(&words);
        Some(Fetched { words, scheduled })
    }

    /// Returns the descriptors that a segment schedules, by its PCAS methods.
    fn scheduled(&mut self, words: &[u32]) -> Vec<u64> {
        const PCAS_A: u32 = 0x2b4;
        const PCAS_B: u32 = 0x2c0;
        let (mut found, mut at) = (Vec::new(), 0);
        while at < words.len() {
            let header = words[at];
            let (count, method) = (header >> 16 & 0x1fff, (header & 0xfff) * 4);
            at += 1;
            // Headers of operation 4 hold their datum themselves.
            let data = if header >> 29 == 4 { 0 } else { count as usize };
            let end = (at + data).min(words.len());
            match method {
                PCAS_A => self.descriptor = u64::from(words[at]) << 8,
                PCAS_B => found.push(self.descriptor),
                _ => {}
            }
            at = end;
        }
        found
    }
}
