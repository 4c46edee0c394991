// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What can go wrong, and the one table of errno values.

/// A table whose storage the caller owns and may have to enlarge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// GPUs.
    Gpus,
    /// Named groups.
    Groups,
    /// Processes that have the driver open.
    Procs,
    /// The pids of those processes.
    Pids,
    /// Users who have the driver open.
    Users,
    /// Cgroup paths of groups.
    Paths,
    /// Owners on GPUs.
    Pools,
    /// Open files of the driver.
    Files,
    /// Objects of the resource manager.
    Objects,
    /// Directories.
    Dirs,
    /// Processes that belong to a group by pid.
    Members,
}

/// A request for more storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The table that is too small.
    pub table: Table,
    /// Which of the table's pieces.
    pub piece: usize,
    /// Slots that its new storage shall have, at least.
    pub slots: usize,
}

/// Why the core refused. State is unchanged whenever one is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Not of the form that the file takes.
    Syntax,
    /// Of the form, but outside the range.
    Range,
    /// No such process.
    NoProcess,
    /// A group that still has members, or a limit below what is charged.
    Busy,
    /// A name that is taken.
    Exists,
    /// A name that nobody has.
    NotFound,
    /// This GPU, mode or backend cannot do it.
    Unsupported,
    /// A maximum of [`limits`](crate::limits) is reached.
    NoSpace,
    /// What the open file belongs to is gone.
    Gone,
    /// The driver has not told yet.
    Unknown,
    /// The resource manager refused a control, so the limit is not in force.
    Refused,
    /// The file cannot be read, or not be written.
    Access,
    /// A table needs more storage: allocate outside the lock and try again.
    NeedSlots(Need),
}

impl Error {
    /// One of each, for tests and for documentation.
    pub const ALL: [Self; 13] = [
        Self::Syntax,
        Self::Range,
        Self::NoProcess,
        Self::Busy,
        Self::Exists,
        Self::NotFound,
        Self::Unsupported,
        Self::NoSpace,
        Self::Gone,
        Self::Unknown,
        Self::Refused,
        Self::Access,
        Self::NeedSlots(Need {
            table: Table::Groups,
            piece: 0,
            slots: 0,
        }),
    ];

    /// The Linux errno, positive, that user space sees.
    ///
    /// [`Error::NeedSlots`] is for the glue, which answers it with storage; it
    /// has a number for the case that there is no memory.
    pub const fn errno(self) -> i32 {
        self.row().0
    }

    /// The symbol of [`Error::errno`].
    pub const fn symbol(self) -> &'static str {
        self.row().1
    }

    /// What the error means to who wrote to a file.
    pub const fn meaning(self) -> &'static str {
        self.row().2
    }

    /// Finds an error by its errno, for clients that report what a write returned.
    pub fn from_errno(errno: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|error| error.errno() == errno)
    }

    const fn row(self) -> (i32, &'static str, &'static str) {
        match self {
            Self::Syntax => (22, "EINVAL", "not of the form that this file takes"),
            Self::Range => (34, "ERANGE", "out of range"),
            Self::NoProcess => (3, "ESRCH", "no such process"),
            Self::Busy => (
                16,
                "EBUSY",
                "the group still has members, or more is charged than the new limit",
            ),
            Self::Exists => (17, "EEXIST", "a group of that name or path exists"),
            Self::NotFound => (2, "ENOENT", "no group of that name exists"),
            Self::Unsupported => (95, "EOPNOTSUPP", "this GPU or mode cannot do it"),
            Self::NoSpace => (
                28,
                "ENOSPC",
                "a maximum is reached, or a quota could not be kept",
            ),
            Self::Gone => (19, "ENODEV", "the group, process or GPU is gone"),
            Self::Unknown => (61, "ENODATA", "the driver has not told yet"),
            Self::Refused => (121, "EREMOTEIO", "the driver's resource manager refused it"),
            Self::Access => (13, "EACCES", "the file is not readable, or not writable"),
            Self::NeedSlots(_) => (12, "ENOMEM", "out of memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_values_are_distinct_and_found_again() {
        for (i, a) in Error::ALL.iter().enumerate() {
            assert_eq!(Error::from_errno(a.errno()), Some(*a));
            for b in Error::ALL.iter().skip(i + 1) {
                assert_ne!(a.errno(), b.errno());
                assert_ne!(a.symbol(), b.symbol());
            }
        }
        assert_eq!(Error::from_errno(0), None);
    }
}
