// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Divides the slots of a GPU's board among those who have processes there.
//!
//! A process without a slot is not seen by others, so nobody may take all of them. A container can
//! be many users, and may be in no group. Limits are those of groups in most cases, so groups have
//! a third of the slots, whoever is in none.

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

/// Returns a free slot for a process, if its holder leaves as many slots for others as it has, and
/// those in no group half as many as they have together.
pub(super) fn free(taken: &[(SlotIndex, Holder)], holder: Holder) -> Option<SlotIndex> {
    let count = |is: &dyn Fn(Holder) -> bool| taken.iter().filter(|(_, of)| is(*of)).count();
    let left = SLOTS_MAX.saturating_sub(taken.len());
    let is_outside = |of: Holder| matches!(of, Holder::User(_));
    if count(&|of| of == holder) >= left || is_outside(holder) && count(&is_outside) >= 2 * left {
        return None;
    }
    let is_free = |index: &SlotIndex| taken.iter().all(|(at, _)| at != index);
    (0..).take(SLOTS_MAX).find(is_free)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_core::host::Host;
    use gct_core::iface::parse;

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
        assert_eq!(counts, [30, 10, 0]);
        let mut tables = Host::new([1, 2]);
        let mut group = |name: &str| {
            let name = parse::name(name.as_bytes()).unwrap();
            let create = |tables: &mut Host| tables.state().group_create(&name);
            tables.with(create).unwrap();
            Holder::Group(tables.state().group_by_name(&name).unwrap())
        };
        let counts = ["a", "b", "c"].map(|name| crowd(&mut taken, group(name)));
        assert_eq!(counts, [10, 5, 3]);
        let mut indices: Vec<SlotIndex> = taken.iter().map(|(index, _)| *index).collect();
        indices.sort_unstable();
        assert_eq!(indices, Vec::from_iter(0..58));
        // Another one has a slot nevertheless.
        assert_eq!(free(&taken, group("d")), Some(58));
        // A slot that was given back is used again.
        assert_eq!(taken.remove(7), (7, user(1000)));
        assert_eq!(free(&taken, group("e")), Some(7));
        assert_eq!(free(&taken, user(1000)), None);
    }
}
