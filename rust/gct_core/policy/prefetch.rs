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
//! elementwise kernel once, and the times of launches tell which. All moves wait until the GPU has
//! nothing to do. So they are made in batches, before a launch for which one of them pays:
//!
//! ```text
//! v         the resident piece whose next use is last (Belady), and not planned yet
//! far       = the order of v
//! gain(p)   = the costs of the repeated uses of p before far
//! total(p)  = the costs of all uses of p in the step; sure(p) of the repeated ones
//!
//! for each use, in order, from the launch on, of a remote p
//!     p comes                        if there is room
//!     p comes in place of v          if p is used before v, the use is a repeated one whose cost was
//!                                    seen, and gain(p) > price + min(total(v), price) / 2: v has to
//!                                    come back, or is used on the host
//! until as many move as a batch has, v is used before p, or the launch itself waits for none
//! p and v change places for good     if nothing else moves, sure(p) - total(v) > total(v) / 4 and
//!                                    price / STEPS, where v has the least total of those that rest
//! ```
//!
//! A price is that of [`PIECE_MAX`] bytes. What moves ahead of its use holds a place meanwhile that
//! would spare a move in each step. So with n used pieces that do not fit, and batches of k, a step
//! takes n + k moves and n / k stops, and costs least if k is the root of n * STOP. What the launch
//! uses stays. In a step that uses each piece
//! once in turns, the piece leaves that was just used: what fits stays but for a batch, and the rest
//! streams through that. Least recently used would move all.

use super::placement::{Move, Piece, PIECE_MAX};
use crate::units::{self, Bytes, Ns};
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
/// The most moves of a batch.
pub const BATCH: usize = 32;
/// What a stop costs, in prices of an exchange. A batch has to pay that much more than its moves.
const STOP: u64 = 2;
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
    total: Ns,
    sure: Ns,
    is_planned: bool,
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

/// Plans the batch before the launch whose uses have these indices. Returns how many of `moves` it
/// fills; 0 if no move pays. `device` bytes of the GPU are free, and evictions may take `host` bytes
/// of host memory. `next` is room for an entry for each piece.
pub fn plan(
    launch: Range<usize>,
    pieces: &[Piece],
    uses: &[Use],
    next: &mut [Next],
    (device, host): (Bytes, Bytes),
    (price, now): (Ns, Ns),
    moves: &mut [Move],
) -> usize {
    let Some((before, behind)) = uses.split_at_checked(launch.start) else {
        return 0;
    };
    let own = launch.len();
    find_next(behind.iter().chain(before), next);
    let most = most(pieces, next).max(own).min(moves.len());
    let Some(moves) = moves.get_mut(..most) else {
        return 0;
    };
    let mut batch = Batch {
        pieces,
        next,
        own,
        price,
        room: (device, host),
        moves,
        count: Wrapping(0),
        pays: Ns(0),
    };
    for (order, u) in counted(behind.iter().chain(before)) {
        if order >= own && batch.count.0 == 0 {
            break;
        }
        let gain = |far: usize| {
            let soon = counted(behind.iter().chain(before)).take_while(|(order, _)| *order < far);
            let of_piece = soon.filter(|(_, other)| other.piece == u.piece);
            of_piece.fold(Ns(0), |gain, (_, other)| gain + other.sure())
        };
        if !batch.consider(u, order, gain) {
            break;
        }
    }
    if batch.pays <= price * STOP {
        batch.count.0 = 0;
        let leaves = |(_, (piece, next)): &Numbered<'_>| {
            piece.is_resident && piece.takes() <= host && next.order() >= own
        };
        let made = for_good(pieces, batch.next, leaves, (price, now));
        made.into_iter().for_each(|made| batch.push(made));
    }
    batch.count.0
}

/// Returns how many moves a batch has, so that stops and moves of a step cost least.
fn most(pieces: &[Piece], next: &[Next]) -> usize {
    let away = numbered(pieces, next);
    let away = away.filter(|(_, (piece, next))| !piece.is_resident && next.order.is_some());
    // `count` checks for an overflow.
    let away = away
        .fold(Wrapping(0_usize), |count, _| count + Wrapping(1))
        .0;
    // CAST: widening, and the root of a number of pieces.
    (units::root((away as u64).saturating_mul(STOP)) as usize).max(1)
}

/// Moves that are made together.
struct Batch<'a> {
    pieces: &'a [Piece],
    next: &'a mut [Next],
    /// Orders below this are those of the launch itself.
    own: usize,
    price: Ns,
    /// Free bytes of the GPU, and of the host.
    room: (Bytes, Bytes),
    moves: &'a mut [Move],
    count: Wrapping<usize>,
    /// What the moves save beyond their prices.
    pays: Ns,
}

impl Batch<'_> {
    fn push(&mut self, made: Move) {
        if let Some(slot) = self.moves.get_mut(self.count.0) {
            *slot = made;
            self.count += 1;
        }
        for moved in [made.leaves(), made.comes()].into_iter().flatten() {
            if let Some(next) = self.next.get_mut(moved) {
                next.is_planned = true;
            }
        }
    }

    /// Returns the price of a piece.
    fn price_of(&self, piece: &Piece) -> Ns {
        self.price * piece.bytes.get() / PIECE_MAX.get()
    }

    /// Plans the moves for a use, if any pays. `gain` returns what they save before an order. Returns
    /// false if no later use has to be looked at.
    fn consider(&mut self, u: &Use, order: usize, gain: impl Fn(usize) -> Ns) -> bool {
        let promote = u.piece;
        let Some(piece) = self.pieces.get(promote).filter(|piece| !piece.is_resident) else {
            return true;
        };
        loop {
            if self.count.0 >= self.moves.len() {
                return false;
            }
            if (self.next.get(promote)).is_none_or(|next| next.is_planned) {
                return true;
            }
            if piece.bytes <= self.room.0 {
                self.push(Move::Return(promote));
                self.room.0 -= piece.bytes;
                // It stays.
                self.pays += self.price * (STOP + 1);
                return true;
            }
            let Some((evict, victim, far)) = self.last() else {
                return false;
            };
            if far <= order {
                return false;
            }
            let pays = u.is_repeated && u.cost.is_some() && {
                let total = self.next.get(evict).map_or(Ns(0), |next| next.total);
                let price = self.price_of(piece) + total.min(self.price_of(&victim)) / 2;
                let gain = gain(far);
                let pays = gain > price;
                self.pays += gain - price;
                pays
            };
            if !pays {
                return true;
            }
            let room = self.room.0 + victim.bytes;
            self.room = (room, self.room.1 - victim.takes());
            // A smaller one leaves, and the next one with it.
            if room < piece.bytes {
                self.push(Move::Evict(evict));
                continue;
            }
            self.room.0 -= piece.bytes;
            self.push(Move::Exchange { evict, promote });
            return true;
        }
    }

    /// Returns the piece that is used last of those that may leave, and its order.
    fn last(&self) -> Option<(usize, Piece, usize)> {
        let leaves = |(_, (piece, next)): &Numbered<'_>| {
            let may = piece.is_resident && piece.takes() <= self.room.1;
            may && !next.is_planned && next.order() >= self.own
        };
        let found = numbered(self.pieces, self.next).filter(leaves);
        let found = found.max_by_key(|(_, (_, next))| next.order());
        found.map(|(index, (piece, next))| (index, *piece, next.order()))
    }
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

#[cfg(test)]
mod tests;
