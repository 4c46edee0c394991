// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks address ranges that every `munmap` looks up. A lookup that finds nothing takes no lock
//! and allocates nothing, so it may run anywhere.
//!
//! Slots never move. Each holds one remaining part of a range. Only adding a range or removing
//! parts of one takes the lock.

use crate::locks::{First, Lock};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Slots of the first level. Each level has twice as many as the one before.
const FIRST: usize = 64;
/// A remaining part `[start, end)` of a range. The slot is vacant while `end` is 0.
///
/// The accesses are relaxed: a thread that unmaps a range was told of it by the thread that added
/// it.
#[derive(Debug, Default)]
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    number: AtomicU64,
}

impl Slot {
    fn part(&self) -> (usize, usize) {
        let start = self.start.load(Ordering::Relaxed);
        (start, self.end.load(Ordering::Relaxed))
    }

    fn touches(&self, start: usize, end: usize) -> bool {
        let (own_start, own_end) = self.part();
        own_start < end && start < own_end
    }

    fn is_of(&self, number: u64) -> bool {
        self.part().1 != 0 && self.number.load(Ordering::Relaxed) == number
    }

    /// Fills a vacant slot.
    fn set(&self, start: usize, end: usize, number: u64) {
        self.number.store(number, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
    }
}

/// Numbered address ranges. Eleven levels have 131,008 slots.
#[derive(Debug)]
pub(crate) struct Ranges<const LEVELS: usize = 11> {
    levels: [First<Box<[Slot]>>; LEVELS],
    /// The bounds of all ranges that were ever added.
    low: AtomicUsize,
    high: AtomicUsize,
    writer: Lock<()>,
}

impl<const LEVELS: usize> Ranges<LEVELS> {
    pub(crate) const fn new() -> Self {
        Self {
            levels: [const { First::new() }; LEVELS],
            low: AtomicUsize::new(usize::MAX),
            high: AtomicUsize::new(0),
            writer: Lock::new((), || ()),
        }
    }

    /// Makes the ranges usable in a forked child.
    ///
    /// # Safety
    ///
    /// The process has one thread.
    pub(crate) unsafe fn forked(&self) {
        // SAFETY: passed on.
        unsafe { self.writer.renew() };
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.levels.iter().map_while(First::get).flatten()
    }

    /// Returns whether a part of any range lies in `[start, end)`. Any code may call it. While
    /// another thread reuses a slot the result may be a false positive. It is never a false
    /// negative for a range that the caller knows of.
    pub(crate) fn touch(&self, start: usize, end: usize) -> bool {
        let low = self.low.load(Ordering::Relaxed);
        let inside = start < self.high.load(Ordering::Relaxed) && low < end;
        inside && self.slots().any(|slot| slot.touches(start, end))
    }

    /// Returns a vacant slot, or `None` if all levels are full.
    fn vacant(&self) -> Option<&Slot> {
        self.levels.iter().enumerate().find_map(|(at, level)| {
            let slots = level.get_or_init(|| (0..FIRST << at).map(|_| Slot::default()).collect());
            slots.iter().find(|slot| slot.part().1 == 0)
        })
    }

    /// Adds a range under a unique number. Returns false if there are too many.
    pub(crate) fn add(&self, start: usize, end: usize, number: u64) -> bool {
        let _writer = self.writer.lock();
        let Some(slot) = self.vacant() else {
            return false;
        };
        slot.set(start, end, number);
        self.low.fetch_min(start, Ordering::Relaxed);
        self.high.fetch_max(end, Ordering::Relaxed);
        true
    }

    /// Removes `[start, end)` from all ranges. Calls `whole` for each range of which nothing is
    /// left.
    pub(crate) fn remove(&self, start: usize, end: usize, mut whole: impl FnMut(u64)) {
        while self.touch(start, end) {
            if let Some(number) = self.cut(start, end) {
                whole(number);
            }
        }
    }

