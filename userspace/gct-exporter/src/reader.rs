// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the tree into samples.
//!
//! Groups and processes come and go while the tree is read. What is gone, and what a GPU does not
//! support, has no sample. Any other failure is counted. If the tree itself fails, its samples are
//! dropped and `gctgroup_up` is 0: half of a tree would look like a whole one.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gct_client::{one_line, others, Content, Error, Owner, Refusal, Target, Tree};
use gct_core::error::Error as CoreError;
use gct_core::iface::{files, File};

use crate::kubelet::Kubelet;
use crate::metrics::{self, Own, OwnerKind, Source};
use crate::pod;
use crate::samples::{Labels, Number, Samples};
use crate::{convert, Limits};

/// Reads a tree again and again.
#[derive(Debug)]
pub(crate) struct Reader {
    tree: Tree,
    limits: Limits,
    kubelet: Kubelet,
    /// Where the processes are that have a GPU open.
    proc: Option<PathBuf>,
    dcgm_labels: bool,
    read_errors: u64,
    /// Whether the last read failed, so that a failure is printed once.
    failed: bool,
}

impl Reader {
    /// Takes the tree, without any access yet.
    pub(crate) fn new(tree: Tree, limits: Limits, kubelet: Kubelet, proc: Option<PathBuf>) -> Self {
        Self {
            tree,
            limits,
            kubelet,
            proc,
            dcgm_labels: false,
            read_errors: 0,
            failed: false,
        }
    }

    /// Chooses whether samples also have the labels of NVIDIA's DCGM exporter.
    pub(crate) fn with_dcgm_labels(self, dcgm_labels: bool) -> Self {
        Self {
            dcgm_labels,
            ..self
        }
    }

    /// Returns the samples of the tree and of the reader.
    pub(crate) fn read(&mut self) -> Samples {
        let started = Instant::now();
        let mut samples = Samples::new();
        let mut walk = Walk {
            tree: &self.tree,
            kubelet: &self.kubelet,
            proc: self.proc.as_deref(),
            dcgm_labels: self.dcgm_labels,
            gpus: Vec::new(),
            samples: &mut samples,
            errors: 0,
        };
        let outcome = walk.tree(self.limits);
        self.read_errors = self.read_errors.saturating_add(walk.errors);
        self.report(outcome.as_ref().err());
        if outcome.is_err() {
            samples.clear();
        }
        let mut own = |own, number| samples.push_own(own, Vec::new(), number);
        own(Own::Up, Number::Whole(outcome.is_ok().into()));
        own(Own::ReadErrors, Number::Whole(self.read_errors));
        own(Own::ReadTime, Number::Real(started.elapsed().as_secs_f64()));
        if let Some(answers) = self.kubelet.answers() {
            own(Own::Kubelet, Number::Whole(answers.into()));
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        samples.push_own(Own::Build, vec![("version", version)], Number::Whole(1));
        samples
    }

    /// Prints when the tree begins to fail, and when it works again.
    fn report(&mut self, error: Option<&Error>) {
        match error {
            Some(error) if !self.failed => {
                eprintln!("gct-exporter: {}", one_line(error));
            }
            None if self.failed => eprintln!("gct-exporter: The tree can be read again."),
            _ => {}
        }
        self.failed = error.is_some();
    }
}

/// One read of the tree.
struct Walk<'a> {
    tree: &'a Tree,
    kubelet: &'a Kubelet,
    proc: Option<&'a Path>,
    dcgm_labels: bool,
    /// The GPUs that were read.
    gpus: Vec<Gpu>,
    samples: &'a mut Samples,
    errors: u64,
}

/// What the samples of a GPU need.
#[derive(Clone, Debug)]
struct Gpu {
    index: u32,
    tpcs: Option<u64>,
    /// `gpu`, and with DCGM's labels `UUID` and `modelName`.
    labels: Labels,
}

