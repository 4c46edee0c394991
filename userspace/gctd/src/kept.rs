// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps what administrators have decided in a file, so that it outlives the daemon.
//!
//! The file has a line for each change. A change is appended before its writer hears of its
//! success, so a daemon that is killed loses nothing that it has confirmed. When most lines are
//! outdated, a new file takes the place of the old one.
//!
//! ```text
//! boot ID                               pids mean nothing in another boot
//! group NAME                            the group was created
//! gone NAME                             it was removed
//! set NAME PCI FILE VALUE               a limit of a group on a GPU
//! set NAME - FILE VALUE                 a file of a group on no GPU
//! own PID START PCI FILE VALUE          a limit of a process
//! join NAME PID START JOINED HOW        a process is a member: `told`, or `born` as one's child
//! end PID START                         it has ended
//! ```
//!
//! START and JOINED are in nanoseconds since boot.

use rustix::fs::{open, Mode, OFlags};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file's name in the daemon's directory.
const NAME: &str = "kept";

/// Lines that may be outdated, beside as many as are not.
const OUTDATED_MAX: usize = 1000;

/// Least time between two messages about a file that cannot be written.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// A pid and a start time.
pub(crate) type Process = (u32, u64);

/// A file of a group or a process: the PCI address of the GPU, or `-`, and the file's name.
pub(crate) type Place = (String, String);

/// The values of files.
pub(crate) type Values = BTreeMap<Place, String>;

/// How a process became a member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) group: String,
    /// When it joined.
    pub(crate) joined: u64,
    /// Whether it inherited the group.
    pub(crate) born: bool,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A group was created.
    Group(String),
    /// A group was removed.
    Gone(String),
    /// A file of a group was written.
    Set(String, Place, String),
    /// A file of a process was written.
    Own(Process, Place, String),
    /// A process joined a group.
    Join(Process, Membership),
    /// A process has ended.
    End(Process),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(name) => writeln!(f, "group {name}"),
            Self::Gone(name) => writeln!(f, "gone {name}"),
            Self::Set(name, (gpu, file), value) => writeln!(f, "set {name} {gpu} {file} {value}"),
            Self::Own((pid, start), (gpu, file), value) => {
                writeln!(f, "own {pid} {start} {gpu} {file} {value}")
            }
            Self::Join(
                (pid, start),
                Membership {
                    group,
                    joined,
                    born,
                },
            ) => {
                let how = if *born { "born" } else { "told" };
                writeln!(f, "join {group} {pid} {start} {joined} {how}")
            }
            Self::End((pid, start)) => writeln!(f, "end {pid} {start}"),
        }
    }
}

impl Change {
    /// Parses a line. Returns `None` for one that this version does not know.
    fn parse(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ')?;
        let mut words = rest.splitn(5, ' ');
        let mut word = || words.next().map(str::to_owned);
        Some(match kind {
            "group" => Self::Group(word()?),
            "gone" => Self::Gone(word()?),
            "set" => {
                let (name, place) = (word()?, (word()?, word()?));
                let value: Vec<String> = std::iter::from_fn(word).collect();
                Self::Set(name, place, value.join(" "))
            }
            "own" => {
                let process = (word()?.parse().ok()?, word()?.parse().ok()?);
                Self::Own(process, (word()?, word()?), word()?)
            }
            "join" => {
                let group = word()?;
                let process = (word()?.parse().ok()?, word()?.parse().ok()?);
                let joined = word()?.parse().ok()?;
                let born = word()? == "born";
                let membership = Membership {
                    group,
                    joined,
                    born,
                };
                Self::Join(process, membership)
            }
            "end" => Self::End((word()?.parse().ok()?, word()?.parse().ok()?)),
            _ => return None,
        })
    }
}

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) groups: BTreeMap<String, Values>,
    pub(crate) processes: BTreeMap<Process, Values>,
    pub(crate) members: BTreeMap<Process, Membership>,
}

impl Kept {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Group(name) => {
                self.groups.entry(name).or_default();
            }
            Change::Gone(name) => {
                self.groups.remove(&name);
            }
            Change::Set(name, place, value) => {
                self.groups.entry(name).or_default().insert(place, value);
            }
            Change::Own(process, place, value) => {
                let values = self.processes.entry(process).or_default();
                values.insert(place, value);
            }
            Change::Join(process, membership) => {
                self.members.insert(process, membership);
            }
            Change::End(process) => {
                self.members.remove(&process);
                self.processes.remove(&process);
            }
        }
    }

    /// Returns whether something is kept of a process.
    fn knows(&self, process: Process) -> bool {
        self.members.contains_key(&process) || self.processes.contains_key(&process)
    }

    /// Returns the number of changes that lead to it.
    fn lines(&self) -> usize {
        let groups = self.groups.values().map(|values| 1 + values.len());
        let processes = self.processes.values().map(Values::len);
        groups.chain(processes).sum::<usize>() + self.members.len()
    }

    /// Returns the changes that lead to it.
    fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (name, values) in &self.groups {
            changes.push(Change::Group(name.clone()));
            let set = |(place, value): (&Place, &String)| {
                Change::Set(name.clone(), place.clone(), value.clone())
            };
            changes.extend(values.iter().map(set));
        }
        for (process, values) in &self.processes {
            let own = |(place, value): (&Place, &String)| {
                Change::Own(*process, place.clone(), value.clone())
            };
            changes.extend(values.iter().map(own));
        }
        let join = |(process, membership): (&Process, &Membership)| {
            Change::Join(*process, membership.clone())
        };
        changes.extend(self.members.iter().map(join));
        changes
    }
}

