// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the process's pageable memory on one GPU within its limits.
//!
//! Each piece is on the GPU or on the host, and the GPU can use it in both places. A piece moves
//! beside running work: the driver keeps each access exact. So nothing here waits for work, and a
//! move that fails leaves the piece where it is.
//!
//! ```text
//! charged = (bytes on the GPU, bytes of host memory that pieces have taken)
//!
//! place     charges a new allocation: on the GPU while there is room, the rest on the host
//! insert    records where it lies
//! launched  counts uses by launches, and finds the step that they repeat
//! before_launch  returns the next move that a launch should wait for, as
//!           gct_core::policy::prefetch decides; reached learns from the times of launches
//! look      learns what the limits allow now and what launches use, and returns the next move, as
//!           gct_core::policy::placement decides; carry_out makes it
//! make_room evicts for memory that cannot move
//! detach    forgets an allocation that is being freed; release uncharges it then
//! sweep     forgets and uncharges allocations that have gone with their context
//! ```
//!
//! The charge comes before a move that takes memory, and is given back after one that frees it.

mod ahead;
mod spans;

use ahead::Ahead;
use gct_core::memory::BYTES_MAX;
use gct_core::policy::placement::{self, Move, Piece, Room, LEARN_INTERVAL};
use gct_core::units::{Bytes, Ns};
use gctd_ipc::message::Paged;
use spans::{Detached, Span};

/// Size of a piece. Smaller ones move more slowly: 6 GB/s out and 16 GB/s in with 2 MiB, 10 and 36
/// with 16 MiB (H100).
pub(crate) const PIECE: u64 = 16 << 20;

/// Bytes of each `gmem.limit` that stay free for memory that cannot move.
pub(crate) const SPARE: u64 = 32 << 20;

/// Most attempts to charge an allocation beside other processes of the group that allocate, too.
const ATTEMPTS: usize = 8;

/// Room without a limit.
const NO_LIMIT: Paged = Paged {
    device: u64::MAX,
    host: u64::MAX,
};

/// Moves memory of one GPU, and charges it with the daemon.
pub(crate) trait Backend {
    /// Moves memory to the GPU or to the host. Returns whether the driver has accepted that.
    fn migrate(&mut self, at: u64, bytes: u64, to_gpu: bool) -> bool;

    /// Charges the process. Returns the most that it can be charged for if that is less.
    /// `is_last`: an allocation fails then.
    fn repage(&mut self, paged: Paged, is_last: bool) -> Result<(), Paged>;

    /// Returns the most that the process can be charged for; `None` without a daemon.
    fn room(&mut self) -> Option<Paged>;
}

/// A new allocation that is charged and not made yet.
#[derive(Debug)]
pub(crate) struct Placed(Vec<Piece>);

impl Placed {
    /// Lays an allocation out: on the GPU while it has room, then on the host. Returns `None` if
    /// both have too little.
    fn new(bytes: u64, room: Paged, now: Ns) -> Option<Self> {
        let mut left = room;
        let mut at = 0;
        let mut pieces = Vec::new();
        while at < bytes {
            let len = PIECE.min(bytes - at);
            let is_resident = len <= left.device;
            let place = match is_resident {
                true => &mut left.device,
                false => &mut left.host,
            };
            *place = place.checked_sub(len)?;
            pieces.push(Piece::new(Bytes(len), is_resident, now));
            at += len;
        }
        Some(Self(pieces))
    }

    fn paged(&self) -> Paged {
        let sum = |counts: fn(&Piece) -> bool| {
            let counted = self.0.iter().filter(|piece| counts(piece));
            counted.map(|piece| piece.bytes.get()).sum()
        };
        Paged {
            device: sum(|piece| piece.is_resident),
            host: sum(|piece| piece.is_backed),
        }
    }
}

/// The pageable memory of this process on one GPU.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Its allocations, by address.
    spans: Vec<Span>,
    /// Their pieces, in the same order, and how many arguments have pointed into each lately.
    pieces: Vec<Piece>,
    uses: Vec<u64>,
    charged: Paged,
    /// The most that it could be charged for when the daemon last said.
    room: Paged,
    /// What of it was free at the last looks.
    free: Room,
    learned: Ns,
    /// Changes with the allocations.
    layout: u64,
    /// Changes with the allocations, and with where pieces are.
    places: u64,
    ahead: Ahead,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            spans: Vec::new(),
            pieces: Vec::new(),
            uses: Vec::new(),
            charged: Paged::default(),
            room: NO_LIMIT,
            free: Room::default(),
            learned: Ns(0),
            layout: 0,
            places: 0,
            ahead: Ahead::default(),
        }
    }
}

fn plus(a: Paged, b: Paged) -> Paged {
    Paged {
        device: a.device.saturating_add(b.device),
        host: a.host.saturating_add(b.host),
    }
}

