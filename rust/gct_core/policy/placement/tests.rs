// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests placement in worlds of accesses.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

const MIB: u64 = 1 << 20;
const SECOND: Ns = Ns(1_000_000_000);

/// A process under limits whose pieces are used, and moved as the policy says.
struct World {
    pieces: Vec<Piece>,
    device: Bytes,
    host: Bytes,
    room: Room,
    now: Ns,
    moves: usize,
}

impl World {
    /// Allocates pieces in this order: on the GPU while there is room.
    fn new(sizes: &[u64], device: u64, host: u64) -> Self {
        let mut world = Self {
            pieces: Vec::new(),
            device: Bytes(device * MIB),
            host: Bytes(host * MIB),
            room: Room::default(),
            now: Ns(0),
            moves: 0,
        };
        for size in sizes {
            let bytes = Bytes(size * MIB);
            let fits = bytes <= world.device - world.resident();
            if fits || bytes <= world.host - world.backed() {
                world.pieces.push(Piece::new(bytes, fits, world.now));
            }
        }
        world
    }

    fn sum(&self, counts: impl Fn(&Piece) -> bool) -> Bytes {
        let counted = self.pieces.iter().filter(|piece| counts(piece));
        counted.fold(Bytes(0), |sum, piece| sum + piece.bytes)
    }

    fn resident(&self) -> Bytes {
        self.sum(|piece| piece.is_resident)
    }

    fn backed(&self) -> Bytes {
        self.sum(|piece| piece.is_backed)
    }

    /// Uses each piece so often in a second, and moves as long as it pays.
    fn second(&mut self, mut uses: impl FnMut(usize) -> u64) {
        self.now += SECOND;
        let pieces = self.pieces.iter_mut().enumerate();
        learn(pieces.map(|(index, piece)| (piece, uses(index))), SECOND);
        self.room.look(self.device - self.resident());
        for _ in 0..=self.pieces.len() {
            let (device, host) = (self.device - self.resident(), self.host - self.backed());
            let Some(next) = choose(&self.pieces, &self.room, (device, host), |_| true, self.now)
            else {
                return;
            };
            self.apply(next);
        }
        panic!("it moves for ever");
    }

    fn apply(&mut self, next: Move) {
        let promote = match next {
            Move::Evict(evict) => return self.evict(evict),
            Move::Return(promote) => {
                let bytes = self.pieces[promote].bytes;
                assert!(bytes <= self.device - self.resident(), "it has no room");
                self.room.take(bytes);
                promote
            }
            Move::Exchange { evict, promote } => {
                self.evict(evict);
                promote
            }
        };
        let promoted = &self.pieces[promote];
        assert!(!promoted.is_resident);
        if promoted.bytes <= self.device - self.resident() {
            self.pieces[promote].moved(true, self.now);
            self.moves += 1;
        }
        assert!(self.resident() <= self.device && self.backed() <= self.host);
    }

    fn evict(&mut self, at: usize) {
        assert!(self.pieces[at].is_resident);
        self.pieces[at].moved(false, self.now);
        self.moves += 1;
    }

    /// Evicts what exceeds the limit, or what memory that cannot move wants.
    fn shrink(&mut self, wanted: u64) {
        while self.device - self.resident() < Bytes(wanted * MIB) {
            self.evict(coldest(&self.pieces, self.host - self.backed()).unwrap());
        }
    }
}

#[test]
fn what_is_used_once_a_round_does_not_move() {
    for per_second in [1, 7, 20, 1000] {
        let mut world = World::new(&[16; 20], 100, 1000);
        (0..100).for_each(|_| world.second(|_| per_second));
        assert_eq!(world.moves, 0, "{per_second} rounds a second");
        assert_eq!(world.resident(), Bytes(96 * MIB));
    }
}

/// A training step: the first ten pieces are the optimizer's, used once; the others three times.
#[test]
fn what_is_used_most_is_resident_and_stays() {
    let mut world = World::new(&[16; 20], 160, 1000);
    let uses = |piece| if piece < 10 { 5 } else { 15 };
    (0..30).for_each(|_| world.second(uses));
    let resident = |piece: &Piece| piece.is_resident;
    assert!(world.pieces[10..].iter().all(resident));
    assert!(!world.pieces[..10].iter().any(resident));
    assert_eq!(world.moves, 20, "each moved once");
}

#[test]
fn a_gain_must_pay_and_be_more_than_noise() {
    let bytes = Bytes(MIB);
    let cases = [
        (0, 249, false),
        (0, 250, true),
        (10_000, 14_999, false),
        (10_000, 15_000, true),
    ];
    for (cold, hot, moves) in cases {
        let piece = |rate, is_resident| Piece {
            rate,
            ..Piece::new(bytes, is_resident, Ns(0))
        };
        let pieces = [piece(cold, true), piece(hot, false)];
        let none = Room::default();
        let chosen = choose(&pieces, &none, (Bytes(0), bytes), |_| true, SECOND * 60);
        let exchange = Move::Exchange {
            evict: 0,
            promote: 1,
        };
        assert_eq!(chosen, moves.then_some(exchange), "{cold} and {hot}");
        let changing = choose(&pieces, &none, (bytes, bytes), |_| true, SECOND * 60);
        assert_eq!(changing, None, "its room may last");
    }
}

/// What is used comes when its room was there at two looks, and the rest at five.
#[test]
fn room_that_lasts_is_taken() {
    let bytes = Bytes(MIB);
    for (rate, looks) in [(0, 5), (19, 5), (20, 2), (1000, 2)] {
        let piece = Piece {
            rate,
            ..Piece::new(bytes, false, Ns(0))
        };
        let mut room = Room::default();
        let comes_at = (0..9).position(|_| {
            let next = choose(&[piece], &room, (bytes, Bytes(0)), |_| true, SECOND * 60);
            room.look(bytes);
            next == Some(Move::Return(0))
        });
        assert_eq!(comes_at, Some(looks), "{rate}");
        room.take(bytes);
        assert_eq!(
            choose(&[piece], &room, (bytes, Bytes(0)), |_| true, SECOND * 60),
            None
        );
    }
}

