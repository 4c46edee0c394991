// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays a controller against services whose p99 depends on the level.

use super::*;

/// A service: 100 requests a second, two in a hundred of which take `tail[level]`, and the others
/// a tenth of that.
struct World {
    controller: Controller,
    tail: [u64; LEVELS as usize + 1],
    level: u8,
    now: Ns,
    /// How often the level has changed.
    changes: u32,
}

impl World {
    fn new(goal: u64, tail: [u64; LEVELS as usize + 1]) -> Self {
        let now = Ns(1 << 40);
        Self {
            controller: Controller::new(Us(goal), now),
            tail,
            level: 0,
            now,
            changes: 0,
        }
    }

    fn look(&mut self, ended: &Histogram, open: Ns) -> Verdict {
        self.now += LOOK_EVERY;
        let verdict = self.controller.look(ended, open, self.now);
        let moved = verdict.level != self.level;
        let back = verdict.level < self.level;
        assert!(
            back || verdict.level - self.level <= 1,
            "one step at a time"
        );
        self.changes += u32::from(moved);
        self.level = verdict.level;
        verdict
    }

    /// Runs for so many seconds.
    fn run(&mut self, seconds: u32) -> Verdict {
        let mut last = Verdict::default();
        for _ in 0..seconds {
            let tail = self.tail[usize::from(self.level)];
            let mut ended = Histogram::NEW;
            for at in 0..100 {
                ended.count_one(Us(if at < 2 { tail } else { tail / 10 }));
            }
            last = self.look(&ended, Ns(0));
        }
        last
    }
}

#[test]
fn the_least_level_that_keeps_the_goal_is_found_and_kept() {
    let mut world = World::new(1_000, [5_000, 2_000, 900, 800, 800]);
    let verdict = world.run(20);
    assert_eq!((verdict.level, verdict.met), (2, true));
    assert!(verdict.p99 >= Us(900) && verdict.p99 <= Us(1_013));
    assert_eq!(world.run(1_000).level, 2);
    assert_eq!(world.changes, 2);
}

#[test]
fn nobody_is_pressed_while_the_goal_is_kept() {
    let mut world = World::new(1_000, [900, 10, 10, 10, 10]);
    let verdict = world.run(500);
    assert_eq!((verdict.level, verdict.met, world.changes), (0, true, 0));
    assert_eq!(verdict.requests, 50_000);
}

/// A queue grows while too little is pressed, and takes a while to go. What is tried costs less
/// than the goal allows, also in the long run.
#[test]
fn a_step_down_that_was_wrong_is_paid_for_by_requests() {
    let mut world = World::new(1_000, [0; 5]);
    let (mut queue, mut missed, mut tries) = (0_u32, 0, 0);
    const LOOKS: u64 = 20_000;
    for look in 0..LOOKS {
        let before = world.level;
        queue = if before == 0 {
            5
        } else {
            queue.saturating_sub(1)
        };
        let mut ended = Histogram::NEW;
        (0..100).for_each(|_| ended.count_one(Us(if queue > 0 { 5_000 } else { 300 })));
        world.look(&ended, Ns(0));
        if look > 100 {
            missed += ended.over(Us(1_000));
            tries += u32::from(world.level < before);
        }
    }
    assert!(missed * 100 <= LOOKS * 100, "{missed}");
    assert!((10..=40).contains(&tries), "{tries}");
}

/// An owner with few requests has its neighbours pressed for an hour at most.
#[test]
fn a_debt_of_rare_requests_ends() {
    let mut world = World::new(1_000, [0; 5]);
    let of = |count, time| {
        let mut ended = Histogram::NEW;
        (0..count).for_each(|_| ended.count_one(Us(time)));
        ended
    };
    let mut changed = 0;
    while world.level == 0 {
        world.look(&of(2_000, 5_000), Ns(0));
    }
    while world.level > 0 && changed < 4_000 {
        world.look(&of(u32::from(changed % 10 == 0), 300), Ns(0));
        changed += 1;
    }
    assert!((3_000..=3_700).contains(&changed), "{changed}");
}

#[test]
fn others_get_everything_back_when_there_is_room() {
    let mut world = World::new(1_000, [5_000, 4_000, 3_000, 900, 300]);
    assert_eq!(world.run(30).level, 3);
    world.tail = [300; 5];
    assert_eq!(world.run(60).level, 0);
    world.tail = [5_000, 300, 300, 300, 300];
    assert_eq!(world.run(5).level, 1, "and it is pressed again");
}

#[test]
fn what_does_not_help_is_taken_back() {
    let mut world = World::new(1_000, [5_000; 5]);
    let verdict = world.run(20);
    assert_eq!(
        (verdict.level, verdict.cannot, verdict.met),
        (0, true, false)
    );
    // Tried again, and less and less often.
    world.run(2_000);
    world.changes = 0;
    let seconds = 8 * 2 * (RETRY_MAX + u32::from(LEVELS) + 2);
    assert!(world.run(seconds).cannot);
    let tries = world.changes / (u32::from(LEVELS) + 1);
    assert!((5..=9).contains(&tries), "{tries}");
}

#[test]
fn the_least_of_the_levels_that_help_as_much_is_kept() {
    let mut world = World::new(1_000, [9_000, 3_000, 2_900, 2_900, 2_800]);
    let verdict = world.run(20);
    assert_eq!((verdict.level, verdict.cannot), (1, true));
    world.tail = [9_000, 600, 600, 600, 600];
    let verdict = world.run(4);
    assert_eq!((verdict.cannot, verdict.met), (false, true));
}

/// No request of a service ends that gets nothing done.
#[test]
fn a_request_that_does_not_end_counts() {
    let mut world = World::new(1_000, [0; 5]);
    for second in 1..=3 {
        world.look(&Histogram::NEW, LOOK_EVERY * second);
    }
    assert_eq!(world.level, 1);
}

#[test]
fn a_silent_service_presses_nobody_for_long() {
    let mut world = World::new(1_000, [5_000, 900, 900, 900, 900]);
    assert_eq!(world.run(10).level, 1);
    for _ in 0..60 {
        world.look(&Histogram::NEW, Ns(0));
    }
    assert_eq!(world.level, 0);
}

#[test]
fn another_goal_keeps_the_level() {
    let mut world = World::new(1_000, [5_000, 2_000, 900, 800, 800]);
    world.run(20);
    world.controller.set_goal(Us(100_000), world.now);
    assert_eq!(world.run(1).level, 2);
    assert_eq!(world.run(30).level, 0);
}
