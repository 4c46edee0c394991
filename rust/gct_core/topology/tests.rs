// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares the rule with what GPUs reported and did (`tests/fixtures/tpcs`).

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

const GPUS: [&str; 3] = [
    include_str!("../../../tests/fixtures/tpcs/h100-a.txt"),
    include_str!("../../../tests/fixtures/tpcs/h100-b.txt"),
    include_str!("../../../tests/fixtures/tpcs/h100-c.txt"),
];

/// Returns the numbers of the lines that begin with `word`.
fn lines<'a>(gpu: &'a str, word: &'a str) -> impl Iterator<Item = Vec<u16>> + 'a {
    gpu.lines().filter_map(move |line| {
        let rest = line.strip_prefix(word)?.strip_prefix(' ')?;
        Some(
            rest.split(' ')
                .map(|number| number.parse().unwrap())
                .collect(),
        )
    })
}

fn chip(gpu: &str) -> Chip {
    let chip = lines(gpu, "chip").next().unwrap();
    Chip {
        architecture: chip[0].into(),
        gpcs: chip[1],
        tpcs_per_gpc: chip[2],
    }
}

/// Returns the SMs in the order of the resource manager.
fn sms(gpu: &str) -> Vec<Sm> {
    let sm = |line: Vec<u16>| Sm {
        virtual_gpc: line[5],
        migratable_tpc: line[6],
    };
    lines(gpu, "sm").map(sm).collect()
}

fn topology(gpu: &str) -> Topology {
    Topology::from_sm_order(chip(gpu), sms(gpu).into_iter()).unwrap()
}

#[test]
fn a_bit_has_the_sms_that_the_rule_says() {
    for gpu in GPUS {
        let mut by_rule: BTreeMap<usize, Vec<u16>> = BTreeMap::new();
        for (sm, number) in sms(gpu).into_iter().zip(0..) {
            by_rule
                .entry(chip(gpu).bit(sm).unwrap())
                .or_default()
                .push(number);
        }
        let measured = lines(gpu, "bit").map(|line| (usize::from(line[0]), line[1..].to_vec()));
        let measured: BTreeMap<usize, Vec<u16>> =
            measured.filter(|(_, sms)| !sms.is_empty()).collect();
        assert_eq!(measured.len(), 66);
        assert_eq!(by_rule, measured);
        let existing = *topology(gpu).existing();
        assert!((0..TPCS_MAX).all(|bit| existing.has(bit) == measured.contains_key(&bit)));
    }
}

/// Checks that the GPCs of the rule hold as many clusters as CUDA counts.
#[test]
fn gpcs_hold_as_many_clusters_as_cuda_says() {
    for gpu in GPUS {
        let topology = topology(gpu);
        let mut gpcs: Vec<u32> = (0..topology.gpcs)
            .map(|gpc| usize::from(gpc * topology.tpcs_per_gpc))
            .map(|from| {
                topology
                    .existing
                    .between(from, from + usize::from(topology.tpcs_per_gpc))
                    .count()
            })
            .collect();
        let alone = topology.existing.count() - gpcs.iter().sum::<u32>();
        gpcs.extend((0..alone).map(|_| 1));
        for line in lines(gpu, "clusters") {
            let (blocks, clusters) = (u32::from(line[0]), u32::from(line[1]));
            let fit: u32 = gpcs.iter().map(|tpcs| tpcs * 2 / blocks).sum();
            assert_eq!(fit, clusters, "of {blocks} blocks");
            let together = topology.has_together(&topology.existing, blocks.div_ceil(2));
            assert_eq!(together, clusters > 0, "of {blocks} blocks");
        }
    }
}

/// Checks what was measured: clusters of 16 on bits 0-7 and of 8 on four GPCs never started, those
/// of 8 on 0-3 and of 2 on 72-95 ran.
#[test]
fn clusters_find_place_where_they_were_seen_to() {
    let gpu = topology(GPUS[0]);
    for (list, blocks, runs) in [
        ("0-7", 16, false),
        ("0-8", 16, false),
        ("0,9,18,27", 8, false),
        ("0-3", 8, true),
        ("0,9,18", 2, true),
        ("72-95", 2, true),
    ] {
        let mask = TpcMask::parse(list.as_bytes()).unwrap();
        assert_eq!(
            gpu.has_together(&mask, blocks / 2),
            runs,
            "{blocks} on {list}"
        );
    }
}

