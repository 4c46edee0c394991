// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Schedules launches that stay whole from slots that the GPU may only read.
//!
//! A QMD that its segment uploads lies in the tenant's memory until the scheduler reads it. Other
//! work of the tenant may change it there, and take its mask away. In a slot it stays as it was
//! checked:
//!
//! ```text
//! ... upload of M ... PCAS_A = M                          the tenant's words
//! PCAS2_B = INVALIDATE                                    of M, which the tenant's call did too
//! WAIT_FOR_IDLE                                           as the tenant's call waits
//! PCAS_A = slot, PCAS2_B = INVALIDATE, SCHEDULE           in place of the tenant's call
//! PCAS_A = M
//! ```
//!
//! The slot has all effects of M. RESUME is 0 there: the tenant's call ignores it, and SCHEDULE
//! does not. A release that M does not use tells when the launch has ended, so that its slot can be
//! used again.

use super::emitter::{action, address, schedule_written};
use crate::submit::join::{add_done, unused_release, Qmd, DONE_WORD};
use crate::submit::launch::{self, Kind};
use crate::submit::limits::SLOT_WORDS;
use crate::submit::method;
use crate::submit::methods::{self, Action};
use crate::submit::qmd::v04_00::{self as v04, V04_00};
use crate::submit::qmd::{Layout, Version};
use crate::submit::reason::Reason;
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Source};
use core::num::Wrapping;

/// Words that one launch adds to its segment at most. Its call has one word at least.
pub const ADDED_WORDS: usize = 11;

/// A slot for one launch, and the word that it writes when it has ended.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The slot's address: a multiple of 256, below 2^40.
    pub va: u64,
    /// The word's address: a multiple of 4.
    pub done_va: u64,
    /// The value that is written.
    pub payload: u32,
}

/// Returns the QMD of a launch that can run from a slot.
///
/// # Errors
///
/// The [`Reason`] why it must stay where it is.
fn placeable<'a>(words: &'a [u32], table: &[QmdCall], call: &QmdCall) -> Result<&'a Qmd, Reason> {
    if let Some(reason) = call.reason {
        return Err(reason);
    }
    if call
        .version
        .is_some_and(|version| version != Version::V04_00)
    {
        return Err(Reason::NotMeasured);
    }
    let qmd = call
        .qmd(words)
        .and_then(|qmd| qmd.first_chunk::<{ V04_00::WORDS }>());
    let qmd = qmd.ok_or(Reason::NotHere)?;
    if call.source != Source::Upload {
        return Err(Reason::Inline);
    }
    if !call.is_copied() {
        return Err(Reason::Action);
    }
    // Another call may mean the running launch, now at another address.
    let shares = |other: &QmdCall| other.qmd_va == call.qmd_va && other.source != Source::Stored;
    if call.crowded
        || table
            .iter()
            .any(|other| shares(other) && !other.is_copied())
    {
        return Err(Reason::Shared);
    }
    if !call.alone {
        return Err(Reason::Fragmented);
    }
    check_qmd(qmd).map(|()| qmd)
}

/// Checks that all launches of a segment can run from slots.
///
/// # Errors
///
/// The [`Reason`] why one must stay where it is.
pub fn check(words: &[u32], table: &[QmdCall]) -> Result<(), Reason> {
    let mut launches = table.iter().filter(|call| call.is_launch());
    launches.try_for_each(|call| placeable(words, table, call).map(drop))
}

/// Checks from its own fields whether a QMD can run where the GPU may only read.
pub(super) fn check_qmd(qmd: &Qmd) -> Result<(), Reason> {
    match launch::kind::<V04_00>(qmd) {
        Kind::Grid | Kind::Cluster | Kind::Cooperative | Kind::CooperativeCluster => {}
        Kind::Queue => return Err(Reason::Queue),
        Kind::Null => return Err(Reason::Null),
        Kind::Undocumented(_) => return Err(Reason::Kind),
    }
    let kept = [
        (v04::WAIT_ON_LATCH_VALID, Reason::WaitsOnLatch),
        (v04::REQUIRE_SCHEDULING_PCAS, Reason::RequiresPcas),
        (v04::DEPENDENCE_COUNTER, Reason::Dependences),
        (v04::SELF_COPY_ON_COMPLETION, Reason::SelfCopy),
        (v04::CTA_LAUNCH_QUEUE, Reason::LaunchQueue),
    ];
    let kept = kept.iter().find(|(field, _)| field.is_set(qmd));
    match kept {
        Some((_, reason)) => Err(*reason),
        None if unused_release(qmd).is_none() => Err(Reason::Releases),
        None => Ok(()),
    }
}

