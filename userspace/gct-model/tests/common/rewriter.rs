// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rewrites one channel's segments by the code under test, `gct_core::submit`.

use gct_core::submit::join::DoneWords;
use gct_core::submit::limits::{SLOT_BYTES, SLOT_WORDS};
use gct_core::submit::mask::DisabledTpcs;
use gct_core::submit::rewrite::whole::{self, Slot};
use gct_core::submit::rewrite::{emit, in_place, room, Cut, Order, Output, Placement, Room};
use gct_core::submit::stats::Counters;
use gct_core::submit::tracker::{QmdCall, Tracker};
use gct_model::{Config, GuestMemory, Machine, Order as Events, Report, SparseMemory};

use super::CHANNEL;

/// Address of the slots.
pub(crate) const SLOTS: u64 = 0x10_0000_0000;

/// Payload of every done word.
pub(crate) const DONE_PAYLOAD: u32 = 0x600d;

/// Width of Hopper's mask in bits.
pub(crate) const TPCS: u16 = 128;

/// The class of Hopper's channels.
pub(crate) const HOPPER: u16 = 0xc86f;

/// The rewritten segments of one channel.
#[derive(Debug)]
pub(crate) struct Rewritten {
    pub(crate) segments: Vec<Vec<u32>>,
    /// The places where each may be divided.
    pub(crate) cuts: Vec<Vec<usize>>,
    /// Those before a launch's last atom.
    pub(crate) before_last: Vec<Vec<usize>>,
    /// The slots of these atoms, where launches have no join.
    pub(crate) lasts: Vec<u64>,
    /// Contents of the slots, if the caller writes them.
    pub(crate) slots: Vec<u32>,
    pub(crate) counters: Counters,
    /// Number of slots in use.
    pub(crate) slots_used: u64,
}

impl Rewritten {
    fn new() -> Self {
        Self {
            segments: Vec::new(),
            cuts: Vec::new(),
            before_last: Vec::new(),
            lasts: Vec::new(),
            slots: Vec::new(),
            counters: Counters::new(),
            slots_used: 0,
        }
    }
}

/// How to rewrite every launch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How<'a> {
    pub(crate) mask: Option<&'a DisabledTpcs>,
    pub(crate) atoms: u32,
    /// Whether the caller writes the slots.
    pub(crate) written: bool,
    /// Whether the GPU may only read them then.
    pub(crate) read_only: bool,
    /// Whether atoms write done words, after their QMDs.
    pub(crate) done: bool,
    /// The channel class of another chip, on which splits are tried.
    pub(crate) tried: Option<u16>,
}

/// Returns a mask that disables all TPCs but `kept`.
pub(crate) fn keep(kept: impl IntoIterator<Item = u16>) -> DisabledTpcs {
    DisabledTpcs::keep_only(TPCS, kept).expect("TPCs of the GPU")
}

fn scan(tracker: &mut Tracker, words: &[u32], counters: &mut Counters) -> Vec<QmdCall> {
    let mut found = vec![QmdCall::default(); words.len() + 1];
    let scanned = tracker.scan(words, &mut found, counters);
    assert_eq!(scanned.missed, 0);
    found.truncate(scanned.found);
    found
}

/// Rewrites with the same order for every launch. Asserts that the output fills exactly the
/// announced room.
pub(crate) fn rewrite(
    segments: &[Vec<u32>],
    mask: Option<&DisabledTpcs>,
    atoms: u32,
    written: bool,
) -> Rewritten {
    let how = How {
        mask,
        atoms,
        written,
        ..How::default()
    };
    rewrite_as(segments, &how)
}

pub(crate) fn rewrite_as(segments: &[Vec<u32>], how: &How<'_>) -> Rewritten {
    rewrite_on(how.tried.unwrap_or(HOPPER), segments, how)
}

/// Rewrites the segments of a channel of a class.
pub(crate) fn rewrite_on(class: u16, segments: &[Vec<u32>], how: &How<'_>) -> Rewritten {
    let mut tracker = Tracker::new(class);
    let mut done = Rewritten::new();
    for words in segments {
        let found = scan(&mut tracker, words, &mut done.counters);
        let order = Order {
            mask: how.mask,
            atoms: how.atoms,
            tried: how.tried.is_some(),
        };
        segment(words, &found, &vec![order; found.len()], how, &mut done);
    }
    done
}

