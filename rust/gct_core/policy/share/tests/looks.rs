// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests single looks of a process at its rivals.

use super::*;

/// A process and its rivals, which are siblings.
struct Seen {
    turns: Turns,
    rivals: Vec<Rival>,
    now: Ns,
}

impl Seen {
    fn new(rivals: usize, apart: bool) -> Self {
        let competes = Relation {
            competes: true,
            sibling: true,
            ..Relation::default()
        };
        let mut turns = Turns::default();
        turns.set_apart(apart);
        Self {
            turns,
            rivals: vec![Rival::new(competes); rivals],
            now: MS * 1_000,
        }
    }

    /// Looks after `us` microseconds at what the rivals show. Returns whether the process may
    /// release.
    fn look(&mut self, us: u64, signs: &[Sign]) -> bool {
        self.now += Ns(1_000 * us);
        for (rival, sign) in self.rivals.iter_mut().zip(signs) {
            rival.see(*sign, true, self.now);
        }
        let share = Share::NONE;
        self.turns.look(&share, &mut self.rivals, self.now);
        self.turns.contend(&share, &self.rivals);
        self.turns.may_release(&share, &self.rivals, Ns(0))
    }
}

fn sign(at: Virtual, contends_until: Ns, runs: bool) -> Sign {
    Sign {
        at,
        contends_until,
        runs,
        ..Sign::default()
    }
}

/// Checks two that begin at once: apart, one of them stops.
#[test]
fn of_two_that_run_apart_one_stops() {
    let zero = Virtual::default();
    for apart in [true, false] {
        let mut seen = Seen::new(1, apart);
        assert!(seen.look(0, &[Sign::default()]));
        seen.turns.end(Work::Runs);
        let behind = [sign(zero, Ns::MAX, true)];
        let goes_on = [seen.look(100, &behind), seen.look(100, &behind)];
        assert_eq!(goes_on[1], !apart, "{apart}");
    }
}

/// Checks that several that wait for a free GPU do not begin at once.
#[test]
fn each_that_is_further_behind_has_its_time_to_begin() {
    let zero = Virtual::default();
    let mut seen = Seen::new(3, true);
    assert!(seen.look(0, &[Sign::default(); 3]));
    seen.turns.end(Work::Runs);
    let behind = [sign(zero, Ns::MAX, false); 3];
    seen.look(1_000, &behind);
    seen.turns.end(Work::Waits);
    let mut waited = 0;
    while !seen.look(10, &behind) {
        waited += 10;
        seen.turns.end(Work::Waits);
        assert!(waited < 1_000, "it waits without end");
    }
    let least = 3 * HANDOVER.get() / 1_000 - 20;
    assert!(waited >= least, "{waited} us");
}

/// Checks that the work of an earlier rank does not end a turn, and forgives no lead.
#[test]
fn an_interrupted_turn_goes_on() {
    let zero = Virtual::default();
    let mut seen = Seen::new(1, true);
    let waits = [sign(zero, Ns::MAX, false)];
    let keeps = [sign(zero, Sign::KEEPS, false)];
    assert!(seen.look(0, &[Sign::default()]));
    seen.turns.end(Work::Runs);
    let mut ran = 0;
    // Each time it runs for 0.4 ms, and is held back for 50.
    while seen.look(400, &waits) {
        ran += 1;
        seen.turns.end(Work::Held);
        seen.now += MS * 50;
        seen.turns.look(&Share::NONE, &mut seen.rivals, seen.now);
        seen.turns.end(Work::Held);
        assert_eq!(seen.turns.contends_until(), Sign::KEEPS);
        seen.look(0, &keeps);
        seen.turns.end(Work::Runs);
        assert!(ran < 20, "the turn has no end");
    }
    assert!(ran >= 3, "{ran}");
}

/// Checks that a pause may end a look later than usual, as an earlier rank comes.
#[test]
fn a_pause_may_be_seen_late() {
    let waits = [sign(Virtual::default(), Ns::MAX, false)];
    let mut seen = Seen::new(1, false);
    for pause in [80; 30].into_iter().chain([240]) {
        for us in [0, 1_000] {
            seen.look(us, &waits);
            seen.turns.end(Work::Runs);
        }
        for (us, work) in [(0, Work::Idle), (pause, Work::Held)] {
            seen.now += Ns(1_000 * us);
            seen.turns.look(&Share::NONE, &mut seen.rivals, seen.now);
            seen.turns.end(work);
        }
    }
    assert_eq!(seen.turns.contends_until(), Sign::KEEPS);
}

/// Checks that a rival that claims to be far ahead does not take who was held back along.
#[test]
fn who_resumes_begins_at_the_clock_at_most() {
    let zero = Virtual::default();
    let mut seen = Seen::new(2, false);
    assert!(seen.look(0, &[Sign::default(); 2]));
    seen.turns.end(Work::Runs);
    let far = zero.after(MS * 100_000);
    let signs = [sign(zero, Ns::MAX, false), sign(far, Ns::MAX, false)];
    seen.look(100, &signs);
    seen.turns.end(Work::Held);
    assert_eq!(seen.turns.contends_until(), Sign::KEEPS);
    seen.look(100, &signs);
    assert!(seen.turns.at().ahead_of(zero) < MS);
}

/// Creates a rival with which a process takes turns.
fn competitor() -> Rival {
    Rival::new(Relation {
        competes: true,
        ..Relation::default()
    })
}

/// Checks one that is 10 s of virtual time ahead of a rival when that goes, or when it comes back.
#[test]
fn a_debt_delays_nobody_who_is_alone() {
    let share = weight(1);
    let contends = Sign {
        contends_until: Ns::MAX,
        ..Sign::default()
    };
    let (mut turns, mut rivals) = (Turns::default(), [competitor()]);
    let mut look = |turns: &mut Turns, at: u64, sign: Sign| {
        let now = MS * (1_000 + at);
        rivals[0].see(sign, true, now);
        turns.look(&share, &mut rivals, now);
        turns.contend(&share, &rivals);
        turns.may_release(&share, &rivals, Ns(0))
    };
    assert!(look(&mut turns, 0, Sign::default()));
    turns.end(Work::Runs);
    assert!(!look(&mut turns, 100, contends), "the rival is behind");
    turns.end(Work::Waits);
    let mut stays = turns;
    assert!(look(&mut stays, 101, Sign::default()), "the rival is gone");
    turns.end(Work::Idle);
    assert!(
        look(&mut turns, 102, Sign::default()),
        "nobody else is there"
    );
}

/// Checks a rival that pauses after the observer has taken the time of its round, and one that
/// claims to pause for longer than anyone may.
#[test]
fn a_pause_may_begin_within_the_round_of_who_looks() {
    let share = weight(1);
    for (later, counts) in [(HANDOVER, true), (HANDOVER + Ns(1), false)] {
        let (mut turns, mut rivals) = (Turns::default(), [competitor()]);
        let mut look = |turns: &mut Turns, now: Ns, sign: Sign, busy: bool| {
            rivals[0].see(sign, busy, now);
            turns.look(&share, &mut rivals, now);
            turns.contend(&share, &rivals);
            turns.may_release(&share, &rivals, Ns(0))
        };
        let contends = |until| Sign {
            contends_until: until,
            ..Sign::default()
        };
        look(&mut turns, MS * 1_000, contends(Ns::MAX), true);
        turns.end(Work::Runs);
        let now = MS * 1_100;
        look(&mut turns, now, contends(Ns::MAX), true);
        turns.end(Work::Waits);
        let pauses = contends(now + LINGER_MAX + later);
        assert_eq!(look(&mut turns, now, pauses, false), !counts);
    }
}
