// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Errors, in sentences, with their causes.

use std::io;
use std::path::PathBuf;

use gct_core::error::Error as CoreError;

/// Why a system call on a file of the tree failed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The core refused, in the kernel or before anything was written.
    #[error("{}: {}", .0.symbol(), .0.meaning())]
    Core(CoreError),
    /// Something else.
    #[error(transparent)]
    System(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        // A missing file is not a missing group, and a permission is not a mode: leave these to the system.
        let kinds = [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied];
        let core = error.raw_os_error().and_then(CoreError::from_errno);
        match core.filter(|_| !kinds.contains(&error.kind())) {
            Some(core) => Self::Core(core),
            None => Self::System(error),
        }
    }
}

impl Refusal {
    /// The core's error, if it is one.
    #[must_use]
    pub fn core(&self) -> Option<CoreError> {
        match self {
            Self::Core(error) => Some(*error),
            Self::System(_) => None,
        }
    }
}

/// What kind of failure an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None of the others.
    Failure,
    /// The value is not of the form or out of range, or the kernel refused.
    Refused,
    /// No such group, process, GPU or file.
    NotFound,
    /// This GPU or mode cannot do it.
    Unsupported,
    /// What is in force is not what was written.
    Mismatch,
    /// The tree is not there, or may not be used.
    Unavailable,
}

/// What this crate can fail with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory of the tree does not exist.
    #[error("There is no gctgroup tree at {}.", root.display())]
    NoTree {
        /// Where it was looked for.
        root: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The user may not use the tree.
    #[error("No permission for {}.", path.display())]
    Permission {
        /// Which file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody has that directory.
    #[error("There is no {target} in {}.", root.display())]
    NoTarget {
        /// What was asked for.
        target: String,
        /// In which tree.
        root: PathBuf,
    },
    /// The text does not name a directory of the tree.
    #[error(
        "{text:?} names no group, process or GPU; write NAME, PID, NAME/GPU, PID/GPU or gpus/GPU."
    )]
    Target {
        /// What was written.
        text: String,
    },
    /// No such file in that directory.
    #[error("{target} has no file {file}.")]
    NoFile {
        /// The directory.
        target: String,
        /// The file.
        file: String,
    },
    /// The file can only be read, or only be written.
    #[error("{file} can only be {can_be}.")]
    Access {
        /// The file.
        file: &'static str,
        /// What is possible: read or written.
        can_be: &'static str,
    },
    /// A file could not be read.
    #[error("{} cannot be read.", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Refusal,
    },
    /// A file could not be written.
    #[error("{} does not take {text:?}.", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What was to be written.
        text: String,
        /// Why.
        source: Refusal,
    },
    /// The value is not of the form, or out of range; nothing was written.
    #[error("{file} does not take {text:?}{hint}.")]
    Value {
        /// The file.
        file: &'static str,
        /// What was to be written.
        text: String,
        /// What it takes.
        hint: String,
        /// Why.
        source: Refusal,
    },
    /// A file holds something that is not of its form.
    #[error("{} holds {text:?}, which is not of its form; is it of another version?", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What it holds.
        text: String,
        /// Why.
        source: Refusal,
    },
    /// What is in force after a write is not what was written.
    #[error("{} was written {wanted:?} but now reads {found:?}.", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What was written.
        wanted: String,
        /// What it reads.
        found: String,
    },
    /// A directory did not appear, or stayed.
    #[error("{} was accepted, but the directory {name} {what}.", path.display())]
    Directory {
        /// The control file.
        path: PathBuf,
        /// The directory.
        name: String,
        /// What did not happen.
        what: &'static str,
    },
}

impl Error {
    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::NoTree { .. } | Self::Permission { .. } => Kind::Unavailable,
            Self::NoTarget { .. } | Self::NoFile { .. } => Kind::NotFound,
            Self::Target { .. } | Self::Value { .. } | Self::Access { .. } => Kind::Refused,
            Self::Read { source, .. } | Self::Write { source, .. } => kind_of(source),
            Self::Form { .. } => Kind::Failure,
            Self::Mismatch { .. } | Self::Directory { .. } => Kind::Mismatch,
        }
    }

    /// The core's error below it, if there is one.
    #[must_use]
    pub fn core(&self) -> Option<CoreError> {
        match self {
            Self::Read { source, .. }
            | Self::Write { source, .. }
            | Self::Value { source, .. }
            | Self::Form { source, .. } => source.core(),
            _ => None,
        }
    }
}

fn kind_of(refusal: &Refusal) -> Kind {
    match refusal {
        Refusal::Core(CoreError::Unsupported) => Kind::Unsupported,
        Refusal::Core(CoreError::NotFound | CoreError::NoProcess | CoreError::Gone) => {
            Kind::NotFound
        }
        Refusal::Core(_) => Kind::Refused,
        Refusal::System(_) => Kind::Failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(errno: i32) -> (Kind, String) {
        let error = Error::Write {
            path: "web/0/tpc.mask".into(),
            text: "0-3".to_owned(),
            source: io::Error::from_raw_os_error(errno).into(),
        };
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        (error.kind(), cause.unwrap_or_default())
    }

    #[test]
    fn each_errno_of_the_core_has_its_kind_and_its_meaning() {
        for (core, kind) in [
            (CoreError::Syntax, Kind::Refused),
            (CoreError::Range, Kind::Refused),
            (CoreError::Busy, Kind::Refused),
            (CoreError::NoSpace, Kind::Refused),
            (CoreError::Unsupported, Kind::Unsupported),
            (CoreError::NoProcess, Kind::NotFound),
            (CoreError::Gone, Kind::NotFound),
        ] {
            let (found, cause) = written(core.errno());
            assert_eq!(found, kind, "{core:?}");
            assert_eq!(cause, format!("{}: {}", core.symbol(), core.meaning()));
        }
    }

    #[test]
    fn a_missing_file_is_no_missing_group() {
        const ENOENT: i32 = 2;
        const EIO: i32 = 5;
        assert_eq!(written(ENOENT).0, Kind::Failure);
        assert_eq!(written(EIO).0, Kind::Failure);
    }
}
