// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Chooses among free devices: each of a container's on another GPU, packed or spread.

use std::collections::{BTreeMap, BTreeSet};

use crate::inventory::Slot;
use crate::profiles::Placement;

/// How many containers run on each GPU under each profile.
pub type Running = BTreeMap<(u32, String), usize>;

/// Counts the containers of each GPU, those included that are allocated and have not started yet.
///
/// ```text
/// tenants = running under other profiles + max(running under `profile`, its taken slots)
/// ```
///
/// A container that the kubelet placed runs and takes a slot. Before it starts, it only takes one;
/// without a kubelet a container only runs. `taken` has the GPU of each slot that is not free.
pub fn tenants(
    profile: &str,
    running: &Running,
    taken: impl Iterator<Item = u32>,
) -> BTreeMap<u32, usize> {
    let mut own: BTreeMap<u32, usize> = BTreeMap::new();
    taken.for_each(|gpu| *own.entry(gpu).or_default() += 1);
    let mut tenants = BTreeMap::new();
    for ((gpu, other), count) in running {
        if other == profile {
            let own = own.entry(*gpu).or_default();
            *own = (*own).max(*count);
        } else {
            *tenants.entry(*gpu).or_default() += count;
        }
    }
    own.into_iter()
        .for_each(|(gpu, count)| *tenants.entry(gpu).or_default() += count);
    tenants
}

/// Returns the devices to take, `size` of them if there are as many.
///
/// A container has one slot of a GPU, so further slots of a GPU come last: the plugin refuses such
/// an allocation, and the pod's event says why. `tenants` is the number of containers on each GPU.
pub fn choose(
    place: Placement,
    available: &[Slot],
    must: &[Slot],
    size: usize,
    tenants: &BTreeMap<u32, usize>,
) -> Vec<Slot> {
    let mut chosen: Vec<Slot> = must.iter().copied().take(size).collect();
    let mut used: BTreeSet<u32> = chosen.iter().map(|slot| slot.gpu).collect();
    let mut free: Vec<Slot> = available
        .iter()
        .filter(|slot| !must.contains(slot))
        .copied()
        .collect();
    free.sort_by_key(|slot| {
        let tenants = tenants.get(&slot.gpu).copied().unwrap_or(0);
        let order = match place {
            Placement::Spread => tenants,
            Placement::Pack => usize::MAX - tenants,
        };
        (order, *slot)
    });
    let mut others = Vec::new();
    for slot in free {
        match used.insert(slot.gpu) {
            true => chosen.push(slot),
            false => others.push(slot),
        }
    }
    chosen.extend(others);
    chosen.truncate(size);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(names: &str) -> Vec<Slot> {
        names
            .split_whitespace()
            .map(|name| name.parse().unwrap())
            .collect()
    }

    #[track_caller]
    fn chosen(place: Placement, available: &str, must: &str, size: usize) -> String {
        let tenants = BTreeMap::from([(0, 1), (1, 3)]);
        let chosen = choose(place, &parsed(available), &parsed(must), size, &tenants);
        let names: Vec<String> = chosen.iter().map(Slot::to_string).collect();
        names.join(" ")
    }

    #[test]
    fn a_container_counts_once_whether_it_runs_or_has_a_slot_or_both() {
        let running = |on: &[(u32, &str, usize)]| -> Running {
            let counts = on.iter();
            counts
                .map(|(gpu, profile, count)| ((*gpu, (*profile).to_owned()), *count))
                .collect()
        };
        let of = |on: &[(u32, &str, usize)], taken: &[u32]| {
            tenants("a", &running(on), taken.iter().copied())
        };
        assert_eq!(of(&[], &[]), BTreeMap::new());
        assert_eq!(of(&[], &[0, 0, 1]), BTreeMap::from([(0, 2), (1, 1)]));
        let both = [(0, "a", 2), (0, "b", 1), (1, "b", 3), (1, "c", 1)];
        assert_eq!(of(&both, &[0, 0]), BTreeMap::from([(0, 3), (1, 4)]));
        // One has not started, or has no kubelet.
        assert_eq!(of(&both, &[0, 0, 0]), BTreeMap::from([(0, 4), (1, 4)]));
        assert_eq!(of(&both, &[1]), BTreeMap::from([(0, 3), (1, 5)]));
    }

    #[test]
    fn containers_are_packed_or_spread() {
        let free = "gpu0-1 gpu1-3 gpu2-0 gpu2-1";
        assert_eq!(chosen(Placement::Spread, free, "", 1), "gpu2-0");
        assert_eq!(chosen(Placement::Pack, free, "", 1), "gpu1-3");
    }

    #[test]
    fn a_container_has_its_slots_on_different_gpus() {
        let free = "gpu0-1 gpu0-2 gpu1-3 gpu2-0 gpu2-1";
        assert_eq!(
            chosen(Placement::Spread, free, "", 3),
            "gpu2-0 gpu0-1 gpu1-3"
        );
        assert_eq!(
            chosen(Placement::Spread, free, "gpu2-1", 2),
            "gpu2-1 gpu0-1"
        );
        assert_eq!(
            chosen(Placement::Pack, "gpu0-1 gpu0-2", "", 2),
            "gpu0-1 gpu0-2"
        );
        assert_eq!(chosen(Placement::Pack, "gpu0-1", "", 2), "gpu0-1");
        assert_eq!(
            chosen(Placement::Pack, "gpu0-1 gpu0-2", "gpu0-1 gpu0-2", 1),
            "gpu0-1"
        );
    }
}
