// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reading and writing the tree, for the socket and for FUSE.

use crate::authority::Writer;
use crate::daemon::Daemon;
use crate::tree::{Dir, Node};
use crate::trial::Answer;
use gct_core::engine::needs_answers;
use gct_core::error::Error;
use gct_core::ids::Scope;
use gct_core::iface::files::{Entry, Mode};
use gct_core::iface::parse::{self, Command, PidArg};
use gct_core::iface::File;

/// A Linux number, positive.
pub(crate) type ErrorNumber = i32;

impl Daemon {
    /// What a path names.
    ///
    /// # Errors
    ///
    /// `ENOENT`.
    pub(crate) fn find(&self, path: &str) -> Result<Node, ErrorNumber> {
        self.tree.find(path).ok_or(libc::ENOENT)
    }

    /// The names in a directory, one per line; those of directories end with a slash.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOTDIR`.
    pub(crate) fn list(&self, path: &str) -> Result<String, ErrorNumber> {
        let Node::Dir(dir) = self.find(path)? else {
            return Err(libc::ENOTDIR);
        };
        let (dirs, files) = self.names(dir);
        let dirs = dirs.iter().map(|name| format!("{name}/\n"));
        let files = files.iter().map(|entry| format!("{}\n", entry.name));
        Ok(dirs.chain(files).collect())
    }

    /// The directories and the files in a directory.
    pub(crate) fn names(&self, dir: Dir) -> (Vec<String>, Vec<&'static Entry>) {
        (self.tree.dirs(dir), self.tree.files(dir))
    }

    fn file(&self, path: &str) -> Result<(&'static Entry, Scope), ErrorNumber> {
        match self.find(path)? {
            Node::File(entry, scope) => Ok((entry, scope)),
            Node::Dir(_) => Err(libc::EISDIR),
        }
    }

    /// The text of a file.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `EISDIR`, and what the core says.
    pub(crate) fn read(&mut self, path: &str) -> Result<String, ErrorNumber> {
        let (entry, scope) = self.file(path)?;
        self.show(entry, scope).map_err(Error::errno)
    }

    fn show(&mut self, entry: &Entry, scope: Scope) -> Result<String, Error> {
        let mut text = String::new();
        match (entry.file, scope) {
            (File::GroupProcs, Scope::Group(group)) => {
                let members = self.tables.members_of(group);
                let state = self.tables.state();
                // A process that ended is a member until the kernel tells.
                state.show_procs(group, &members, &mut |key| Some(key.tgid), &mut text)?;
            }
            (file, scope) => {
                if matches!(
                    file,
                    File::ComputeStat | File::ComputeEvents | File::TpcEffective
                ) {
                    self.harvest();
                }
                self.tables.state().show(file, scope, &mut text)?;
            }
        }
        Ok(text)
    }

    /// Writes a file: `text` is the whole of one write by `writer`. `None` if the outcome is
    /// not known yet: then what `later` makes is answered.
    pub(crate) fn write(
        &mut self,
        path: &str,
        text: &[u8],
        writer: Writer,
        later: impl FnOnce() -> Answer,
    ) -> Option<Result<(), ErrorNumber>> {
        let (entry, scope) = match self.file(path) {
            Ok(file) => file,
            Err(errno) => return Some(Err(errno)),
        };
        if entry.mode == Mode::Read || !writer.may_write() {
            return Some(Err(Error::Access.errno()));
        }
        let outcome = match needs_answers(entry.file) {
            true => self.put_on_trial(entry.file, scope, text, later)?,
            false => self.store(entry, scope, text, writer),
        };
        self.settle();
        Some(outcome.map_err(Error::errno))
    }

    fn store(
        &mut self,
        entry: &Entry,
        scope: Scope,
        text: &[u8],
        writer: Writer,
    ) -> Result<(), Error> {
        match (entry.file, scope) {
            (File::Control, Scope::Root) => self.command(parse::command(text)?),
            (File::GroupProcs, Scope::Group(group)) => {
                let pid = match parse::pid(text)? {
                    PidArg::Own => writer.pid,
                    PidArg::Pid(pid) => pid,
                };
                self.join(group, pid)
            }
            (file, scope) => self
                .tables
                .with(|tables| tables.state().write(file, scope, text)),
        }
    }

    fn command(&mut self, command: Command) -> Result<(), Error> {
        match command {
            Command::Create(name) => self
                .tables
                .with(|tables| tables.state().group_create(&name))
                .map(|_| ()),
            Command::Remove(name) => {
                let group = self.tables.state().group_by_name(&name)?;
                let members = self.tables.members().count(group);
                self.tables.state().group_remove(group, members)
            }
        }
    }
}