fn segment(
    words: &[u32],
    found: &[QmdCall],
    orders: &[Order<'_>],
    how: &How<'_>,
    done: &mut Rewritten,
) {
    let size = |need: u64| usize::try_from(need).expect("a small need");
    let mut view = Vec::new();
    let slot_va = SLOTS + done.slots_used * SLOT_BYTES;
    let need = room(words, found, orders, &placement(how, &mut []));
    check_bound(words, found, orders, &need);
    view.resize(size(need.slots) * SLOT_WORDS, 0);
    let mut out = vec![0; size(need.words)];
    let mut cuts = vec![Cut::default(); size(need.cuts)];
    let output = Output {
        words: &mut out,
        slot_va,
        slots: u32::try_from(need.slots).expect("few slots"),
        placement: placement(how, &mut view),
        cuts: &mut cuts,
        done: how.done.then(|| DoneWords::in_slots(slot_va, DONE_PAYLOAD)),
    };
    let emitted = emit(words, found, orders, output, &mut done.counters)
        .expect("the announced room is enough");
    let exact = (need.words, need.slots, need.cuts);
    assert_eq!(
        (
            emitted.words.into(),
            emitted.slots.into(),
            emitted.cuts.into()
        ),
        exact
    );
    done.segments.push(out);
    let places = |cuts: Vec<&Cut>| cuts.iter().map(|cut| size(cut.at.into())).collect();
    let before_last = cuts
        .windows(2)
        .filter(|pair| {
            let is_last = |other: &Cut| other.launch == pair[0].launch && other.atom > pair[1].atom;
            pair[0].launch == pair[1].launch && !cuts.iter().any(is_last)
        })
        .map(|pair| &pair[0]);
    let before_last: Vec<_> = before_last.collect();
    let lasts = before_last
        .iter()
        .map(|cut| done.slots_used + u64::from(cut.slot) + 1);
    done.lasts.extend(lasts);
    done.before_last.push(places(before_last));
    done.cuts.push(places(cuts.iter().collect()));
    if how.written {
        done.slots.extend(view);
    }
    done.slots_used += need.slots;
}

fn placement<'a>(how: &How<'_>, view: &'a mut [u32]) -> Placement<'a> {
    match (how.written, how.read_only) {
        (true, true) => Placement::ReadOnly(view),
        (true, false) => Placement::Written(view),
        (false, _) => Placement::Upload,
    }
}

fn check_bound(words: &[u32], found: &[QmdCall], orders: &[Order<'_>], need: &Room) {
    let count = |len: usize| u32::try_from(len).expect("a short segment");
    let atoms = orders.first().map_or(1, |order| order.atoms);
    let bound = Room::bound(count(words.len()), count(found.len()), atoms);
    assert!(need.words <= bound.words, "{need:?} {bound:?}");
    assert!(
        need.slots <= bound.slots && need.cuts <= bound.cuts,
        "{need:?} {bound:?}"
    );
}

/// Masks without splitting, in place, in channels of a class.
pub(crate) fn mask_in_place(
    segments: &[Vec<u32>],
    mask: &DisabledTpcs,
    class: u16,
) -> Vec<Vec<u32>> {
    let mut tracker = Tracker::new(class);
    let mut counters = Counters::new();
    let mut segments = segments.to_vec();
    for words in &mut segments {
        let found = scan(&mut tracker, words, &mut counters);
        let order = Order {
            mask: Some(mask),
            atoms: 1,
            ..Order::default()
        };
        in_place(words, &found, &vec![order; found.len()], &mut counters);
    }
    segments
}

/// Masks all launches, and has them run whole from slots.
pub(crate) fn place(segments: &[Vec<u32>], mask: &DisabledTpcs) -> Rewritten {
    let mut tracker = Tracker::new(HOPPER);
    let mut done = Rewritten::new();
    for (words, masked) in segments.iter().zip(mask_in_place(segments, mask, HOPPER)) {
        let found = scan(&mut tracker, words, &mut done.counters);
        let most = masked.len() + found.len() * whole::ADDED_WORDS;
        let mut out = Vec::new();
        let mut view = vec![0; found.len() * SLOT_WORDS];
        let slot = |ahead| {
            let va = SLOTS + (done.slots_used + u64::from(ahead)) * SLOT_BYTES;
            Slot {
                va,
                done_va: va + 384,
                payload: DONE_PAYLOAD,
            }
        };
        let is_masked = |call: &QmdCall| call.qmd(words).is_some();
        let counters = &mut done.counters;
        let push = |words: &[u32]| {
            out.extend_from_slice(words);
            Some(())
        };
        let placed = whole::place(&masked, &found, is_masked, slot, &mut view, push, counters);
        let placed = placed.expect("room for all");
        if placed == 0 {
            out.clone_from(&masked);
        }
        assert!(out.len() <= most, "more words than were announced");
        view.truncate(usize::try_from(placed).expect("few") * SLOT_WORDS);
        done.slots_used += u64::from(placed);
        done.slots.extend(view);
        done.segments.push(out);
    }
    done
}

/// Divides segments at every possible place.
pub(crate) fn divide(rewritten: &Rewritten) -> Vec<Vec<u32>> {
    let mut pieces = Vec::new();
    for (words, cuts) in rewritten.segments.iter().zip(&rewritten.cuts) {
        let mut from = 0;
        for cut in cuts.iter().copied().chain([words.len()]) {
            pieces.push(words[from..cut].to_vec());
            from = cut;
        }
    }
    pieces
}

/// Runs segments without joins. Each last atom is submitted once the others have ended.
pub(crate) fn run_in_turn(done: &Rewritten, order: Events) -> (Report, SparseMemory) {
    let config = Config {
        order,
        ..Config::default()
    };
    let mut memory = SparseMemory::new(1 << 12);
    for (word, at) in done.slots.iter().zip((SLOTS..).step_by(4)) {
        memory.write_u32(at, *word).expect("room for the slots");
    }
    let mut machine = Machine::new(memory, config);
    for (words, before_last) in done.segments.iter().zip(&done.before_last) {
        let mut from = 0;
        for cut in before_last {
            machine.submit(CHANNEL, &words[from..*cut]);
            machine.run();
            from = *cut;
        }
        machine.submit(CHANNEL, &words[from..]);
    }
    machine.run();
    machine.into_parts()
}
