// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that paths lead where the directories of a filesystem do.

use super::*;
use crate::iface::files::{self, Mode};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The directories that a filesystem has made, by path.
#[derive(Default)]
struct Tree {
    names: BTreeMap<DirPath, String>,
    scopes: BTreeMap<String, Scope>,
}

impl Tree {
    fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Add { path, scope, name } => {
                    let above = match (path.parent(), path) {
                        (Some(above), _) => format!("{}/", self.names[&above]),
                        (None, DirPath::Gpu(_)) => "gpus/".into(),
                        (None, _) => String::new(),
                    };
                    let whole = format!("{above}{}", name.as_str());
                    self.scopes.insert(whole.clone(), scope);
                    self.names.insert(path, whole);
                }
                Effect::Remove { path } => {
                    let whole = self.names.remove(&path).unwrap();
                    self.scopes.remove(&whole);
                }
            }
        }
    }
}

impl World {
    fn list(&mut self, path: &str) -> Result<Vec<String>, Error> {
        let mut out = String::new();
        let state = self.store.state();
        state.list(path.as_bytes(), &mut out)?;
        Ok(out.lines().map(String::from).collect())
    }

    /// Lists everything below a directory: directories and files.
    fn walk(&mut self, path: &str, dirs: &mut Vec<String>, all: &mut Vec<String>) {
        for name in self.list(path).unwrap() {
            let slash = if path.is_empty() { "" } else { "/" };
            match name.strip_suffix('/') {
                Some(name) => {
                    let below = format!("{path}{slash}{name}");
                    dirs.push(below.clone());
                    self.walk(&below, dirs, all);
                }
                None => all.push(format!("{path}{slash}{name}")),
            }
        }
    }

    /// Checks that lists and look-ups agree with a filesystem's tree.
    fn agrees_with(&mut self, tree: &Tree) {
        let (mut dirs, mut found) = (Vec::new(), Vec::new());
        self.walk("", &mut dirs, &mut found);
        let mut expected: Vec<String> = tree.scopes.keys().cloned().collect();
        expected.push("gpus".into());
        dirs.sort();
        expected.sort();
        assert_eq!(dirs, expected);
        let root = ("", Scope::Root);
        let scopes = tree
            .scopes
            .iter()
            .map(|(path, scope)| (path.as_str(), *scope));
        let mut expected = Vec::new();
        for (dir, scope) in scopes.chain([root]) {
            for entry in scope.place().into_iter().flat_map(files::of) {
                let slash = if dir.is_empty() { "" } else { "/" };
                let path = format!("{dir}{slash}{}", entry.name);
                let access = match entry.mode {
                    Mode::Write => Mode::Write,
                    _ => Mode::Read,
                };
                let at = self.store.state().file_at(path.as_bytes(), access);
                assert_eq!(at, Ok((entry.file, scope)), "{path}");
                expected.push(path);
            }
        }
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }
}

#[test]
fn paths_of_what_does_not_exist_are_not_found() {
    let mut world = World::new(FeatureSet::NONE);
    world.group("web");
    for path in [
        "nobody", "nobody/0", "web/1", "gpus/1", "500", "500/0", "web/0/0",
    ] {
        assert_eq!(world.list(path), Err(Error::NotFound), "{path}");
        let file = format!("{path}/gmem.stat");
        for access in [Mode::Read, Mode::Write] {
            let found = world.store.state().file_at(file.as_bytes(), access);
            assert_eq!(found, Err(Error::NotFound), "{file}");
        }
    }
    let find = |world: &mut World, path: &str, access| {
        world.store.state().file_at(path.as_bytes(), access)
    };
    let denied = Err(Error::Access);
    assert_eq!(find(&mut world, "control", Mode::Read), denied);
    assert_eq!(find(&mut world, "version", Mode::Write), denied);
    assert_eq!(find(&mut world, "web/0/gmem.stat", Mode::Write), denied);
    assert_eq!(find(&mut world, "web", Mode::Read), Err(Error::NotFound));
    assert_eq!(world.list("version"), Err(Error::NotFound));
}

#[test]
fn a_pid_leads_to_the_youngest_of_its_processes() {
    let mut world = World::new(FeatureSet::NONE);
    let old = world.open(APP, "");
    world.cuda(old);
    let young = ProcKey {
        start_time_ns: 2,
        ..APP
    };
    let file = world.open(young, "");
    assert_eq!(world.list("500"), Err(Error::NotFound));
    world.cuda(file);
    let found = world.store.state().file_at(b"500/0/gmem.stat", Mode::Read);
    let scope = world.pool(Owner::Proc(young));
    assert_eq!(found, Ok((File::GmemStat, scope)));
    let listed = world.list("").unwrap();
    assert_eq!(listed.iter().filter(|name| *name == "500/").count(), 1);
}

proptest! {
    /// Checks for any order of events that paths and lists are those of the filesystem that the
    /// effects make.
    #[test]
    fn paths_are_those_of_the_filesystem(ops in prop::collection::vec((0u8..6, 0u8..4), 0..40)) {
        let mut world = World::new(FeatureSet::NONE);
        let mut tree = Tree::default();
        let mut open: BTreeMap<u8, FileId> = BTreeMap::new();
        for (op, which) in ops {
            let text = format!("g{which}");
            let id = u32::from(which) + 10;
            match op {
                0 => {
                    let made = world.store.retry(|store| store.state().group_create(&name(&text)));
                    prop_assert!(matches!(made, Ok(_) | Err(Error::Exists)));
                }
                1 => {
                    let state = &mut world.store.state();
                    if let Ok(group) = state.group_by_name(&name(&text)) {
                        prop_assert_eq!(state.group_remove(group, 0), Ok(()));
                    }
                }
                2 => {
                    let proc = ProcKey { tgid: 500 + u32::from(which), start_time_ns: 1 };
                    open.entry(which).or_insert_with(|| {
                        let file = world.open(proc, "");
                        world.cuda(file);
                        file
                    });
                }
                3 => {
                    if let Some(file) = open.remove(&which) {
                        world.store.state().file_close(file);
                    }
                }
                4 => {
                    let facts = facts(id, 0x20 + 0x10 * which);
                    let _ = world.store.retry(|store| store.state().gpu_add(&facts, FeatureSet::NONE));
                }
                _ => {
                    let _ = world.store.state().gpu_remove(id);
                }
            }
            let effects = world.effects();
            tree.apply(effects);
            world.agrees_with(&tree);
        }
    }
}
