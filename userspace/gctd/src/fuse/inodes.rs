// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Numbers the paths that the kernel knows, and keeps the texts of its open files.

use fuser::INodeNo;
use std::collections::HashMap;

/// The inodes and the open files of the mount.
#[derive(Debug)]
pub(super) struct Inodes {
    /// Each inode's path and how often the kernel has looked it up.
    paths: HashMap<u64, (String, u64)>,
    numbers: HashMap<String, u64>,
    /// The text of each open file, by file handle.
    texts: HashMap<u64, String>,
    last: u64,
}

impl Inodes {
    /// Creates a table with the root.
    pub(super) fn new() -> Self {
        let root = INodeNo::ROOT.0;
        Self {
            paths: HashMap::from([(root, (String::new(), 1))]),
            numbers: HashMap::from([(String::new(), root)]),
            texts: HashMap::new(),
            last: root,
        }
    }

    /// Returns the path of an inode.
    pub(super) fn path(&self, inode: INodeNo) -> Option<&str> {
        self.paths.get(&inode.0).map(|(path, _)| path.as_str())
    }

    /// Returns the inode of a path, and counts a lookup by the kernel.
    pub(super) fn look_up(&mut self, path: String) -> INodeNo {
        if let Some(number) = self.numbers.get(&path) {
            if let Some((_, lookups)) = self.paths.get_mut(number) {
                *lookups += 1;
            }
            return INodeNo(*number);
        }
        self.last += 1;
        self.numbers.insert(path.clone(), self.last);
        self.paths.insert(self.last, (path, 1));
        INodeNo(self.last)
    }

    /// Takes back lookups of an inode, and removes it after the last.
    pub(super) fn forget(&mut self, inode: INodeNo, lookups: u64) {
        let Some((_, count)) = self.paths.get_mut(&inode.0) else {
            return;
        };
        *count = count.saturating_sub(lookups);
        if *count == 0 && inode != INodeNo::ROOT {
            if let Some((path, _)) = self.paths.remove(&inode.0) {
                self.numbers.remove(&path);
            }
        }
    }

    /// Adds an open file. Returns its handle.
    pub(super) fn open(&mut self, text: String) -> u64 {
        self.last += 1;
        self.texts.insert(self.last, text);
        self.last
    }

    /// Returns the text of an open file.
    pub(super) fn text(&self, handle: u64) -> Option<&str> {
        self.texts.get(&handle).map(String::as_str)
    }

    /// Removes an open file.
    pub(super) fn close(&mut self, handle: u64) {
        self.texts.remove(&handle);
    }
}
