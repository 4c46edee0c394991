// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Divides GPU-readable memory into frames, for segments and QMDs that replace the tenant's.
//!
//! A launch takes a frame, and the frame is free again when that launch and the rest of its segment
//! have ended. Their own releases show this. A release that never comes keeps one frame.
//!
//! Frames may lie where the GPU only reads ([`Scratch::read_only`]). The words that atoms write lie
//! apart then.

use super::in_flight::Fence;
use super::words::{Storage, Words};
use crate::submit::join::{DoneWords, DONE_WORD};
use crate::submit::limits::SLOT_WORDS;
use core::num::Wrapping;

/// The most atoms of one launch. They and their join must fit into a frame.
pub const ATOMS_MAX: u32 = 216;

/// The alignment of a QMD in bytes, and so of a frame.
const QMD_ALIGN: u64 = 256;
/// The same in words.
const ALIGN_WORDS: usize = 64;

/// The fences of a frame in use: the launch that it was taken for, and the rest of its segment.
#[derive(Clone, Copy, Debug)]
pub struct Busy<V> {
    launch: Fence<V>,
    rest: Option<Fence<V>>,
}

/// A frame, at its addresses for the GPU and for the backend.
#[derive(Clone, Copy, Debug)]
pub struct Frame<V> {
    index: usize,
    /// The GPU's address, a multiple of 256.
    pub gpu_va: u64,
    view: V,
    /// The index of its first word in the view.
    first: usize,
    words: usize,
    /// Its first done word, where these lie apart.
    apart: Option<Apart<V>>,
}

/// Memory for done words outside of the frames.
#[derive(Clone, Copy, Debug)]
struct Apart<V> {
    gpu_va: u64,
    view: V,
    /// The index of the first word in the view.
    first: usize,
}

/// One piece of memory, divided into frames.
pub struct Scratch<S: Storage, V: 'static> {
    gpu_va: u64,
    view: V,
    frame_words: usize,
    frames: S::Slots<Option<Busy<V>>>,
    next: usize,
    apart: Option<Apart<V>>,
}

