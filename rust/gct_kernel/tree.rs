// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The directories in debugfs, each with its files of the core's table.
//!
//! A file knows two things: its entry in the table (debugfs' auxiliary number)
//! and its directory's [`Scope`] (the inode's private data).
//!
//! debugfs guards each read and write of a file against the file's removal:
//! `debugfs_remove` returns when none is running, and later ones fail with EIO
//! without calling us. So a [`Scope`] may be freed once its directory is removed,
//! even while a file is still open.

use crate::bindings::gct_debugfs_fops;
use crate::process::Watch;
use core::ptr;
use gct_core::dirs::DirPath;
use gct_core::ids::Scope;
use gct_core::iface::files::{Entry, FILES};
use gct_core::limits;
use kernel::bindings;
use kernel::pr_warn_once;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNodeReservation};

/// Name of the tree below debugfs' mount point.
const ROOT_NAME: &CStr = c"gctgroup";
/// Name of the directory of GPUs.
const GPUS_NAME: &CStr = c"gpus";

/// What debugfs made, or an error value, which debugfs takes in every place of a
/// directory and then does nothing.
#[derive(Clone, Copy)]
struct Dentry(*mut bindings::dentry);

// SAFETY: a dentry may be used from every thread; debugfs does its own locking.
unsafe impl Send for Dentry {}

impl Dentry {
    fn new(name: &CStr, parent: Option<Self>) -> Self {
        let parent = parent.map_or(ptr::null_mut(), |parent| parent.0);
        // SAFETY: `name` ends with a NUL and is copied; `parent` is null, an error
        // value, or a directory that was not removed, because `Tree` removes
        // children before parents and forgets what it removed.
        Self(unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), parent) })
    }

    /// Did debugfs make it?
    fn is_made(self) -> bool {
        kernel::error::from_err_ptr(self.0).is_ok()
    }

    /// Makes the files of `scope`'s place here. Says whether all could be made.
    fn add_files(self, scope: &Scope) -> bool {
        let Some(place) = scope.place() else {
            return true;
        };
        let mut all = true;
        for (number, entry) in FILES.iter().enumerate() {
            if entry.place == place {
                all &= self
                    .add_file(entry, number, scope)
                    .is_some_and(Self::is_made);
            }
        }
        all
    }

    fn add_file(self, entry: &Entry, number: usize, scope: &Scope) -> Option<Self> {
        with_c_name(entry.name, |name| {
            // SAFETY: `name` ends with a NUL and is copied. `self` is a directory
            // that was not removed. `scope` lives in the `Directory` of this
            // directory (or in `Tree::root_scope`), which outlives the file. The
            // operations are a static of this module and own it.
            Self(unsafe {
                bindings::debugfs_create_file_full(
                    name.as_char_ptr(),
                    entry.mode.bits(),
                    self.0,
                    ptr::from_ref(scope).cast_mut().cast(),
                    ptr::without_provenance(number),
                    &raw const gct_debugfs_fops,
                )
            })
        })
    }

    /// Removes the directory with all that is below it, and waits for reads and
    /// writes that are running there.
    fn remove(self) {
        // SAFETY: an error value, or a directory that was not removed; the callers
        // forget it.
        unsafe { bindings::debugfs_remove(self.0) };
    }
}

/// Calls `run` with `name` as a C string, unless the name is too long for one.
fn with_c_name<T>(name: &str, run: impl FnOnce(&CStr) -> T) -> Option<T> {
    let mut bytes = [0; limits::NAME_LEN_MAX + 1];
    bytes
        .get_mut(..name.len())?
        .copy_from_slice(name.as_bytes());
    CStr::from_bytes_until_nul(&bytes).ok().map(run)
}

/// A directory of the core's.
struct Directory {
    dentry: Dentry,
    /// What the files' inodes point to: freed after `dentry` is removed.
    _scope: KBox<Scope>,
}

