// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes segments of copies, whole and in pieces, on a copy engine of bytes, and compares.

use crate::submit::method::{immediate, incr};
use crate::submit::qmd::Family;
use crate::submit::stats::Counters;
use crate::submit::tracker::Tracker;
use crate::submit::transfer::{Progress, PIECE_WORDS_MAX};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

const MEMORY: usize = 1 << 14;
/// Words of the caller, outside of the tenant's memory.
const DONE: u64 = 1 << 40;

/// A copy engine. It executes what the public header says, and shares no code with the core.
#[derive(Clone)]
struct Engine {
    memory: Vec<u8>,
    registers: BTreeMap<u32, u32>,
    /// What was released elsewhere, in order.
    releases: Vec<(u64, u32)>,
    /// Flushes and interrupts of the tenant.
    effects: Vec<u32>,
}

impl Engine {
    fn new(seed: u8) -> Self {
        let memory = (0..MEMORY).map(|at| (at * 7 + at / 256) as u8 ^ seed);
        Self {
            memory: memory.collect(),
            registers: BTreeMap::new(),
            releases: Vec::new(),
            effects: Vec::new(),
        }
    }

    fn run(&mut self, words: &[u32]) {
        let mut at = 0;
        while at < words.len() {
            let (header, count) = (words[at], (words[at] >> 16 & 0x1fff) as usize);
            let method = (header & 0xfff) << 2;
            at += 1;
            match header >> 29 {
                1 => {
                    for (index, data) in words[at..at + count].iter().enumerate() {
                        self.write(method + 4 * index as u32, *data);
                    }
                    at += count;
                }
                4 => self.write(method, count as u32),
                _ => assert_eq!(header, 0),
            }
        }
    }

    fn get(&self, method: u32) -> u64 {
        self.registers.get(&method).copied().unwrap_or(0).into()
    }

    fn write(&mut self, method: u32, data: u32) {
        if method != 0x300 {
            self.registers.insert(method, data);
            return;
        }
        if data & 3 != 0 {
            let (from, to) = (self.get(0x404), self.get(0x40c));
            let lines = if data >> 9 & 1 == 1 {
                self.get(0x41c)
            } else {
                1
            };
            for line in 0..lines {
                let (from, to) = (from + line * self.get(0x410), to + line * self.get(0x414));
                for byte in 0..self.get(0x418) {
                    self.memory[(to + byte) as usize] = self.memory[(from + byte) as usize];
                }
            }
        }
        let va = self.get(0x240) << 32 | self.get(0x244);
        if data >> 3 & 3 != 0 {
            self.releases.push((va, self.get(0x248) as u32));
        }
        if va < DONE && data & 0x64 != 0 || data >> 3 & 3 == 0 {
            self.effects.push(data & 0x64);
        }
    }
}

/// One copy of a tenant.
#[derive(Clone, Debug)]
struct Made {
    from: u32,
    to: u32,
    pitch: (u32, u32),
    length: u32,
    /// `None` without MULTI_LINE_ENABLE.
    lines: Option<u32>,
    /// Flush, semaphore and interrupt.
    bits: u32,
    is_short: bool,
}

fn made() -> impl Strategy<Value = Made> {
    let place = 0..MEMORY as u32 / 2;
    let lines = prop::option::of(0u32..9);
    (
        (place.clone(), place),
        (0u32..500, 0u32..500),
        1u32..500,
        lines,
        0u32..128,
        any::<bool>(),
    )
        .prop_map(|((from, to), pitch, length, lines, bits, is_short)| Made {
            from,
            to,
            pitch,
            length,
            lines,
            // No conditional interrupt, which the engine above does not have.
            bits: bits & 0x6c,
            is_short,
        })
}

impl Made {
    fn ends(&self) -> [(u32, u32); 2] {
        let before = self.lines.unwrap_or(1).saturating_sub(1);
        [(self.from, self.pitch.0), (self.to, self.pitch.1)]
            .map(|(at, pitch)| (at, at + before * pitch + self.length))
    }

