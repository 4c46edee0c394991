// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes and removes the directories in debugfs, each with the files of the core's table.
//!
//! A file has its index in that table (debugfs' auxiliary number) and its directory's [`Scope`]
//! (the inode's private data).
//!
//! `debugfs_remove` waits for reads and writes that are running; later ones fail with EIO and do
//! not reach this module. So a [`Scope`] may be freed when its directory has been removed, even if
//! files of it are still open.

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
/// Name of the directory that holds the GPUs.
const GPUS_NAME: &CStr = c"gpus";

/// An entry of debugfs, or an error value. debugfs accepts an error value wherever it takes a
/// directory, and then does nothing.
#[derive(Clone, Copy)]
struct Dentry(*mut bindings::dentry);

// SAFETY: debugfs functions take a dentry in any thread and do their own locking.
unsafe impl Send for Dentry {}

impl Dentry {
    fn new(name: &CStr, parent: Option<Self>) -> Self {
        let parent = parent.map_or(ptr::null_mut(), |parent| parent.0);
        // SAFETY: `name` is NUL-terminated, and debugfs copies it. `parent` is null, an error
        // value, or a directory that still exists: `Tree` removes children before parents and
        // forgets what it has removed.
        Self(unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), parent) })
    }

    /// Returns whether debugfs made it.
    fn is_made(self) -> bool {
        kernel::error::from_err_ptr(self.0).is_ok()
    }

    /// Makes the files for `scope` in this directory. Returns whether all could be made.
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
            // SAFETY: `name` is NUL-terminated, and debugfs copies it. `self` is a directory that
            // still exists, or an error value. `scope` is in a box of this directory's `Directory`
            // (the root's in `Tree`), which is freed after the file is removed. The operations are
            // a static of this module and pin it.
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

    /// Removes the directory and everything below it. Waits for reads and writes that are running
    /// there.
    fn remove(self) {
        // SAFETY: an error value, or a directory that still exists. The callers do not use it
        // again.
        unsafe { bindings::debugfs_remove(self.0) };
    }
}

/// Calls `run` with `name` as a C string. Returns `None` if the name is longer than a name may be.
fn with_c_name<T>(name: &str, run: impl FnOnce(&CStr) -> T) -> Option<T> {
    let mut bytes = [0; limits::NAME_LEN_MAX + 1];
    bytes
        .get_mut(..name.len())?
        .copy_from_slice(name.as_bytes());
    CStr::from_bytes_until_nul(&bytes).ok().map(run)
}

/// A directory that the core asked for.
struct Directory {
    dentry: Dentry,
    /// The files' inodes point to it, so it is freed after `dentry` is removed.
    _scope: KBox<Scope>,
}

fn is_group(path: DirPath) -> bool {
    matches!(path, DirPath::Group(_))
}

/// The root and all directories below it.
pub(crate) struct Tree {
    /// `None` after the tree was closed.
    root: Option<Dentry>,
    /// Whether debugfs made the root. It refuses where the kernel was booted with `debugfs=off`;
    /// then there is nothing to make below, and `/dev/gctgroup` serves the tree.
    is_shown: bool,
    gpus: Dentry,
    directories: RBTree<DirPath, Directory>,
    groups: usize,
    watch: Option<Watch>,
    _root_scope: KBox<Scope>,
}

impl Tree {
    /// Makes the root and its files.
    ///
    /// # Errors
    ///
    /// ENOMEM. If debugfs cannot show the root or its files, the log says so and there is no error.
    pub(crate) fn new() -> Result<Self> {
        let root_scope = KBox::new(Scope::Root, GFP_KERNEL)?;
        let root = Dentry::new(ROOT_NAME, None);
        if !root.is_made() {
            pr_info!("debugfs is off: the tree is in /dev/gctgroup alone\n");
        } else if !root.add_files(&root_scope) {
            pr_warn!("debugfs does not show the whole tree\n");
        }
        Ok(Self {
            root: Some(root),
            is_shown: root.is_made(),
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

    /// Makes a directory and its files. Does nothing if the parent does not exist or the tree is
    /// closed.
    ///
    /// # Errors
    ///
    /// ENOMEM if the directory or one of its files could not be made. The others exist.
    pub(crate) fn add(&mut self, path: DirPath, scope: Scope, name: &str) -> Result {
        let Some(parent) = self.parent(path) else {
            return Ok(());
        };
        // Allocate everything first: the scope must not be freed while files point to it.
        let scope = KBox::new(scope, GFP_KERNEL)?;
        let node = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let Some(dentry) = with_c_name(name, |name| Dentry::new(name, Some(parent))) else {
            return Ok(());
        };
        let whole = !self.is_shown || (dentry.is_made() && dentry.add_files(&scope));
        let directory = Directory {
            dentry,
            _scope: scope,
        };
        self.groups = self.groups.saturating_add(usize::from(is_group(path)));
        self.directories.insert(node.into_node(path, directory));
        whole.then_some(()).ok_or(ENOMEM)
    }

    /// Removes a directory if it was made.
    pub(crate) fn remove(&mut self, path: DirPath) {
        let Some(directory) = self.directories.remove(&path) else {
            return;
        };
        if self.root.is_some() {
            directory.dentry.remove();
        }
        self.groups = self.groups.saturating_sub(usize::from(is_group(path)));
    }

    /// Starts the reports of forks and exits. If the kernel cannot, the log says so once.
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

    /// Stops the reports if there is no group.
    pub(crate) fn unwatch_if_idle(&mut self) {
        if self.groups == 0 {
            self.watch = None;
        }
    }

    /// Closes the tree: nothing can be made any more. The caller drops the tree's lock and then
    /// calls [`Closed::remove`], which waits for writes of `control`, and these wait for the lock.
    pub(crate) fn close(&mut self) -> Closed {
        self.watch = None;
        Closed(self.root.take())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // Has an effect if the glue could not be made. Files are removed before the scopes that
        // they point to are freed.
        self.close().remove();
    }
}

/// The root of a tree that was closed.
pub(crate) struct Closed(Option<Dentry>);

impl Closed {
    /// Removes the root and everything below it.
    pub(crate) fn remove(self) {
        if let Some(root) = self.0 {
            root.remove();
        }
    }
}
