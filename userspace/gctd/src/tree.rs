// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the directories of the tree by name, as the core's effects add and remove them.

use gct_core::dirs::{DirPath, Effect};
use gct_core::ids::Scope;
use gct_core::iface::files::{self, Entry};
use gct_core::iface::Place;
use std::collections::BTreeMap;

/// The name of the directory of GPUs.
const GPUS: &str = "gpus";

/// A directory of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dir {
    /// The root.
    Root,
    /// `gpus/`.
    Gpus,
    /// A directory of the core.
    Core(DirPath),
}

/// The target of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Node {
    /// A directory.
    Dir(Dir),
    /// A file, and the scope of its directory.
    File(&'static Entry, Scope),
}

/// The directories of the tree.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    names: BTreeMap<(Dir, String), (DirPath, Scope)>,
    paths: BTreeMap<DirPath, (Dir, String, Scope)>,
}

impl Tree {
    /// Applies an effect of the core.
    pub(crate) fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Add { path, scope, name } => {
                let above = match (path.parent(), path) {
                    (Some(above), _) => Dir::Core(above),
                    (None, DirPath::Gpu(_)) => Dir::Gpus,
                    (None, _) => Dir::Root,
                };
                let name = name.as_str().to_owned();
                self.names.insert((above, name.clone()), (path, scope));
                self.paths.insert(path, (above, name, scope));
            }
            Effect::Remove { path } => {
                if let Some((above, name, _)) = self.paths.remove(&path) {
                    self.names.remove(&(above, name));
                }
            }
        }
    }

    /// Looks up a path. Slashes separate its components; the root is the empty path.
    pub(crate) fn find(&self, path: &str) -> Option<Node> {
        let mut dir = Dir::Root;
        let mut components = path.split('/').filter(|name| !name.is_empty()).peekable();
        while let Some(name) = components.next() {
            if let Some(child) = self.child(dir, name) {
                dir = child;
                continue;
            }
            let scope = self.scope(dir)?;
            let entry = files::find(scope.place()?, name)?;
            return components
                .peek()
                .is_none()
                .then_some(Node::File(entry, scope));
        }
        Some(Node::Dir(dir))
    }

    /// Looks up a directory in another.
    fn child(&self, dir: Dir, name: &str) -> Option<Dir> {
        if dir == Dir::Root && name == GPUS {
            return Some(Dir::Gpus);
        }
        let (path, _) = self.names.get(&(dir, name.to_owned()))?;
        Some(Dir::Core(*path))
    }

    fn scope(&self, dir: Dir) -> Option<Scope> {
        match dir {
            Dir::Root => Some(Scope::Root),
            Dir::Gpus => None,
            Dir::Core(path) => self.paths.get(&path).map(|(_, _, scope)| *scope),
        }
    }

    /// Returns the name of a directory of the core.
    pub(crate) fn name(&self, path: DirPath) -> Option<&str> {
        self.paths.get(&path).map(|(_, name, _)| name.as_str())
    }

    /// Returns the names of the directories in a directory.
    pub(crate) fn dirs(&self, dir: Dir) -> Vec<String> {
        let root = (dir == Dir::Root).then(|| GPUS.to_owned());
        let from = (dir, String::new());
        let below = self
            .names
            .range(from..)
            .map(|((above, name), _)| (above, name));
        let below = below.take_while(|(above, _)| **above == dir);
        root.into_iter()
            .chain(below.map(|(_, name)| name.clone()))
            .collect()
    }

    /// Returns the files in a directory.
    pub(crate) fn files(&self, dir: Dir) -> Vec<&'static Entry> {
        let place: Option<Place> = self.scope(dir).and_then(Scope::place);
        place.into_iter().flat_map(files::of).collect()
    }
}