/// The file, and what is in it.
#[derive(Debug)]
pub(crate) struct Keeper {
    path: PathBuf,
    boot: String,
    kept: Kept,
    /// `None` after it could not be written.
    file: Option<File>,
    lines: usize,
    warned: Option<Instant>,
}

impl Keeper {
    /// Reads the file of a directory that only this daemon uses.
    pub(crate) fn read(directory: &Path) -> Self {
        let path = directory.join(NAME);
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = boot.trim().to_owned();
        let kept = match fs::read(&path) {
            Ok(bytes) => parse(&String::from_utf8_lossy(&bytes), &boot),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Kept::default(),
            Err(error) => {
                tracing::warn!(%error, "groups and limits of before cannot be read");
                Kept::default()
            }
        };
        Self {
            path,
            boot,
            kept,
            file: None,
            lines: 0,
            warned: None,
        }
    }

    /// Returns what is kept.
    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Keeps a change.
    pub(crate) fn keep(&mut self, change: Change) {
        match change {
            Change::End(process) if !self.kept.knows(process) => return,
            _ => {}
        }
        let line = change.to_string();
        self.kept.apply(change);
        let is_short =
            self.lines <= OUTDATED_MAX || self.lines <= 2 * self.kept.lines() + OUTDATED_MAX;
        let appended = match &mut self.file {
            // One call: a daemon that is killed leaves a whole line, or none that counts.
            Some(file) if is_short => file.write_all(line.as_bytes()),
            _ => Err(io::ErrorKind::Other.into()),
        };
        match appended {
            Ok(()) => self.lines += 1,
            Err(_) => self.write(),
        }
    }

    /// Replaces the file. If that fails, it is tried again at the next change.
    pub(crate) fn write(&mut self) {
        let changes = self.kept.changes();
        self.lines = changes.len();
        let written = self.replace(&changes);
        if let Err(error) = &written {
            let warned = &mut self.warned;
            if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
                *warned = Some(Instant::now());
                let path = self.path.display();
                tracing::warn!(%path, %error, "groups and limits would not outlive this daemon");
            }
        }
        self.file = written.ok();
    }

    fn replace(&self, changes: &[Change]) -> io::Result<File> {
        let new = self.path.with_extension("new");
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::APPEND;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut file = File::from(open(&new, flags, Mode::RUSR | Mode::WUSR)?);
        let mut text = format!("boot {}\n", self.boot);
        changes
            .iter()
            .for_each(|change| text += &change.to_string());
        file.write_all(text.as_bytes())?;
        fs::rename(&new, &self.path)?;
        Ok(file)
    }
}

