// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names what an entry of the tenant becomes: what is published next.

use super::in_flight::Submission;
use super::replays::List;
use super::split::Atoms;
use super::transfers::Transfers;
use super::words::Words;
use super::work::Seal;

/// The outcome of processing one entry of the tenant.
#[derive(Debug)]
pub enum Next<V> {
    /// One entry, with its submission if its end can be observed.
    Whole {
        /// The tenant's entry, or that of its copy.
        entry: u64,
        /// Bits 56:40 of the addresses of its segment, if it has one.
        base: Option<u32>,
        /// The submission that it is.
        submission: Option<Submission<V>>,
        /// The work left for the moment of release; `None` if there is none.
        seal: Option<Seal<V>>,
    },
    /// A launch that is split into atoms.
    Atoms(Atoms<V>),
    /// Copies without a launch.
    Transfers(Transfers<V>),
    /// A segment with CUDA graphs, whose launches are listed.
    List(List),
}

impl<V: Copy> Next<V> {
    /// Returns that an entry is published as it is. Inlined, because it is large.
    #[inline(always)]
    pub(super) fn plain(entry: u64, base: Option<u32>) -> Self {
        Self::Whole {
            entry,
            base,
            submission: None,
            seal: None,
        }
    }

    /// Returns whether it need not wait for the end of other atoms of its launch, or for a slot.
    pub(super) fn is_ready(&mut self, memory: &impl Words<View = V>) -> bool
    where
        V: 'static,
    {
        match self {
            Self::Whole { .. } => true,
            // Its lane prepares it.
            Self::List(_) => false,
            Self::Atoms(atoms) => atoms.is_ready(memory),
            Self::Transfers(transfers) => transfers.is_ready(memory),
        }
    }

    /// Returns whether it replays a graph.
    pub(super) fn replays(&self) -> bool {
        matches!(self, Self::Whole { seal: Some(seal), .. } if seal.replays)
    }
}
