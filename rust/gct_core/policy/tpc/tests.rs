// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests grants of TPCs: quotas, lending, ranks, and what random arrivals find lent.

use super::*;
use crate::policy::arrivals::IDLE_TIMEOUT_MIN;
use crate::testing::random_pauses;
use proptest::prelude::*;
use std::vec::Vec;

const LATE: Ns = Ns(1_000_000_000);

fn rank(priority: u8) -> Rank {
    Rank {
        best_effort: false,
        priority: Priority(priority),
    }
}

fn neighbour(own: &str, busy: bool, idle: Ns) -> Neighbour {
    Neighbour {
        own: list(own),
        allowed: TpcMask::first(128),
        lends: true,
        confined: false,
        rank: rank(8),
        busy,
        idle,
        arrivals: ArrivalStats::default(),
        ebb: TpcMask::EMPTY,
    }
}

fn list(text: &str) -> TpcMask {
    TpcMask::parse(text.as_bytes()).unwrap_or(TpcMask::EMPTY)
}

/// Checks that the TPCs that a neighbour's pieces leave are lent while it works, for short work
/// beside it alone.
#[test]
fn a_neighbour_that_works_lends_its_ebb() {
    let reaching = |own: &str, rank: Rank| Neighbour {
        own: list(own),
        allowed: list("0-15"),
        rank,
        ebb: list("6-15"),
        ..neighbour("", true, Ns(0))
    };
    let tenant = Tenant {
        allowed: list("0-15"),
        own: TpcMask::EMPTY,
        steal: true,
        rank: rank(8),
        by_turns: false,
    };
    let granted = |tenant: Tenant, neighbour: Neighbour, time| grant(&tenant, time, &[neighbour]);
    let (quota, early) = (reaching("0-9", rank(8)), reaching("", rank(0)));
    for neighbour in [quota, early] {
        let short = granted(tenant, neighbour, tide::HOLD_MAX);
        assert_eq!(short, list("6-15"));
        let full = Neighbour {
            ebb: TpcMask::EMPTY,
            ..neighbour
        };
        let kept = granted(tenant, full, Ns(0));
        let long = granted(tenant, neighbour, tide::HOLD_MAX + Ns(1));
        assert_eq!(long, kept, "for long work");
        let mean = Neighbour {
            lends: false,
            ..neighbour
        };
        assert_eq!(granted(tenant, mean, Ns(0)), kept);
        for (resident, tpcs) in [(10, short), (11, kept)] {
            let granted = grant_at_once(&tenant, Ns(0), resident, &[neighbour]);
            assert_eq!(granted, tpcs, "for {resident} TPCs at once");
        }
        for (steal, by_turns) in [(false, false), (true, true)] {
            let tenant = Tenant {
                steal,
                by_turns,
                ..tenant
            };
            assert_eq!(granted(tenant, neighbour, Ns(0)), kept);
        }
    }
}

#[test]
fn a_quota_takes_what_exists_and_is_free() {
    let existing = list("0-3,9-16,18-19");
    let gpu = Topology::apart(existing);
    let all = TpcMask::first(256);
    let first = reserve(&all, &gpu, &TpcMask::EMPTY, Some(5));
    assert_eq!(first, list("0-3,9"));
    let second = reserve(&list("2-30"), &gpu, &first, Some(3));
    assert_eq!(second, list("10-12"));
    assert_eq!(
        reserve(&all, &gpu, &first, Some(99)),
        existing.without(&first)
    );
    assert!(reserve(&all, &gpu, &first, None).is_empty());
}

/// Builds a tenant without a quota, of priority 8.
fn tenant(allowed: &str) -> Tenant {
    Tenant {
        allowed: list(allowed),
        own: TpcMask::EMPTY,
        steal: true,
        rank: rank(8),
        by_turns: false,
    }
}

#[test]
fn quota_first_and_idle_tpcs_are_lent() {
    let me = tenant("0-19");
    let soon = Ns(1);
    let busy = neighbour("0-4", true, Ns(0));
    assert_eq!(grant(&me, soon, &[busy]), list("5-19"));
    let silent = neighbour("0-4", false, LATE);
    assert_eq!(grant(&me, soon, &[silent]), list("0-19"));
    let honest = Tenant { steal: false, ..me };
    assert_eq!(grant(&honest, soon, &[silent]), list("5-19"));
    let mean = Neighbour {
        lends: false,
        ..silent
    };
    assert_eq!(grant(&me, soon, &[mean]), list("5-19"));
    assert!(grant(&tenant("0-4"), soon, &[busy]).is_empty(), "it waits");
}

