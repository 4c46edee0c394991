// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Places launches in the order in which the GPU starts blocks.
//!
//! The work distributor starts the blocks of waiting launches in the order of `QMD_GROUP_ID`, 0
//! first, and of one group in the order of arrival. It compares the launches of all clients of one
//! MPS server, and of no other programs. It never stops a block that runs
//! (`gctgroup-docs/hardware.md`, H100 and H200).
//!
//! libcuda writes the priority of the launch's stream there, or that of a graph's node:
//!
//! | stream | 0 | -1 | -2 | -3 | -4 | -5 |
//! |---|---|---|---|---|---|---|
//! | group | 63 | 37 | 11 | 10 | 9 | 8 |
//!
//! Each [`Precedence`] has a band of groups, in which the launches of one tenant keep that order:
//!
//! ```text
//! group = first group of the band + 5 + stream priority
//! ```

use super::qmd::v04_00::{QMD_GROUP_ID, WORDS};

/// The place of a tenant's launches among those of its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precedence {
    /// Before all others.
    First,
    /// Between the two.
    Middle,
    /// After all others, but for launches that nobody placed.
    Last,
}

/// The number of stream priorities.
const LEVELS: u8 = 6;

impl Precedence {
    /// All of them, first to last.
    pub const ALL: [Self; 3] = [Self::First, Self::Middle, Self::Last];

    /// Returns the first group of the band. The groups between are of nobody, 0 and 1 too, which
    /// come before all.
    const fn band(self) -> u8 {
        match self {
            Self::First => 2,
            Self::Middle => 40,
            Self::Last => 58,
        }
    }

    /// Returns the group of a launch to which its tenant gave `group`. A group of another band
    /// keeps its place in the band, so that a launch can be placed again.
    #[inline]
    pub(crate) fn group(self, group: u32) -> u32 {
        // CAST: the field has six bits.
        let level = LEVEL_OF.get((group & 63) as usize).copied().unwrap_or(0);
        u32::from(self.band()).wrapping_add(u32::from(level))
    }
}

/// The place in its band of each group.
const LEVEL_OF: [u8; 64] = levels();

const fn levels() -> [u8; 64] {
    let mut levels = [LEVELS - 1; 64];
    let mut group = 0u8;
    while group < 64 {
        levels[group as usize] = level(group);
        group += 1;
    }
    levels
}

/// Returns the place in its band of a group: libcuda's, or one of ours.
const fn level(group: u8) -> u8 {
    match group {
        0..=7 => group.saturating_sub(Precedence::First.band()),
        8..=11 => group - 8,
        12..=39 => 4,
        40..=45 => group - Precedence::Middle.band(),
        46..=57 => LEVELS - 1,
        _ => group - Precedence::Last.band(),
    }
}

/// Gives a QMD of version 4.0 its place.
#[inline(always)]
pub(crate) fn give(qmd: &mut [u32; WORDS], precedence: Option<Precedence>) {
    if let Some(precedence) = precedence {
        let group = precedence.group(QMD_GROUP_ID.get(qmd));
        // A group of a band has six bits.
        let _ = QMD_GROUP_ID.set(qmd, group);
    }
}

/// Returns whether a QMD of version 4.0 has its place.
pub(crate) fn has(qmd: &[u32], precedence: Option<Precedence>) -> bool {
    let group = QMD_GROUP_ID.get(qmd);
    precedence.is_none_or(|precedence| precedence.group(group) == group)
}

/// Returns the first word of a QMD of version 4.0 with its place.
pub(crate) fn first_word(word: u32, precedence: Option<Precedence>) -> u32 {
    const _: () = assert!(QMD_GROUP_ID.word() == 0);
    match precedence {
        Some(precedence) => QMD_GROUP_ID.within(word, precedence.group(QMD_GROUP_ID.get(&[word]))),
        None => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of streams of priority 0 to -5, as captured on an H200.
    const CAPTURED: [u32; 6] = [63, 37, 11, 10, 9, 8];

    #[test]
    fn streams_keep_their_order_in_each_band() {
        for precedence in Precedence::ALL {
            let groups = CAPTURED.map(|group| precedence.group(group));
            assert!(
                groups.windows(2).all(|pair| pair[0] == pair[1] + 1),
                "{groups:?}"
            );
        }
    }

    #[test]
    fn no_group_leaves_the_band() {
        let mut last = 1;
        for precedence in Precedence::ALL {
            let groups = || (0..64).map(|group| precedence.group(group));
            assert!(
                groups().min() > Some(last),
                "{precedence:?} begins behind the band before"
            );
            last = groups().max().unwrap();
            assert!(last < 64);
        }
    }

    #[test]
    fn placing_again_keeps_the_place() {
        for (group, to) in (0..64).flat_map(|group| Precedence::ALL.map(|to| (group, to))) {
            for between in Precedence::ALL {
                assert_eq!(to.group(between.group(group)), to.group(group), "{group}");
            }
        }
    }

    #[test]
    fn a_place_changes_nothing_else() {
        let mut qmd = core::array::from_fn(|word| !(word as u32));
        let before = qmd;
        give(&mut qmd, None);
        assert_eq!(qmd, before);
        give(&mut qmd, Some(Precedence::First));
        assert_eq!(
            (qmd[0], &qmd[1..]),
            (before[0] & !0x3f_0000 | 7 << 16, &before[1..])
        );
        assert_eq!(first_word(before[0], Some(Precedence::First)), qmd[0]);
        assert_eq!(first_word(before[0], None), before[0]);
    }
}
