// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packs the root file system of the test machine: busybox, the modules, the test's files and the
//! init script.

use crate::cpio::Archive;
use anyhow::{anyhow, bail, Context};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian's packages install a static busybox.
const BUSYBOX: &[&str] = &["/bin/busybox", "/usr/bin/busybox"];

const DIRECTORIES: &[&str] = &["bin", "dev", "modules", "proc", "sys", "test", "tmp"];

/// A file to copy into the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestFile {
    host: PathBuf,
    guest: String,
}

impl GuestFile {
    /// Describes a file that goes to `guest`, an absolute path.
    pub(crate) fn new(host: impl Into<PathBuf>, guest: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            guest: guest.into(),
        }
    }

    /// Parses "HOST" and "HOST:GUEST". Without GUEST the file goes into /test, which is in the
    /// PATH.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some((host, guest)) = text.rsplit_once(':') {
            if !guest.starts_with('/') {
                return Err(format!("{guest} is not an absolute path"));
            }
            return Ok(Self::new(host, guest));
        }
        let name = Path::new(text)
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(|| format!("{text} names no file"))?;
        Ok(Self::new(text, format!("/test/{name}")))
    }
}

/// Writes the archive with `files` to `path`.
pub(crate) fn write(path: &Path, files: &[GuestFile]) -> anyhow::Result<()> {
    let out = File::create(path).with_context(|| format!("Cannot create {}", path.display()))?;
    let mut archive = Archive::new(BufWriter::new(out));
    let mut directories = BTreeSet::new();
    for directory in DIRECTORIES {
        add_directory(&mut archive, &mut directories, directory)?;
    }
    // The kernel opens the console for init before it mounts devtmpfs.
    archive.character_device("dev/console", 5, 1)?;
    archive.file("init", 0o755, include_bytes!("init.sh"))?;
    archive.file("test/lib.sh", 0o644, include_bytes!("lib.sh"))?;
    add_busybox(&mut archive)?;
    for file in files {
        let guest = file.guest.trim_start_matches('/');
        if let Some(parent) = Path::new(guest).parent().and_then(Path::to_str) {
            add_directory(&mut archive, &mut directories, parent)?;
        }
        add_file(&mut archive, &file.host, guest)?;
    }
    archive.finish()?;
    Ok(())
}

/// Adds a directory and its parents, each once.
fn add_directory<W: Write>(
    archive: &mut Archive<W>,
    known: &mut BTreeSet<String>,
    path: &str,
) -> anyhow::Result<()> {
    if path.is_empty() || known.contains(path) {
        return Ok(());
    }
    if let Some(parent) = Path::new(path).parent().and_then(Path::to_str) {
        add_directory(archive, known, parent)?;
    }
    archive.directory(path)?;
    known.insert(path.to_owned());
    Ok(())
}

fn add_file<W: Write>(archive: &mut Archive<W>, host: &Path, guest: &str) -> anyhow::Result<()> {
    let read = || -> std::io::Result<_> {
        let executable = fs::metadata(host)?.permissions().mode() & 0o111 != 0;
        Ok((fs::read(host)?, executable))
    };
    let (content, executable) =
        read().with_context(|| format!("Cannot read {}", host.display()))?;
    if needs_interpreter(&content) {
        bail!(
            "{} is linked dynamically and the machine has no libraries; \
             build it with -C target-feature=+crt-static (C: -static)",
            host.display()
        );
    }
    let mode = if executable { 0o755 } else { 0o644 };
    archive.file(guest, mode, &content)?;
    Ok(())
}

/// Returns whether `content` is a 64-bit little-endian ELF executable with a PT_INTERP header,
/// which names a dynamic loader.
fn needs_interpreter(content: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let word = |at: usize| -> Option<u32> {
        let bytes = content.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let half = |at: usize| -> Option<usize> {
        let bytes = content.get(at..at + 2)?;
        Some(usize::from(u16::from_le_bytes(bytes.try_into().ok()?)))
    };
    if !content.starts_with(b"\x7fELF\x02\x01") {
        return false;
    }
    // e_phoff, e_phentsize, e_phnum.
    let (Some(offset), Some(size), Some(count)) = (word(32), half(54), half(56)) else {
        return false;
    };
    let Ok(offset) = usize::try_from(offset) else {
        return false;
    };
    (0..count).any(|index| word(offset + index * size) == Some(PT_INTERP))
}

fn add_busybox<W: Write>(archive: &mut Archive<W>) -> anyhow::Result<()> {
    let busybox = BUSYBOX
        .iter()
        .map(Path::new)
        .find(|path| path.exists())
        .ok_or_else(|| anyhow!("No busybox on this machine; install the package busybox-static"))?;
    add_file(archive, busybox, "bin/busybox")?;
    let list = Command::new(busybox)
        .arg("--list")
        .output()
        .context("Cannot run busybox --list")?;
    for applet in String::from_utf8_lossy(&list.stdout).lines() {
        if applet != "busybox" {
            archive.symlink(&format!("bin/{applet}"), "busybox")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_paths_default_to_the_test_directory() {
        assert_eq!(
            GuestFile::parse("a/b/tool"),
            Ok(GuestFile::new("a/b/tool", "/test/tool"))
        );
        assert_eq!(
            GuestFile::parse("a/b.bin:/lib/firmware/x.bin"),
            Ok(GuestFile::new("a/b.bin", "/lib/firmware/x.bin"))
        );
        assert!(GuestFile::parse("a:relative").is_err());
        assert!(GuestFile::parse("a/..").is_err());
    }

    #[test]
    fn dynamic_programs_differ_from_static_ones() {
        let own = fs::read("/proc/self/exe").unwrap();
        assert!(needs_interpreter(&own), "tests are linked dynamically");
        assert!(!needs_interpreter(b"#!/bin/sh\n"));
        assert!(!needs_interpreter(b"\x7fELF\x02\x01"));
    }
}