/// Checks a case that was seen on an H200, whose mask has 128 bits for 66 TPCs: a third tenant
/// was granted bits without a TPC.
#[test]
fn where_all_is_reserved_a_third_waits_until_somebody_is_away() {
    let me = tenant("0-3,9-16");
    let (one, two) = (
        neighbour("0-3,9-10", true, Ns(0)),
        neighbour("11-16", true, Ns(0)),
    );
    assert!(grant(&me, Ns(1), &[one, two]).is_empty());
    let away = neighbour("11-16", false, LATE);
    assert_eq!(grant(&me, Ns(1), &[one, away]), list("11-16"));
}

#[test]
fn work_that_ends_before_the_owner_returns_may_use_its_tpcs() {
    let ms = |ms: u64| Ns(ms * 1_000_000);
    let arrivals = ArrivalStats::default().after(Ns(100_000), ms(8));
    let pausing = |idle| Neighbour {
        arrivals,
        ..neighbour("0-4", false, idle)
    };
    assert!(pausing(ms(1)).can_lend_for(ms(6)));
    assert!(!pausing(ms(2)).can_lend_for(ms(6)), "an eighth is kept");
    // Late, but within the idle timeout.
    assert!(!pausing(Ns(8_999_999)).can_lend_for(ms(1)));
    assert!(
        pausing(ms(9)).can_lend_for(LATE),
        "an eighth late is silent"
    );
    // Between two launches of one request.
    assert!(!pausing(Ns(49_999)).can_lend_for(Ns(1)));
    // Without a history: the shortest idle timeout.
    assert!(!neighbour("0", false, Ns(499_999)).can_lend_for(Ns(1)));
    assert!(neighbour("0", false, IDLE_TIMEOUT_MIN).can_lend_for(Ns(1)));
}

/// Checks that an earlier rank comes first on all unreserved TPCs, with a quota or without.
#[test]
fn an_earlier_priority_with_work_comes_first() {
    let me = tenant("0-7");
    let early = |own: &str, busy| Neighbour {
        rank: rank(0),
        ..neighbour(own, busy, PAUSE_MIN)
    };
    for own in ["", "0-3"] {
        assert!(grant(&me, Ns(1), &[early(own, true)]).is_empty(), "{own}");
        let first = Tenant {
            rank: rank(0),
            ..me
        };
        let rest = list("0-7").without(&list(own));
        assert_eq!(grant(&first, Ns(1), &[early(own, true)]), rest);
        assert_eq!(grant(&me, Ns(1), &[early(own, false)]), rest);
    }
    // The later tenant keeps its reserved TPCs, and gets those that the earlier one may not
    // use.
    let mine = Tenant {
        own: list("6-7"),
        ..me
    };
    assert_eq!(grant(&mine, Ns(1), &[early("", true)]), list("6-7"));
    let masked = Neighbour {
        allowed: list("0-2"),
        ..early("", true)
    };
    assert_eq!(grant(&me, Ns(1), &[masked]), list("3-7"));
}

/// A request may follow at once. Waiting for it costs no more than delaying it, and where tenants
/// take turns, no more than switching there and back.
#[test]
fn a_later_rank_waits_behind_a_request_for_as_long_as_it_could_delay_the_next() {
    let waits = |by_turns: bool, idle: Ns, time: Ns| {
        let me = Tenant {
            by_turns,
            ..tenant("0-7")
        };
        let early = Neighbour {
            rank: rank(0),
            ..neighbour("", false, idle)
        };
        grant(&me, time, &[early]).is_empty()
    };
    for (by_turns, time, wait) in [
        (false, Ns(1), PAUSE_MIN),
        (false, Ns(120_000), Ns(120_000)),
        (false, Ns(u64::MAX), PRESENT_MAX),
        (true, Ns(0), SWITCHES),
        (true, Ns(u64::MAX), SWITCHES),
    ] {
        let waits = |idle| waits(by_turns, idle, time);
        assert!(waits(Ns(0)) && waits(wait - Ns(1)), "{wait:?}");
        assert!(!waits(wait), "{wait:?}");
    }
    // Nobody waits so for an equal or a later rank.
    let me = Tenant {
        by_turns: true,
        ..tenant("0-7")
    };
    let equal = neighbour("", false, Ns(0));
    assert_eq!(grant(&me, Ns(1), &[equal]), list("0-7"));
    assert!(!yields(me.rank, &[equal]));
    let earlier = Neighbour {
        rank: rank(0),
        ..equal
    };
    assert!(yields(me.rank, &[equal, earlier]));
}

