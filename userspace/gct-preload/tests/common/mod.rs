// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds what cargo has built, and runs programs under the library with the fake driver.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// Returns a file in cargo's output directory.
pub(crate) fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let file = test.parent().unwrap().parent().unwrap().join(name);
    assert!(file.exists(), "{} is not built", file.display());
    file
}

/// Returns the command that runs a program under the library.
pub(crate) fn preloaded(program: impl AsRef<OsStr>) -> Command {
    let libraries = ["deps/libgct_preload.so", "examples/libfake_driver.so"].map(built);
    let [library, driver] = libraries.map(|path| path.into_os_string().into_string().unwrap());
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", format!("{library}:{driver}"));
    command
}
