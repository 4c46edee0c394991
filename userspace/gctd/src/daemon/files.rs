// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads and writes the files of the tree, for the sockets and for FUSE.

use super::{Daemon, OnDone};
use crate::errno::errno;
use crate::kept::Change;
use crate::peer::Credentials;
use crate::tenants::Counts;
use crate::tree::{Dir, Node};
use gct_core::engine::needs_acks;
use gct_core::error::Error;
use gct_core::host::Host;
use gct_core::ids::Scope;
use gct_core::iface::files::{Entry, Mode};
use gct_core::iface::parse::{self, Command, PidArg};
use gct_core::iface::File;
use gct_core::unmanaged::Reason;
use rustix::io::Errno;
use std::fmt::Write;

impl Daemon {
    /// Looks up a path.
    ///
    /// # Errors
    ///
    /// `ENOENT`.
    pub(crate) fn find(&self, path: &str) -> Result<Node, Errno> {
        self.tree.find(path).ok_or(Errno::NOENT)
    }

    /// Returns the names in a directory, one per line. Those of directories end with a slash.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOTDIR`.
    pub(crate) fn list(&self, path: &str) -> Result<String, Errno> {
        let Node::Dir(dir) = self.find(path)? else {
            return Err(Errno::NOTDIR);
        };
        let (dirs, files) = self.names(dir);
        let dirs = dirs.iter().map(|name| format!("{name}/\n"));
        let files = files.iter().map(|entry| format!("{}\n", entry.name));
        Ok(dirs.chain(files).collect())
    }

    /// Returns the directories and the files in a directory.
    pub(crate) fn names(&self, dir: Dir) -> (Vec<String>, Vec<&'static Entry>) {
        (self.tree.dirs(dir), self.tree.files(dir))
    }

    fn file(&self, path: &str) -> Result<(&'static Entry, Scope), Errno> {
        match self.find(path)? {
            Node::File(entry, scope) => Ok((entry, scope)),
            Node::Dir(_) => Err(Errno::ISDIR),
        }
    }

    /// Returns the text of a file.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `EISDIR`, and those of the core.
    pub(crate) fn read(&mut self, path: &str) -> Result<String, Errno> {
        let (entry, scope) = self.file(path)?;
        self.show(entry, scope).map_err(errno)
    }

    fn show(&mut self, entry: &Entry, scope: Scope) -> Result<String, Error> {
        let mut text = String::new();
        match (entry.file, scope) {
            (File::GroupProcs, Scope::Group(group)) => {
                let members = self.tables.members_of(group);
                let state = self.tables.state();
                // A process that ended stays a member until its watch reports the end.
                state.show_procs(group, &members, &mut |key| Some(key.tgid), &mut text)?;
            }
            (file, scope) => {
                let counted = matches!(
                    file,
                    File::ComputeStat | File::ComputeEvents | File::TpcEffective
                );
                if let (true, Scope::Pool(owner, gpu)) = (counted, scope) {
                    let state = &mut self.tables.state();
                    self.tenants.collect_counters_of(state, owner, gpu);
                }
                if let (File::ComputeStat, Scope::Pool(owner, gpu)) = (file, scope) {
                    let state = &mut self.tables.state();
                    let unbound = self.tenants.unbound(state, owner, gpu);
                    let pending = self.tenants.pending(state, owner, gpu);
                    state.set_unbound(owner, gpu, unbound);
                    state.set_pending(owner, gpu, pending);
                }
                self.tables.state().show(file, scope, &mut text)?;
                if let (File::ComputeStat, Scope::Pool(owner, gpu)) = (file, scope) {
                    let state = &self.tables.state();
                    let counts = self.tenants.unmanaged(state, owner, gpu);
                    show_unmanaged(&counts, || state.limits_launches(gpu), &mut text);
                }
            }
        }
        Ok(text)
    }

    /// Writes a file, and prints who wrote what. `text` is one whole write by `writer`.
    ///
    /// Returns `None` if processes must acknowledge the value first, or move memory. The callback
    /// that `on_done` creates then gets the outcome.
    pub(crate) fn write(
        &mut self,
        path: &str,
        text: &[u8],
        writer: Credentials,
        on_done: impl FnOnce() -> OnDone,
    ) -> Option<Result<(), Errno>> {
        let described = Written::new(path, text, writer);
        let print_later = described.clone();
        let on_done = || -> OnDone {
            let on_done = on_done();
            Box::new(move |outcome| {
                print_later.print(&outcome);
                on_done(outcome);
            })
        };
        let outcome = self.write_file(path, text, writer, on_done)?;
        described.print(&outcome);
        Some(outcome)
    }

