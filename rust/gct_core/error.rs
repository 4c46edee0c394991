// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the errors of the core and the table of their errno values.

/// A table. The caller owns its storage and adds pages.
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
    /// Pools: owners on GPUs.
    Pools,
    /// Open files of the driver.
    Files,
    /// Objects of the resource manager.
    Objects,
    /// Directories.
    Dirs,
    /// Members of groups by pid.
    Members,
}

/// A request for a page of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The table that is too small.
    pub table: Table,
    /// The index of the page.
    pub piece: usize,
    /// The number of slots that the table needs.
    pub slots: usize,
}

/// The reason why the core refuses an operation. An operation that fails changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The text does not have the file's form.
    Syntax,
    /// The value is out of range.
    Range,
    /// The process does not exist.
    NoProcess,
    /// The group still has members, or the limit is below the usage.
    Busy,
    /// The name exists already.
    Exists,
    /// The name does not exist.
    NotFound,
    /// The GPU, mode or backend does not support it.
    Unsupported,
    /// A maximum of [`limits`](crate::limits) is reached.
    NoSpace,
    /// The subject of the open file no longer exists.
    Gone,
    /// The driver has not reported the fact yet.
    Unknown,
    /// The resource manager refused a control, so the limit is not in force.
    Refused,
    /// The file does not permit the access.
    Access,
    /// A table needs a page: the caller allocates it without the lock and calls again.
    NeedSlots(Need),
}

impl Error {
    /// One error of each kind.
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

    /// Returns the positive errno that user space sees.
    ///
    /// The glue handles [`Error::NeedSlots`]. User space sees its errno if the glue has no memory.
    pub const fn errno(self) -> i32 {
        self.row().0
    }

    /// Returns the symbol of [`Error::errno`].
    pub const fn symbol(self) -> &'static str {
        self.row().1
    }

    /// Returns what the error means to the writer of a file.
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
            Self::Unknown => (61, "ENODATA", "the driver has not reported it yet"),
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
