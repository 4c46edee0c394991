// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes the controls that say how contexts share the GPU.
//!
//! libcuda asks for preemption between instructions when it makes a context, and an MPS server for
//! the partition of TPCs that its clients need. Nothing else of them is needed: a context that is
//! switched when it is idle keeps the GPU over its time slice, and one without all TPCs at first
//! is not the one that masks describe.

use super::nv::{self, partition_mode, preemption_mode};
use super::{Fields, Hint};

/// What such a control sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// When a channel's context is switched.
    Preemption,
    /// How a channel group's contexts share TPCs.
    Partition,
}

impl Mode {
    /// Returns the number of the control that sets it.
    pub const fn command(self) -> u32 {
        match self {
            Self::Preemption => nv::NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE,
            Self::Partition => nv::NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE,
        }
    }

    /// Returns what a control with this number sets.
    pub(super) fn by_command(command: u32) -> Option<Self> {
        let modes = [Self::Preemption, Self::Partition];
        modes.into_iter().find(|mode| mode.command() == command)
    }

    /// Returns its parameters at a tenant's address, as far as they are read.
    pub(super) fn hint(self, address: u64) -> Option<Hint> {
        let bytes = match self {
            Self::Preemption => 16,
            Self::Partition => 12,
        };
        (address != 0).then_some(Hint { address, bytes })
    }

    /// Returns whether a governed tenant may set what parameters ask for.
    pub fn allows(self, params: &[u8]) -> bool {
        let word = |at| Fields(params).u32(at).ok();
        match self {
            Self::Preemption => {
                let sets = word(preemption_mode::FLAGS);
                let compute = word(preemption_mode::COMPUTE);
                let sets_compute = sets.is_none_or(|sets| {
                    sets & nv::NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_FLAGS_CILP_SET != 0
                });
                let waits = compute.is_none_or(|mode| {
                    mode == nv::NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_WFI
                });
                !(sets_compute && waits)
            }
            Self::Partition => {
                let mode = word(partition_mode::MODE);
                let all = Fields(params).array::<1>(partition_mode::ENABLE_ALL_TPCS);
                mode == Some(nv::NV0080_CTRL_GR_TPC_PARTITION_MODE_DYNAMIC)
                    && all.is_ok_and(|[all]| all == 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn what_libcuda_and_mps_ask_for_is_allowed() {
        // As recorded of 580.159.04.
        assert!(Mode::Preemption.allows(&words(&[1, 0x5c00_0015, 0, 2])));
        assert!(Mode::Partition.allows(&words(&[0x5c00_0015, 2, 1])));
    }

    #[test]
    fn no_context_is_kept_until_it_is_idle() {
        assert!(!Mode::Preemption.allows(&words(&[1, 7, 0, 0])));
        assert!(Mode::Preemption.allows(&words(&[2, 7, 1, 0])));
        assert!(!Mode::Preemption.allows(&words(&[1, 7])));
    }

    #[test]
    fn no_other_partition_is_set() {
        for asked in [[7, 0, 1], [7, 1, 1], [7, 2, 0], [7, 2, 2], [7, 3, 1]] {
            assert!(!Mode::Partition.allows(&words(&asked)), "{asked:?}");
        }
        assert!(!Mode::Partition.allows(&[]));
    }
}