    /// Removes `[start, end)` from one part. Returns the range's number if nothing of it is left.
    fn cut(&self, start: usize, end: usize) -> Option<u64> {
        let _writer = self.writer.lock();
        let slot = self.slots().find(|slot| slot.touches(start, end))?;
        let (own_start, own_end) = slot.part();
        let number = slot.number.load(Ordering::Relaxed);
        if end < own_end {
            if start <= own_start {
                slot.start.store(end, Ordering::Relaxed);
                return None;
            }
            if let Some(rest) = self.vacant() {
                rest.set(end, own_end, number);
            }
        }
        let left = if own_start < start { start } else { 0 };
        slot.end.store(left, Ordering::Relaxed);
        let gone = !self.slots().any(|slot| slot.is_of(number));
        gone.then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed<const LEVELS: usize>(ranges: &Ranges<LEVELS>, start: usize, end: usize) -> Vec<u64> {
        let mut whole = Vec::new();
        ranges.remove(start, end, |number| whole.push(number));
        assert!(!ranges.touch(start, end));
        whole.sort_unstable();
        whole
    }

    #[test]
    fn what_is_mapped_over_and_then_unmapped_is_gone_once() {
        let ranges = Ranges::<11>::new();
        assert!(!ranges.touch(0, usize::MAX));
        assert!(ranges.add(0x2000, 0x4000, 7));
        assert!(ranges.touch(0x3fff, 0x8000) && ranges.touch(0, 0x2001));
        assert!(!ranges.touch(0x4000, 0x8000) && !ranges.touch(0, 0x2000));
        assert_eq!(removed(&ranges, 0x1000, 0x2000), []);
        assert_eq!(removed(&ranges, 0x2000, 0x4000), [7]);
        assert_eq!(removed(&ranges, 0x2000, 0x4000), []);
    }

    #[test]
    fn a_range_is_gone_with_its_last_part() {
        let ranges = Ranges::<11>::new();
        assert!(ranges.add(0x10, 0x20, 1) && ranges.add(0x20, 0x30, 2));
        assert_eq!(removed(&ranges, 0x14, 0x18), []);
        assert!(ranges.touch(0x13, 0x14) && ranges.touch(0x18, 0x19));
        assert_eq!(removed(&ranges, 0x12, 0x1a), []);
        assert_eq!(removed(&ranges, 0x08, 0x11), []);
        assert_eq!(removed(&ranges, 0x1c, 0x28), []);
        assert_eq!(removed(&ranges, 0x11, 0x12), [], "the tail is left");
        assert_eq!(removed(&ranges, 0x00, 0x40), [1, 2]);
    }

    /// Compares with a map of single addresses.
    #[test]
    fn random_parts_go_as_addresses_do() {
        let ranges = Ranges::<11>::new();
        let mut real = [0u64; 256];
        let mut random = 1u64;
        for number in 1..2_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (start, len) = (
                (random >> 33) as usize % 200,
                (random >> 50) as usize % 50 + 1,
            );
            let end = start + len;
            let before = real;
            real[start..end].fill(0);
            let gone = removed(&ranges, start, end);
            let lost = |number: &u64| *number != 0 && !real.contains(number);
            let mut expected: Vec<u64> = before.into_iter().filter(lost).collect();
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(gone, expected);
            if number % 3 != 0 {
                assert!(ranges.add(start, end, number));
                real[start..end].fill(number);
            }
            for (at, number) in real.iter().enumerate() {
                assert_eq!(ranges.touch(at, at + 1), *number != 0, "{at}");
            }
        }
    }

    #[test]
    fn there_is_a_maximum_and_room_is_used_again() {
        let ranges = Ranges::<2>::new();
        let mut number = 0;
        while ranges.add(number, number + 1, number as u64) {
            number += 1;
        }
        assert_eq!(number, FIRST + 2 * FIRST);
        assert_eq!(removed(&ranges, 100, 101), [100]);
        assert!(ranges.add(number, number + 2, 1 << 40));
        // No slot is left for the second of the two remaining parts, so it is not tracked.
        assert_eq!(removed(&ranges, 7, 8), [7]);
        assert!(ranges.add(1000, 1003, 7));
        assert_eq!(removed(&ranges, 1001, 1002), []);
        assert!(!ranges.touch(1002, 1003));
        assert_eq!(removed(&ranges, 1000, 1001), [7]);
    }

    #[test]
    fn threads_do_not_lose_each_others_ranges() {
        let ranges = Ranges::<11>::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let ranges = &ranges;
                scope.spawn(move || {
                    for round in 0..2_000 {
                        let start = (thread * 100 + round % 70) * 0x1000;
                        let number = (thread * 1_000_000 + round) as u64;
                        assert!(ranges.add(start, start + 0x1000, number));
                        assert!(ranges.touch(start, start + 0x1000));
                        let mut whole = Vec::new();
                        ranges.remove(start, start + 0x1000, |number| whole.push(number));
                        assert_eq!(whole, [number]);
                    }
                });
            }
        });
        assert!(!ranges.touch(0, usize::MAX));
    }
}