fn minus(a: Paged, b: Paged) -> Paged {
    Paged {
        device: a.device.saturating_sub(b.device),
        host: a.host.saturating_sub(b.host),
    }
}

impl Memory {
    /// Returns whether it is of use to know what launches use: something is on the host, or has to
    /// go there.
    pub(crate) fn is_watched(&self) -> bool {
        self.has_remote() || self.is_over()
    }

    /// Returns whether there is any.
    pub(crate) fn has_any(&self) -> bool {
        !self.spans.is_empty()
    }

    /// Returns whether any piece is on the host.
    fn has_remote(&self) -> bool {
        let all: u64 = self.spans.iter().map(|span| span.bytes).sum();
        self.charged.device < all
    }

    /// Charges an allocation. Returns `None` if GPU and host have too little room for it, as the
    /// limits say.
    pub(crate) fn place(
        &mut self,
        bytes: u64,
        backend: &mut impl Backend,
        now: Ns,
    ) -> Option<Placed> {
        if bytes > BYTES_MAX.get() {
            return self.refuse(bytes, backend);
        }
        let mut room = NO_LIMIT;
        for _ in 0..ATTEMPTS {
            let placed = loop {
                match Placed::new(bytes, minus(room, self.charged), now) {
                    Some(placed) => break placed,
                    // A piece that has host memory already makes room on the GPU for nothing.
                    None => match placement::coldest(&self.pieces, Bytes(0)) {
                        Some(cold) if self.evict(cold, backend, now) => {}
                        _ => return self.refuse(bytes, backend),
                    },
                }
            };
            match self.charge(plus(self.charged, placed.paged()), backend) {
                Ok(()) => return Some(placed),
                Err(now) => room = now,
            }
        }
        self.refuse(bytes, backend)
    }

    /// Tells the daemon that an allocation fails.
    fn refuse(&mut self, bytes: u64, backend: &mut impl Backend) -> Option<Placed> {
        let paged = Paged {
            device: self.charged.device.saturating_add(bytes),
            ..self.charged
        };
        // Memory may have become free meanwhile. The allocation fails nevertheless.
        if backend.repage(paged, true).is_ok() {
            let _ = backend.repage(self.charged, false);
        }
        None
    }

    fn charge(&mut self, paged: Paged, backend: &mut impl Backend) -> Result<(), Paged> {
        let charged = backend.repage(paged, false);
        match charged {
            Ok(()) => {
                // What grows is within the limits.
                if paged.device > self.charged.device {
                    self.room.device = self.room.device.max(paged.device);
                }
                self.charged = paged;
            }
            Err(room) => self.room = room,
        }
        charged
    }

    /// Uncharges an allocation that was not made.
    pub(crate) fn cancel(&mut self, placed: &Placed, backend: &mut impl Backend) {
        // What shrinks is never refused.
        let _ = self.charge(minus(self.charged, placed.paged()), backend);
    }

    /// Records where an allocation lies and its number ([`Memory::sweep`]), and moves its pieces to
    /// their places. Returns false if the driver refuses that.
    #[must_use]
    pub(crate) fn insert(
        &mut self,
        base: u64,
        number: Option<u64>,
        placed: Placed,
        backend: &mut impl Backend,
    ) -> bool {
        self.attach(Detached::new(base, number, placed));
        let at = self.at(base).map(|at| self.spans[at]);
        at.is_some_and(|span| self.settle(span, backend))
    }

    /// Moves each run of pieces of a new allocation to its place.
    fn settle(&self, span: Span, backend: &mut impl Backend) -> bool {
        let pieces = &self.pieces[span.pieces()];
        let mut runs = pieces.chunk_by(|a, b| a.is_resident == b.is_resident);
        let mut at = span.base;
        runs.all(|run| {
            let bytes = run.iter().map(|piece| piece.bytes.get()).sum();
            let moved = backend.migrate(at, bytes, run[0].is_resident);
            at += bytes;
            moved
        })
    }

    /// Uncharges an allocation that was freed.
    pub(crate) fn release(&mut self, detached: &Detached, backend: &mut impl Backend) {
        self.cancel(detached.placed(), backend);
    }

    /// Forgets and uncharges the allocations that `is_gone` names by their addresses and numbers.
    pub(crate) fn sweep(&mut self, is_gone: impl Fn(u64, u64) -> bool, backend: &mut impl Backend) {
        for at in (0..self.spans.len()).rev() {
            let span = &self.spans[at];
            if span.number.is_some_and(|number| is_gone(span.base, number)) {
                let gone = self.take(at);
                self.release(&gone, backend);
            }
        }
    }

