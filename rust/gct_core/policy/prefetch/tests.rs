// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests what moves ahead, in a GPU that uses pieces where they are while others move.

use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const PIECE: Bytes = Bytes(16 << 20);
/// Times of a GPU of the H100's kind, for a piece: an exchange, and a use across the bus that reads
/// it once and ten times. On the GPU a use takes a part of that.
const EXCHANGE: Ns = Ns(1_800_000);
const LOCAL: u64 = 25;
const ONCE: Ns = Ns(330_000);
const TENFOLD: Ns = Ns(3_300_000);

/// A use of a piece: which, and how long it takes across the bus.
type Access = (usize, Ns);

/// A process that repeats a step. Pieces fit up to `capacity`.
struct World {
    pieces: Vec<Piece>,
    uses: Vec<Use>,
    step: Vec<Access>,
    capacity: usize,
    price: Ns,
    host: Bytes,
    now: Ns,
    moves: usize,
}

impl World {
    /// The pieces are on the GPU in the order in which they were allocated, while they fit.
    fn new(count: usize, capacity: usize, step: &[Access]) -> Self {
        let piece = |index| Piece::new(PIECE, index < capacity, Ns(0));
        Self {
            pieces: (0..count).map(piece).collect(),
            uses: step.iter().map(|(piece, _)| Use::new(*piece)).collect(),
            step: step.to_vec(),
            capacity,
            price: EXCHANGE,
            host: Bytes::MAX,
            now: Ns(0),
            moves: 0,
        }
    }

    fn free(&self) -> Bytes {
        let resident = self.pieces.iter().filter(|piece| piece.is_resident).count();
        assert!(resident <= self.capacity, "over the limit");
        PIECE * (self.capacity - resident) as u64
    }

    /// Makes the moves before the use with this index.
    fn prepare(&mut self, at: usize) {
        let mut next = vec![Next::default(); self.pieces.len()];
        let before = |world: &Self, next: &mut [Next]| {
            let times = (world.price, world.now);
            let room = (world.free(), world.host);
            super::before(at..at + 1, &world.pieces, &world.uses, next, room, times)
        };
        while let Some(made) = before(self, &mut next) {
            let comes = match made {
                Move::Exchange { evict, promote } => {
                    assert!(self.step[at].0 != evict, "it is used");
                    self.pieces[evict].moved(false, self.now);
                    promote
                }
                Move::Return(comes) => comes,
                Move::Evict(_) => panic!("nothing is over a limit"),
            };
            self.pieces[comes].moved(true, self.now);
            self.free();
            self.now += self.price;
            self.moves += 1;
        }
    }

    /// Runs a step. Returns its time.
    fn step(&mut self, moves: bool) -> Ns {
        let begun = self.now;
        for at in 0..self.step.len() {
            if moves {
                self.prepare(at);
            }
            let (piece, across) = self.step[at];
            let is_remote = !self.pieces[piece].is_resident;
            let took = match is_remote {
                true => across,
                false => across / LOCAL,
            };
            self.now += took;
            self.uses[at].was_remote = is_remote;
            learn(&mut self.uses[at..=at], took);
        }
        self.now - begun
    }

    /// Runs steps until all is learned. Returns the time of a step after that, and the moves.
    fn settled(&mut self) -> (Ns, usize) {
        for _ in 0..20 {
            self.step(true);
        }
        let (begun, moves) = (self.now, self.moves);
        for _ in 0..10 {
            self.step(true);
        }
        ((self.now - begun) / 10, (self.moves - moves) / 10)
    }
}

/// Returns the moves of a step by Belady's rule: each use finds its piece on the GPU, and the piece
/// leaves whose next use is last.
fn belady(count: usize, capacity: usize, step: &[Access]) -> usize {
    let mut resident: Vec<usize> = (0..count.min(capacity)).collect();
    let mut moves = 0;
    for round in 0..20 {
        for (at, (used, _)) in step.iter().enumerate() {
            if resident.contains(used) {
                continue;
            }
            let order = |piece: usize| {
                let mut ahead = step[at..].iter().chain(&step[..at]);
                ahead.position(|used| used.0 == piece).unwrap_or(usize::MAX)
            };
            let far = (0..resident.len()).max_by_key(|slot| order(resident[*slot]));
            resident[far.unwrap()] = *used;
            moves += usize::from(round >= 10);
        }
    }
    moves / 10
}

/// An inference: each weight once a step, in turns.
fn inference(count: usize, across: Ns) -> Vec<Access> {
    (0..count).map(|piece| (piece, across)).collect()
}