impl<S: Storage, V: Copy + 'static> Scratch<S, V> {
    /// Divides `words` words at `gpu_va`, which are `view`, into frames of `frame_words`, rounded
    /// up to a multiple of 64. `frames` has a slot for each frame; further ones are not used.
    /// Returns `None` if not even one fits, or `gpu_va` is not a multiple of 256.
    pub fn new(
        gpu_va: u64,
        view: V,
        words: usize,
        frame_words: usize,
        frames: S::Slots<Option<Busy<V>>>,
    ) -> Option<Self> {
        let frame_words = frame_words.checked_next_multiple_of(ALIGN_WORDS)?;
        let need = frame_words.checked_mul(frames.len())?;
        let fits = need > 0 && need <= words && gpu_va % QMD_ALIGN == 0;
        fits.then_some(Self {
            gpu_va,
            view,
            frame_words,
            frames,
            next: 0,
            apart: None,
        })
    }

    /// The same for frames that the GPU may only read. `done` are words that it may write, at their
    /// address, [`ATOMS_MAX`] for each frame.
    pub fn read_only(
        (gpu_va, view, words): (u64, V, usize),
        frame_words: usize,
        (done_va, done, done_words): (u64, V, usize),
        frames: S::Slots<Option<Busy<V>>>,
    ) -> Option<Self> {
        // CAST: a small constant.
        let need = frames.len().checked_mul(ATOMS_MAX as usize)?;
        (need <= done_words && done_va % 4 == 0).then_some(())?;
        let scratch = Self::new(gpu_va, view, words, frame_words, frames)?;
        Some(Self {
            apart: Some(Apart {
                gpu_va: done_va,
                view: done,
                first: 0,
            }),
            ..scratch
        })
    }

    /// Returns how many slots [`new`](Self::new) needs to use all of `words`.
    pub fn slots(words: usize, frame_words: usize) -> usize {
        let frame_words = frame_words.checked_next_multiple_of(ALIGN_WORDS);
        let count = words.checked_div(frame_words.unwrap_or(0));
        count.unwrap_or(0)
    }

    /// Returns the next free frame. A user that never ends keeps its frame and no other.
    pub fn frame(&mut self, words: &impl Words<View = V>) -> Option<Frame<V>> {
        let count = self.frames.len();
        let mut index = self.next;
        for _ in 0..count {
            if index >= count {
                index = 0;
            }
            if self.is_free_at(words, index) {
                return Some(self.at(index));
            }
            index = (Wrapping(index) + Wrapping(1)).0;
        }
        None
    }

    fn at(&self, index: usize) -> Frame<V> {
        // It cannot wrap: `new` checked the product for all frames.
        let first = (Wrapping(index) * Wrapping(self.frame_words)).0;
        // CAST: widening.
        let bytes = Wrapping(first as u64) << 2;
        Frame {
            index,
            gpu_va: (Wrapping(self.gpu_va) + bytes).0,
            view: self.view,
            first,
            words: self.frame_words,
            apart: self.apart.map(|apart| {
                // CAST: widening; `read_only` checked the product for all frames.
                let first = (Wrapping(index) * Wrapping(ATOMS_MAX as usize)).0;
                Apart {
                    gpu_va: (Wrapping(apart.gpu_va) + (Wrapping(first as u64) << 2)).0,
                    first,
                    ..apart
                }
            }),
        }
    }

    fn is_free_at(&self, words: &impl Words<View = V>, index: usize) -> bool {
        let Some(Some(busy)) = self.frames.get(index) else {
            return true;
        };
        let reached = |fence: &Fence<V>| fence.is_reached(words);
        reached(&busy.launch) && busy.rest.as_ref().is_none_or(reached)
    }

    /// Returns whether no frame is in use.
    pub fn is_free(&self, words: &impl Words<View = V>) -> bool {
        (0..self.frames.len()).all(|index| self.is_free_at(words, index))
    }

    /// Takes a frame until the fence `launch` is reached, and `rest` if there is one. Returns false
    /// if `launch` is reached already, because then it cannot show the end.
    pub fn hold(
        &mut self,
        words: &impl Words<View = V>,
        frame: &Frame<V>,
        launch: Fence<V>,
        rest: Option<Fence<V>>,
    ) -> bool {
        if launch.is_reached(words) {
            return false;
        }
        if let Some(slot) = self.frames.get_mut(frame.index) {
            *slot = Some(Busy { launch, rest });
        }
        self.next = (Wrapping(frame.index) + Wrapping(1)).0;
        true
    }

    /// Frees the frames with a fence that is `gone`, because its memory goes: their channels are
    /// gone.
    pub fn forget(&mut self, gone: impl Fn(&Fence<V>) -> bool) {
        for slot in self.frames.iter_mut() {
            let is_gone =
                |busy: &Busy<V>| gone(&busy.launch) || busy.rest.as_ref().is_some_and(&gone);
            if slot.as_ref().is_some_and(is_gone) {
                *slot = None;
            }
        }
    }
}

impl<V: Copy> Frame<V> {
    /// Returns the frame's size in words.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Stores `data` from word `at` of the frame on. Returns false if it does not fit.
    pub fn write(&self, words: &impl Words<View = V>, at: usize, data: &[u32]) -> bool {
        let end = at.checked_add(data.len());
        if end.is_none_or(|end| end > self.words) {
            return false;
        }
        words.write(&self.view, (Wrapping(self.first) + Wrapping(at)).0, data)
    }

    /// Returns where the atoms in the frame's slots write that they have ended, with a payload.
    pub fn done_words(&self, payload: u32) -> DoneWords {
        match &self.apart {
            Some(apart) => DoneWords {
                va: apart.gpu_va,
                stride_bytes: 4,
                payload,
            },
            None => DoneWords::in_slots(self.gpu_va, payload),
        }
    }

    /// Returns the view that has the done word of a slot, and the word's index there.
    pub fn done_word(&self, slot: u32) -> (V, usize) {
        // CAST: widening.
        let slot = Wrapping(slot as usize);
        match &self.apart {
            Some(apart) => (apart.view, (Wrapping(apart.first) + slot).0),
            None => {
                let at = slot * Wrapping(SLOT_WORDS) + Wrapping(DONE_WORD);
                (self.view, (Wrapping(self.first) + at).0)
            }
        }
    }