impl Walk<'_> {
    fn tree(&mut self, limits: Limits) -> Result<(), Error> {
        let version = self.tree.version()?;
        let [major, minor, patch] = version.release;
        let labels = vec![
            ("release", format!("{major}.{minor}.{patch}")),
            ("abi", version.abi.to_string()),
        ];
        self.samples.push_own(Own::Tree, labels, Number::Whole(1));
        self.files(&Target::Root, &[], None, None)?;
        for index in self.tree.gpus()? {
            let gpu = self.gpu(index)?;
            self.gpus.push(gpu);
        }
        self.others()?;
        let owners = self.tree.owners()?;
        let (groups, processes): (Vec<&Owner>, Vec<&Owner>) = owners
            .iter()
            .partition(|owner| matches!(owner, Owner::Group(_)));
        for (owners, max, kind) in [
            (groups, limits.groups, "groups"),
            (processes, limits.processes, "processes"),
        ] {
            for owner in owners.iter().take(max) {
                self.owner(owner)?;
            }
            let left_out = u64::try_from(owners.len().saturating_sub(max)).unwrap_or(u64::MAX);
            let labels = vec![("kind", kind.to_owned())];
            self.samples
                .push_own(Own::LeftOut, labels, Number::Whole(left_out));
        }
        Ok(())
    }

    /// Reads a GPU.
    fn gpu(&mut self, index: u32) -> Result<Gpu, Error> {
        let target = Target::Gpu(index);
        let labels = self.gpu_labels(index)?;
        self.files(&target, &labels, None, None)?;
        let mut all = labels.clone();
        for (label, file) in [
            ("uuid", File::GpuUuid),
            ("pci", File::GpuPci),
            ("minor", File::GpuMinor),
            ("name", File::GpuName),
            ("architecture", File::GpuArchitecture),
            ("mode", File::GpuMode),
        ] {
            let text = self.content(&target, file)?;
            all.push((label, text.map(|text| text.to_string()).unwrap_or_default()));
        }
        self.samples.push_own(Own::Gpu, all, Number::Whole(1));
        let tpcs = self.content(&target, File::GpuTpcs)?;
        Ok(Gpu {
            index,
            tpcs: tpcs.and_then(|tpcs| tpcs.to_string().parse().ok()),
            labels,
        })
    }

    /// Returns the labels of each sample of a GPU. One that is not known is left out.
    fn gpu_labels(&mut self, index: u32) -> Result<Labels, Error> {
        let mut labels = vec![("gpu", index.to_string())];
        if self.dcgm_labels {
            for (label, file) in [("UUID", File::GpuUuid), ("modelName", File::GpuName)] {
                let text = self.content(&Target::Gpu(index), file)?;
                labels.extend(text.map(|text| (label, text.to_string())));
            }
        }
        Ok(labels)
    }

    /// Returns the labels of the pod's container that a group is for, as the kubelet names it.
    fn pod_labels(&self, group: &str) -> Labels {
        let pod = self.kubelet.of_group(group).map(|found| {
            [
                ("namespace", found.namespace),
                ("pod", found.pod),
                ("container", found.container),
            ]
        });
        pod.into_iter().flatten().collect()
    }

    /// Counts the processes on each GPU that have not the library. None is counted while some
    /// cannot be looked at: too low a number would look like a good one.
    fn others(&mut self) -> Result<(), Error> {
        let Some(proc) = self.proc else {
            return Ok(());
        };
        let found = others(self.tree, proc)?;
        if found.hidden > 0 {
            self.errors = self.errors.saturating_add(1);
            return Ok(());
        }
        for gpu in &found.gpus {
            let known = self.gpus.iter().find(|known| known.index == *gpu);
            let labels = known.map(|known| known.labels.clone());
            let here = found.others.iter().filter(|other| other.gpus.contains(gpu));
            let count = u64::try_from(here.count()).unwrap_or(u64::MAX);
            let labels = labels.unwrap_or_else(|| vec![("gpu", gpu.to_string())]);
            self.samples
                .push_own(Own::Others, labels, Number::Whole(count));
        }
        let mut escapes = BTreeMap::new();
        for other in &found.others {
            for gpu in &other.escapes {
                *escapes.entry((other.group.as_ref(), *gpu)).or_insert(0) += 1;
            }
        }
        for ((group, gpu), count) in escapes {
            let group = group.cloned().unwrap_or_default();
            let labels = vec![("group", group), ("gpu", gpu.to_string())];
            self.samples
                .push_own(Own::Escapes, labels, Number::Whole(count));
        }
        Ok(())
    }

    /// Reads a group or a process, with its directory of each GPU.
    fn owner(&mut self, owner: &Owner) -> Result<(), Error> {
        let kind = match owner {
            Owner::Group(_) => OwnerKind::Group,
            Owner::Process(_) => OwnerKind::Process,
        };
        let name = (kind.label(), owner.to_string());
        let mut own = vec![name.clone()];
        if kind == OwnerKind::Group {
            let pod = self.pod_labels(&name.1);
            own.extend(pod.iter().filter(|_| self.dcgm_labels).cloned());
            self.group(&Target::Owner(owner.clone()), &own, name, pod)?;
        }
        let pools = self.tree.pools(owner);
        for gpu in self.keep(pools)?.unwrap_or_default() {
            let known = self.gpus.iter().find(|known| known.index == gpu);
            let all = known.and_then(|known| known.tpcs);
            let of_gpu = known.map(|known| known.labels.clone());
            let mut labels = of_gpu.unwrap_or_else(|| vec![("gpu", gpu.to_string())]);
            labels.extend(own.iter().cloned());
            self.files(&Target::Pool(owner.clone(), gpu), &labels, Some(kind), all)?;
        }
        Ok(())
    }

    fn group(
        &mut self,
        target: &Target,
        own: &[(&'static str, String)],
        name: (&'static str, String),
        of_pod: Labels,
    ) -> Result<(), Error> {
        self.files(target, own, None, None)?;
        let Some(content) = self.content(target, File::GroupCgroup)? else {
            return Ok(());
        };
        let path = match content {
            Content::Cgroup(path) => path.unwrap_or_default(),
            _ => String::new(),
        };
        let pod = pod::of_cgroup(&path).unwrap_or_default();
        let mut labels = vec![name];
        labels.extend(of_pod);
        labels.extend([
            ("cgroup", path),
            ("pod_uid", pod.uid),
            ("container_id", pod.container),
            ("qos", pod.qos.to_owned()),
        ]);
        self.samples.push_own(Own::Group, labels, Number::Whole(1));
        Ok(())
    }

    /// Reads each file of a directory that a metric comes from, once.
    fn files(
        &mut self,
        target: &Target,
        labels: &[(&'static str, String)],
        owner: Option<OwnerKind>,
        tpcs: Option<u64>,
    ) -> Result<(), Error> {
        let Some(place) = target.place() else {
            return Ok(());
        };
        for entry in files::of(place) {
            let mut metrics = metrics::all()
                .filter_map(|metric| match metric.source {
                    Source::File(file, from) if file == entry.file => Some((metric, from)),
                    _ => None,
                })
                .peekable();
            if metrics.peek().is_none() {
                continue;
            }
            let Some(content) = self.content(target, entry.file)? else {
                continue;
            };
            for (metric, from) in metrics {
                let Some(found) = convert::samples(&content, from, metric.unit, tpcs) else {
                    self.errors = self.errors.saturating_add(1);
                    continue;
                };
                for (label, number) in found {
                    let labels: Labels = labels.iter().cloned().chain(label).collect();
                    self.samples.push(metric, owner, labels, number);
                }
            }
        }
        Ok(())
    }

    /// Returns the content of a file, `None` if there is none or it could not be read.
    fn content(&mut self, target: &Target, file: File) -> Result<Option<Content>, Error> {
        let read = self.tree.read(target, files::entry(file));
        self.keep(read)
    }

    /// Turns what may happen to a part of the tree into `None`, and counts what should not happen.
    fn keep<T>(&mut self, read: Result<T, Error>) -> Result<Option<T>, Error> {
        match read {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_fatal(&error) => Err(error),
            Err(error) => {
                self.errors = self.errors.saturating_add((!is_absent(&error)).into());
                Ok(None)
            }
        }
    }
}

/// Returns whether the tree as a whole cannot be read. Every further read would wait as long.
fn is_fatal(error: &Error) -> bool {
    match error {
        Error::NoTree { .. } => true,
        Error::Read {
            source: Refusal::System(cause),
            ..
        } => matches!(
            cause.kind(),
            ErrorKind::TimedOut
                | ErrorKind::WouldBlock
                | ErrorKind::ConnectionRefused
                | ErrorKind::ConnectionReset
                | ErrorKind::BrokenPipe
                | ErrorKind::UnexpectedEof
                | ErrorKind::InvalidData
        ),
        _ => false,
    }
}

/// Returns whether the file has no value, or went while the tree was read.
fn is_absent(error: &Error) -> bool {
    match error {
        Error::NoTarget { .. } => true,
        Error::Read {
            source: Refusal::System(cause),
            ..
        } => cause.kind() == ErrorKind::NotFound,
        _ => matches!(
            error.core(),
            Some(
                CoreError::Unsupported
                    | CoreError::Unknown
                    | CoreError::Gone
                    | CoreError::NotFound
                    | CoreError::NoProcess
            )
        ),
    }
}
