// SPDX-License-Identifier: GPL-2.0 OR MIT

//! For which files rules hold, and what is counted.

use super::*;
use crate::rmapi::allow::{Asked, Rule};
use crate::rmapi::control::{Status, NOT_SUPPORTED};
use crate::rmapi::INSUFFICIENT_PERMISSIONS;

const FEATURES: FeatureSet = FeatureSet::NONE.with(Feature::ChannelOwned);

const ACCOMPLICE: ProcKey = ProcKey {
    tgid: 600,
    start_time_ns: 2,
};

/// The accomplice's client.
const THEIRS: u64 = 11;

fn asked(rule: Rule) -> Asked {
    Asked {
        // CAST: a small handle.
        client: CLIENT as u32,
        // CAST: a small handle.
        object: CHANNEL as u32,
        number: 0x2080_1102,
        rule,
    }
}

impl World {
    fn forbids(&mut self, file: FileId) -> Option<Status> {
        let asked = asked(Rule::Ring);
        self.store.state().forbid(Some(file), false, &asked).err()
    }

    /// Opens a file of a process without limits, with a client.
    fn accomplice(&mut self) -> FileId {
        let file = self.open(ACCOMPLICE, "");
        let call = words(32, &[(8, THEIRS), (12, 0x41)]);
        self.store.ioctl(file, escape::ALLOC, &call, None);
        file
    }

    fn dup(&mut self, file: FileId, source_client: u64, source: u64) {
        let fields = [
            (0, THEIRS),
            (4, THEIRS),
            (8, 70),
            (12, source_client),
            (16, source),
        ];
        self.store
            .ioctl(file, escape::DUP_OBJECT, &words(28, &fields), None);
    }
}

#[test]
fn rules_hold_for_members_and_are_counted_for_their_owner() {
    let mut world = World::new(FEATURES);
    let stranger = world.open(ProcKey { tgid: 77, ..APP }, "");
    let (group, member) = world.web();
    assert_eq!(world.forbids(stranger), None);
    assert_eq!(world.forbids(member), Some(INSUFFICIENT_PERMISSIONS));
    let unknown = asked(Rule::Unknown);
    let mut state = world.store.state();
    assert_eq!(
        state.forbid(Some(member), false, &unknown),
        Err(NOT_SUPPORTED)
    );
    // What has a record stays bound.
    assert!(state.forbid(Some(stranger), true, &unknown).is_err());
    // A file that is not followed may be anybody's.
    assert!(state.forbid(None, false, &unknown).is_err());
    let pool = world.pool(Owner::Group(group));
    let stat = world.read(File::ComputeStat, pool).unwrap();
    assert!(
        stat.contains("forbidden 2\nforbidden.ring 1\nforbidden.unknown 1\n"),
        "{stat}"
    );
    let events = world.read(File::Events, Scope::Root).unwrap();
    assert!(events.contains("forbidden 4\n"), "{events}");
}

#[test]
fn who_duplicates_an_object_of_another_process_is_governed() {
    let mut world = World::new(FEATURES);
    let (_, _member) = world.web();
    let file = world.accomplice();
    assert_eq!(world.forbids(file), None);
    // Its own, through another file.
    let second = world.open(ACCOMPLICE, "");
    let call = words(32, &[(8, 12), (12, 0x41)]);
    world.store.ioctl(second, escape::ALLOC, &call, None);
    world.dup(file, 12, 12);
    assert_eq!(world.forbids(file), None);
    world.dup(file, CLIENT, TSG);
    assert_eq!(world.forbids(file), Some(INSUFFICIENT_PERMISSIONS));
    // And who duplicates from that.
    world.store.state().entangle(second, 11);
    assert_eq!(world.forbids(second), Some(INSUFFICIENT_PERMISSIONS));
}

#[test]
fn exports_and_imports_entangle() {
    let mut world = World::new(FEATURES);
    let (_, member) = world.web();
    let own = world.open(APP, "");
    let file = world.accomplice();
    let passed = world.open(ACCOMPLICE, "");
    let mut state = world.store.state();
    // Into a file of the importer's, which imports from there.
    state.entangle_by_file(member, Some(passed), true);
    assert!(state.is_governed_file(passed));
    state.entangle_by_file(file, Some(passed), false);
    assert!(state.is_governed_file(file));
    // From a file of the exporter's.
    let file = world.open(ACCOMPLICE, "");
    let mut state = world.store.state();
    state.entangle_by_file(member, Some(own), true);
    state.entangle_by_file(file, Some(own), false);
    assert!(state.is_governed_file(file));
    // From a file that nobody follows.
    let file = world.open(ACCOMPLICE, "");
    let mut state = world.store.state();
    state.entangle_by_file(file, None, false);
    assert!(state.is_governed_file(file));
}

#[test]
fn a_thousand_refusals_are_few_lines_of_the_log() {
    let mut world = World::new(FEATURES);
    let (_, member) = world.web();
    let is_logged = |_: &u32| {
        assert!(world.forbids(member).is_some());
        world.store.state().logs_refusal()
    };
    let logged: Vec<_> = (1..=1024).filter(is_logged).collect();
    assert_eq!(logged, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]);
}

/// A debugger of an unknown client, too: it may be on a file that is not followed.
#[test]
fn who_debugs_another_process_is_governed() {
    let mut world = World::new(FEATURES);
    world.web();
    let file = world.accomplice();
    let mut state = world.store.state();
    state.entangle(file, 11);
    assert!(!state.is_governed_file(file));
    state.entangle(file, 999);
    assert!(state.is_governed_file(file));
}