    fn overlaps(&self) -> bool {
        let [from, to] = self.ends();
        from.0 < to.1 && to.0 < from.1
    }

    fn words(&self, out: &mut Vec<u32>) {
        out.extend([incr(4, 0x400, 4), 0, self.from, 0, self.to]);
        out.extend([incr(4, 0x418, 1), self.length]);
        if let Some(lines) = self.lines {
            out.extend([incr(4, 0x410, 2), self.pitch.0, self.pitch.1]);
            out.extend([incr(4, 0x41c, 1), lines]);
        }
        let lines = u32::from(self.lines.is_some()) << 9;
        let launch = 0x182 | lines | self.bits;
        match self.is_short {
            true => out.push(immediate(4, 0x300, launch)),
            false => out.extend([incr(4, 0x300, 1), launch]),
        }
    }
}

/// Returns the words of a segment as it is published in pieces, and the number of these.
fn cut(words: &[u32], tracker: &Tracker, mut most: impl FnMut() -> u64) -> (Vec<u32>, u32) {
    let (mut out, mut at, mut pieces) = (Vec::new(), 0, 0);
    for transfer in tracker.transfers().iter().flatten() {
        out.extend_from_slice(&words[at..transfer.at as usize]);
        let (mut next, mut bytes) = (Some(Progress::default()), 0);
        while let Some(progress) = next {
            let piece = transfer.piece(progress, most());
            let mut room = [0; PIECE_WORDS_MAX];
            let done = (DONE + 4 * u64::from(pieces), pieces);
            let count = transfer.write(&piece, done, &mut room).unwrap();
            out.extend_from_slice(&room[..count]);
            next = piece.next;
            bytes += piece.bytes();
            pieces += 1;
        }
        assert_eq!(bytes, transfer.bytes());
        at = transfer.end as usize;
    }
    out.extend_from_slice(&words[at..]);
    (out, pieces)
}

fn scan(words: &[u32]) -> Tracker {
    let mut tracker = Tracker::new(0xc86f);
    assert_eq!(tracker.family(), Family::of_class(0xc86f));
    let scan = tracker.scan(words, &mut [], &mut Counters::new());
    assert!(scan.found == 0 && scan.refused.is_none());
    tracker
}

proptest! {
    /// Checks that pieces copy the bytes of the whole, release in its order, and leave its
    /// registers; and that copies of overlapping memory stay whole.
    #[test]
    fn pieces_do_what_the_whole_does(
        copies in prop::collection::vec(made(), 1..12),
        sizes in prop::collection::vec(1u64..2000, 1..9),
        seed in any::<u8>(),
        early in any::<bool>(),
    ) {
        let semaphore = [incr(4, 0x240, 3), 0, 0x100, 77];
        let mut words = Vec::new();
        if early {
            words.extend(semaphore);
        }
        copies.iter().for_each(|copy| copy.words(&mut words));
        if !early {
            words.extend(semaphore);
        }
        words.extend([incr(4, 0x300, 1), 0x14]);
        let tracker = scan(&words);
        let unknown = copies.iter().any(|copy| copy.bits & 0x18 != 0);
        let divisible = |copy: &&Made| {
            let lines = copy.lines.unwrap_or(1);
            !copy.overlaps() && lines > 0 && (lines == 1 || copy.pitch.1 >= copy.length)
        };
        let expected = match early || !unknown {
            true => copies.iter().filter(divisible).count().min(8),
            false => 0,
        };
        prop_assert_eq!(tracker.transfers().len(), expected);
        let mut sizes = sizes.iter().cycle();
        let (pieced, pieces) = cut(&words, &tracker, || *sizes.next().unwrap());
        let (mut whole, mut other) = (Engine::new(seed), Engine::new(seed));
        whole.run(&words);
        other.run(&pieced);
        prop_assert!(whole.memory == other.memory);
        prop_assert_eq!(&whole.registers, &other.registers);
        let (done, releases): (Vec<_>, Vec<_>) =
            other.releases.iter().copied().partition(|release| release.0 >= DONE);
        prop_assert_eq!(&whole.releases, &releases);
        prop_assert_eq!(done.len(), pieces as usize);
        prop_assert_eq!(&whole.effects, &other.effects);
        let sum: u64 = copies.iter().map(|copy| u64::from(copy.length) * u64::from(copy.lines.unwrap_or(1))).sum();
        prop_assert!(tracker.transfer_bytes() >= sum);
        prop_assert!(tracker.transfer_release().is_some());
    }

    /// Checks that any words at all leave an end to each transfer, and pieces within the room.
    #[test]
    fn any_words_have_pieces_that_end(
        words in prop::collection::vec(any::<u32>(), 0..200), most in any::<u64>(),
    ) {
        // Headers for the copy engine, so that some transfers are found.
        let words: Vec<u32> = words
            .chunks(2)
            .flat_map(|pair| {
                let method = [0x240, 0x300, 0x400, 0x408, 0x418][pair[0] as usize % 5];
                let known = if method == 0x300 { 0x183 | 0x200 } else { u32::MAX };
                let data = pair.last().unwrap() & known;
                [incr(4, method, 2), data, data, incr(4, 0x300, 1), 0x382 & data]
            })
            .collect();
        let mut tracker = Tracker::new(0xc86f);
        tracker.scan(&words, &mut [], &mut Counters::new());
        for transfer in tracker.transfers().iter().flatten() {
            let mut next = Some(Progress::default());
            for _ in 0..100 {
                let Some(progress) = next else { break };
                let piece = transfer.piece(progress, most);
                prop_assert!(transfer.write(&piece, (DONE, 1), &mut [0; PIECE_WORDS_MAX]).is_some());
                next = piece.next;
            }
        }
    }
}