    /// Returns whether the GPU may only read the frame.
    pub fn is_read_only(&self) -> bool {
        self.apart.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::in_flight::Reach;
    use crate::lane::testing::{Heap, Ram, View};
    use std::vec;

    /// Words of the scratch memory. Words of the tenant follow.
    const WORDS: usize = 256;

    fn scratch(words: usize, frame_words: usize) -> Option<Scratch<Heap, View>> {
        let slots = Scratch::<Heap, View>::slots(words, frame_words);
        Scratch::new(0x1000, (0, words), words, frame_words, vec![None; slots])
    }

    /// Returns the fence that the tenant's word `at` reaches `number`.
    fn at_least(at: usize, number: u32) -> Fence<View> {
        Fence {
            view: (WORDS, 4),
            index: at,
            number,
            reach: Reach::AtLeast,
        }
    }

    #[test]
    fn a_frame_is_free_again_when_its_launch_has_released() {
        let ram = Ram::new(WORDS + 4);
        let (release, rest) = (0, 1);
        ram.set(WORDS + release, 1);
        let mut scratch = scratch(WORDS, 125).unwrap();
        for expected in [0x1000, 0x1200] {
            let frame = scratch.frame(&ram).unwrap();
            assert_eq!(frame.gpu_va, expected);
            let (launch, rest) = (at_least(release, 10), at_least(rest, 3));
            assert!(scratch.hold(&ram, &frame, launch, Some(rest)));
        }
        assert!(scratch.frame(&ram).is_none());
        ram.set(WORDS + release, 11);
        assert!(scratch.frame(&ram).is_none(), "the rest has not run");
        ram.set(WORDS + rest, 3);
        let frame = scratch.frame(&ram).unwrap();
        assert_eq!(frame.gpu_va, 0x1000);
        let held = scratch.hold(&ram, &frame, at_least(release, 10), None);
        assert!(!held, "already released");
        assert!(frame.write(&ram, 127, &[7]) && !frame.write(&ram, 127, &[7, 8]));
        assert_eq!(ram.get(127), 7);
    }

    #[test]
    fn a_launch_that_never_ends_keeps_one_frame() {
        let ram = Ram::new(WORDS + 4);
        let (never, release) = (0, 1);
        let mut scratch = scratch(WORDS, 64).unwrap();
        let frame = scratch.frame(&ram).unwrap();
        assert!(scratch.hold(&ram, &frame, at_least(never, 1), None));
        for number in 1..20 {
            let frame = scratch.frame(&ram).unwrap();
            assert_ne!(frame.gpu_va, 0x1000);
            assert!(scratch.hold(&ram, &frame, at_least(release, number), None));
            ram.set(WORDS + release, number);
        }
    }

    #[test]
    fn a_word_that_goes_frees_its_frame() {
        let ram = Ram::new(WORDS + 4);
        let mut scratch = scratch(64, 64).unwrap();
        for rest in [None, Some(at_least(2, 1))] {
            let frame = scratch.frame(&ram).unwrap();
            assert!(scratch.hold(&ram, &frame, at_least(1, 9), rest));
            scratch.forget(|fence| fence.index == 0);
            assert!(scratch.frame(&ram).is_none());
            let last = rest.map_or(1, |rest| rest.index);
            scratch.forget(|fence| fence.index == last);
            assert!(scratch.frame(&ram).is_some());
        }
    }

    #[test]
    fn read_only_frames_have_their_done_words_apart() {
        let ram = Ram::new(WORDS + 4);
        // CAST: a small constant.
        let done = |words| (0x9000, (WORDS, words), words);
        let new = |words| {
            let frames = (0x1000, (0, WORDS), WORDS);
            Scratch::<Heap, View>::read_only(frames, 128, done(words), vec![None; 2])
        };
        let most = ATOMS_MAX as usize;
        assert!(new(2 * most - 1).is_none());
        let mut scratch = new(2 * most).unwrap();
        for (number, va) in [(1, 0x9000), (2, 0x9000 + 4 * u64::from(ATOMS_MAX))] {
            let frame = scratch.frame(&ram).unwrap();
            assert!(frame.is_read_only());
            let words = frame.done_words(number);
            assert_eq!((words.va_of(0), words.va_of(3)), (va, va + 12));
            let first = most * (number as usize - 1);
            assert_eq!(frame.done_word(3), ((WORDS, 2 * most), first + 3));
            assert!(scratch.hold(&ram, &frame, at_least(0, 1), None));
        }
        let frame = self::scratch(WORDS, 128).unwrap().frame(&ram).unwrap();
        let words = frame.done_words(7);
        assert_eq!((words.va_of(0), words.va_of(1)), (0x1180, 0x1380));
        assert_eq!(frame.done_word(1), ((0, WORDS), 128 + 96));
    }

    #[test]
    fn too_little_room_is_none_at_all() {
        assert!(scratch(25, 50).is_none());
        let misplaced = Scratch::<Heap, View>::new(128, (0, 64), 64, 64, vec![None; 1]);
        assert!(misplaced.is_none());
        let too_many = Scratch::<Heap, View>::new(0, (0, 64), 64, 64, vec![None; 2]);
        assert!(too_many.is_none());
    }
}
