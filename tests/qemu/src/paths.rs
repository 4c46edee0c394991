// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Locates the parts of a machine in the build directory.

use anyhow::{bail, Context};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The build directory of a clone.
#[derive(Debug)]
pub(crate) struct BuildTree(PathBuf);

impl BuildTree {
    /// Returns the given directory, or `build` of the clone that contains the working directory.
    pub(crate) fn find(given: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = given {
            return Ok(Self(path.to_owned()));
        }
        let here = env::current_dir().context("Cannot tell the working directory")?;
        here.ancestors()
            .map(|directory| directory.join("build"))
            .find(|build| build.join("linux").is_dir())
            .map(Self)
            .context("No build directory here or above; run make setup or give --build")
    }

    /// Returns the path of this flavour's kernel.
    pub(crate) fn kernel(&self, flavour: &str) -> anyhow::Result<PathBuf> {
        self.existing(
            &format!("linux/{flavour}/arch/x86/boot/bzImage"),
            "run make setup",
        )
    }

    /// Returns the configuration of a kernel, and the path at which a distribution installs it.
    pub(crate) fn kernel_config(&self, flavour: &str) -> anyhow::Result<(PathBuf, String)> {
        let release = self.existing(
            &format!("linux/{flavour}/include/config/kernel.release"),
            "run make setup",
        )?;
        let release = fs::read_to_string(&release)
            .with_context(|| format!("Cannot read {}", release.display()))?;
        let config = self.existing(&format!("linux/{flavour}/.config"), "run make setup")?;
        Ok((config, format!("/boot/config-{}", release.trim())))
    }

    /// Returns the path of a module in this build of the driver.
    pub(crate) fn module(
        &self,
        version: &str,
        flavour: &str,
        variant: &str,
        name: &str,
    ) -> anyhow::Result<PathBuf> {
        self.existing(
            &format!("kmod/{version}/{flavour}/{variant}/{name}"),
            &format!("run make kmod NV_VERSION={version} KDIR=build/linux/{flavour}"),
        )
    }

    /// Returns the path of QEMU.
    pub(crate) fn qemu(&self) -> anyhow::Result<PathBuf> {
        self.existing("qemu/qemu-system-x86_64", "run make setup")
    }

    fn existing(&self, path: &str, advice: &str) -> anyhow::Result<PathBuf> {
        let path = self.0.join(path);
        if !path.exists() {
            bail!("{} is missing: {advice}", path.display());
        }
        Ok(path)
    }
}

/// Returns the path of cargo's `fakegpu`, which lies beside this program.
pub(crate) fn default_fakegpu() -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("Cannot tell where this program is")?;
    let path = own.with_file_name("fakegpu");
    if !path.exists() {
        bail!(
            "{} is missing: cargo build -p fakegpu, or give --fakegpu",
            path.display()
        );
    }
    Ok(path)
}
