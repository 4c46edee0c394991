// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that files are read and written as the table of files says.

use super::*;
use crate::iface::files::{self, Mode, Place};
use crate::iface::keys;

#[test]
fn syntax_comes_before_range_before_support() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::Weight));
    let group = world.group("web");
    let pool = world.pool(Owner::Group(group));
    for (text, error) in [
        ("junk", Error::Syntax),
        ("19", Error::Range),
        ("2ms", Error::Unsupported),
        ("default", Error::Unsupported),
    ] {
        let written = world.write(File::ComputeTimeslice, pool, text);
        assert_eq!(written, Err(error), "{text}");
    }
    assert_eq!(world.write(File::ComputeWeight, pool, "250"), Ok(()));
    assert_eq!(world.read(File::ComputeWeight, pool), Ok("250\n".into()));
    assert_eq!(
        world.write(File::ComputeWeight, pool, "0"),
        Err(Error::Range)
    );
    assert_eq!(world.read(File::ComputeWeight, pool), Ok("250\n".into()));
}

/// Checks that such a limit shows no value: a file with `max` or `100` looks enforced.
#[test]
fn a_limit_that_nothing_enforces_cannot_be_read() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::Weight));
    let group = world.group("web");
    let pool = world.pool(Owner::Group(group));
    for entry in files::of(Place::Pool).filter(|entry| entry.mode == Mode::ReadWrite) {
        let read = world.read(entry.file, pool);
        match entry.feature {
            Some(Feature::Weight) | None => assert!(read.is_ok(), "{}", entry.name),
            Some(_) => assert_eq!(read, Err(Error::Unsupported), "{}", entry.name),
        }
    }
}

#[test]
fn tpcs_that_the_gpu_does_not_have_are_out_of_range() {
    let mut store = Store::new(1);
    let mut facts = facts(1, 1);
    let existing = TpcMask::parse(b"0-61,75,78,81,83").unwrap();
    facts.topology = Topology::apart(existing);
    let features = FeatureSet::all();
    let gpu = store
        .retry(|store| store.state().gpu_add(&facts, features))
        .unwrap();
    let mut world = World { store, gpu };
    let group = world.group("web");
    let pool = world.pool(Owner::Group(group));
    let shown = world.read(File::GpuTpcsList, Scope::Gpu(gpu));
    assert_eq!(shown, Ok("0-61,75,78,81,83\n".into()));
    let count = world.read(File::GpuTpcs, Scope::Gpu(gpu));
    assert_eq!(count, Ok("66\n".into()));
    assert_eq!(
        world.write(File::TpcMask, pool, "62-74,76-77,84-255"),
        Err(Error::Range)
    );
    // A mask may name more than those that exist.
    assert_eq!(world.write(File::TpcMask, pool, "0-65"), Ok(()));
    assert_eq!(world.read(File::TpcMask, pool), Ok("0-65\n".into()));
    assert_eq!(world.write(File::TpcMask, pool, "all"), Ok(()));
    assert_eq!(world.write(File::TpcQuota, pool, "66"), Ok(()));
    assert_eq!(world.write(File::TpcQuota, pool, "67"), Err(Error::Range));
}

/// Visits every file of the table in every place, with and without its feature. A readable file
/// shows something, the file accepts what it shows, and junk changes nothing.
#[test]
fn the_whole_table_conforms() {
    for features in [FeatureSet::NONE, FeatureSet::all()] {
        let mut world = World::new(features);
        let group = world.group("web");
        let file = world.open(APP, "");
        world.cuda(file);
        let scopes = [
            Scope::Root,
            Scope::Gpu(world.gpu),
            Scope::Group(group),
            Scope::Proc(APP),
            world.pool(Owner::Group(group)),
            world.pool(Owner::Proc(APP)),
        ];
        for entry in files::FILES {
            for scope in scopes {
                conforms(&mut world, entry, scope, features);
            }
        }
    }
}