/// Checks that a neighbour of an earlier rank which may not use lent TPCs keeps nobody off them.
#[test]
fn who_may_not_steal_keeps_nobody_off_lent_tpcs() {
    let me = tenant("0-7");
    let service = |allowed: &str, own: &str| Neighbour {
        allowed: list(allowed),
        rank: rank(0),
        confined: true,
        ..neighbour(own, true, Ns(0))
    };
    let (away, here) = (neighbour("0-3", false, LATE), neighbour("0-3", true, Ns(0)));
    let granted = |service, owner| grant(&me, Ns(1), &[service, owner]);
    assert_eq!(granted(service("0-7", ""), away), list("0-3"));
    assert_eq!(granted(service("0-7", "4-5"), away), list("0-3"));
    assert_eq!(granted(service("0-3", ""), away), list("0-7"));
    assert!(granted(service("0-7", ""), here).is_empty());
    let steals = Neighbour {
        confined: false,
        ..service("0-7", "")
    };
    assert!(granted(steals, away).is_empty());
}

#[test]
fn best_effort_yields_to_everybody_with_work() {
    let least = Rank {
        best_effort: true,
        priority: Priority(0),
    };
    let me = Tenant {
        rank: least,
        ..tenant("0-7")
    };
    let late = Neighbour {
        rank: rank(15),
        ..neighbour("", true, Ns(0))
    };
    assert!(grant(&me, Ns(1), &[late]).is_empty());
    let idle = Neighbour {
        busy: false,
        idle: PAUSE_MIN,
        ..late
    };
    assert_eq!(grant(&me, Ns(1), &[idle]), list("0-7"));
    // Only a later best-effort tenant yields to it.
    let other = Neighbour {
        rank: least,
        ..late
    };
    assert_eq!(grant(&tenant("0-7"), Ns(1), &[other]), list("0-7"));
    let later = Tenant {
        rank: Rank {
            priority: Priority(1),
            ..least
        },
        ..me
    };
    assert!(grant(&later, Ns(1), &[other]).is_empty());
}

/// Checks that blocks that may wait for each other get the TPCs that were written, and that they
/// wait only for what the owner has with its allowance.
#[test]
fn a_piece_of_one_wave_gets_what_was_written_or_waits_for_its_allowance() {
    let pressed = Tenant {
        rank: Rank {
            best_effort: true,
            ..rank(8)
        },
        ..tenant("0-7")
    };
    let narrow = list("4-7");
    let fit = |resident, is_pressed, neighbours: &[Neighbour]| {
        let piece = Together {
            resident,
            shown: 0,
            pressed: is_pressed,
            waited: false,
        };
        *fit(&pressed, narrow, &piece, Ns(1), neighbours).tpcs()
    };
    let service = |priority| Neighbour {
        allowed: list("0-3"),
        rank: rank(priority),
        ..neighbour("", true, Ns(0))
    };
    for resident in [0, 1, 4] {
        assert_eq!(fit(resident, true, &[]), narrow, "it needs no more");
    }
    assert_eq!(fit(8, true, &[]), list("0-7"));
    assert_eq!(fit(9, true, &[]), narrow, "nothing holds it");
    assert!(fit(8, true, &[service(8)]).is_empty(), "it waits");
    assert_eq!(fit(8, false, &[service(8)]), narrow, "it has no allowance");
    let earlier = fit(8, true, &[service(7)]);
    assert_eq!(earlier, narrow, "an allowance does not come before it");
}

