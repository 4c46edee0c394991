// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares the rule with what GPUs reported and did (`tests/fixtures/tpcs`).

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
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
        let cluster = gpu.cluster_of(&all, count);
        prop_assert!(gpu.has_together(&cluster, cluster.count()));
        let widest = gpu.tpcs_of_gpcs(&all).max().unwrap_or(0);
        prop_assert_eq!(cluster.count(), widest.min(CLUSTER).min(count));
        let most = gpu.tpcs_of_gpcs(&part).max().unwrap_or(0).max(CLUSTER);
        let each = gpu.tpcs_of_gpcs(&part).zip(gpu.tpcs_of_gpcs(&all));
        for (has, could) in each {
            prop_assert!(has <= most && (has == could || has + 1 >= most || most == CLUSTER));
        }
    }
}
