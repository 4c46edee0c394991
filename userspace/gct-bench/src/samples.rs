// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Takes the committed samples out of their archive, for tests.

use crate::report::Report;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder of the results.
pub(crate) fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../gctgroup-docs/results")
}

/// The samples, in a folder that goes with it.
pub(crate) struct Samples(PathBuf);

impl Samples {
    /// Takes them out, for the test of this name.
    pub(crate) fn take_out(test: &str) -> Self {
        let name = format!("gct-samples-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let samples = Self(folder);
        let mut tar = Command::new("tar");
        tar.arg("xf").arg(results().join("samples.tar.xz"));
        assert!(tar.arg("-C").arg(&samples.0).status().unwrap().success());
        samples
    }

    /// Returns those of a name.
    pub(crate) fn read(&self, name: &str) -> Report {
        Report::read(&[self.0.join(name).with_extension("json")]).unwrap()
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