    /// Counts a use by a launch with this argument.
    fn used(&mut self, address: u64) {
        if let Some(piece) = self.index_of(address) {
            self.uses[piece] += 1;
        }
    }

    /// Learns what the limits allow now, and each [`LEARN_INTERVAL`] what launches use. Returns the
    /// next move, if any pays.
    ///
    /// While all is on the GPU nobody counts what launches use. So after a limit was lowered they
    /// tell for [`LEARN_INTERVAL`] what has to leave last.
    pub(crate) fn look(&mut self, backend: &mut impl Backend, now: Ns) -> Option<Move> {
        let was_watched = self.is_watched();
        self.ask(backend);
        if !was_watched {
            self.uses.fill(0);
            (self.free, self.learned) = (Room::default(), now);
            return None;
        }
        let free = minus(self.room, self.charged);
        let (device, host) = (Bytes(free.device), Bytes(free.host));
        if now - self.learned >= LEARN_INTERVAL {
            self.learn(now);
            self.free.look(device);
        }
        match self.is_over() {
            true => placement::coldest(&self.pieces, host).map(Move::Evict),
            false => {
                let followed = self.followed(now);
                let changes = |piece: usize| !followed.get(piece).is_some_and(|is| *is);
                placement::choose(&self.pieces, &self.free, (device, host), changes, now)
            }
        }
    }

    /// Makes a move that [`Memory::look`] has returned. Returns whether something has moved.
    pub(crate) fn carry_out(&mut self, next: Move, backend: &mut impl Backend, now: Ns) -> bool {
        match next {
            Move::Evict(at) => self.evict(at, backend, now),
            Move::Return(at) => {
                self.free.take(self.pieces[at].bytes);
                self.promote(at, backend, now)
            }
            Move::Exchange { evict, promote } => {
                let evicted = self.evict(evict, backend, now);
                let free = minus(self.room, self.charged).device;
                let fits = self.pieces[promote].bytes.get() <= free;
                evicted && (!fits || self.promote(promote, backend, now))
            }
        }
    }

    /// Asks the daemon. Without one nothing more goes to the GPU.
    fn ask(&mut self, backend: &mut impl Backend) {
        self.room = backend.room().unwrap_or(self.charged);
    }

    /// Returns whether a limit was lowered, or memory that cannot move has taken the room.
    fn is_over(&self) -> bool {
        self.charged.device > self.room.device
    }

    fn learn(&mut self, now: Ns) {
        let elapsed = now - self.learned;
        for span in &self.spans {
            let uses = self.uses[span.pieces()].iter().copied();
            placement::learn(self.pieces[span.pieces()].iter_mut().zip(uses), elapsed);
        }
        self.uses.fill(0);
        self.learned = now;
    }

    fn evict_coldest(&mut self, backend: &mut impl Backend, now: Ns) -> bool {
        let host = Bytes(minus(self.room, self.charged).host);
        let cold = placement::coldest(&self.pieces, host);
        cold.is_some_and(|cold| self.evict(cold, backend, now))
    }

    fn evict(&mut self, at: usize, backend: &mut impl Backend, now: Ns) -> bool {
        let (piece, was) = (self.pieces[at], self.charged);
        let taken = Paged {
            device: 0,
            host: piece.takes().get(),
        };
        if self.charge(plus(was, taken), backend).is_err() {
            return false;
        }
        let bytes = piece.bytes.get();
        if !backend.migrate(self.address(at), bytes, false) {
            let _ = self.charge(was, backend);
            return false;
        }
        self.pieces[at].moved(false, now);
        self.places += 1;
        let left = Paged {
            device: bytes,
            host: 0,
        };
        let _ = self.charge(minus(self.charged, left), backend);
        true
    }

    fn promote(&mut self, at: usize, backend: &mut impl Backend, now: Ns) -> bool {
        let (bytes, was) = (self.pieces[at].bytes.get(), self.charged);
        let more = Paged {
            device: bytes,
            host: 0,
        };
        if self.charge(plus(was, more), backend).is_err() {
            return false;
        }
        if !backend.migrate(self.address(at), bytes, true) {
            let _ = self.charge(was, backend);
            return false;
        }
        self.pieces[at].moved(true, now);
        self.places += 1;
        true
    }

    /// Evicts at least so many bytes. Returns whether that was possible.
    pub(crate) fn make_room(&mut self, bytes: u64, backend: &mut impl Backend, now: Ns) -> bool {
        let wanted = self.charged.device.checked_sub(bytes);
        self.room = backend.room().unwrap_or(self.room);
        self.free = Room::default();
        self.rest(now);
        while wanted.is_some_and(|wanted| self.charged.device > wanted) {
            if !self.evict_coldest(backend, now) {
                return false;
            }
        }
        wanted.is_some()
    }
}

#[cfg(test)]
mod tests;
