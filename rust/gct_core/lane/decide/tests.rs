// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that each hold has its reason, its bound and its place in the order.

use super::*;
use crate::lane::governor::{Governor, Peers};
use crate::lane::testing::Heap;
use crate::policy::patience;
use crate::policy::share::{DutyCycle, Relation, Sign};
use crate::topology::Topology;
use std::vec;

/// A neighbour of an earlier rank, and a rival with work in flight.
struct Beside([Neighbour; 1], [Rival; 1]);

impl Peers for Beside {
    fn refresh(&mut self, _: &mut LaunchLimits) -> Option<Topology> {
        None
    }

    fn look_around(&mut self, _: Ns) -> Others<'_> {
        Others {
            neighbours: &self.0,
            rivals: &self.1,
            ..Others::NONE
        }
    }

    fn set_busy(&mut self, _: bool, _: Ns) {}

    fn rivals(&mut self, now: Ns) -> &mut [Rival] {
        let sign = Sign {
            contends_until: Ns::MAX,
            runs: true,
            ..Sign::default()
        };
        self.1[0].see(sign, true, now);
        &mut self.1
    }
}

const NOW: Ns = Ns(1_000_000_000);

/// Takes one reason after the other away from a piece that has all.
#[test]
fn the_first_reason_that_holds_counts_until_its_bound() {
    let mut limits = LaunchLimits {
        frozen: true,
        ..LaunchLimits::NONE
    };
    limits.share.owner.max = Some(DutyCycle {
        quota: Ns(0),
        period: NOW,
    });
    let service = Neighbour {
        allowed: TpcMask::first(8),
        rank: Rank::FIRST,
        busy: true,
        ..Neighbour::NONE
    };
    let rival = Rival::new(Relation {
        competes: true,
        weight: Some(Default::default()),
        ..Relation::default()
    });
    let mut governor: Governor<Heap, Beside> = Governor::new(limits, vec![], vec![], vec![]);
    governor.set_gpu(Topology::together(TpcMask::first(8)));
    governor.set_peers(Some(Beside([service], [rival])));
    let mut flight = InFlight::default();
    let later = NOW + Ns(5);
    let ask = |governor: &mut Governor<Heap, Beside>, now| {
        governor.begin(now);
        let piece = Piece {
            kind: Kind::Whole(Ns(2), Ns(1)),
            holds: Ns(1),
            resident: 0,
            in_flight: &InFlight {
                count: 2,
                ..InFlight::default()
            },
            overdue: later,
        };
        governor.ask(Some(&piece), now)
    };
    let held = |reason, until| Err(Held::until(reason, until));
    assert_eq!(ask(&mut governor, NOW), held(Hold::Freeze, Ns::MAX));
    assert!(!governor.is_open(NOW));
    governor.set_limits(LaunchLimits {
        frozen: false,
        ..limits
    });
    assert_eq!(ask(&mut governor, NOW), held(Hold::Atoms, later));
    assert_eq!(ask(&mut governor, later), held(Hold::Tpcs, Ns::MAX));
    assert!(!governor.is_open(later));
    if let Some(peers) = governor.peers_mut() {
        peers.0 = [Neighbour::NONE];
    }
    assert!(governor.is_open(later));
    assert_eq!(ask(&mut governor, later), held(Hold::Max, Ns::MAX));
    // Its own work in flight may wait for it.
    let own = InFlight { count: 1, ..flight };
    governor.moved(later);
    governor.sync(&mut flight, &own, true);
    let over = later + patience::overdue(Ns(0), 0);
    assert_eq!(ask(&mut governor, later), held(Hold::Max, over));
    assert_eq!(ask(&mut governor, over), Ok(true));
    governor.set_limits(LaunchLimits::NONE);
    assert_eq!(ask(&mut governor, later), held(Hold::Weight, over));
    assert_eq!(ask(&mut governor, over), Ok(true));
}
