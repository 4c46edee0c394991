// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Describes errors in sentences, with their causes.

use std::io;
use std::path::PathBuf;

use gct_core::error::Error as CoreError;

/// The cause of a failed access to a file of the tree.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The core refused it, in the kernel or in this process.
    #[error("{}: {}", .0.symbol(), .0.meaning())]
    Core(CoreError),
    /// The system call failed for another reason.
    #[error(transparent)]
    System(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        // ENOENT and EACCES of a system call are not the core's errors of the same number: the
        // file is missing, not a group.
        let kinds = [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied];
        let core = error.raw_os_error().and_then(CoreError::from_errno);
        match core.filter(|_| !kinds.contains(&error.kind())) {
            Some(core) => Self::Core(core),
            None => Self::System(error),
        }
    }
}

impl Refusal {
    /// Returns the core's error, if it is one.
    #[must_use]
    pub fn core(&self) -> Option<CoreError> {
        match self {
            Self::Core(error) => Some(*error),
            Self::System(_) => None,
        }
    }
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any other failure.
    Failure,
    /// The value is invalid or out of range, or the kernel refused it.
    Refused,
    /// The group, process, GPU or file does not exist.
    NotFound,
    /// This GPU or mode does not support it.
    Unsupported,
    /// The value in force is not the written one.
    Mismatch,
    /// The tree does not exist, or the user has no permission for it.
    Unavailable,
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory of the tree does not exist.
    #[error("There is no gctgroup tree at {}.", root.display())]
    NoTree {
        /// The directory.
        root: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The user has no permission.
    #[error("No permission for {}.", path.display())]
    Permission {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The target does not exist.
    #[error("There is no {target} in {}.", root.display())]
    NoTarget {
        /// The target.
        target: String,
        /// The root of the tree.
        root: PathBuf,
    },
    /// The text names no directory of the tree.
    #[error(
        "{text:?} names no group, process or GPU; write NAME, PID, NAME/GPU, PID/GPU or gpus/GPU."
    )]
    Target {
        /// The text.
        text: String,
    },
    /// The directory has no such file.
    #[error("{target} has no file {file}.")]
    NoFile {
        /// The directory.
        target: String,
        /// The file.
        file: String,
    },
    /// The group or process is on no GPU, where the file would be.
    #[error("{target} is on no GPU, so it has no {file}: gctctl ls lists the GPUs, gctctl doctor says why there is none.")]
    NoGpu {
        /// The group or process.
        target: String,
        /// The file.
        file: String,
    },
    /// The file is read-only or write-only.
    #[error("{file} can only be {can_be}.")]
    Access {
        /// The file.
        file: &'static str,
        /// `read` or `written`.
        can_be: &'static str,
    },
    /// A file could not be read.
    #[error("{} cannot be read.", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Refusal,
    },
    /// A file could not be written.
    #[error("{} does not accept {text:?}.", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The text.
        text: String,
        /// The cause.
        source: Refusal,
    },
    /// The value is invalid or out of range. Nothing was written.
    #[error("{file} does not accept {text:?}{hint}.")]
    Value {
        /// The file.
        file: &'static str,
        /// The value.
        text: String,
        /// The valid values.
        hint: String,
        /// The cause.
        source: Refusal,
    },
    /// The content of a file is invalid.
    #[error("{} holds {text:?}, which is invalid: use the gctctl of the tree's release.", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The content.
        text: String,
        /// The cause.
        source: Refusal,
    },
    /// The value in force after a write is not the written one.
    #[error("{} was written {wanted:?} but now reads {found:?}.", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The written value.
        wanted: String,
        /// The value in force.
        found: String,
    },
    /// A directory did not appear or disappear.
    #[error("{} was accepted, but the directory {name} {what}.", path.display())]
    Directory {
        /// The control file.
        path: PathBuf,
        /// The directory.
        name: String,
        /// What the directory did instead.
        what: &'static str,
    },
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::NoTree { .. } | Self::Permission { .. } => Kind::Unavailable,
            Self::NoTarget { .. } | Self::NoFile { .. } | Self::NoGpu { .. } => Kind::NotFound,
            Self::Target { .. } | Self::Value { .. } | Self::Access { .. } => Kind::Refused,
            Self::Read { source, .. } | Self::Write { source, .. } => kind_of(source),
            Self::Form { .. } => Kind::Failure,
            Self::Mismatch { .. } | Self::Directory { .. } => Kind::Mismatch,
        }
    }

    /// Returns the core's error that caused it, if there is one.
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

/// Returns an error and its causes on one line, `what: why: why`. An error that ends as a sentence
/// does so only where the line ends.
#[must_use]
pub fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line.truncate(line.trim_end_matches('.').len());
        line.push_str(": ");
        line.push_str(&cause.to_string());
        source = cause.source();
    }
    line
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
    fn errnos_of_the_core_have_a_kind_and_a_meaning() {
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
    fn a_line_has_no_end_of_a_sentence_inside() {
        const EOPNOTSUPP: i32 = 95;
        let source: Refusal = io::Error::from_raw_os_error(EOPNOTSUPP).into();
        let why = source.to_string();
        let error = Error::Write {
            path: "web/0/slip.power".into(),
            text: "5".to_owned(),
            source,
        };
        let line = format!("web/0/slip.power does not accept \"5\": {why}");
        assert_eq!(one_line(&error), line);
        let alone = Error::Access {
            file: "version",
            can_be: "read",
        };
        assert_eq!(one_line(&alone), "version can only be read.");
    }

    #[test]
    fn a_missing_file_is_not_a_missing_group() {
        const ENOENT: i32 = 2;
        const EIO: i32 = 5;
        assert_eq!(written(ENOENT).0, Kind::Failure);
        assert_eq!(written(EIO).0, Kind::Failure);
    }
}
