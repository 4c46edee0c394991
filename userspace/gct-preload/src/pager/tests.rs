// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the pager on a GPU and a daemon of numbers.

mod ahead;

use super::*;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// A GPU that knows where each piece of 1 MiB is, and a daemon with limits.
struct World {
    limit: Paged,
    charged: Paged,
    refusals: u32,
    /// Whether the memory at an address is on the GPU.
    places: BTreeMap<u64, bool>,
    /// The driver refuses one of so many moves; 0 for none.
    fails: u64,
    moves: u64,
    /// Time that the bus takes for 1 MiB, and that it has taken.
    slowness: u64,
    busy: u64,
    now: u64,
}

impl World {
    fn new(device: u64, host: u64) -> Self {
        Self {
            limit: at(device, host),
            charged: Paged::default(),
            refusals: 0,
            places: BTreeMap::new(),
            fails: 0,
            moves: 0,
            slowness: 0,
            busy: 0,
            now: 0,
        }
    }

    fn resident(&self) -> u64 {
        self.places.values().filter(|on_gpu| **on_gpu).count() as u64 * MIB
    }
}

impl Backend for World {
    fn migrate(&mut self, at: u64, bytes: u64, to_gpu: bool) -> bool {
        self.moves += 1;
        let took = self.slowness * bytes / MIB;
        (self.busy, self.now) = (self.busy + took, self.now + took);
        if self.fails > 0 && self.moves % self.fails == 0 {
            return false;
        }
        for at in (at..at + bytes).step_by(MIB as usize) {
            self.places.insert(at, to_gpu);
        }
        assert!(
            !to_gpu || self.resident() <= self.limit.device,
            "over the limit"
        );
        true
    }

    fn repage(&mut self, paged: Paged, is_last: bool) -> Result<(), Paged> {
        let fits = |now: u64, was: u64, limit: u64| now <= was || now <= limit;
        if fits(paged.device, self.charged.device, self.limit.device)
            && fits(paged.host, self.charged.host, self.limit.host)
        {
            self.charged = paged;
            return Ok(());
        }
        self.refusals += u32::from(is_last);
        Err(self.limit)
    }

    fn room(&mut self) -> Option<Paged> {
        Some(self.limit)
    }
}

fn at(device: u64, host: u64) -> Paged {
    Paged {
        device: device * MIB,
        host: host * MIB,
    }
}

/// Allocates at an address, or returns false.
fn alloc(memory: &mut Memory, world: &mut World, base: u64, mib: u64) -> bool {
    let Some(placed) = memory.place(mib * MIB, world, Ns(0)) else {
        return false;
    };
    assert!(memory.insert(base, Some(base >> 28), placed, world) || world.fails > 0);
    check(memory, world);
    true
}

fn free(memory: &mut Memory, world: &mut World, base: u64) {
    let detached = memory.detach(base).unwrap();
    world
        .places
        .retain(|at, _| *at < base || *at >= base + detached.bytes());
    memory.release(&detached, world);
    check(memory, world);
}

/// Checks that the charge is what the GPU holds, and that each piece is where it is believed to be.
fn check(memory: &Memory, world: &World) {
    assert_eq!(memory.charged, world.charged);
    if world.fails == 0 {
        assert_eq!(memory.charged.device, world.resident());
    }
    let mut first = 0;
    for span in &memory.spans {
        assert_eq!(span.pieces().start, first);
        first = span.pieces().end;
        let mut piece = span.base;
        for (index, state) in memory.pieces[span.pieces()].iter().enumerate() {
            assert_eq!(memory.address(span.first + index), piece);
            let place = world.places.get(&piece);
            assert!(world.fails > 0 || place == Some(&state.is_resident));
            piece += state.bytes.get();
        }
        assert_eq!(piece, span.base + span.bytes);
    }
    assert_eq!((memory.pieces.len(), memory.uses.len()), (first, first));
}