#[test]
fn what_was_not_tried_is_not_known() {
    let (chip, sms) = (chip(GPUS[0]), sms(GPUS[0]));
    let with = |chip, sms: &[Sm]| Topology::from_sm_order(chip, sms.iter().copied());
    assert!(with(chip, &sms).is_some());
    let blackwell = Chip {
        architecture: 0x1a0,
        ..chip
    };
    assert_eq!(with(blackwell, &sms), None);
    assert_eq!(with(Chip { gpcs: 0, ..chip }, &sms), None);
    assert_eq!(with(chip, &[]), None);
    // A TPC with an SM less, and two with the same number.
    assert_eq!(with(chip, &sms[1..]), None);
    let twice: Vec<Sm> = sms.iter().chain(&sms[..2]).copied().collect();
    assert_eq!(with(chip, &twice), None);
    assert!(!Topology::UNKNOWN.is_known());
}

proptest! {
    #[test]
    fn any_answer_is_a_topology_or_none(
        gpcs: u16, tpcs_per_gpc: u16,
        sms in prop::collection::vec((any::<u16>(), any::<u16>()), 0..300),
    ) {
        let chip = Chip { architecture: HOPPER, gpcs, tpcs_per_gpc };
        let sms = sms.iter().map(|(virtual_gpc, migratable_tpc)| Sm {
            virtual_gpc: *virtual_gpc,
            migratable_tpc: *migratable_tpc,
        });
        if let Some(topology) = Topology::from_sm_order(chip, sms) {
            prop_assert!(topology.is_known());
        }
    }

    #[test]
    fn any_words_are_a_topology(words: [u64; TPCS_MAX / 64 + 1], mask: [u64; 4], count in 0u32..300) {
        let topology = Topology::from_words(words);
        let mask = TpcMask::from_words(mask);
        prop_assert_eq!(Topology::from_words(topology.to_words()), topology);
        let there = mask.and(topology.existing());
        prop_assert!(!topology.has_together(&mask, count) || there.count() >= count);
        let apart = Topology::apart(*topology.existing());
        prop_assert_eq!(apart.has_together(&mask, count), count == 0 || count == 1 && !there.is_empty());
        let together = Topology::together(*topology.existing());
        prop_assert_eq!(together.has_together(&mask, count), there.count() >= count);
    }
}

/// Checks which TPCs of a real GPU follow each other: those of a cluster, then one of each GPC in
/// turn, and those of no GPC with the first turn.
#[test]
fn tpcs_are_spread_over_the_gpcs() {
    let gpu = topology(GPUS[0]);
    let spread = |count| gpu.spread(gpu.existing(), count);
    let list = |text: &str| TpcMask::parse(text.as_bytes()).unwrap();
    assert_eq!(spread(0), TpcMask::EMPTY);
    assert_eq!(spread(3), list("54-56"), "a cluster");
    assert_eq!(spread(6), list("0,9,54-57"));
    assert_eq!(spread(15), list("0,9,18,27,36,45,54-57,63,75,78,81,83"));
    let half = gpu.tpcs_of_gpcs(&spread(33));
    assert_eq!(half.collect::<Vec<_>>(), [4, 4, 4, 4, 3, 3, 4, 3]);
    assert_eq!(spread(99), *gpu.existing());
}

proptest! {
    /// Checks that a part has its number of TPCs, is a part of each larger one, holds a cluster
    /// where any part can, and is otherwise spread as evenly as the GPCs allow.
    #[test]
    fn a_part_is_spread_evenly(
        words in prop::array::uniform4(any::<u64>()),
        mask in prop::array::uniform4(any::<u64>()),
        (gpcs, size) in (0u64..9, 0u64..20),
        count in 0u32..200,
    ) {
        let [a, b, c, d] = words;
        let gpu = Topology::from_words([a, b, c, d, gpcs << 16 | size]);
        let mask = TpcMask::from_words(mask);
        let all = mask.and(gpu.existing());
        let part = gpu.spread(&mask, count);
        prop_assert_eq!(part.count(), count.min(all.count()));
        prop_assert!(part.without(&all).is_empty());
        prop_assert!(part.without(&gpu.spread(&mask, count + 1)).is_empty());
        for tpcs in 1..=CLUSTER.min(part.count()) {
            prop_assert_eq!(gpu.has_together(&part, tpcs), gpu.has_together(&all, tpcs));
        }
        let (half, rest) = (gpu.spread(&mask, count / 2), count - count / 2);
        let both = half.or(&gpu.spread_beside(&half, &mask, rest));
        prop_assert_eq!(both, part, "in two steps");
        let most = gpu.tpcs_of_gpcs(&part).max().unwrap_or(0).max(CLUSTER);
        let each = gpu.tpcs_of_gpcs(&part).zip(gpu.tpcs_of_gpcs(&all));
        for (has, could) in each {
            prop_assert!(has <= most && (has == could || has + 1 >= most || most == CLUSTER));
        }
    }
}