/// Writes the segment with the launches for which `is_wanted` holds scheduled from slots. Passes
/// its words to `push`, which returns `None` without room. Writes their QMDs to `qmds`,
/// [`SLOT_WORDS`] words for each; `slot` tells their addresses. Counts the wanted launches that
/// stay in place.
///
/// Returns how many launches have a slot, or `None` without room. If none has, nothing is written.
///
/// It is part of its one caller, which each masked launch passes.
#[inline(always)]
pub fn place(
    words: &[u32],
    table: &[QmdCall],
    is_wanted: impl Fn(&QmdCall) -> bool,
    slot: impl Fn(u32) -> Slot,
    qmds: &mut [u32],
    mut push: impl FnMut(&[u32]) -> Option<()>,
    counters: &mut Counters,
) -> Option<u32> {
    let mut qmds = qmds.chunks_exact_mut(SLOT_WORDS);
    let (mut copied, mut slots) = (0, Wrapping(0u32));
    for call in table
        .iter()
        .filter(|call| call.is_launch() && is_wanted(call))
    {
        let launched = placeable(words, table, call).and_then(|qmd| {
            let to = qmds.next().and_then(|to| to.first_chunk_mut());
            let slot = slot(slots.0);
            write(qmd, &slot, to.ok_or(Reason::TableFull)?);
            Ok(slot.va)
        });
        let va = match launched {
            Ok(va) => va,
            Err(reason) => {
                // The scan has counted its own reasons.
                if call.reason.is_none() {
                    counters.keep(reason);
                }
                continue;
            }
        };
        // CAST: widening.
        let (from, to) = (call.call_at as usize, call.call_end as usize);
        push(words.get(copied..from)?)?;
        push(&instead(call, va))?;
        (copied, slots) = (to, slots + Wrapping(1));
    }
    if slots > Wrapping(0) {
        push(words.get(copied..)?)?;
    }
    Some(slots.0)
}

/// Returns the words in place of a call, for a launch from the slot at `va`.
fn instead(call: &QmdCall, va: u64) -> [u32; 12] {
    let on = call.subchannel;
    let [invalidate_header, invalidate] = action(on, Action::Invalidate);
    let [a, b, c, d, e, f] = schedule_written(on, va);
    let [address_header, address] = address(on, call.qmd_va);
    let wait = method::incr(on, methods::WAIT_FOR_IDLE, 1);
    [
        invalidate_header,
        invalidate,
        wait,
        0,
        a,
        b,
        c,
        d,
        e,
        f,
        address_header,
        address,
    ]
}

/// The word of a slot at which the words begin that schedule it by themselves: behind the QMD and
/// a done word. Those that do not wait begin two words later.
const STEP_AT: usize = DONE_WORD + 1;
/// Number of these words.
const STEP_WORDS: usize = 10;

const _: () = assert!(STEP_AT + STEP_WORDS <= SLOT_WORDS);

/// Fills a slot with the QMD of a launch and the words that schedule it, on the subchannel of
/// `call`. If it `waits`, all launches before it have ended then. Returns the first of these words,
/// and how many there are.
///
/// All steps have these words at the same place, and a slot has the same address in each. So they
/// schedule the QMD that is there, also while they are written.
pub fn fill(
    qmd: &Qmd,
    slot: &Slot,
    call: &QmdCall,
    waits: bool,
    to: &mut [u32; SLOT_WORDS],
) -> (u32, u32) {
    to.fill(0);
    if let Some(to) = to.first_chunk_mut() {
        write(qmd, slot, to);
    }
    let on = call.subchannel;
    let [a, b, c, d, e, f] = schedule_written(on, slot.va);
    let [address_header, address] = address(on, call.qmd_va);
    let words: [u32; STEP_WORDS] = [
        method::incr(on, methods::WAIT_FOR_IDLE, 1),
        0,
        a,
        b,
        c,
        d,
        e,
        f,
        address_header,
        address,
    ];
    for (to, word) in to.iter_mut().skip(STEP_AT).zip(words) {
        *to = word;
    }
    // CAST: small constants.
    match waits {
        true => (STEP_AT as u32, STEP_WORDS as u32),
        false => (
            const { STEP_AT as u32 + 2 },
            const { STEP_WORDS as u32 - 2 },
        ),
    }
}

/// Writes the QMD of a launch into its slot.
fn write(qmd: &Qmd, slot: &Slot, to: &mut Qmd) {
    *to = *qmd;
    for field in V04_00::RESUME {
        field.clear(to);
    }
    add_done(to, slot.done_va, slot.payload);
}