/// An allocation that has gone is uncharged, also when another one has its address already.
#[test]
fn what_has_gone_is_uncharged() {
    let (mut memory, mut world) = (Memory::default(), World::new(96, 48));
    for (base, mib) in [(0x1000_0000, 24), (0x4000_0000, 40), (0x8000_0000, 8)] {
        assert!(alloc(&mut memory, &mut world, base, mib));
    }
    let placed = memory.place(4 * MIB, &mut world, Ns(0)).unwrap();
    assert!(memory.insert(0x4000_0000, Some(99), placed, &mut world));
    memory.sweep(
        |base, number| base == 0x4000_0000 && number != 99,
        &mut world,
    );
    assert_eq!(world.charged, at(24 + 4 + 8, 0));
    memory.sweep(|_, _| false, &mut world);
    world.places.retain(|at, _| {
        *at < 0x4000_0000 || (0x4000_0000..0x4040_0000).contains(at) || *at >= 0x8000_0000
    });
    check(&memory, &world);
    memory.sweep(|_, _| true, &mut world);
    assert_eq!(world.charged, at(0, 0));
    assert!(!memory.has_any());
}

#[test]
fn what_exceeds_the_gpu_is_on_the_host_and_beyond_both_there_is_none() {
    let (mut memory, mut world) = (Memory::default(), World::new(40, 48));
    assert!(alloc(&mut memory, &mut world, 0x1000_0000, 24) && !memory.has_remote());
    assert!(alloc(&mut memory, &mut world, 0x4000_0000, 40));
    // Pieces of 16, 8; 16 on the GPU, 16 and 8 on the host.
    assert_eq!(world.charged, at(40, 24));
    assert!(memory.has_remote());
    assert!(!alloc(&mut memory, &mut world, 0x9000_0000, 25));
    assert_eq!((world.charged, world.refusals), (at(40, 24), 1));
    assert!(alloc(&mut memory, &mut world, 0x8000_0000, 24));
    assert_eq!(world.charged, at(40, 48));
    assert!(!alloc(&mut memory, &mut world, 0x9000_0000, 1));
    for lie in [u64::MAX, 1 << 63, BYTES_MAX.get() + 1] {
        assert!(memory.place(lie, &mut world, Ns(0)).is_none());
    }
    free(&mut memory, &mut world, 0x4000_0000);
    assert_eq!(world.charged, at(24, 24));
    assert!(memory.detach(0x4000_0000).is_none() && memory.detach(0x1000_0001).is_none());
    free(&mut memory, &mut world, 0x8000_0000);
    free(&mut memory, &mut world, 0x1000_0000);
    assert_eq!(world.charged, at(0, 0));
}

/// Moves what pays, as the library does once a second.
fn look(memory: &mut Memory, world: &mut World) {
    let now = Ns(world.now);
    while let Some(next) = memory.look(world, now) {
        if !memory.carry_out(next, world, now) {
            break;
        }
        check(memory, world);
    }
    check(memory, world);
}

/// Runs so many seconds of launches: each pair is an argument and how often it comes in a second.
fn run(memory: &mut Memory, world: &mut World, seconds: u64, launches: &[(u64, u64)]) {
    const STEPS: u64 = 50;
    for _ in 0..seconds * STEPS {
        world.now += SECOND / STEPS;
        for (address, times) in launches {
            (0..times / STEPS).for_each(|_| memory.used(*address));
        }
        if world.now % SECOND == 0 {
            look(memory, world);
        }
    }
}

const A: u64 = 0x1000_0000;
const B: u64 = 0x4000_0000;

#[test]
fn what_is_used_more_changes_places_and_stays() {
    let (mut memory, mut world) = (Memory::default(), World::new(32, 1000));
    assert!(alloc(&mut memory, &mut world, A, 32) && alloc(&mut memory, &mut world, B, 32));
    let moves = world.moves;
    run(&mut memory, &mut world, 30, &[(A, 50), (B, 50)]);
    assert_eq!(world.moves, moves, "equals do not move");
    run(&mut memory, &mut world, 30, &[(A, 50), (B, 200)]);
    assert_eq!(world.moves, moves + 4, "two pieces out and two in");
    assert!(world.places[&B] && !world.places[&A]);
    run(&mut memory, &mut world, 30, &[(A, 50), (B, 200)]);
    assert_eq!(world.moves, moves + 4);
    // Host memory of B stays taken while B is on the GPU.
    assert_eq!(world.charged, at(32, 64));
}

