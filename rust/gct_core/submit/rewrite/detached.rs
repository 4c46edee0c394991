// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Detaches launches from descriptors that only the tenant's memory holds, so that no scan has seen
//! what they launch when they start.
//!
//! CUDA has a companion for each launch on Hopper. It is a descriptor without a grid that a later
//! launch may wait for (programmatic dependent launch):
//!
//! ```text
//! first launch:   PCAS N = companion, waits for 2 decrements, then schedules the second launch
//!                 PCAS M = launch, arrives at a latch, decrements N
//! second launch:  PCAS M' = launch, waits for the latch and for N
//!                 PCAS N = DECREMENT_DEPENDENCE
//! ```
//!
//! Detached, the second launch starts when the first one has ended: later than it could, never too
//! early.
//!
//! | of the tenant | becomes |
//! |---|---|
//! | the call of a companion that has no other effect and waits for 2 decrements | nothing |
//! | DECREMENT_DEPENDENCE by a call | nothing: no descriptor that waits is scheduled |
//! | a launch's dependents, if they are decremented; its latch, its pre-exit | none |
//! | a launch that waits for a latch and for a call, beside a decrement | one that does not wait |
//! | anything else that waits, or starts another descriptor | refused |
//!
//! The nodes of CUDA graphs wait for each other. [`Memory::unroll`] lists their launches, and
//! [`take_out`] the calls of their segments.
//!
//! [`Memory::unroll`]: crate::submit::graph::Memory::unroll

use super::whole;
use crate::submit::join::Qmd;
use crate::submit::launch::{Kind, ACTION_DECREMENT_DEPENDENCE};
use crate::submit::methods::Action;
use crate::submit::qmd::v04_00 as v04;
use crate::submit::qmd::{Field, Version};
use crate::submit::reason::Reason;
use crate::submit::tracker::{QmdCall, Source};
use core::num::Wrapping;

/// Effects of a companion that would be missed.
const EFFECTS: [Field; 6] = [
    v04::RELEASE_ENABLE.nth(0),
    v04::RELEASE_ENABLE.nth(1),
    v04::RELEASE_ENABLE.nth(2),
    v04::ARRIVE_AT_LATCH_VALID,
    v04::CWD_REFERENCE_COUNT_INCR_ENABLE,
    v04::CWD_REFERENCE_COUNT_DECR_ENABLE,
];

/// What a detached launch does not have. What only hardware writes is 0 in all launches of CUDA.
const ATTACHED: [Field; 9] = [
    v04::DEPENDENT_QMD_ENABLE.nth(0),
    v04::DEPENDENT_QMD_ENABLE.nth(1),
    v04::ARRIVE_AT_LATCH_VALID,
    v04::ENABLE_PROGRAM_PRE_EXIT,
    v04::PRE_EXIT_AT_LAST_CTA_LAUNCH,
    v04::HW_ONLY_SPAN_LIST_HEAD_INDEX_VALID,
    v04::HW_ONLY_SKED_NEXT_QMD_POINTER,
    v04::HW_ONLY_DEPENDENCE_COUNTER,
    v04::HW_ONLY_REQUIRE_SCHEDULING_PCAS,
];

/// What a node of a graph does not have either where it is launched from a list.
const STORED: [Field; 3] = [
    v04::DEPENDENCE_COUNTER,
    v04::REQUIRE_SCHEDULING_PCAS,
    v04::SELF_COPY_ON_COMPLETION,
];

/// Decrements for which a companion waits: that of its own launch is not enough.
const DECREMENTS_MIN: u32 = 2;

/// Detaches all launches of a segment, so that none starts another descriptor. Returns how many
/// there are.
///
/// # Errors
///
/// The [`Reason`] why one cannot be detached. Part of the segment may be changed then.
pub fn detach(words: &mut [u32], calls: &mut [QmdCall]) -> Result<u32, Reason> {
    let (mut launches, mut decrements) = (Wrapping(0), false);
    // Whether a call behind the first launch that waits for one decrements. It is found once, and
    // holds for later launches: what has been passed meanwhile is in `decrements`.
    let mut follows = None;
    for at in 0..calls.len() {
        let Some(call) = calls.get_mut(at) else {
            break;
        };
        let silenced = match call.source {
            Source::Stored => continue,
            Source::Touch => match call.action {
                Action::Nop | Action::Invalidate | Action::Prefetch => continue,
                Action::DecrementDependence => {
                    decrements = true;
                    silence(words, call)
                }
                _ => return Err(Reason::Action),
            },
            Source::Upload if call.kind() == Some(Kind::Null) => {
                match is_companion(known(words, call)?) {
                    true => silence(words, call),
                    false => return Err(Reason::Null),
                }
            }
            Source::Upload => {
                launches += 1;
                let qmd = known(words, call)?;
                let rest = calls.get(at..).unwrap_or_default();
                let is_in_rest = || rest.iter().any(is_decrement);
                detach_launch(qmd, || {
                    decrements || *follows.get_or_insert_with(is_in_rest)
                })?;
                continue;
            }
            Source::Inline => return Err(Reason::Inline),
            Source::Elsewhere => return Err(Reason::NotHere),
        };
        if !silenced {
            return Err(Reason::Fragmented);
        }
    }
    Ok(launches.0)
}