#[test]
fn the_captured_copy_is_one_transfer_of_a_mebibyte() {
    let text = include_str!("../../../../tests/fixtures/captures/memcpy_d2h_async.pbcap");
    let line = text.lines().find(|line| line.starts_with("gp ")).unwrap();
    let words: Vec<u32> = line
        .split_once(" : ")
        .unwrap()
        .1
        .split_whitespace()
        .map(|word| u32::from_str_radix(word, 16).unwrap())
        .collect();
    let tracker = scan(&words);
    let [Some(transfer)] = tracker.transfers() else {
        panic!("{:?}", tracker.transfers());
    };
    assert_eq!(
        (transfer.at, transfer.end, transfer.bytes()),
        (7, 9, 1 << 20)
    );
    let release = tracker.transfer_release().unwrap();
    assert_eq!((release.va, release.payload), (0x2_0460_ff30, 3));
}

/// Checks what must not be divided: remapped, physical, tiled, or with registers that nobody saw.
#[test]
fn a_copy_that_is_not_understood_stays_whole_and_counts_its_bytes() {
    let place = [incr(4, 0x400, 4), 0, 0, 0, 0x1000, incr(4, 0x418, 1), 64];
    let tail = [incr(4, 0x240, 3), 0, 0x100, 77, incr(4, 0x300, 1), 0x14];
    let divisible = |place: &[u32], launch: &[u32]| {
        let words = [place, launch, &tail].concat();
        let tracker = scan(&words);
        assert!(tracker.transfer_bytes() > 0);
        tracker.transfers().len()
    };
    assert_eq!(divisible(&place, &[incr(4, 0x300, 1), 0x182]), 1);
    for bit in [0, 7, 8, 9, 10, 12, 13, 20, 22, 23, 24, 28] {
        let launch = [incr(4, 0x300, 1), 0x182 ^ 1 << bit];
        assert_eq!(divisible(&place, &launch), 0, "bit {bit}");
    }
    assert_eq!(divisible(&place[5..], &[incr(4, 0x300, 1), 0x182]), 0);
    assert_eq!(divisible(&place[..5], &[incr(4, 0x300, 1), 0x182]), 0);
    let shared = [incr(4, 0x300, 2), 0x182, 0];
    assert_eq!(divisible(&place, &shared), 0, "not alone in its burst");
    let empty = vec![0u32; 3];
    assert_eq!(scan(&empty).transfer_bytes(), 0);
}
