// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines what a scan reports.

use crate::submit::launch::{Kind, Launch, Nature};
use crate::submit::methods::Action;
use crate::submit::qmd::{Family, Version};
use crate::submit::reason::Reason;
use core::num::Wrapping;

/// Where a call's QMD comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An inline-to-memory upload of this segment, scheduled by a PCAS of it.
    Upload,
    /// Inline QMD methods.
    Inline,
    /// An upload that looks like a QMD and that no call of this segment scheduled.
    Stored,
    /// A PCAS schedules a QMD whose words are not all here: a graph's replay, or an unknown one.
    Elsewhere,
    /// A PCAS that does not schedule, but changes a QMD's state.
    Touch,
}

/// The registers that inserted methods overwrite and must restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// `OFFSET_OUT_UPPER` and `OFFSET_OUT`.
    pub destination: u64,
    /// `LINE_COUNT` and `LINE_LENGTH_IN`.
    pub lines: u64,
    /// Whether these two are known.
    pub known: bool,
    /// `SEND_PCAS_A` at an inline QMD; 0 before the first, and at a PCAS.
    pub pcas: u32,
}

/// One call that schedules or touches a QMD, or a QMD that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QmdCall {
    /// The QMD's address.
    pub qmd_va: u64,
    /// The position of its first word in the segment, for [`Source::Upload`], [`Source::Inline`]
    /// and [`Source::Stored`].
    pub at: u32,
    /// The QMD's version, where its words are here.
    pub version: Option<Version>,
    /// What the QMD is as its tenant wrote it, where its words are here.
    pub nature: Option<Nature>,
    /// Where the QMD comes from.
    pub source: Source,
    /// Action of the PCAS.
    pub action: Action,
    /// Position of the header of the burst that holds the call.
    pub call_at: u32,
    /// End of that burst: the first position behind it.
    pub call_end: u32,
    /// Subchannel of the call.
    pub subchannel: u8,
    /// Whether its burst holds nothing else, so that methods can be inserted before and behind the
    /// call. Of an inline QMD it holds the address, too.
    pub alone: bool,
    /// Whether another call of the same QMD found no room in the table.
    pub crowded: bool,
    /// The registers at the call.
    pub registers: Registers,
    /// Why the QMD is not understood.
    pub reason: Option<Reason>,
}

impl Default for QmdCall {
    fn default() -> Self {
        Self::NONE
    }
}

impl QmdCall {
    /// An unused entry of the table.
    pub const NONE: Self = Self {
        qmd_va: 0,
        at: 0,
        version: None,
        nature: None,
        source: Source::Elsewhere,
        action: Action::Nop,
        call_at: 0,
        call_end: 0,
        subchannel: 0,
        alone: false,
        crowded: false,
        registers: Registers {
            destination: 0,
            lines: 0,
            known: false,
            pcas: 0,
        },
        reason: None,
    };