fn conforms(world: &mut World, entry: &files::Entry, scope: Scope, features: FeatureSet) {
    let context = format!("{} {scope:?} {features:?}", entry.name);
    let before = world.read(entry.file, scope);
    if scope.place() != Some(entry.place) {
        assert_eq!(before, Err(Error::Access), "{context}");
        assert_eq!(
            world.write(entry.file, scope, "1"),
            Err(Error::Access),
            "{context}"
        );
        return;
    }
    for junk in [
        "",
        "\n",
        "\0",
        "junk",
        "1 2 3 4",
        "-1",
        "\u{fc}",
        "18446744073709551616",
    ] {
        assert!(
            world.write(entry.file, scope, junk).is_err(),
            "{context} {junk:?}"
        );
        assert_eq!(world.read(entry.file, scope), before, "{context} {junk:?}");
    }
    // Only the glue knows what these two need.
    if matches!(entry.file, File::Control | File::GroupProcs) {
        assert_eq!(before, Err(Error::Access), "{context}");
        return;
    }
    match &before {
        Ok(text) => {
            assert!(text.is_empty() || text.ends_with('\n'), "{context}");
            assert!(text.len() <= limits::SHOW_LEN_MAX, "{context}");
            if entry.format == Format::Stat {
                has_its_keys(entry, text, features);
            }
            let back = world.write(entry.file, scope, text);
            let expected = match entry.mode {
                Mode::ReadWrite => Ok(()),
                _ => Err(Error::Access),
            };
            assert_eq!(back, expected, "{context}");
            assert_eq!(world.read(entry.file, scope), before, "{context}");
        }
        Err(error) => assert!(entry.errors.contains(error), "{context} {error:?}"),
    }
    let settable = entry.place == Place::Pool && entry.mode == Mode::ReadWrite;
    if let (true, Some(feature), false) = (settable, entry.feature, entry.file == File::GmemPeak) {
        // Above the process's memory.
        let mut others = ["1000000", "7", "3", "40 2000", "1"].into_iter();
        let other = others.find(|text| parse::value(entry.format, text.as_bytes()).is_ok());
        let other = other.filter(|other| *other != entry.default).unwrap_or("0");
        let expected = if features.has(feature) {
            Ok(())
        } else {
            Err(Error::Unsupported)
        };
        assert_eq!(
            world.write(entry.file, scope, other),
            expected,
            "{context} {other}"
        );
        // A mask must allow enough TPCs for a quota.
        if entry.file == File::TpcQuota && expected.is_ok() {
            assert_eq!(world.write(entry.file, scope, "none"), Ok(()));
        }
    }
}

/// Checks that a file of `KEY VALUE` lines has the keys of the table, in order.
fn has_its_keys(entry: &files::Entry, text: &str, features: FeatureSet) {
    let line = |line: &'_ str| String::from(parse::stat_line(line.as_bytes()).unwrap().0);
    let due = |key: &keys::Key| {
        key.file == entry.file
            && match key.source {
                keys::Source::Core => true,
                keys::Source::Feature(feature) => features.has(feature),
                keys::Source::Answers | keys::Source::Daemon | keys::Source::Looks => false,
            }
    };
    let keys = keys::all().filter(due).map(|key| key.key);
    assert!(text.lines().map(line).eq(keys), "{} {text}", entry.name);
}

#[test]
fn stale_scopes_are_gone() {
    let mut world = World::new(FeatureSet::all());
    let group = world.group("web");
    let pool = world.pool(Owner::Group(group));
    let gpu = world.gpu;
    assert_eq!(world.store.state().group_remove(group, 0), Ok(()));
    assert_eq!(world.read(File::GmemLimit, pool), Err(Error::Gone));
    assert_eq!(world.write(File::GmemLimit, pool, "1"), Err(Error::Gone));
    assert_eq!(
        world.read(File::GroupCgroup, Scope::Group(group)),
        Err(Error::Gone)
    );
    assert_eq!(
        world.write(File::GroupCgroup, Scope::Group(group), "/a"),
        Err(Error::Gone)
    );
    assert_eq!(world.store.state().gpu_remove(1), Ok(()));
    assert_eq!(world.read(File::GpuPci, Scope::Gpu(gpu)), Err(Error::Gone));
    // A closed file is ignored.
    let file = world.open(APP, "");
    world.store.state().file_close(file);
    world.store.state().file_close(file);
    let bytes = words(16, &[(0, CLIENT), (8, TSG)]);
    let call = rmapi::decode(escape::FREE, &bytes).unwrap().unwrap();
    let mut state = world.store.state();
    assert_eq!(state.call_enter(file, &call), Ok(Ticket::NONE));
    assert_eq!(
        state.call_leave(file, &call, Ticket::NONE, None),
        Err(Error::Gone)
    );
}
