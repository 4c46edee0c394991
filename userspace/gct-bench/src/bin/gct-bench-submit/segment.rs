// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Places a segment at a chosen position within a cache line.
//!
//! A tenant's segment begins at any multiple of four bytes, and the position alone changes the time
//! to copy 1.5 KB by up to a quarter. So measurements cover every position, instead of the one that
//! the allocator happens to choose.

use std::ops::{Deref, DerefMut};

/// Words of a cache line, which is the number of positions.
pub(crate) const PLACES: usize = 16;

/// The words of a segment.
pub(crate) struct Segment {
    room: Vec<u32>,
    at: usize,
    len: usize,
}

impl Segment {
    /// Creates a segment at the beginning of a cache line.
    pub(crate) fn new(words: &[u32]) -> Self {
        let mut segment = Self {
            room: vec![0; words.len() + 2 * PLACES],
            at: 0,
            len: words.len(),
        };
        segment.room[..words.len()].copy_from_slice(words);
        segment.place(0);
        segment
    }

    /// Moves the segment so that it begins `place` words after the beginning of a cache line.
    pub(crate) fn place(&mut self, place: usize) {
        let line = self.room.as_ptr().align_offset(PLACES * size_of::<u32>());
        let at = line + place % PLACES;
        self.room.copy_within(self.at..self.at + self.len, at);
        self.at = at;
    }
}

impl Deref for Segment {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.room[self.at..self.at + self.len]
    }
}

impl DerefMut for Segment {
    fn deref_mut(&mut self) -> &mut [u32] {
        &mut self.room[self.at..self.at + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_keeps_its_words_wherever_it_lies() {
        let words: Vec<u32> = (0..50).collect();
        let mut segment = Segment::new(&words);
        for place in [0, 15, 3, 15, 0] {
            segment.place(place);
            assert_eq!(segment[..], words);
            let address = segment.as_ptr() as usize;
            assert_eq!(address % 64, 4 * place);
        }
    }
}
