// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides what moves to the GPU before the launch that uses it, while a program repeats itself.
//!
//! Terminology
//!   piece    as in [`super::placement`]
//!   use      a launch that uses a piece
//!   step     the uses that a program repeats, in their order: of layer after layer, forward
//!            and backward
//!   period   the launches of a step
//!   cost     time by which a use is longer while the piece is remote
//!   repeated a use by a launch that used the piece in the step before, too
//!   order    how many uses of the step come before the next one of a piece
//!   price    time that an exchange takes. The launch waits for it.
//!
//! A remote piece is used across the bus. A matrix product reads it there many times, an
//! elementwise kernel once, and the times of launches tell which. A piece comes for a use, or for
//! good:
//!
//! ```text
//! guest     a resident piece that has moved lately
//! far       = the order of the piece that leaves: of the guests, or of the others, the one that is
//!             used last (Belady)
//! gain(p)   = the costs of the repeated uses of p before far
//! total(p)  = the costs of all uses of p in the step; sure(p) of the repeated ones
//!
//! p comes for a use of the launch   if it is a repeated one whose cost was seen, and
//!     in place of a guest           if gain(p) > price
//!     in place of another piece     if gain(p) > price * 2: that one has to come back, too;
//!                                   while there are fewer than GUESTS guests, gain(p) > price
//! p and v change places for good    if sure(p) - total(v) > total(v) / 4 and price / STEPS,
//!                                   where v has the least total of those that have rested
//! ```
//!
//! While there is room, what the launch uses comes without an exchange.
//!
//! What the launch uses stays. In a step that uses each piece once in turns, the guest leaves that
//! was just used: what fits but for some guests stays, and the rest streams through these. Least
//! recently used would move all.

use super::placement::{Move, Piece};
use crate::units::{Bytes, Ns};
use core::num::Wrapping;
use core::ops::Range;

/// The most launches of a period.
pub const PERIOD_MAX: usize = 1 << 13;
/// Cost of a use of which nothing is known: more than of any exchange. So what is used changes
/// places with what is not.
const UNKNOWN: Ns = Ns(1_000_000_000);
/// Cost of a use that was never seen to be remote, by its time on the GPU: the memory of an H100
/// has some 60 times the bandwidth of its bus, and nothing uses all of it.
const SLOWER: u64 = 24;
/// Steps in which a change for good has to pay.
const STEPS: u64 = 64;
/// The least number of guests.
const GUESTS: usize = 4;
/// Share of a new sample in a cost, as a divisor.
const DECAY: u64 = 4;
/// Share by which a cost fades with each use on the GPU, as a divisor. So one that was seen
/// wrongly, beside other work or an idle GPU, is seen again.
const FADE: u64 = 256;

/// A use of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The index of the piece.
    pub piece: usize,
    /// Whether the piece was remote when the launch was made last.
    pub was_remote: bool,
    /// Whether the launch used the piece in the step before, too. A loop over layers repeats its
    /// launches, and none of its weights.
    pub is_repeated: bool,
    /// What the use takes on the GPU, and what it costs more elsewhere, if that is known.
    took: Option<Ns>,
    cost: Option<Ns>,
}

impl Use {
    /// Creates a use of which nothing is known.
    pub const fn new(piece: usize) -> Self {
        Self {
            piece,
            was_remote: false,
            is_repeated: true,
            took: None,
            cost: None,
        }
    }

    fn cost(&self) -> Ns {
        let unseen = self.took.map(|took| took * SLOWER);
        self.cost.or(unseen).unwrap_or(UNKNOWN)
    }

    /// Returns the cost if it comes again in the next step.
    fn sure(&self) -> Ns {
        match self.is_repeated {
            true => self.cost(),
            false => Ns(0),
        }
    }
}

/// What comes of a piece in the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Next {
    order: Option<usize>,
    gain: Ns,
    total: Ns,
    sure: Ns,
}

impl Next {
    /// Returns the order; that of a piece without a use is the largest.
    fn order(&self) -> usize {
        self.order.unwrap_or(usize::MAX)
    }
}

/// Returns how many of the last launches repeat the ones before them; `None` while none do. `log`
/// has the name of each launch. `scratch` bounds how many of them are looked at, and its content
/// does not matter.
///
/// Of all suffixes that are repeats of their own beginning, twice at least, the longest decides: a
/// loop inside a step repeats less than the step. It takes time in proportion to the log.
pub fn period(log: &[u64], scratch: &mut [u32]) -> Option<usize> {
    // scratch[at] = how many launches before the last `at` are those at the end (Z function).
    let count = log.len().min(scratch.len());
    let launch = |back: usize| log.iter().nth_back(back);
    let (mut from, mut to) = (0_usize, 0_usize);
    let mut best: Option<(usize, usize)> = None;
    for at in 1..count {
        let known = scratch.get(at.saturating_sub(from)).copied().unwrap_or(0);
        // CAST: widening.
        let mut equal = to.saturating_sub(at).min(known as usize);
        while at.saturating_add(equal) < count && launch(equal) == launch(at.saturating_add(equal))
        {
            equal = equal.saturating_add(1);
        }
        if let Some(slot) = scratch.get_mut(at) {
            *slot = u32::try_from(equal).unwrap_or(u32::MAX);
        }
        let end = at.saturating_add(equal);
        if end > to {
            (from, to) = (at, end);
        }
        if equal >= at && best.is_none_or(|(covered, _)| end > covered) {
            best = Some((end, at));
        }
    }
    best.map(|(_, period)| period)
        .filter(|period| *period <= PERIOD_MAX)
}