/// A training: layers forward, with their activations, and backward, with their gradients; then the
/// optimizer, elementwise, with two pieces of state for each layer.
fn training(layers: usize) -> Vec<Access> {
    let (weight, kept, gradient, state) = (0, layers, 2 * layers, 3 * layers);
    let forward = (0..layers).flat_map(|l| [(weight + l, TENFOLD), (kept + l, TENFOLD)]);
    let backward = (0..layers).rev();
    let backward =
        backward.flat_map(|l| [kept + l, weight + l, gradient + l].map(|piece| (piece, TENFOLD)));
    let updates = (0..layers).flat_map(|l| {
        let all = [gradient + l, state + 2 * l, state + 2 * l + 1, weight + l];
        all.map(|piece| (piece, ONCE))
    });
    forward.chain(backward).chain(updates).collect()
}

/// What a launch used once is no reason to come, and what it used once before no reason to leave.
#[test]
fn what_is_used_once_changes_no_places() {
    let now = Ns(100_000_000_000);
    let pieces = [true, false].map(|is_resident| Piece::new(PIECE, is_resident, Ns(0)));
    let made = |resident: bool, remote: bool| {
        let mut uses = [Use::new(0), Use::new(1), Use::new(1)];
        uses[0].is_repeated = resident;
        uses[1..].iter_mut().for_each(|of| of.is_repeated = remote);
        let room = (Bytes(0), Bytes::MAX);
        let mut next = vec![Next::default(); 2];
        before(2..3, &pieces, &uses, &mut next, room, (EXCHANGE, now))
    };
    let exchange = Move::Exchange {
        evict: 0,
        promote: 1,
    };
    for resident in [false, true] {
        assert_eq!(made(resident, true), Some(exchange));
        assert_eq!(made(resident, false), None);
    }
}

#[test]
fn a_step_is_found_behind_its_loops() {
    let layer = [7, 7, 7, 9];
    let mut step: Vec<u64> = (0..10).flat_map(|_| layer).collect();
    step.extend([1, 2, 3, 7, 7, 7, 7, 7]);
    let mut scratch = vec![0; 4096];
    for begun in [0, 5, 40, 47] {
        let log: Vec<u64> = (0..3 * step.len())
            .map(|at| step[(begun + at) % step.len()])
            .collect();
        assert_eq!(period(&log, &mut scratch), Some(step.len()), "{begun}");
    }
    let steps = step.repeat(3);
    assert_eq!(
        period(&steps, &mut scratch[..40]),
        Some(1),
        "as far as it looks"
    );
    assert_eq!(period(&[1, 2, 3, 4], &mut scratch), None);
    assert_eq!(period(&[5; 9], &mut scratch), Some(1));
    assert_eq!(period(&[], &mut scratch), None);
    assert_eq!(period(&steps, &mut []), None);
}

/// What is read ten times across the bus comes before its use instead. No rate tells the pieces
/// apart, so by rates alone nothing moves.
#[test]
fn an_inference_streams_what_does_not_fit() {
    let step = inference(150, TENFOLD);
    let mut world = World::new(150, 80, &step);
    let fixed = world.step(false);
    assert_eq!(fixed, TENFOLD / LOCAL * 80 + TENFOLD * 70);
    let (time, moves) = world.settled();
    assert!(time * 100 <= fixed * 65, "{time:?} of {fixed:?}");
    assert!(moves <= belady(150, 80, &step) * 12 / 10, "{moves}");
}

/// The state of the optimizer is read once, so it stays on the host.
#[test]
fn a_training_moves_what_costs_most() {
    let step = training(40);
    let mut world = World::new(200, 60, &step);
    // The state lies on the host, as rates have it.
    let fixed = world.step(false);
    let (time, moves) = world.settled();
    assert!(time * 100 <= fixed * 90, "{time:?} of {fixed:?}");
    assert!(moves <= belady(200, 60, &step) * 12 / 10, "{moves}");
    let state = &world.pieces[120..];
    assert!(state.iter().all(|piece| !piece.is_resident));
}

/// What is used now leaves for nothing, and nothing comes that is used as cheaply where it is.
#[test]
fn what_costs_little_stays_where_it_is() {
    let step = inference(150, ONCE);
    let mut world = World::new(150, 80, &step);
    world.settled();
    let moves = world.moves;
    world.settled();
    assert_eq!(world.moves, moves);
}