#[test]
fn all_of_both_limits_can_be_allocated_after_pieces_have_moved() {
    let (mut memory, mut world) = (Memory::default(), World::new(32, 48));
    assert!(alloc(&mut memory, &mut world, A, 32) && alloc(&mut memory, &mut world, B, 32));
    run(&mut memory, &mut world, 30, &[(A, 50), (B, 200)]);
    assert_eq!(world.charged, at(32, 48), "a piece of A took what was left");
    assert!(alloc(&mut memory, &mut world, 0x8000_0000, 16), "of 80 MiB");
    assert!(!alloc(&mut memory, &mut world, 0x9000_0000, 1));
    assert_eq!(world.charged, at(32, 48));
}

#[test]
fn memory_that_cannot_move_gets_room() {
    let (mut memory, mut world) = (Memory::default(), World::new(64, 1000));
    assert!(alloc(&mut memory, &mut world, A, 64));
    assert!(
        !memory.make_room(65 * MIB, &mut world, Ns(1)),
        "it has no more"
    );
    assert!(memory.make_room(20 * MIB, &mut world, Ns(1)));
    check(&memory, &world);
    assert_eq!(world.charged, at(32, 32));
    world.limit.host = 40 * MIB;
    assert!(
        !memory.make_room(20 * MIB, &mut world, Ns(1)),
        "no host memory"
    );
    // The rest of the limit is taken by others: the process gives up what it has beyond.
    world.limit = at(10, 1000);
    run(&mut memory, &mut world, 2, &[(A, 50)]);
    assert_eq!(world.charged, at(0, 64));
    world.limit = at(64, 1000);
    run(&mut memory, &mut world, 15, &[(A, 50)]);
    assert_eq!(world.charged, at(64, 64), "and gets it back");
    assert!(!memory.has_remote());
}

/// A limit that is lowered under a program holds within two seconds, with and without launches.
#[test]
fn a_lower_limit_soon_holds() {
    for launches in [&[(A, 50)][..], &[]] {
        let (mut memory, mut world) = (Memory::default(), World::new(1024, 4096));
        assert!(alloc(&mut memory, &mut world, A, 1024));
        run(&mut memory, &mut world, 2, launches);
        assert!(!memory.is_watched());
        for limit in [256, 16, 0] {
            world.limit = at(limit, 4096);
            run(&mut memory, &mut world, 2, launches);
            assert_eq!(world.charged.device, limit * MIB);
        }
    }
}

/// Before anything leaves, launches tell for a second what they use.
#[test]
fn what_is_used_leaves_last() {
    let (mut memory, mut world) = (Memory::default(), World::new(64, 1000));
    assert!(alloc(&mut memory, &mut world, A, 32) && alloc(&mut memory, &mut world, B, 32));
    world.limit = at(32, 1000);
    run(&mut memory, &mut world, 1, &[(A, 50)]);
    assert!(memory.is_watched());
    assert_eq!(world.charged, at(64, 0));
    run(&mut memory, &mut world, 1, &[(A, 50)]);
    assert_eq!(world.charged, at(32, 32));
    assert!(world.places[&A] && !world.places[&B]);
}

