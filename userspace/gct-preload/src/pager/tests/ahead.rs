// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests moves before the launches of a step.

use super::*;

/// Bytes of the pieces, which is also the distance of their addresses.
const P: u64 = PIECE;

/// Another allocation.
const FAR: u64 = 1 << 40;

/// A program that launches, and a GPU that follows it at once.
struct Bed {
    memory: Memory,
    world: World,
    launches: u64,
    exchanges: u64,
}

impl Bed {
    /// Allocates so many pieces at [`A`], of which `room` fit.
    fn new(pieces: u64, room: u64) -> Self {
        let (mut memory, mut world) = (Memory::default(), World::new(room * 16, 1 << 20));
        assert!(alloc(&mut memory, &mut world, A, pieces * 16));
        assert!(memory.look(&mut world, Ns(1)).is_none());
        Self {
            memory,
            world,
            launches: 0,
            exchanges: 0,
        }
    }

    /// Launches one function with these arguments, as [`Bed::launch_of`].
    fn launch(&mut self, words: &[u64]) -> bool {
        self.launch_of(1, words)
    }

    /// Launches a function with these arguments. The GPU reads what is remote ten times. Returns
    /// whether all was on the GPU.
    fn launch_of(&mut self, function: u64, words: &[u64]) -> bool {
        let launch: Vec<u64> = core::iter::once(&function).chain(words).copied().collect();
        self.memory.launched([&launch[..]].into_iter());
        let (mut moves, number) = (0, self.launches);
        let now = Ns(self.world.now);
        while let Some(next) = self.memory.before_launch(now) {
            assert!(self.memory.carry_out(next, &mut self.world, now));
            check(&self.memory, &self.world);
            moves += 1;
        }
        self.memory.launches();
        self.memory
            .reached(number..number, moves, Ns(1_000_000 * moves));
        let place = |word: &u64| self.world.places[&(word / MIB * MIB)];
        let is_resident = words.iter().all(place);
        let took = match is_resident {
            true => 160_000,
            false => 4_000_000,
        };
        (self.launches, self.exchanges) = (number + 1, self.exchanges + moves);
        self.world.now += took + 1_000_000 * moves;
        self.memory.reached(number..number + 1, 0, Ns(took));
        is_resident
    }

    /// Launches once for each of 40 pieces. Returns how many found theirs on the GPU.
    fn step(&mut self) -> u64 {
        let launches = (0..40).map(|piece| self.launch(&[A + piece * P + 4096]));
        launches.map(u64::from).sum()
    }

    fn is_followed(&self) -> bool {
        self.memory.is_followed(Ns(self.world.now))
    }

    fn steps(&mut self, count: u64) -> u64 {
        (0..count).map(|_| self.step()).sum()
    }
}

/// Of 40 pieces 20 fit. By rates alone 20 launches of a step find theirs on the host.
#[test]
fn pieces_come_before_the_launches_of_a_step() {
    let mut bed = Bed::new(40, 20);
    assert!(!bed.is_followed());
    bed.steps(8);
    assert!(bed.is_followed());
    let before = bed.exchanges;
    let found = bed.steps(10);
    assert!(found >= 390, "{found} of 400");
    let exchanges = (bed.exchanges - before) / 10;
    assert!((18..=24).contains(&exchanges), "{exchanges} a step");
}

/// A step that differs now and then is followed; a program that goes on to do something else is
/// not.
#[test]
fn a_step_is_found_again() {
    let mut bed = Bed::new(40, 20);
    bed.steps(8);
    for round in 0..20 {
        if round % 3 == 0 {
            bed.launch(&[A + 7 * P, A + 9 * P]);
        }
        assert!(bed.step() >= 30, "{round}");
        assert!(bed.is_followed(), "{round}");
    }
    let mut random = 1_u64;
    for _ in 0..400 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        bed.launch(&[A + (random >> 40) % 40 * P, A + (random >> 50) % 40 * P]);
    }
    assert!(!bed.is_followed());
    assert!(bed.memory.before_launch(Ns(bed.world.now)).is_none());
    bed.steps(12);
    assert!(bed.is_followed());
}

/// A step is found although some of its launches use other memory each time, and lists of addresses
/// end with what was there before. Where other memory is used from a step on, that comes.
#[test]
fn a_step_is_found_by_its_functions() {
    let mut bed = Bed::new(40, 20);
    let mut found = 0;
    // One of three, and no run repeats at once: the differences of the Thue-Morse sequence.
    let odd = |round: u64| u64::from(round.count_ones() % 2);
    let other = |round| 37 + odd(round + 1) - odd(round);
    for round in 0..30 {
        for at in 0..30 {
            let piece = match at {
                7 | 19 => other(round),
                // Another one for good.
                0..5 if round >= 12 => 30 + at,
                _ => at,
            };
            let words = [A + piece * P, A + (round * 7 + at) % 36 * P];
            bed.launch_of(at % 12 + at / 28 * 100, &words);
            let is_found = bed.world.places[&words[0]];
            found += u64::from(is_found && round >= 20 && at < 5);
        }
        assert!(round < 8 || bed.is_followed(), "{round}");
    }
    assert!(found >= 40, "{found} of 50");
}