    /// Returns the QMD's words in the scanned segment.
    #[inline]
    pub fn qmd<'a>(&self, words: &'a [u32]) -> Option<&'a [u32]> {
        let at = usize::try_from(self.at).ok()?;
        words.get(at..)?.get(..self.version?.words())
    }

    /// Returns the QMD's words for writing.
    #[inline]
    pub fn qmd_mut<'a>(&self, words: &'a mut [u32]) -> Option<&'a mut [u32]> {
        let at = usize::try_from(self.at).ok()?;
        words.get_mut(at..)?.get_mut(..self.version?.words())
    }

    /// Returns the words from the QMD's first on, for writing.
    #[inline]
    pub(crate) fn at_qmd_mut<'a>(&self, words: &'a mut [u32]) -> Option<&'a mut [u32]> {
        words.get_mut(usize::try_from(self.at).ok()?..)
    }

    /// Reads what the QMD launches; `None` where its words are not here.
    pub fn launch(&self, words: &[u32]) -> Option<Launch> {
        Launch::read(self.qmd(words)?, self.version?)
    }

    /// Returns whether another call names the same QMD. `table` is the one of the scan, with this
    /// entry.
    pub(crate) fn is_shared(&self, table: &[Self]) -> bool {
        let is_other = |call: &Self| {
            call.qmd_va == self.qmd_va
                && call.source != Source::Stored
                && !core::ptr::eq(call, self)
        };
        self.crowded || table.iter().any(is_other)
    }

    /// Returns whether this call hands a QMD to the scheduler.
    pub fn is_launch(&self) -> bool {
        !matches!(self.source, Source::Stored | Source::Touch)
    }

    /// Returns whether this call launches a copy of its QMD, by an action that was measured.
    pub(crate) fn is_copied(&self) -> bool {
        let copies = matches!(
            self.action,
            Action::InvalidateCopySchedule | Action::InvalidatePrefetchCopySchedule
        );
        copies && self.is_launch()
    }

    /// Returns whether this call hands a QMD without a grid to the scheduler, as the companion of
    /// each CUDA launch does.
    #[inline]
    pub fn is_null(&self) -> bool {
        self.is_launch() && self.kind() == Some(Kind::Null)
    }

    /// Returns the kind of work of the QMD, where its words are here. No rewrite changes it.
    #[inline]
    pub fn kind(&self) -> Option<Kind> {
        self.nature.map(|nature| nature.kind)
    }

    /// Returns whether this call schedules a node of a graph whose words are here.
    #[inline]
    pub(crate) fn is_node(&self) -> bool {
        self.source == Source::Upload && self.nature.is_some_and(|nature| nature.node)
    }

    /// Determines the version of the QMD at `at`, or why there is none.
    pub(super) fn read_version(&mut self, words: &[u32], family: Family) {
        let here = usize::try_from(self.at).ok().and_then(|at| words.get(at..));
        match Version::of(here.unwrap_or(&[]), family) {
            Ok(version) => {
                self.version = Some(version);
                self.nature = here.and_then(|qmd| Nature::of(qmd, version));
            }
            Err(reason) => self.reason = Some(reason),
        }
    }
}

/// How many calls without room are looked for among the others.
const MISSES_MAX: usize = 16;

/// The caller's table.
pub(super) struct Table<'a> {
    slots: &'a mut [QmdCall],
    len: Wrapping<usize>,
    missed: Wrapping<usize>,
}

impl<'a> Table<'a> {
    pub(super) fn new(slots: &'a mut [QmdCall]) -> Self {
        Self {
            slots,
            len: Wrapping(0),
            missed: Wrapping(0),
        }
    }

    /// Returns whether there is room for one more.
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.len.0 < self.slots.len()
    }

    /// Stores an entry, and returns whether there was room.
    #[inline(always)]
    pub(super) fn put(&mut self, call: QmdCall) -> bool {
        let slot = self.slots.get_mut(self.len.0);
        slot.is_some_and(|slot| {
            *slot = call;
            self.len += 1;
            true
        })
    }

    /// Stores an entry, or counts that there is no room.
    #[inline]
    pub(super) fn push(&mut self, call: QmdCall) {
        let qmd_va = call.qmd_va;
        if !self.put(call) {
            self.miss(qmd_va);
        }
    }

    /// Records that a call found no room, so that the other calls of its QMD count as shared. After
    /// some of them all calls do: a tenant may have a segment miss twenty thousand.
    #[cold]
    #[inline(never)]
    fn miss(&mut self, qmd_va: u64) {
        self.missed += 1;
        if self.missed.0 > MISSES_MAX {
            return;
        }
        let is_last = self.missed.0 == MISSES_MAX;
        for call in self.slots.iter_mut() {
            call.crowded |= is_last || call.qmd_va == qmd_va;
        }
    }

    /// Returns whether a call of this QMD was found, or whether it is stored among the entries from
    /// `first` on.
    #[inline]
    pub(super) fn names(&self, qmd_va: u64, first: usize) -> bool {
        // Not `take(len).any()`: that counts down with an overflow check, which is a panic in the
        // kernel.
        let filled = self.slots.get(..self.len.0).unwrap_or_default();
        (0..filled.len()).zip(filled).any(|(index, call)| {
            call.qmd_va == qmd_va && (call.source != Source::Stored || index >= first)
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len.0
    }

    pub(super) fn missed(&self) -> usize {
        self.missed.0
    }
}