/// Checks random allocations, frees, limits and failing moves.
#[test]
fn charges_follow_what_moves() {
    for fails in [0, 3] {
        let (mut memory, mut world) = (Memory::default(), World::new(200, 300));
        let mut random = 1 + fails;
        let mut next = |below: u64| {
            random = u64::wrapping_mul(random, 6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let mut bases = Vec::new();
        for round in 0..600u64 {
            world.fails = fails;
            match next(4) {
                0 => {
                    let base = (round + 1) << 32;
                    if alloc(&mut memory, &mut world, base, 1 + next(60)) {
                        bases.push(base);
                    }
                }
                1 if !bases.is_empty() => {
                    let base = bases.swap_remove(next(bases.len() as u64) as usize);
                    free(&mut memory, &mut world, base);
                }
                2 => drop(memory.make_room(next(80) * MIB, &mut world, Ns(0))),
                _ => {
                    let hot: Vec<_> = bases.iter().map(|base| (*base, 50 * next(20))).collect();
                    run(&mut memory, &mut world, 1 + next(12), &hot);
                }
            }
            check(&memory, &world);
            let free = minus(world.limit, world.charged);
            assert_eq!(
                minus(world.limit, free),
                world.charged,
                "within both limits"
            );
        }
        bases
            .into_iter()
            .for_each(|base| free(&mut memory, &mut world, base));
        assert_eq!(world.charged, at(0, 0));
    }
}

/// A program that is slow because its memory is on the host launches all of a step at once, and
/// then waits for it. Graphs launch nothing that can be seen.
#[test]
fn memory_comes_back_whatever_launches_say() {
    for step in [Some(1), Some(2), Some(20), None] {
        let (mut memory, mut world) = (Memory::default(), World::new(16, 4096));
        assert!(alloc(&mut memory, &mut world, A, 1024));
        run(&mut memory, &mut world, 10, &[]);
        world.limit = at(1024, 4096);
        for second in 0..6 {
            if step.is_some_and(|step| second % step == 0) {
                (0..100).for_each(|_| memory.used(A));
            }
            run(&mut memory, &mut world, 1, &[]);
        }
        assert_eq!(world.charged, at(1024, 1008), "{step:?}");
        assert!(!memory.is_watched());
    }
}

/// Another process of the group makes room for memory that cannot move. This one leaves it alone,
/// and so does one that has made room itself.
#[test]
fn room_for_others_is_not_taken() {
    let (mut memory, mut world) = (Memory::default(), World::new(64, 4096));
    assert!(alloc(&mut memory, &mut world, A, 128));
    run(&mut memory, &mut world, 10, &[(A, 50)]);
    for _ in 0..20 {
        world.limit = at(96, 4096);
        run(&mut memory, &mut world, 1, &[(A, 50)]);
        world.limit = at(64, 4096);
        run(&mut memory, &mut world, 1, &[(A, 50)]);
        assert_eq!(world.charged, at(64, 64));
    }
    let now = Ns(world.now);
    assert!(memory.make_room(16 * MIB, &mut world, now));
    run(&mut memory, &mut world, 1, &[(A, 50)]);
    assert_eq!(world.charged, at(48, 80), "it is not wanted");
    run(&mut memory, &mut world, 1, &[(A, 50)]);
    assert_eq!(world.charged, at(64, 80), "what was not moved returns");
}

/// Looks and moves as the library's thread does, and counts a use of each address whenever it
/// looks, until so many MiB are on the GPU or so many seconds have passed. Returns the time that it
/// took.
fn pace(memory: &mut Memory, world: &mut World, used: &[u64], until: u64, seconds: u64) -> u64 {
    let begun = world.now;
    while world.charged.device < until * MIB && world.now - begun < seconds * SECOND {
        used.iter().for_each(|address| memory.used(*address));
        let began = Ns(world.now);
        let next = memory.look(world, began);
        let moved = next.filter(|next| memory.carry_out(*next, world, began));
        let took = Ns(world.now) - began;
        world.now += moved.map_or(SECOND, |moved| moved.pause(took).get());
        check(memory, world);
    }
    world.now - begun
}

/// Beside work the bus moves 2.5 GB/s, and 36 GB/s without.
#[test]
fn memory_comes_back_soon_and_leaves_half_of_the_bus() {
    for (slowness, used, seconds) in [
        (420_000, &[A][..], 7),
        (420_000, &[], 11),
        (29_000, &[A], 4),
        (29_000, &[], 8),
    ] {
        let (mut memory, mut world) = (Memory::default(), World::new(1024, 8192));
        assert!(alloc(&mut memory, &mut world, A, 6144));
        pace(&mut memory, &mut world, used, u64::MAX / MIB, 10);
        assert_eq!(world.charged, at(1024, 5120));
        (world.limit, world.slowness) = (at(6144, 8192), slowness);
        let took = pace(&mut memory, &mut world, used, 6144, 60);
        assert!(took <= seconds * SECOND, "{slowness} {used:?}: {took}");
        // Nothing moves before the second look.
        assert!(world.busy <= (took - SECOND) / 2, "{slowness} {used:?}");
    }
}

#[test]
fn exchanges_take_a_fifth_of_the_bus() {
    const FAR: u64 = 1 << 40;
    let (mut memory, mut world) = (Memory::default(), World::new(4096, 8192));
    assert!(alloc(&mut memory, &mut world, A, 4096) && alloc(&mut memory, &mut world, FAR, 4096));
    world.slowness = 420_000;
    let begun = world.now;
    while !world.places.range(FAR..).all(|(_, on_gpu)| *on_gpu) {
        pace(&mut memory, &mut world, &[FAR], u64::MAX / MIB, 1);
        assert!(world.now - begun < 60 * SECOND, "{}", world.busy);
    }
    assert_eq!(world.charged, at(4096, 8192));
    assert!(world.busy <= (world.now - begun) / 5);
}
