// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Looks up paths of the tree, and lists its directories.

use crate::dirs::DirPath;
use crate::error::Error;
use crate::ids::{GpuIndex, Owner, Scope};
use crate::iface::files::{self, Mode};
use crate::iface::path::{self, Dir, OwnerName, GPUS};
use crate::iface::File;
use crate::limits;
use crate::state::State;
use core::fmt::{self, Write};

impl State<'_> {
    /// Looks up a file that may be accessed so. Returns it with the scope of its directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::Access`].
    pub fn file_at(&self, path: &[u8], access: Mode) -> Result<(File, Scope), Error> {
        let (dir, entry) = path::file(path)?;
        let scope = self.scope_of(&dir)?.ok_or(Error::NotFound)?;
        match entry.mode == access || entry.mode == Mode::ReadWrite {
            true => Ok((entry.file, scope)),
            false => Err(Error::Access),
        }
    }

    /// Lists a directory: one name per line, those of directories with a slash at the end.
    /// O(groups and processes) for the root.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::NoSpace`] when `out` is full.
    pub fn list(&self, path: &[u8], out: &mut dyn Write) -> Result<(), Error> {
        let dir = path::dir(path)?;
        self.scope_of(&dir)?;
        self.list_dirs(&dir, out)
            .and_then(|()| {
                let mut files = dir.place().into_iter().flat_map(files::of);
                files.try_for_each(|entry| writeln!(out, "{}", entry.name))
            })
            .map_err(|_| Error::NoSpace)
    }

    /// Returns the scope of a directory, or `None` for `gpus/`, which has none.
    fn scope_of(&self, dir: &Dir) -> Result<Option<Scope>, Error> {
        let path = match dir {
            Dir::Root => return Ok(Some(Scope::Root)),
            Dir::Gpus => return Ok(None),
            Dir::Gpu(gpu) => DirPath::Gpu(*gpu),
            Dir::Owner(owner) => self.path_of(owner)?,
            Dir::Pool(owner, gpu) => below(self.path_of(owner)?, *gpu),
        };
        self.dirs.wanted(path).map(Some).ok_or(Error::NotFound)
    }

    fn path_of(&self, owner: &OwnerName) -> Result<DirPath, Error> {
        match owner {
            OwnerName::Group(name) => self.group_by_name(name).map(DirPath::Group),
            OwnerName::Proc(pid) => Ok(DirPath::Proc(*pid)),
        }
    }

    fn list_dirs(&self, dir: &Dir, out: &mut dyn Write) -> fmt::Result {
        match dir {
            Dir::Root => self.list_root(out),
            Dir::Gpus => self.list_gpus(DirPath::Gpu, out),
            Dir::Owner(owner) => match self.path_of(owner) {
                Ok(path) => self.list_gpus(|gpu| below(path, gpu), out),
                Err(_) => Ok(()),
            },
            Dir::Gpu(_) | Dir::Pool(..) => Ok(()),
        }
    }

    fn list_root(&self, out: &mut dyn Write) -> fmt::Result {
        writeln!(out, "{GPUS}/")?;
        for (_, group) in self.groups.iter() {
            writeln!(out, "{}/", group.name.as_str())?;
        }
        for (key, _) in self.procs.iter() {
            // A pid's directory belongs to the youngest of its processes.
            if self.dirs.wanted(DirPath::Proc(key.tgid)) == Some(Scope::Proc(*key)) {
                writeln!(out, "{}/", key.tgid)?;
            }
        }
        Ok(())
    }

    fn list_gpus(&self, path: impl Fn(GpuIndex) -> DirPath, out: &mut dyn Write) -> fmt::Result {
        for index in (0..=u8::MAX).take(limits::GPUS_MAX) {
            if self.dirs.wanted(path(GpuIndex(index))).is_some() {
                writeln!(out, "{index}/")?;
            }
        }
        Ok(())
    }
}

/// Returns the path of an owner's directory for a GPU.
fn below(owner: DirPath, gpu: GpuIndex) -> DirPath {
    match owner {
        DirPath::Group(group) => DirPath::of_pool(Owner::Group(group), gpu),
        DirPath::Proc(tgid) => DirPath::ProcGpu(tgid, gpu),
        other => other,
    }
}