/// Checks what quotas get of a real GPU, one beside the other.
#[test]
fn quotas_have_halves_of_gpcs() {
    let gpu = topology(GPUS[0]);
    let list = |text: &str| TpcMask::parse(text.as_bytes()).unwrap();
    let mut free = *gpu.existing();
    let mut next = |count| {
        let chosen = gpu.pack(&free, count);
        free = free.without(&chosen);
        chosen
    };
    assert_eq!(
        next(16),
        list("9-12,18-21,54-57,63-66"),
        "four clusters of 8 blocks"
    );
    assert_eq!(next(4), list("27-30"), "of a GPC that nobody has");
    assert_eq!(next(1), list("58"), "the ninth of a GPC");
    assert_eq!(next(2), list("36-37"), "of one GPC");
    assert_eq!(next(20), list("0-3,13-16,38-41,45-48,67-70"));
    let rest = gpu.tpcs_of_gpcs(&next(99)).collect::<Vec<_>>();
    assert_eq!(rest, [0, 0, 4, 4, 2, 4, 4, 1]);
}

/// Returns the clusters of `unit` TPCs that GPCs with so many TPCs hold.
fn held(gpcs: &[u32], unit: u32) -> u32 {
    gpcs.iter().map(|tpcs| tpcs / unit).sum()
}

/// Returns all ways to take `count` TPCs of GPCs that have `free`.
fn ways(free: &[u32], count: u32) -> Vec<Vec<u32>> {
    let Some((first, rest)) = free.split_first() else {
        return if count == 0 { vec![vec![]] } else { vec![] };
    };
    let with = |taken| {
        let rest = ways(rest, count - taken);
        rest.into_iter()
            .map(move |way| [&[taken][..], &way].concat())
    };
    (0..=count.min(*first)).flat_map(with).collect()
}

proptest! {
    /// Checks that what is packed holds as many clusters of each size as any choice of as many
    /// TPCs, and that of all such choices it leaves the most clusters, the largest first.
    #[test]
    fn what_is_packed_holds_as_many_clusters_as_any_choice(
        free in prop::collection::vec(0u32..10, 1..5), apart in 0u32..3, count in 0u32..20,
    ) {
        let gpcs = free.len() as u64;
        let mut existing = TpcMask::EMPTY;
        for (gpc, tpcs) in free.iter().enumerate() {
            (0..*tpcs as usize).for_each(|tpc| existing.set(gpc * 10 + tpc));
        }
        (0..apart as usize).for_each(|tpc| existing.set(free.len() * 10 + tpc));
        let [a, b, c, d] = *existing.words();
        let gpu = Topology::from_words([a, b, c, d, gpcs << 16 | 10]);
        let packed = gpu.pack(&existing, count);
        prop_assert_eq!(packed.count(), count.min(existing.count()));
        let taken: Vec<u32> = gpu.tpcs_of_gpcs(&packed).collect();
        let of_apart = gpu.tpcs_apart(&packed);
        let sizes = [4, 2];
        let holds = |taken: &[u32]| sizes.map(|unit| held(taken, unit));
        let leaves = |taken: &[u32]| {
            let left: Vec<u32> = free.iter().zip(taken).map(|(free, taken)| free - taken).collect();
            holds(&left)
        };
        let all = (0..=apart).filter(|apart| *apart <= packed.count());
        let all = all.flat_map(|apart| ways(&free, packed.count() - apart));
        let all: Vec<_> = all.collect();
        for (at, has) in holds(&taken).iter().enumerate() {
            let most = all.iter().map(|way| holds(way)[at]).max().unwrap();
            prop_assert_eq!(*has, most, "{} in clusters of {} TPCs", count, sizes[at]);
        }
        let best = all.iter().filter(|way| holds(way) == holds(&taken));
        let best = best.map(|way| leaves(way)).max().unwrap();
        prop_assert_eq!(leaves(&taken), best, "{:?} and {} of {:?}", taken, of_apart, free);
    }

    /// Checks that any choice is one: of a mask, and of so many TPCs.
    #[test]
    fn what_is_packed_is_a_part_of_the_mask(
        words: [u64; TPCS_MAX / 64 + 1], mask: [u64; 4], count in 0u32..300,
    ) {
        let (gpu, mask) = (Topology::from_words(words), TpcMask::from_words(mask));
        let all = mask.and(gpu.existing());
        let packed = gpu.pack(&mask, count);
        prop_assert!(packed.without(&all).is_empty());
        prop_assert_eq!(packed.count(), count.min(all.count()));
    }
}