fn is_group(path: DirPath) -> bool {
    matches!(path, DirPath::Group(_))
}

/// All directories.
pub(crate) struct Tree {
    /// `None` once the tree is closed.
    root: Option<Dentry>,
    gpus: Dentry,
    directories: RBTree<DirPath, Directory>,
    groups: usize,
    watch: Option<Watch>,
    _root_scope: KBox<Scope>,
}

impl Tree {
    /// Makes the root with its files.
    pub(crate) fn new() -> Result<Self> {
        let root_scope = KBox::new(Scope::Root, GFP_KERNEL)?;
        let root = Dentry::new(ROOT_NAME, None);
        if !(root.is_made() && root.add_files(&root_scope)) {
            pr_warn!("debugfs does not show the whole tree\n");
        }
        Ok(Self {
            root: Some(root),
            gpus: Dentry::new(GPUS_NAME, Some(root)),
            directories: RBTree::new(),
            groups: 0,
            watch: None,
            _root_scope: root_scope,
        })
    }

    fn parent(&self, path: DirPath) -> Option<Dentry> {
        let root = self.root?;
        let Some(above) = path.parent() else {
            return Some(match path {
                DirPath::Gpu(_) => self.gpus,
                _ => root,
            });
        };
        self.directories.get(&above).map(|above| above.dentry)
    }

    /// Makes a directory with its files. Below one that is not there, or when the
    /// tree is closed, nothing is made.
    ///
    /// # Errors
    ///
    /// `ENOMEM` when the directory or a file could not be made; the others are there.
    pub(crate) fn add(&mut self, path: DirPath, scope: Scope, name: &str) -> Result {
        let Some(parent) = self.parent(path) else {
            return Ok(());
        };
        // All memory first: what the files point to may not go before them.
        let scope = KBox::new(scope, GFP_KERNEL)?;
        let node = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let Some(dentry) = with_c_name(name, |name| Dentry::new(name, Some(parent))) else {
            return Ok(());
        };
        let whole = dentry.is_made() && dentry.add_files(&scope);
        let directory = Directory {
            dentry,
            _scope: scope,
        };
        self.groups = self.groups.saturating_add(usize::from(is_group(path)));
        self.directories.insert(node.into_node(path, directory));
        whole.then_some(()).ok_or(ENOMEM)
    }

    /// Removes a directory, which may not have been made.
    pub(crate) fn remove(&mut self, path: DirPath) {
        let Some(directory) = self.directories.remove(&path) else {
            return;
        };
        if self.root.is_some() {
            directory.dentry.remove();
        }
        self.groups = self.groups.saturating_sub(usize::from(is_group(path)));
    }

    /// Has forks and exits reported from now on, unless the kernel cannot.
    pub(crate) fn watch(&mut self) {
        if self.watch.is_none() {
            match Watch::start() {
                Ok(watch) => self.watch = Some(watch),
                Err(error) => pr_warn_once!(
                    "forks and exits are not reported ({error:?}): group.procs takes no writes\n"
                ),
            }
        }
    }

    /// Stops the reports when there is no group that could have members.
    pub(crate) fn unwatch_if_idle(&mut self) {
        if self.groups == 0 {
            self.watch = None;
        }
    }

    /// Takes the root out, so that nothing can be made any more. The caller
    /// removes it with [`Closed::remove`] after it let go of the tree's lock:
    /// a write of `control` that waits for the lock must end first.
    pub(crate) fn close(&mut self) -> Closed {
        self.watch = None;
        Closed(self.root.take())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // Not closed: it never came to be part of the glue. The files go before
        // the scopes that they point to.
        self.close().remove();
    }
}

/// The root of a tree that was closed.
pub(crate) struct Closed(Option<Dentry>);

impl Closed {
    /// Removes everything that is shown.
    pub(crate) fn remove(self) {
        if let Some(root) = self.0 {
            root.remove();
        }
    }
}