/// Parses a file of this boot. That of another says nothing. What cannot be read is left out, and
/// said once.
fn parse(text: &str, boot: &str) -> Kept {
    let mut kept = Kept::default();
    // A line without an end was not written to its end.
    let mut lines = text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'));
    match lines.next().map(|line| line.strip_prefix("boot ")) {
        Some(Some(of)) if of == boot => {}
        Some(None) => {
            tracing::warn!(
                "groups and limits of before cannot be read: their file does not say of which boot"
            );
            return kept;
        }
        Some(Some(_)) | None => return kept,
    }
    let mut unknown = Vec::new();
    for line in lines {
        match Change::parse(line) {
            Some(change) => kept.apply(change),
            None => unknown.push(line),
        }
    }
    if let Some(first) = unknown.first() {
        tracing::warn!(
            lines = unknown.len(),
            first,
            "kept lines of another version are left out"
        );
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn place(gpu: &str, file: &str) -> Place {
        (gpu.into(), file.into())
    }

    fn join(pid: u32, born: bool) -> Change {
        let (group, joined) = ("web".into(), 7);
        let membership = Membership {
            group,
            joined,
            born,
        };
        Change::Join((pid, 5), membership)
    }

    /// A directory of a test, which is removed with it.
    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            let name = format!("gctd-kept-{test}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            fs::create_dir_all(&directory).unwrap();
            Self(directory)
        }

        fn lines(&self) -> usize {
            fs::read_to_string(self.0.join(NAME))
                .unwrap()
                .lines()
                .count()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let directory = Directory::new("again");
        let mut keeper = Keeper::read(&directory.0);
        let gpu = "0000:04:00.0";
        for change in [
            Change::Group("web".into()),
            Change::Group("gone".into()),
            Change::Set("web".into(), place(gpu, "compute.max"), "1 2".into()),
            Change::Set("web".into(), place("-", "group.cgroup"), "/a/b".into()),
            Change::Set("web".into(), place(gpu, "compute.max"), "20 100".into()),
            Change::Own((4, 5), place(gpu, "compute.max"), "3 4".into()),
            join(8, true),
            join(9, false),
            join(10, false),
            Change::End((10, 5)),
            Change::End((11, 5)),
            Change::Gone("gone".into()),
        ] {
            keeper.keep(change);
        }
        assert_eq!(directory.lines(), 12, "the end of a stranger is not kept");
        let again = Keeper::read(&directory.0);
        assert_eq!(again.kept(), keeper.kept());
        let kept = again.kept();
        assert_eq!(kept.groups.keys().collect::<Vec<_>>(), ["web"]);
        assert_eq!(kept.groups["web"][&place(gpu, "compute.max")], "20 100");
        assert_eq!(kept.processes[&(4, 5)][&place(gpu, "compute.max")], "3 4");
        assert_eq!(kept.members.keys().collect::<Vec<_>>(), [&(8, 5), &(9, 5)]);
        keeper.write();
        assert_eq!(directory.lines(), 7);
        assert_eq!(Keeper::read(&directory.0).kept(), again.kept());
    }

    #[test]
    fn a_damaged_line_loses_itself_alone() {
        let directory = Directory::new("damaged");
        let mut keeper = Keeper::read(&directory.0);
        keeper.keep(Change::Group("web".into()));
        keeper.keep(join(8, true));
        let path = directory.0.join(NAME);
        let whole = fs::read(&path).unwrap();
        let damaged: [&[u8]; 3] = [b"join web 9\xff 5 7 born\n", b"\xff\xfe\n", b"\0\0\n\n"];
        for line in damaged {
            fs::write(&path, [&whole, line, b"end 8 5\n"].concat()).unwrap();
            let kept = Keeper::read(&directory.0).kept().clone();
            assert_eq!((kept.groups.len(), kept.members.len()), (1, 0), "{line:?}");
        }
        fs::write(&path, [&[0; 7], &whole[..]].concat()).unwrap();
        assert_eq!(Keeper::read(&directory.0).kept(), &Kept::default());
    }

    /// Tenants come and go as often as they like.
    #[test]
    fn the_file_stays_short() {
        let directory = Directory::new("short");
        let mut keeper = Keeper::read(&directory.0);
        keeper.keep(Change::Group("web".into()));
        (0..100).for_each(|pid| keeper.keep(join(pid, true)));
        for pid in 100..10_000 {
            keeper.keep(join(pid, true));
            keeper.keep(Change::End((pid, 5)));
            if pid % 100 == 0 {
                assert!(directory.lines() < OUTDATED_MAX + 400);
            }
        }
        let kept = Keeper::read(&directory.0).kept().clone();
        assert_eq!((kept.groups.len(), kept.members.len()), (1, 100));
    }

    /// A limit of a process is a line, too. Many of them are no reason to make the file anew at
    /// each change.
    #[test]
    fn many_limits_of_processes_are_appended() {
        let directory = Directory::new("many");
        let mut keeper = Keeper::read(&directory.0);
        let files = ["a", "b", "c", "d"].map(|file| place("-", file));
        for pid in 0..1000 {
            let own = |place: &Place| Change::Own((pid, 5), place.clone(), "1".into());
            files.iter().map(own).for_each(|change| keeper.keep(change));
        }
        assert_eq!(keeper.kept().lines(), keeper.kept().changes().len());
        keeper.write();
        let inode = || fs::metadata(directory.0.join(NAME)).unwrap().ino();
        let before = inode();
        keeper.keep(join(2000, false));
        assert_eq!((directory.lines(), inode()), (4002, before));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_tried_again() {
        let directory = Directory::new("unwritable");
        let mut keeper = Keeper::read(&directory.0);
        keeper.keep(Change::Group("one".into()));
        // A folder in the place of the new file.
        let obstacle = directory.0.join(NAME).with_extension("new");
        fs::create_dir(&obstacle).unwrap();
        keeper.write();
        keeper.keep(Change::Group("two".into()));
        assert_eq!(Keeper::read(&directory.0).kept().groups.len(), 1);
        fs::remove_dir(&obstacle).unwrap();
        keeper.keep(Change::Group("three".into()));
        assert_eq!(Keeper::read(&directory.0).kept().groups.len(), 3);
    }
}