/// Checks that a launch which counts on the TPCs that its program was shown waits for them, for as
/// long as it must, and has no TPC that a mask or `tpc.steal` keeps it from.
#[test]
fn a_launch_that_counts_on_what_it_was_shown_waits_for_it() {
    let owner = Tenant {
        own: list("0-3"),
        ..tenant("0-15")
    };
    let other = neighbour("4-11", true, Ns(0));
    let early = Neighbour {
        allowed: list("0-7"),
        rank: rank(0),
        ..neighbour("", true, Ns(0))
    };
    let piece = |resident, shown, waited| Together {
        resident,
        shown,
        pressed: false,
        waited,
    };
    let fit = |tenant: &Tenant, neighbour: Neighbour, piece: Together| {
        let granted = grant(tenant, Ns(1), &[neighbour]);
        fit(tenant, granted, &piece, Ns(1), &[neighbour])
    };
    let narrow = Fit::Policy(list("0-3,12-15"));
    let (wait, all) = (Fit::Policy(TpcMask::EMPTY), Fit::Reach(list("0-15")));
    for (resident, shown, waited, expected) in [
        (8, 16, false, narrow),
        (9, 16, false, wait),
        (9, 16, true, all),
        (16, 16, true, all),
        (17, 17, true, narrow),
        (9, 8, false, narrow),
        (9, 0, false, narrow),
        (0, 16, false, narrow),
    ] {
        let found = fit(&owner, other, piece(resident, shown, waited));
        assert_eq!(found, expected, "{resident} of {shown}, {waited}");
    }
    let away = Neighbour {
        busy: false,
        idle: LATE,
        ..other
    };
    let lent = Fit::Policy(list("0-15"));
    assert_eq!(fit(&owner, away, piece(16, 16, false)), lent);
    let by_turns = Tenant {
        by_turns: true,
        ..owner
    };
    assert_eq!(fit(&by_turns, other, piece(16, 16, false)), all, "its turn");
    let masked = Tenant {
        allowed: list("0-12"),
        ..owner
    };
    let left = Fit::Policy(list("0-3,12"));
    assert_eq!(
        fit(&masked, other, piece(13, 13, true)),
        Fit::Reach(list("0-12"))
    );
    assert_eq!(fit(&masked, other, piece(14, 16, true)), left);
    let capped = Tenant {
        steal: false,
        ..owner
    };
    assert_eq!(fit(&capped, other, piece(9, 16, true)), narrow);
    // It waits for an earlier rank as for a reservation, if that leaves it any TPC.
    let none = tenant("0-15");
    assert_eq!(fit(&none, early, piece(16, 16, false)), wait);
    assert_eq!(fit(&none, early, piece(16, 16, true)), all);
    let everywhere = Neighbour {
        allowed: list("0-15"),
        ..early
    };
    assert_eq!(fit(&none, everywhere, piece(16, 16, true)), wait);
}

#[test]
fn neighbours_with_own_tpcs_or_idle_ones_are_not_expected() {
    let soon = Ns(1);
    let (own, away) = (neighbour("0-4", true, Ns(0)), neighbour("", false, LATE));
    let expected = |neighbours: &[Neighbour]| !nobody_expected(rank(8), soon, neighbours);
    assert!(!expected(&[]));
    assert!(!expected(&[own, away]));
    let here = neighbour("", false, Ns(499_999));
    assert!(expected(&[own, here]));
    assert!(expected(&[neighbour("", true, Ns(0))]));
    // A neighbour of an earlier rank also uses the shared TPCs.
    let first = Neighbour {
        rank: rank(7),
        ..own
    };
    assert!(expected(&[first]));
}

#[test]
fn work_that_is_short_beside_a_request_may_use_its_tpcs() {
    let arrivals = ArrivalStats::default()
        .after(Ns(1_600_000), Ns(60_000))
        .after(Ns(2_000_000), Ns(19_000_000));
    let pausing = |idle| Neighbour {
        arrivals,
        ..neighbour("0-4", false, idle)
    };
    let random = pausing(Ns(9_000_000));
    assert!(random.can_lend_for(Ns(100_000)), "a sixteenth of 1.6 ms");
    assert!(!random.can_lend_for(Ns(120_000)));
    assert!(!pausing(Ns(49_999)).can_lend_for(Ns(1)), "within a request");
    // Without a history nothing is lent early, not even for no time.
    let new = neighbour("0-4", false, PAUSE_MIN);
    assert!(!new.can_lend_for(Ns(0)));
}

/// Returns how many of `pauses` random pauses, `mean` nanoseconds on average, end while the
/// TPCs are lent to atoms of 100 us.
fn surprises(mean: f64, pauses: usize) -> usize {
    const ATOM: Ns = Ns(100_000);
    let (mut arrivals, mut surprised) = (ArrivalStats::default(), 0);
    for pause in random_pauses(mean).take(pauses) {
        // The latest release of an atom that can delay the end of the pause.
        let before = pause - ATOM / 2;
        let owner = Neighbour {
            arrivals,
            ..neighbour("0-4", false, before)
        };
        surprised += usize::from(owner.can_lend_for(ATOM));
        arrivals = arrivals.after(Ns(25_000), pause);
    }
    surprised
}

#[test]
fn few_random_arrivals_find_their_tpcs_lent() {
    const PAUSES: usize = 20_000;
    for mean in [250_000.0, 1_000_000.0, 2_500_000.0] {
        let surprised = surprises(mean, PAUSES);
        assert!(
            surprised < PAUSES / 200,
            "{surprised} of {PAUSES} at {mean}"
        );
    }
}

