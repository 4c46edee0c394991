// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the commands that methods give to the machine.

/// The comparison by which an acquire succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Equal,
    /// Memory is at least the payload.
    AtLeast,
    /// Memory is at least the payload, modulo 2^32.
    AtLeastCircular,
    /// All bits of the payload are set.
    And,
    /// Some bit of the payload or of memory is clear.
    Nor,
}

/// A semaphore operation of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Semaphore {
    pub(crate) address: u64,
    pub(crate) payload: u64,
    /// Words: 1, 2 or 4.
    pub(crate) words: u32,
    /// `RED_*` if it is a reduction.
    pub(crate) reduction: Option<u32>,
    /// The command waits for the channel's grids first.
    pub(crate) wait_idle: bool,
}

/// A copy by a copy engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy2d {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) pitch_in: u64,
    pub(crate) pitch_out: u64,
    pub(crate) line_bytes: u64,
    pub(crate) lines: u64,
}

/// A command of a method to the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Stores the low `bytes` bytes of a word.
    Store {
        address: u64,
        data: u32,
        bytes: usize,
    },
    /// `SEND_SIGNALING_PCAS2_B`, or the older `SEND_SIGNALING_PCAS_B`.
    Pcas {
        qmd: u64,
        action: u32,
    },
    /// The last word of an inline descriptor has arrived.
    Inline {
        qmd: u64,
        words: Vec<u32>,
    },
    Release(Semaphore),
    Acquire {
        address: u64,
        payload: u32,
        compare: Compare,
    },
    WaitIdle,
    Copy(Copy2d, Option<Semaphore>),
    Unmodelled(u32),
    UnknownHeader(u32),
}

/// The condition for the channel's next command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Idle,
    Memory {
        address: u64,
        payload: u32,
        compare: Compare,
    },
}

impl Compare {
    /// Returns whether an acquire succeeds.
    pub(crate) fn holds(self, memory: u32, payload: u32) -> bool {
        match self {
            Self::Equal => memory == payload,
            Self::AtLeast => memory >= payload,
            Self::AtLeastCircular => memory.wrapping_sub(payload) < 1 << 31,
            Self::And => memory & payload == payload,
            Self::Nor => memory & payload != u32::MAX,
        }
    }
}