/// A raised limit brings all back, however seldom it is used; and what is used comes first.
#[test]
fn a_raised_limit_brings_pieces_back() {
    for uses in [[2, 2], [0, 1], [0, 0]] {
        let mut world = World::new(&[16; 8], 32, 1000);
        let uses = |piece| uses[piece / 4];
        (0..20).for_each(|_| world.second(uses));
        assert_eq!(world.resident(), Bytes(32 * MIB));
        world.device = Bytes(96 * MIB);
        (0..2).for_each(|_| world.second(uses));
        if uses(7) > 0 {
            assert!(world.pieces[4..].iter().all(|piece| piece.is_resident));
        }
        world.device = Bytes(128 * MIB);
        (0..6).for_each(|_| world.second(uses));
        assert_eq!(world.resident(), Bytes(128 * MIB), "{}", uses(7));
    }
}

/// A limit that is lowered and raised again, or memory that cannot move and comes and goes, moves
/// each piece once in ten seconds at most.
#[test]
fn what_has_left_rests_before_it_returns() {
    for period in [1, 3, 10, 30] {
        let mut world = World::new(&[16; 8], 128, 1000);
        for now in 0..120 {
            let taken = if now / period % 2 == 0 { 64 } else { 0 };
            world.device = Bytes((128 - taken) * MIB);
            world.shrink(0);
            world.second(|piece| piece as u64);
        }
        assert!(
            world.moves <= 4 * (1 + 120 / 10),
            "{period}: {}",
            world.moves
        );
    }
}

#[test]
fn pauses_leave_the_bus_to_others() {
    let exchange = Move::Exchange {
        evict: 0,
        promote: 1,
    };
    let ms = |ms: u64| Ns(ms * 1_000_000);
    for (next, took, pause) in [
        (Move::Evict(0), ms(7), ms(1)),
        (Move::Return(0), ms(0), ms(1)),
        (Move::Return(0), ms(7), ms(7)),
        (exchange, ms(7), ms(28)),
        (exchange, Ns::MAX, ms(1000)),
    ] {
        assert_eq!(next.pause(took), pause, "{next:?}");
    }
}

#[test]
fn without_host_memory_only_backed_pieces_leave() {
    let mut world = World::new(&[16; 4], 48, 16);
    (0..30).for_each(|_| world.second(|piece| if piece == 3 { 50 } else { 5 }));
    assert_eq!(world.moves, 0, "no resident piece has host memory");
    world.host = Bytes(32 * MIB);
    (0..30).for_each(|_| world.second(|piece| if piece == 3 { 50 } else { 5 }));
    assert!(world.pieces[3].is_resident && world.moves == 2);
    // Now two pieces have host memory and can change places.
    let out = world.pieces.iter().position(|p| !p.is_resident).unwrap();
    (0..30).for_each(|_| world.second(|piece| if piece == out { 50 } else { 5 }));
    assert!(world.pieces[out].is_resident && !world.pieces[3].is_resident);
    assert_eq!(coldest(&world.pieces, Bytes(0)), Some(out));
}

#[test]
fn a_use_counts_up_to_the_next_argument() {
    let mut pieces = [Piece::new(Bytes(MIB), true, Ns(0)); 6];
    learn(pieces.iter_mut().zip([0, 8, 0, 0, 4, 0]), SECOND);
    let rates: Vec<u64> = pieces.iter().map(|piece| piece.rate).collect();
    assert_eq!(rates, [0, 2000, 2000, 2000, 1000, 1000]);
    assert_eq!(coldest(&pieces, Bytes(0)), None, "none has host memory");
    assert_eq!(coldest(&pieces, Bytes::MAX), Some(0));
}

proptest! {
    /// Whatever is used, limits hold (`World::apply`), and a piece rests between two moves.
    #[test]
    fn limits_hold_and_moves_are_rare(
        sizes in prop::collection::vec(1u64..17, 1..24),
        device in 0u64..200,
        host in 0u64..200,
        uses in prop::collection::vec(prop::collection::vec(0u64..5000, 24), 1..60),
    ) {
        let mut world = World::new(&sizes, device, host);
        for second in &uses {
            world.second(|piece| second[piece]);
        }
        let rests = 1 + uses.len() / 10;
        prop_assert!(world.moves <= world.pieces.len() * rests);
    }

    /// With steady uses, no remote piece is left that is used much more than a resident one that
    /// could make room for it; and then nothing moves.
    #[test]
    fn steady_uses_settle(
        uses in prop::collection::vec(0u64..100, 1..24),
        resident in 1u64..24,
    ) {
        let mut world = World::new(&[16].repeat(uses.len()), resident * 16, 1000);
        // Arguments point to each piece that is used, so a use counts for one piece alone.
        let of = |piece: usize| uses[piece].max(1);
        (0..40).for_each(|_| world.second(of));
        let moves = world.moves;
        (0..40).for_each(|_| world.second(of));
        prop_assert_eq!(world.moves, moves);
        let worth = |resident: bool| {
            let pieces = world.pieces.iter().enumerate();
            pieces.filter(move |(_, p)| p.is_resident == resident).map(|(piece, _)| of(piece))
        };
        if let Some((cold, hot)) = worth(true).min().zip(worth(false).max()) {
            prop_assert!(hot < cold + 2 || hot < cold + cold / 2 + 2, "{cold} {hot}");
        }
    }
}
