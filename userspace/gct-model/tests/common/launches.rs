// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Generates random launches and encodes them into segments in several ways.

use gct_model::qmd::V04_00;
use proptest::prelude::*;

use super::{Qmd, Segment};

/// Returns the QMD address of the n-th launch.
pub(crate) fn qmd_va(n: usize) -> u64 {
    0x2_0400_0000 + 0x800 * n as u64
}

/// Returns the address of the n-th launch's companion.
pub(crate) fn companion_va(n: usize) -> u64 {
    0x2_0500_0000 + 0x800 * n as u64
}

/// The address range of all QMDs of a tenant.
pub(crate) const QMDS: std::ops::Range<u64> = 0x2_0400_0000..0x2_0600_0000;

/// Returns the address of the words that the n-th launch's releases and uploads write.
fn data_va(n: usize) -> u32 {
    0x4600_0000 + 0x100 * u32::try_from(n).expect("few launches")
}

/// One launch.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// `QMD_TYPE`.
    pub(crate) kind: u32,
    pub(crate) grid: [u32; 3],
    /// The action of its PCAS.
    pub(crate) action: u32,
    /// Whether a GRID_NULL companion waits for it, as in CUDA.
    pub(crate) companion: bool,
    pub(crate) releases: usize,
    pub(crate) latch: bool,
    /// Whether it waits for the latch of the previous launch.
    pub(crate) wait: bool,
    /// Number of decrements that it waits for, which follow.
    pub(crate) counter: u32,
    pub(crate) self_copy: bool,
    pub(crate) pre_exit: bool,
    pub(crate) reference: bool,
    /// TPCs that the tenant disables.
    pub(crate) mask: Option<u32>,
    pub(crate) resume: u32,
    /// Encoding of its upload, 0 to 3.
    pub(crate) encoding: u8,
    /// The part of another upload that precedes its PCAS.
    pub(crate) straddles: Straddle,
    /// Whether the segment ends after it, and the next one uses PCAS_A again.
    pub(crate) ends_segment: bool,
    /// The action by which the next segment schedules its QMD again, without a new upload. Not
    /// SCHEDULE, which would run it concurrently with itself.
    pub(crate) again: Option<u32>,
    /// Whether a semaphore release by method follows.
    pub(crate) semaphore: bool,
}

/// A PCAS action that schedules nothing.
const PREFETCH: u32 = 8;

/// The part of an upload that comes before a PCAS; the rest comes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Straddle {
    /// No such upload.
    None,
    /// Its destination.
    Registers,
    /// Its LAUNCH_DMA.
    Launch,
    /// Half of its data.
    Half,
}

fn often<T: Clone + std::fmt::Debug + 'static>(
    usual: T,
    other: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<T> {
    prop_oneof![6 => Just(usual), 1 => other].boxed()
}

fn grids() -> impl Strategy<Value = [u32; 3]> {
    prop_oneof![
        (0_u32..2000).prop_map(|x| [x, 1, 1]),
        (1_u32..40, 1_u32..40).prop_map(|(x, y)| [x, y, 1]),
        (1_u32..12, 1_u32..12, 1_u32..12).prop_map(|(x, y, z)| [x, y, z]),
        Just([u32::MAX, 1, 1]),
        Just([7, 0xffff, 0xffff]),
    ]
}

pub(crate) fn launch() -> impl Strategy<Value = Launch> {
    let what = (
        often(
            2,
            prop_oneof![Just(3_u32), Just(4), Just(1), Just(0), Just(5)],
        ),
        grids(),
        often(
            0xa,
            prop_oneof![Just(3_u32), Just(2), Just(9), Just(0xb), Just(PREFETCH)],
        ),
        often(0, 1_u32..3),
        often(0, 1_u32..50),
        proptest::option::weighted(0.2, any::<u32>()),
    );
    let effects = (
        any::<bool>(),
        0_usize..=3,
        any::<bool>(),
        often(false, Just(true)),
        often(false, Just(true)),
        any::<bool>(),
        often(false, Just(true)),
    );
    let form = (
        0_u8..4,
        often(
            Straddle::None,
            prop_oneof![
                Just(Straddle::Registers),
                Just(Straddle::Launch),
                Just(Straddle::Half)
            ],
        ),
        often(false, Just(true)),
        proptest::option::weighted(
            0.5,
            prop::sample::select(&[0xa_u32, 0xa, 3, 9, 1, 7, 0xc][..]),
        ),
        any::<bool>(),
    );
    (what, effects, form).prop_map(|(what, effects, form)| {
        let (kind, grid, action, counter, resume, mask) = what;
        let (companion, releases, latch, wait, self_copy, pre_exit, reference) = effects;
        let (encoding, straddles, ends_segment, again, semaphore) = form;
        Launch {
            kind,
            grid,
            action,
            companion,
            releases,
            latch,
            wait,
            counter,
            self_copy,
            pre_exit,
            reference,
            mask,
            resume,
            encoding,
            straddles,
            ends_segment,
            again,
            semaphore,
        }
    })
}