fn any_mask() -> impl Strategy<Value = TpcMask> {
    any::<[u64; 4]>().prop_map(TpcMask::from_words)
}

fn any_rank() -> impl Strategy<Value = Rank> {
    (any::<bool>(), 0u8..16).prop_map(|(best_effort, priority)| Rank {
        best_effort,
        priority: Priority(priority),
    })
}

proptest! {
    /// Checks for any masks, quotas and holes: reservations are disjoint; no grant includes the
    /// TPCs of a present owner; each tenant gets its own; nobody runs where an earlier rank
    /// with work may; granted TPCs exist. TPCs that no earlier rank may use even while all others
    /// are away, and that no owner keeps, are granted.
    #[test]
    fn reservations_are_kept(
        tenants in prop::collection::vec(
            (
                any_mask(), prop::option::of(0u16..80), any::<bool>(), any::<bool>(), any::<bool>(),
                0u64..40_000_000, any::<u64>(), any_rank(),
            ),
            1..8,
        ),
        existing in any_mask(),
        gpcs in 0u64..9,
        tpcs_per_gpc in 0u64..20,
        time in 0u64..10_000_000,
        by_turns: bool,
    ) {
        let [a, b, c, d] = *existing.words();
        let gpu = Topology::from_words([a, b, c, d, gpcs << 16 | tpcs_per_gpc]);
        let mut reserved = TpcMask::EMPTY;
        let mut all: Vec<(Tenant, Neighbour)> = Vec::new();
        for &(allowed, quota, steal, lends, busy, idle, word, rank) in &tenants {
            let allowed = allowed.and(&existing);
            let own = reserve(&allowed, &gpu, &reserved, quota);
            prop_assert!(own.and(&reserved).is_empty());
            let free = allowed.without(&reserved).count();
            prop_assert_eq!(own.count(), free.min(u32::from(quota.unwrap_or(0))), "no quota is missed");
            reserved = reserved.or(&own);
            let arrivals = ArrivalStats::from_word(word);
            let neighbour = Neighbour {
                own, allowed, lends, confined: !steal, rank, busy, idle: Ns(idle), arrivals, ebb: TpcMask::EMPTY,
            };
            all.push((Tenant { allowed, own, steal, rank, by_turns }, neighbour));
        }
        for (number, (me, _)) in all.iter().enumerate() {
            let others = all.iter().enumerate().filter(|(other, _)| *other != number);
            let others: Vec<Neighbour> = others.map(|(_, (_, neighbour))| *neighbour).collect();
            let granted = grant(me, Ns(time), &others);
            prop_assert!(granted.without(&existing).is_empty(), "it exists");
            prop_assert!(granted.without(&me.allowed).is_empty());
            prop_assert!(me.own.without(&granted).is_empty(), "its own are its own");
            for other in &others {
                let kept = other.busy || !other.can_lend_for(Ns(time)) || !other.lends || !me.steal;
                prop_assert!(!kept || granted.and(&other.own).is_empty());
            }
            let mut kept = TpcMask::EMPTY;
            for (other, (earlier, neighbour)) in all.iter().enumerate().filter(|(at, _)| *at != number) {
                if !(neighbour.is_present_for(Ns(time), by_turns) && earlier.rank < me.rank) {
                    continue;
                }
                let away = |(_, (_, other)): (usize, &(_, Neighbour))| Neighbour {
                    busy: false, idle: Ns::MAX, lends: true, ..*other
                };
                let away: Vec<_> = all.iter().enumerate().filter(|(at, _)| *at != other).map(away).collect();
                let usable = grant(earlier, Ns(0), &away);
                prop_assert!(granted.without(&me.own).and(&usable).is_empty(), "ranks are kept");
                kept = kept.or(&usable);
            }
            for owner in &others {
                if !(me.steal && owner.lends && owner.can_lend_for(Ns(time))) {
                    kept = kept.or(&owner.own);
                }
            }
            let free = me.allowed.without(&kept);
            prop_assert!(free.without(&granted).is_empty(), "TPCs that nobody may use are for all");
            let first = |other: &Neighbour| {
                other.is_present_for(Ns(time), by_turns) && other.rank < me.rank
            };
            let hindered = others.iter().any(first);
            let left = me.allowed.without(&reserved);
            prop_assert!(hindered || left.without(&granted).is_empty(), "unreserved TPCs are for all");
        }
    }
}
