// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Parses paths of the tree.
//!
//! A path is relative to the root, without slashes at its ends: `web/0/gmem.limit`. The empty path
//! is the root.

use super::files::{self, Entry};
use super::parse;
use super::{Name, Place};
use crate::error::Error;
use crate::ids::GpuIndex;
use crate::limits;
use crate::text::number;

/// The name of the directory that holds the GPUs.
pub const GPUS: &str = "gpus";

/// Who has a directory in the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerName {
    /// A group.
    Group(Name),
    /// A process, by its pid in the initial pid namespace.
    Proc(u32),
}

/// A directory of the tree, by name. It need not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dir {
    /// The root.
    Root,
    /// `gpus/`.
    Gpus,
    /// `gpus/<n>/`.
    Gpu(GpuIndex),
    /// `<name>/` or `<pid>/`.
    Owner(OwnerName),
    /// `<name>/<n>/` or `<pid>/<n>/`.
    Pool(OwnerName, GpuIndex),
}

impl Dir {
    /// Returns the place that determines its files; `None` if it has none.
    pub const fn place(&self) -> Option<Place> {
        match self {
            Self::Root => Some(Place::Root),
            Self::Gpus | Self::Owner(OwnerName::Proc(_)) => None,
            Self::Gpu(_) => Some(Place::Gpu),
            Self::Owner(OwnerName::Group(_)) => Some(Place::Group),
            Self::Pool(..) => Some(Place::Pool),
        }
    }

    /// Returns the directory with a name in this one.
    fn child(self, name: &[u8]) -> Option<Self> {
        match self {
            Self::Root if name == GPUS.as_bytes() => Some(Self::Gpus),
            Self::Root => owner(name).map(Self::Owner),
            Self::Gpus => index(name).map(Self::Gpu),
            Self::Owner(owner) => index(name).map(|gpu| Self::Pool(owner, gpu)),
            Self::Gpu(_) | Self::Pool(..) => None,
        }
    }

    /// Returns the entry of a file in this directory.
    fn file(self, name: &[u8]) -> Option<&'static Entry> {
        files::find(self.place()?, core::str::from_utf8(name).ok()?)
    }
}

/// Parses the path of a directory.
///
/// # Errors
///
/// [`Error::NotFound`] if no directory can have this path.
pub fn dir(path: &[u8]) -> Result<Dir, Error> {
    if path.len() > limits::PATH_LEN_MAX {
        return Err(Error::NotFound);
    }
    if path.is_empty() {
        return Ok(Dir::Root);
    }
    let mut names = path.split(|byte| *byte == b'/');
    let found = names.try_fold(Dir::Root, Dir::child);
    found.ok_or(Error::NotFound)
}

/// Parses the path of a file: its directory and its entry.
///
/// # Errors
///
/// [`Error::NotFound`] if no file can have this path.
pub fn file(path: &[u8]) -> Result<(Dir, &'static Entry), Error> {
    let end = path.iter().rposition(|byte| *byte == b'/');
    let (above, name) = match end.and_then(|end| path.split_at_checked(end)) {
        Some((above, name)) => (above, name.get(1..).unwrap_or_default()),
        None => (path.get(..0).unwrap_or_default(), path),
    };
    if end == Some(0) {
        return Err(Error::NotFound);
    }
    let dir = dir(above)?;
    let entry = dir.file(name).ok_or(Error::NotFound)?;
    Ok((dir, entry))
}

fn owner(name: &[u8]) -> Option<OwnerName> {
    match parse::name(name) {
        Ok(name) => Some(OwnerName::Group(name)),
        Err(_) => u32::try_from(plain(name)?)
            .ok()
            .filter(|pid| *pid != 0)
            .map(OwnerName::Proc),
    }
}

fn index(name: &[u8]) -> Option<GpuIndex> {
    u8::try_from(plain(name)?).ok().map(GpuIndex)
}

/// Parses a number as the tree prints it, without a zero in front.
fn plain(name: &[u8]) -> Option<u64> {
    let number = number(name).ok()?;
    let padded = name.len() > 1 && name.first() == Some(&b'0');
    (!padded).then_some(number)
}

#[cfg(test)]
mod tests;