/// Returns the descriptor of a call, if its version is known here.
fn known<'a>(words: &'a mut [u32], call: &QmdCall) -> Result<&'a mut Qmd, Reason> {
    let is_known = call.version == Some(Version::V04_00);
    let qmd = call.at_qmd_mut(words).filter(|_| is_known);
    let qmd = qmd.and_then(|qmd| qmd.first_chunk_mut::<{ v04::WORDS }>());
    qmd.ok_or(Reason::NotMeasured)
}

/// Returns whether a call decrements a descriptor.
fn is_decrement(call: &QmdCall) -> bool {
    call.source == Source::Touch && call.action == Action::DecrementDependence
}

/// Detaches one launch. `decrements` says whether a call of its segment decrements a descriptor.
fn detach_launch(qmd: &mut Qmd, decrements: impl FnOnce() -> bool) -> Result<(), Reason> {
    let decremented = |number| {
        !v04::DEPENDENT_QMD_ENABLE.nth(number).is_set(qmd)
            || v04::DEPENDENT_QMD_ACTION.nth(number).get(qmd) == ACTION_DECREMENT_DEPENDENCE
    };
    if !(decremented(0) && decremented(1)) {
        return Err(Reason::Action);
    }
    for field in ATTACHED {
        field.clear(qmd);
    }
    let waits = [v04::WAIT_ON_LATCH_VALID, v04::REQUIRE_SCHEDULING_PCAS];
    if waits.iter().all(|field| field.is_set(qmd)) && decrements() {
        for field in waits {
            field.clear(qmd);
        }
    }
    Ok(())
}

/// Returns the descriptor of a node, or of what starts it, as it can run from a slot by itself.
///
/// # Errors
///
/// The [`Reason`] why it cannot.
pub(in crate::submit) fn freed(qmd: &Qmd) -> Result<Qmd, Reason> {
    let mut freed = *qmd;
    for field in ATTACHED.iter().chain(&STORED) {
        field.clear(&mut freed);
    }
    whole::check_qmd(&freed).map(|()| freed)
}

/// Makes the calls of a segment do nothing whose launches run from a list.
///
/// # Errors
///
/// The [`Reason`] why one cannot be taken out. Part of the segment may be changed then.
pub fn take_out(words: &mut [u32], calls: &mut [QmdCall]) -> Result<(), Reason> {
    for call in calls.iter_mut() {
        let is_left = match call.source {
            Source::Stored => true,
            Source::Touch => call.action != Action::DecrementDependence,
            Source::Inline => return Err(Reason::Inline),
            Source::Upload | Source::Elsewhere => false,
        };
        if is_left {
            continue;
        }
        if call.is_null() {
            let qmd = call.qmd(words).and_then(|qmd| qmd.first_chunk());
            if !qmd.is_some_and(is_companion) {
                return Err(Reason::Null);
            }
        }
        if !silence(words, call) {
            return Err(Reason::Fragmented);
        }
    }
    Ok(())
}

/// Returns whether a descriptor without a grid does nothing unless calls decrement it.
fn is_companion(qmd: &Qmd) -> bool {
    v04::DEPENDENCE_COUNTER.get(qmd) >= DECREMENTS_MIN
        && !EFFECTS.iter().any(|field| field.is_set(qmd))
}

/// Makes a call do nothing. Returns false if its burst holds other words.
fn silence(words: &mut [u32], call: &mut QmdCall) -> bool {
    /// Data of a header with an immediate value.
    const IMMEDIATE: u32 = 0x1fff << 16;
    // CAST: widening.
    let at = call.call_at as usize;
    let length = Wrapping(call.call_end) - Wrapping(call.call_at);
    let word = match length.0 {
        1 => words
            .get_mut(at)
            .map(|header| (*header & !IMMEDIATE, header)),
        2 => words
            .get_mut((Wrapping(at) + Wrapping(1)).0)
            .map(|data| (0, data)),
        _ => None,
    };
    let Some((silent, word)) = word.filter(|_| call.alone) else {
        return false;
    };
    *word = silent;
    (call.source, call.action) = (Source::Touch, Action::Nop);
    true
}