/// Learns from a launch with these uses, which took so long: what of them was remote has cost that.
pub fn learn(uses: &mut [Use], took: Ns) {
    let remote = uses.iter().filter(|u| u.was_remote);
    // `count` checks for an overflow.
    let remote = remote
        .fold(Wrapping(0_u64), |count, _| count + Wrapping(1))
        .0;
    // CAST: widening.
    let all = uses.len() as u64;
    for u in uses {
        match (u.was_remote, remote) {
            (true, _) => u.cost = Some(mean(u.cost, took / remote.max(1))),
            (false, 0) => u.took = Some(mean(u.took, took / all.max(1))),
            (false, _) => {}
        }
        if !u.was_remote {
            u.cost = u.cost.map(|cost| cost - cost / FADE);
        }
    }
}

/// Returns a decaying mean after a sample.
fn mean(old: Option<Ns>, sample: Ns) -> Ns {
    old.map_or(sample, |old| old - old / DECAY + sample / DECAY)
}

/// Returns the next move before the launch whose uses have these indices, if any pays. `device`
/// bytes of the GPU are free, and evictions may take `host` bytes of host memory. `next` is room
/// for an entry for each piece.
pub fn before(
    launch: Range<usize>,
    pieces: &[Piece],
    uses: &[Use],
    next: &mut [Next],
    (device, host): (Bytes, Bytes),
    (price, now): (Ns, Ns),
) -> Option<Move> {
    let (before, behind) = uses.split_at_checked(launch.start)?;
    let own = launch.len();
    let its = behind.get(..own).unwrap_or(behind);
    let fits = |piece: &Piece| !piece.is_resident && piece.bytes <= device;
    let returns = |u: &&Use| pieces.get(u.piece).is_some_and(fits);
    if let Some(u) = its.iter().find(returns) {
        return Some(Move::Return(u.piece));
    }
    find_next(behind.iter().chain(before), next);
    let leaves = |(_, (piece, next)): &Numbered<'_>| {
        piece.is_resident && piece.takes() <= host && next.order() >= own
    };
    let is_guest = |(_, (piece, _)): &Numbered<'_>| !piece.has_rested(now);
    let guests = || numbered(pieces, next).filter(is_guest).filter(leaves);
    let others = || {
        numbered(pieces, next)
            .filter(|n| !is_guest(n))
            .filter(leaves)
    };
    let guest = last(guests());
    let other = last(others());
    let for_other = match guests().nth(GUESTS.saturating_sub(1)) {
        None => price,
        Some(_) => price * 2,
    };
    for (evict, price) in [(guest, price), (other, for_other)] {
        let Some((evict, far)) = evict else { continue };
        let soon = counted(behind.iter().chain(before)).take_while(|(order, _)| *order < far);
        count_gains(soon.map(|(_, u)| u), next);
        let comes = |u: &&Use| {
            let is_remote = pieces.get(u.piece).is_some_and(|piece| !piece.is_resident);
            let gain = next.get(u.piece).map_or(Ns(0), |next| next.gain);
            is_remote && u.is_repeated && u.cost.is_some() && gain > price
        };
        if let Some(u) = its.iter().find(comes) {
            let promote = u.piece;
            return Some(Move::Exchange { evict, promote });
        }
    }
    for_good(pieces, next, leaves, (price, now))
}

/// Returns the piece that is used last, and its order.
fn last<'a>(pieces: impl Iterator<Item = Numbered<'a>>) -> Option<(usize, usize)> {
    let orders = pieces.map(|(index, (_, next))| (index, next.order()));
    orders.max_by_key(|(_, order)| *order)
}

/// Returns the exchange of places that pays if the step goes on, if any does.
fn for_good(
    pieces: &[Piece],
    next: &[Next],
    leaves: impl Fn(&Numbered<'_>) -> bool,
    (price, now): (Ns, Ns),
) -> Option<Move> {
    let rested = || numbered(pieces, next).filter(|(_, (piece, _))| piece.has_rested(now));
    let (evict, (_, least)) = rested()
        .filter(leaves)
        .min_by_key(|(_, (_, next))| next.total)?;
    let remote = numbered(pieces, next).filter(|(_, (piece, _))| !piece.is_resident);
    let (promote, (_, most)) = remote.max_by_key(|(_, (_, next))| next.sure)?;
    let gain = most.sure - least.total;
    let pays = gain > least.total / 4 && gain > price / STEPS;
    pays.then_some(Move::Exchange { evict, promote })
}

/// A piece and its next use, with their index.
type Numbered<'a> = (usize, (&'a Piece, &'a Next));

/// Returns the pieces with their indices.
fn numbered<'a>(pieces: &'a [Piece], next: &'a [Next]) -> impl Iterator<Item = Numbered<'a>> {
    counted(pieces.iter().zip(next))
}

/// Returns the items with their numbers. `enumerate` checks for an overflow.
fn counted<T>(items: impl Iterator<Item = T>) -> impl Iterator<Item = (usize, T)> {
    items.scan(Wrapping(0), |at, item| {
        let number = *at;
        *at += 1;
        Some((number.0, item))
    })
}

fn find_next<'a>(ahead: impl Iterator<Item = &'a Use>, next: &mut [Next]) {
    next.fill(Next::default());
    for (order, u) in counted(ahead) {
        if let Some(next) = next.get_mut(u.piece) {
            next.order = next.order.or(Some(order));
            next.total += u.cost();
            next.sure += u.sure();
        }
    }
}

fn count_gains<'a>(before_far: impl Iterator<Item = &'a Use>, next: &mut [Next]) {
    next.iter_mut().for_each(|next| next.gain = Ns(0));
    for u in before_far {
        if let Some(next) = next.get_mut(u.piece) {
            next.gain += u.sure();
        }
    }
}

#[cfg(test)]
mod tests;