/// Where moves are slow, those pieces are on the GPU that cost most elsewhere, and stay there. What
/// the step does not use has left.
#[test]
fn places_change_for_good_where_moves_are_slow() {
    let mut step = inference(60, TENFOLD);
    step.extend((60..120).map(|piece| (piece, ONCE)));
    // The first 40 pieces are used no more.
    step.iter_mut().for_each(|(piece, _)| *piece += 40);
    let mut world = World::new(160, 90, &step);
    world.price = EXCHANGE * 9;
    let fixed = world.step(false);
    for _ in 0..10 {
        world.settled();
    }
    assert!(world.pieces[40..100].iter().all(|piece| piece.is_resident));
    assert!(world.pieces[..40].iter().all(|piece| !piece.is_resident));
    let moves = world.moves;
    let (time, _) = world.settled();
    assert_eq!(world.moves, moves);
    assert!(time * 100 <= fixed * 40, "{time:?} of {fixed:?}");
}

/// All that a step uses comes while there is room, whatever it costs.
#[test]
fn free_room_is_used() {
    let step = inference(60, ONCE);
    let mut world = World::new(60, 30, &step);
    world.settled();
    world.capacity = 60;
    world.settled();
    assert!(world.pieces.iter().all(|piece| piece.is_resident));
}

/// What was moved lately and is used takes the place of what is not used, for good.
#[test]
fn what_is_not_used_leaves_for_what_has_moved_lately() {
    let step: Vec<Access> = (40..100).map(|piece| (piece, ONCE)).collect();
    let mut world = World::new(100, 60, &step);
    world.now = Ns(20_000_000_000);
    world.pieces[40..]
        .iter_mut()
        .for_each(|piece| piece.moved(piece.is_resident, world.now));
    for _ in 0..3 {
        world.step(true);
    }
    assert!(world.pieces[40..].iter().all(|piece| piece.is_resident));
}

proptest! {
    /// Whatever a program repeats and whatever it pretends that uses take, the limit holds, and no
    /// piece leaves that the launch uses (`World::prepare`).
    #[test]
    fn no_step_exceeds_the_limit(
        count in 1_usize..40,
        capacity in 0_usize..40,
        step in prop::collection::vec((0_usize..40, 0_u64..20_000_000), 1..80),
        host in 0_u64..20,
    ) {
        let step: Vec<Access> = step.iter().map(|(piece, ns)| (piece % count, Ns(*ns))).collect();
        let mut world = World::new(count, capacity, &step);
        world.host = PIECE * host;
        for _ in 0..20 {
            world.step(true);
        }
    }

    /// Wrong indices, lengths and positions, and the largest times, move nothing that is not there.
    #[test]
    fn wrong_numbers_do_no_harm(
        pieces in prop::collection::vec(any::<bool>(), 0..20),
        step in prop::collection::vec((0_usize..30, any::<u64>(), any::<bool>()), 0..30),
        from in 0_usize..40,
        room in 0_usize..30,
        price in any::<u64>(),
        device in any::<u64>(),
        host in any::<u64>(),
    ) {
        let new = |resident: &bool| Piece::new(PIECE, *resident, Ns(0));
        let pieces: Vec<Piece> = pieces.iter().map(new).collect();
        let mut uses: Vec<Use> = step.iter().map(|(piece, ..)| Use::new(*piece)).collect();
        for (at, (_, took, was_remote)) in step.iter().enumerate() {
            uses[at].was_remote = *was_remote;
            learn(&mut uses[..=at], Ns(*took));
        }
        let mut next = vec![Next::default(); room];
        let launch = from..from + 1;
        let (room, times) = ((Bytes(device), Bytes(host)), (Ns(price), Ns(price)));
        match before(launch, &pieces, &uses, &mut next, room, times) {
            Some(Move::Exchange { evict, promote }) => {
                prop_assert!(pieces[evict].is_resident && !pieces[promote].is_resident);
            }
            Some(Move::Return(at)) => {
                prop_assert!(!pieces[at].is_resident && pieces[at].bytes <= Bytes(device));
            }
            other => prop_assert_eq!(other, None),
        }
    }

    /// What is found repeats, twice at least, and the search is bounded by its scratch.
    #[test]
    fn what_is_found_repeats(log in prop::collection::vec(0_u64..3, 0..60), looks in 0_usize..80) {
        if let Some(period) = period(&log, &mut vec![0; looks]) {
            prop_assert!(2 * period <= log.len().min(looks));
            let end: Vec<u64> = log.iter().rev().take(2 * period).copied().collect();
            prop_assert_eq!(&end[..period], &end[period..]);
        }
    }
}
