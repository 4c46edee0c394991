// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Divides GPU-readable memory into frames, for segments and QMDs that replace the tenant's.
//!
//! A launch takes a frame, and the frame is free again when that launch and the rest of its segment
//! have ended. Their own releases show this. A release that never comes keeps one frame.

use super::in_flight::Fence;
use super::words::{Storage, Words};
use core::num::Wrapping;

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
}

/// One piece of memory, divided into frames.
pub struct Scratch<S: Storage, V: 'static> {
    gpu_va: u64,
    view: V,
    frame_words: usize,
    frames: S::Slots<Option<Busy<V>>>,
    next: usize,
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
            if self.is_free(words, index) {
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
        }
    }

    fn is_free(&self, words: &impl Words<View = V>, index: usize) -> bool {
        let Some(Some(busy)) = self.frames.get(index) else {
            return true;
        };
        let reached = |fence: &Fence<V>| fence.is_reached(words);
        reached(&busy.launch) && busy.rest.as_ref().is_none_or(reached)
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

    /// Returns the view of the frame's memory, and the index there of its word `at`.
    pub fn word(&self, at: usize) -> (V, usize) {
        (self.view, (Wrapping(self.first) + Wrapping(at)).0)
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
    fn too_little_room_is_none_at_all() {
        assert!(scratch(25, 50).is_none());
        let misplaced = Scratch::<Heap, View>::new(128, (0, 64), 64, 64, vec![None; 1]);
        assert!(misplaced.is_none());
        let too_many = Scratch::<Heap, View>::new(0, (0, 64), 64, 64, vec![None; 2]);
        assert!(too_many.is_none());
    }
}
