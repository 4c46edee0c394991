// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Divides the slots of a GPU's board among those who have processes there.
//!
//! A process without a slot is not seen by others, so nobody may take all of them.

use gct_core::ids::GroupId;
use gctd_ipc::board::{SlotIndex, SLOTS_MAX};

/// Whose process has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// That of a group, whoever its processes' users are.
    Group(GroupId),
    /// That of a user, in no group.
    User(Option<u32>),
}

/// Returns a free slot for a process, if its holder leaves as many slots for others as it has.
pub(super) fn free(taken: &[(SlotIndex, Holder)], holder: Holder) -> Option<SlotIndex> {
    let own = taken.iter().filter(|(_, of)| *of == holder).count();
    if own >= SLOTS_MAX.saturating_sub(taken.len()) {
        return None;
    }
    let is_free = |index: &SlotIndex| taken.iter().all(|(at, _)| at != index);
    (0..).take(SLOTS_MAX).find(is_free)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a holder all slots that it can have. Returns how many these are.
    fn crowd(taken: &mut Vec<(SlotIndex, Holder)>, holder: Holder) -> usize {
        let before = taken.len();
        while let Some(index) = free(taken, holder) {
            taken.push((index, holder));
        }
        taken.len() - before
    }

    #[test]
    fn nobody_takes_all_slots() {
        let mut taken = Vec::new();
        let user = |uid| Holder::User(Some(uid));
        let counts = [1000, 1001, 1002].map(|uid| crowd(&mut taken, user(uid)));
        assert_eq!(counts, [30, 15, 8]);
        let mut indices: Vec<SlotIndex> = taken.iter().map(|(index, _)| *index).collect();
        indices.sort_unstable();
        assert_eq!(indices, Vec::from_iter(0..53));
        // Another one has a slot nevertheless.
        assert_eq!(free(&taken, user(1003)), Some(53));
        // A slot that was given back is used again.
        assert_eq!(taken.remove(7), (7, user(1000)));
        assert_eq!(free(&taken, user(1003)), Some(7));
        assert_eq!(free(&taken, user(1000)), None);
    }
}