    fn write_file(
        &mut self,
        path: &str,
        text: &[u8],
        writer: Credentials,
        on_done: impl FnOnce() -> OnDone,
    ) -> Option<Result<(), Errno>> {
        let (entry, scope) = match self.file(path) {
            Ok(file) => file,
            Err(errno) => return Some(Err(errno)),
        };
        if entry.mode == Mode::Read || !writer.is_admin() {
            return Some(Err(errno(Error::Access)));
        }
        if matches!(entry.file, File::GroupProcs | File::GroupCgroup) {
            // What was counted before belongs to the group of before.
            self.collect_counters();
        }
        let outcome = match needs_acks(entry.file) {
            true => self.begin_write(entry.file, scope, text, on_done)?,
            false => match self.store(entry, scope, text, writer) {
                Err(Error::Busy) if entry.file == File::GmemLimit => {
                    self.begin_lowering(scope, text, on_done)?
                }
                outcome => outcome,
            },
        };
        self.follow(entry.file);
        self.apply_effects();
        if outcome.is_ok() {
            self.keep_write(entry.file, scope, text);
        }
        Some(outcome.map_err(errno))
    }

    /// Does what depends on a file that was written.
    fn follow(&mut self, file: File) {
        if matches!(file, File::SloP99 | File::ComputePriority) {
            self.follow_requests();
        }
        if matches!(file, File::GmemLow | File::GmemLimit | File::GmemPageable) {
            self.follow_balance();
        }
        self.follow_driver_limits(file);
        self.apply_effects_later();
    }

    /// Writes a limit again, and waits for nobody. A limit of memory below what is charged by now
    /// grows to that.
    pub(super) fn set(&mut self, file: File, scope: Scope, text: &[u8]) -> Result<(), Error> {
        let outcome = match needs_acks(file) {
            true => self
                .begin_write(file, scope, text, || Box::new(|_| ()))
                .unwrap_or(Ok(())),
            false => {
                let write =
                    |tables: &mut Host, text: &[u8]| tables.state().write(file, scope, text);
                match (self.tables.with(|tables| write(tables, text)), scope) {
                    (Err(Error::Busy), Scope::Pool(owner, gpu)) if file == File::GmemLimit => {
                        let charged = self.tables.state().memory_charged((owner, gpu));
                        let charged = charged.get().to_string();
                        self.tables.with(|tables| write(tables, charged.as_bytes()))
                    }
                    (outcome, _) => outcome,
                }
            }
        };
        self.follow(file);
        outcome
    }

    fn store(
        &mut self,
        entry: &Entry,
        scope: Scope,
        text: &[u8],
        writer: Credentials,
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
            Command::Create(name) => {
                self.tables
                    .with(|tables| tables.state().group_create(&name))?;
                self.keeper.keep(Change::Group(name.as_str().to_owned()));
            }
            Command::Remove(name) => {
                let group = self.tables.state().group_by_name(&name)?;
                let members = self.tables.members().count(group);
                self.tables.state().group_remove(group, members)?;
                self.keeper.keep(Change::Gone(name.as_str().to_owned()));
            }
        }
        Ok(())
    }
}

/// Shows channels that are not managed. Each reason that occurred has a line. `limited` says
/// whether an owner on the GPU has a limit on launches, which does not bind them: a look at all.
fn show_unmanaged(counts: &Counts, limited: impl FnOnce() -> bool, out: &mut String) {
    let all = counts
        .iter()
        .fold(0, |sum: u64, more| sum.saturating_add(*more));
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "unmanaged {all}");
    for (reason, count) in Reason::ALL
        .iter()
        .zip(counts)
        .filter(|(_, count)| **count > 0)
    {
        let _ = writeln!(out, "unmanaged.{} {count}", reason.name());
    }
    let ungoverned = if all > 0 && limited() { all } else { 0 };
    let _ = writeln!(out, "ungoverned {ungoverned}");
}

/// A write, for the log.
#[derive(Clone, Debug)]
struct Written {
    path: String,
    text: String,
    writer: Credentials,
}

impl Written {
    fn new(path: &str, text: &[u8], writer: Credentials) -> Self {
        Self {
            path: path.to_owned(),
            text: String::from_utf8_lossy(text).trim_end().to_owned(),
            writer,
        }
    }

    /// Prints the outcome. What tenants try is not worth more than a debugger's attention: they
    /// could fill the log.
    fn print(&self, outcome: &Result<(), Errno>) {
        let (path, value) = (self.path.as_str(), self.text.as_str());
        let Credentials { pid, uid } = self.writer;
        match outcome {
            Ok(()) => tracing::info!(path, value, pid, uid, "written"),
            // Programs ask by an empty write whether they may write.
            Err(errno) if self.writer.is_admin() && !value.is_empty() => {
                tracing::warn!(path, value, pid, uid, %errno, "not written");
            }
            Err(errno) => tracing::debug!(path, value, pid, uid, %errno, "not written"),
        }
    }
}
