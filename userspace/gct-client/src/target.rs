// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Parses and prints directories of the tree as paths.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use gct_core::iface::parse::{self, PidArg};
use gct_core::iface::Place;

use crate::Error;

/// A group or a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A named group.
    Group(String),
    /// A process.
    Process(u32),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(name) => f.write_str(name),
            Self::Process(pid) => pid.fmt(f),
        }
    }
}

impl FromStr for Owner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Ok(name) = parse::name(text.as_bytes()) {
            return Ok(Self::Group(name.as_str().to_owned()));
        }
        match parse::pid(text.as_bytes()) {
            Ok(PidArg::Pid(pid)) if pid.to_string() == text => Ok(Self::Process(pid)),
            _ => Err(Error::Target {
                text: text.to_owned(),
            }),
        }
    }
}

/// A directory of the tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The root.
    Root,
    /// `gpus/<n>`.
    Gpu(u32),
    /// `<name>` or `<pid>`.
    Owner(Owner),
    /// `<name>/<n>` or `<pid>/<n>`.
    Pool(Owner, u32),
}

impl Target {
    /// Returns the place that determines its files; `None` for a process, whose files lie in its
    /// GPUs' directories.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        match self {
            Self::Root => Some(Place::Root),
            Self::Gpu(_) => Some(Place::Gpu),
            Self::Owner(Owner::Group(_)) => Some(Place::Group),
            Self::Owner(Owner::Process(_)) => None,
            Self::Pool(..) => Some(Place::Pool),
        }
    }

    /// Returns the path below the root.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Root => PathBuf::new(),
            Self::Gpu(gpu) => PathBuf::from(format!("gpus/{gpu}")),
            Self::Owner(owner) => PathBuf::from(owner.to_string()),
            Self::Pool(owner, gpu) => PathBuf::from(format!("{owner}/{gpu}")),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("."),
            _ => self.path().display().fmt(f),
        }
    }
}

/// Parses a path; `.` is the root.
impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "." {
            return Ok(Self::Root);
        }
        let wrong = || Error::Target {
            text: text.to_owned(),
        };
        let Some((first, gpu)) = text.split_once('/') else {
            return text.parse().map(Self::Owner);
        };
        let gpu = gct_core::text::number(gpu.as_bytes())
            .ok()
            .and_then(|gpu| u32::try_from(gpu).ok())
            .ok_or_else(wrong)?;
        match first {
            "gpus" => Ok(Self::Gpu(gpu)),
            _ => first
                .parse()
                .map(|owner| Self::Pool(owner, gpu))
                .map_err(|_| wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_prints_as_it_was_parsed() {
        for text in [".", "gpus/3", "web_1", "4711", "web_1/0", "4711/7"] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.to_string(), text);
        }
    }

    #[test]
    fn invalid_targets_are_refused() {
        for text in [
            "", "gpus", "gpus/x", "gpus/", "control", "a/b", "../x", "a/0/1", "007", "0", "a b",
            "1x",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
