// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Has the driver limit the memory of cgroups that are bound to groups, where it can. Only a daemon
//! that was started with `--driver-limits` does.
//!
//! The preload library bounds those who load it. The driver bounds every process of the cgroup.

use super::Daemon;
use crate::driver_limits::{self, Wanted, Worker};
use gct_core::features::{Feature, FeatureSet};
use gct_core::iface::File;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The driver's limits.
#[derive(Debug)]
pub(super) struct DriverLimits {
    worker: Option<Worker>,
    /// Where cgroups are.
    cgroups: PathBuf,
    wanted: Wanted,
}

impl DriverLimits {
    /// Creates them. They do nothing unless they may be set, and the driver has them.
    pub(super) fn new(may_set: bool, cgroups: PathBuf) -> Self {
        let loaded = may_set.then(driver_limits::load);
        let worker = loaded.and_then(|loaded| match loaded {
            Ok(device) => Some(Worker::start(device)),
            Err(error) => {
                tracing::warn!("the driver limits no cgroups: {error}");
                None
            }
        });
        Self {
            worker,
            cgroups,
            wanted: Wanted::new(),
        }
    }

    /// Returns the features of a GPU, with that of these limits if there are any.
    pub(super) fn with_feature(&self, features: FeatureSet) -> FeatureSet {
        match self.worker {
            Some(_) => features.with(Feature::GmemCgroup),
            None => features,
        }
    }
}

impl Daemon {
    /// Has the driver's limits follow a file that was written.
    pub(super) fn follow_driver_limits(&mut self, file: File) {
        let concerns = matches!(file, File::Control | File::GroupCgroup | File::GmemLimit);
        let Some(worker) = self.driver_limits.worker.as_ref().filter(|_| concerns) else {
            return;
        };
        let mut wanted = Wanted::new();
        let cgroups = &self.driver_limits.cgroups;
        let addresses = &self.addresses;
        self.tables
            .state()
            .each_cgroup_limit(&mut |path, gpu, most| {
                // An absolute path would replace the folder.
                let below = path.strip_prefix(b"/").unwrap_or(path);
                if let Some(pci) = addresses.get(&gpu) {
                    let path = cgroups.join(OsStr::from_bytes(below));
                    wanted.insert((pci.clone(), path), most.get());
                }
            });
        if wanted != self.driver_limits.wanted {
            worker.want(wanted.clone());
            self.driver_limits.wanted = wanted;
        }
    }
}
