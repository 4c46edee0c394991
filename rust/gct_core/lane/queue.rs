// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps elements in order, in slots of the caller.

use core::num::Wrapping;
use core::ops::DerefMut;

/// A queue that begins at slot `first` and wraps around the end of the slots.
#[derive(Debug)]
pub(crate) struct Queue<S> {
    slots: S,
    first: usize,
    len: usize,
}

impl<T: Copy, S: DerefMut<Target = [Option<T>]>> Queue<S> {
    /// Creates an empty queue with room for as many elements as there are slots.
    pub(crate) fn new(slots: S) -> Self {
        Self {
            slots,
            first: 0,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the slot of element `at`. `at` is not more than the number of slots.
    fn place(&self, at: usize) -> usize {
        let place = Wrapping(self.first) + Wrapping(at);
        let slots = Wrapping(self.slots.len());
        match place < slots {
            true => place.0,
            false => (place - slots).0,
        }
    }

    /// Returns element `at`, the first one is 0.
    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        if at >= self.len {
            return None;
        }
        self.slots.get(self.place(at))?.as_ref()
    }

    /// Returns element `at` for writing.
    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        if at >= self.len {
            return None;
        }
        let place = self.place(at);
        self.slots.get_mut(place)?.as_mut()
    }

    /// Adds an element behind the others. Returns false if there is no room.
    pub(crate) fn push(&mut self, element: T) -> bool {
        if self.len >= self.slots.len() {
            return false;
        }
        let place = self.place(self.len);
        let slot = self.slots.get_mut(place);
        slot.is_some_and(|slot| {
            *slot = Some(element);
            self.len = (Wrapping(self.len) + Wrapping(1)).0;
            true
        })
    }

    /// Removes the first element and returns it.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = self.get(0).copied()?;
        self.first = self.place(1);
        self.len = (Wrapping(self.len) - Wrapping(1)).0;
        Some(first)
    }

    /// Keeps the elements for which `keep` holds, in their order.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let mut kept = Wrapping(0);
        for at in 0..self.len {
            if !self.get(at).is_some_and(&mut keep) {
                continue;
            }
            let moved = self.get(at).copied().filter(|_| kept.0 != at);
            if let (Some(element), Some(slot)) = (moved, self.get_mut(kept.0)) {
                *slot = element;
            }
            kept += 1;
        }
        self.len = kept.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec::Vec;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(u8),
        Pop,
        Drop(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<u8>().prop_map(Step::Push),
            2 => Just(Step::Pop),
            1 => any::<u8>().prop_map(Step::Drop),
        ]
    }

    proptest! {
        #[test]
        fn it_behaves_like_one_without_a_bound_until_it_is_full(
            size in 0usize..6, steps in prop::collection::vec(step(), 0..60),
        ) {
            let mut slots = std::vec![None; size];
            let mut queue = Queue::new(&mut slots[..]);
            let mut model = VecDeque::new();
            for step in steps {
                match step {
                    Step::Push(element) => {
                        let fits = model.len() < size;
                        prop_assert_eq!(queue.push(element), fits);
                        if fits {
                            model.push_back(element);
                        }
                    }
                    Step::Pop => {
                        prop_assert_eq!(queue.pop(), model.pop_front());
                    }
                    Step::Drop(bit) => {
                        let keep = |element: &u8| element >> (bit & 7) & 1 == 0;
                        queue.retain(keep);
                        model.retain(keep);
                    }
                }
                let all: Vec<_> = (0..queue.len()).filter_map(|at| queue.get(at)).collect();
                prop_assert_eq!(all, model.iter().collect::<Vec<_>>());
                prop_assert_eq!(queue.get(queue.len()), None);
                prop_assert!(queue.get_mut(queue.len()).is_none());
            }
        }
    }
}