/// Launches of one function, whose memory does not repeat, are no step.
#[test]
fn one_function_is_no_step() {
    let mut bed = Bed::new(40, 20);
    let mut random = 1_u64;
    let mut followed = 0;
    for _ in 0..600 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        bed.launch(&[A + (random >> 40) % 40 * P]);
        followed += u64::from(bed.is_followed());
    }
    assert!(followed < 200, "{followed}");
    bed.steps(12);
    assert!(bed.is_followed());
    assert!(bed.step() >= 30);
}

/// Launches whose pieces are on the GPU decide nothing, but once in a step. To look at all of a
/// step takes longer than to launch.
#[test]
fn launches_on_the_gpu_decide_once_in_a_step() {
    let mut bed = Bed::new(24, 20);
    for round in 0..20 {
        let before = bed.memory.ahead.decisions;
        // Of 60 launches ten use the pieces of which four do not fit.
        for at in 0..60 {
            let piece = if at < 50 { at % 14 } else { at - 36 };
            bed.launch(&[A + piece * P]);
        }
        let decisions = bed.memory.ahead.decisions - before;
        assert!(round < 8 || decisions <= 20, "{decisions}");
    }
    assert!(bed.is_followed());
}

/// A loop over layers repeats its launches, and no weights: nothing comes for a layer that is over,
/// and what is used elsewhere stays.
#[test]
fn a_loop_over_layers_moves_no_weights() {
    let mut bed = Bed::new(40, 40);
    assert!(alloc(&mut bed.memory, &mut bed.world, FAR, 40 * 16));
    let mut moved = 0;
    for round in 0..4 {
        let before = bed.exchanges;
        for layer in 0..10 {
            for at in 0..4 {
                bed.launch_of(100 + at, &[FAR + (4 * layer + at) * P]);
            }
        }
        moved += if round > 0 { bed.exchanges - before } else { 0 };
        // Another part, with room for all that it uses. Both are too long for one step.
        for step in 0..280 {
            for at in 0..30 {
                let found = bed.launch_of(at, &[A + at * P]);
                assert!(found || step < 4, "{round} {step} {at}");
            }
        }
        bed.world.now += 11 * SECOND;
    }
    assert_eq!(moved, 0);
}

/// Pieces that the step does not use change places by rates meanwhile.
#[test]
fn what_no_step_uses_changes_places_by_rates() {
    let mut bed = Bed::new(20, 30);
    for base in [FAR, 2 * FAR] {
        assert!(alloc(&mut bed.memory, &mut bed.world, base, 10 * 16));
    }
    for round in 0..40 {
        for _ in 0..12 {
            for at in 0..20 {
                bed.launch_of(at, &[A + at * P]);
            }
        }
        // In between, one three times as often as the other, which came first.
        for (at, base) in [FAR, 2 * FAR, 2 * FAR, 2 * FAR].into_iter().enumerate() {
            bed.launch_of(1000 + 10 * round + at as u64, &[base]);
        }
        bed.world.now += SECOND;
        let now = Ns(bed.world.now);
        while let Some(next) = bed.memory.look(&mut bed.world, now) {
            assert!(bed.memory.carry_out(next, &mut bed.world, now));
        }
    }
    let found = |base| {
        (0..10)
            .filter(|at| bed.world.places[&(base + at * P)])
            .count()
    };
    assert_eq!((found(FAR), found(2 * FAR)), (0, 10));
    assert_eq!((found(A), found(A + 10 * P)), (10, 10));
}

/// Allocations that come and go change the indices of pieces, and not what the step names.
#[test]
fn a_step_outlives_other_allocations() {
    let mut bed = Bed::new(40, 20);
    bed.steps(8);
    for round in 0..10 {
        assert!(alloc(&mut bed.memory, &mut bed.world, 0x100_0000, 32));
        assert!(bed.step() >= 30, "{round}");
        free(&mut bed.memory, &mut bed.world, 0x100_0000);
        assert!(bed.step() >= 30, "{round}");
        assert!(bed.is_followed(), "{round}");
    }
    // What it names is gone.
    free(&mut bed.memory, &mut bed.world, A);
    assert!(bed.memory.before_launch(Ns(bed.world.now)).is_none());
}

/// Nothing moves into room that was made for memory that cannot move, and a lower limit
/// goes before what comes.
#[test]
fn limits_go_before_what_comes() {
    let mut bed = Bed::new(40, 20);
    bed.steps(8);
    let now = Ns(bed.world.now);
    assert!(bed.memory.make_room(4 * P, &mut bed.world, now));
    bed.world.limit.device -= 4 * P;
    let exchanges = bed.exchanges;
    bed.step();
    assert_eq!(bed.exchanges, exchanges, "rests");
    bed.world.now += 3 * SECOND;
    bed.world.limit.device -= 4 * P;
    look(&mut bed.memory, &mut bed.world);
    assert_eq!(bed.world.charged.device, 12 * P);
    bed.step();
    assert!(bed.exchanges > exchanges);
    assert!(bed.world.charged.device <= 12 * P);
}

/// Launches that were not seen end the step. What comes after them has the numbers of the events.
#[test]
fn what_was_not_seen_ends_the_step() {
    let mut bed = Bed::new(40, 20);
    bed.steps(8);
    bed.launches += 17;
    bed.memory.lost(bed.launches);
    assert!(!bed.is_followed());
    bed.steps(12);
    assert!(bed.is_followed());
    assert!(bed.step() >= 30);
}