impl Launch {
    fn qmd(&self, n: usize) -> Qmd {
        // One program per launch distinguishes the launches.
        let number = u32::try_from(n).expect("few launches");
        let mut qmd = Qmd::grid(0x1000 + number, self.grid);
        qmd.put(V04_00.kind, self.kind)
            .put(V04_00.counter, self.counter)
            .put(V04_00.self_copy, u32::from(self.self_copy))
            .put(V04_00.pre_exit, u32::from(self.pre_exit))
            .resume([self.resume, 0, 0]);
        if matches!(self.kind, 3 | 5) {
            qmd.put(V04_00.cluster[0], 2);
        }
        for i in 0..self.releases {
            let at = u32::try_from(i).expect("three releases");
            qmd.release(i, data_va(n) + 4 * at, 100 * (number + 1) + at);
        }
        if self.latch {
            qmd.arrive(1000 + number);
        }
        if self.wait {
            qmd.wait(999 + number);
        }
        if self.companion {
            qmd.dependent(0, 4, companion_va(n));
        }
        if self.reference {
            for field in V04_00.reference {
                qmd.put(field, 1);
            }
            // The number distinguishes the effects of different launches.
            qmd.put(V04_00.reference[0], number);
        }
        if let Some(mask) = self.mask {
            qmd.put(V04_00.mask_valid, 1).put(V04_00.mask[1], mask);
        }
        qmd
    }

    /// Writes the launch as the n-th. Returns true if the segment ends after it.
    fn write(&self, n: usize, segment: &mut Segment) -> bool {
        if self.companion {
            let mut companion = Qmd::null();
            companion
                .put(V04_00.counter, 2)
                .put(V04_00.self_copy, 1)
                .dependent(0, 1, qmd_va(n + 1));
            segment.launch(companion_va(n), &companion, 0xa);
        }
        encode(segment, self.encoding, qmd_va(n), &self.qmd(n).0);
        let word_va = data_va(n) + 0x40;
        let upload = [0x2002_2062, 0, word_va, 0x2002_2060, 8, 1];
        let rest = [0x8041_206c, 0x6001_206d, 0x77, 0x6001_206d, 0x78];
        let (before, behind) = match self.straddles {
            Straddle::None => (&upload[..0], &rest[..0]),
            Straddle::Registers => (&upload[..], &rest[..0]),
            Straddle::Launch => (&upload[..], &rest[..1]),
            Straddle::Half => (&upload[..], &rest[..3]),
        };
        segment.0.extend(before.iter().chain(behind));
        segment.pcas(qmd_va(n), self.action);
        if self.straddles != Straddle::None {
            segment.0.extend(&rest[behind.len()..]);
        }
        for _ in 0..self.counter {
            segment.pcas(qmd_va(n), 7);
        }
        if self.semaphore {
            segment
                .0
                .extend([0x2004_26c0, 0, word_va + 0x20, 5, 0x1000_0004]);
        }
        self.ends_segment
    }
}

fn encode(segment: &mut Segment, encoding: u8, address: u64, words: &[u32; 96]) {
    let [low, high] =
        [address & 0xffff_ffff, address >> 32].map(|half| u32::try_from(half).expect("32 bits"));
    let out = &mut segment.0;
    match encoding {
        // Destination and length in one burst, LAUNCH_DMA as an immediate.
        1 => {
            out.extend([0x2004_2060, 96 * 4, 1, high, low, 0x8041_206c]);
            out.push(0x6060_206d);
        }
        // LAUNCH_DMA and the data in one ONE_INCR burst.
        2 => {
            out.extend([0x2004_2060, 96 * 4, 1, high, low]);
            out.extend([0xa061_206c, 0x41]);
        }
        // One word at a time, with NOPs in between.
        3 => {
            out.extend([0x2001_2062, high, 0, 0x2001_2063, low, 0x8001_2061]);
            out.extend([0x2001_2060, 96 * 4, 0x2001_206c, 0x41, 0x6060_206d]);
        }
        _ => {
            segment.upload(address, words);
            return;
        }
    }
    out.extend(words);
}

/// Returns segments with the launches in order. A segment that continues a launch begins with a
/// PCAS that uses the previous PCAS_A.
pub(crate) fn segments(launches: &[Launch]) -> Vec<Vec<u32>> {
    let mut segments = Vec::new();
    let mut segment = Segment::default();
    for (n, launch) in launches.iter().enumerate() {
        if launch.write(n, &mut segment) {
            segments.push(std::mem::take(&mut segment.0));
            segment.0.extend([0x2001_20b0, 6]);
            // A PREFETCH schedules nothing, so its QMD has no mask. A call without its upload is
            // passed through as `qmd-not-here`.
            if let Some(action) = launch.again.filter(|_| launch.action != PREFETCH) {
                segment.pcas(qmd_va(n), action);
            }
        }
    }
    segments.push(segment.0);
    segments
}
