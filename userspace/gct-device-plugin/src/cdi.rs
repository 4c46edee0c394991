// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes the CDI specs: for each profile a kind, and for each GPU that offers it a device.
//!
//! A device gives the container the GPU's nodes and two hooks of this program. `createRuntime`
//! makes the container's group before its first process runs, and in the user mode has its loader
//! load the preload library; if it fails, the container does not start. `poststop` removes the
//! group. In the user mode every device also gives the preload
//! library and the tenants' socket, in the kernel mode a variable by which `gctctl doctor` knows
//! the mode. A prepared claim has a spec of its own, of the kind `gctgroup.dev/claim`.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gct_client::KERNEL_CONTAINER;
use gctd_ipc::paths::{SocketPaths, SOCKET_VARIABLE};
use serde_json::{json, Value};

use crate::driver::{self, Driver};
use crate::gpus::{self, Gpu};
use crate::mps::Control;
use crate::place::Places;
use crate::profiles::{Config, Limit, Profile, Sharing, VENDOR};

/// The oldest version that has all that is used: the host's path of a node.
const VERSION: &str = "0.5.0";
/// The kind of the devices of claims.
const CLAIM_KIND: &str = "gctgroup.dev/claim";
/// What the names of claims' files have before the uid.
const CLAIM_PREFIX: &str = "claim_";
/// Nodes that a program of CUDA opens beside its GPU's.
const SHARED_NODES: [&str; 3] = ["nvidiactl", gpus::UVM, "nvidia-uvm-tools"];
/// The hook's option with the number of the GPU's node.
pub const MINOR: &str = "--minor=";
/// Most seconds that a hook may take. A write of the tree waits 20 s at most.
const HOOK_TIMEOUT: u32 = 60;

/// Says to NVIDIA's runtime that it has nothing to add. CUDA's images say `all`, by which it would
/// add all GPUs. A container with shares of several GPUs needs no other value.
const NOTHING_ELSE: &str = "NVIDIA_VISIBLE_DEVICES=void";
/// Options of what a container may only read.
const READ_ONLY: [&str; 4] = ["ro", "nosuid", "nodev", "bind"];

/// Where a container has its GPU's MPS daemon.
const MPS_FOLDER: &str = "/run/gctgroup/mps";

/// Where a container has the preload library. Its `/etc/ld.so.preload` names it, see `bundle.rs`.
pub const LIBRARY: &str = "/usr/lib/gctgroup/libgct_preload.so";
/// Where it has the directory of the tenants' socket.
const SOCKET_FOLDER: &str = "/run/gctgroup/tenants";

/// What is the same in all specs.
#[derive(Clone, Debug)]
pub struct Host {
    /// Directory of the specs.
    pub specs: PathBuf,
    /// Directory of the device nodes.
    pub devices: PathBuf,
    /// The program that runtimes execute as hook, on the host.
    pub hook: PathBuf,
    /// The preload library on the host, in the user mode.
    pub library: Option<PathBuf>,
    /// The host's devices, as the kernel describes them.
    pub sys: PathBuf,
    /// The driver's files.
    pub driver: Driver,
    /// What the hooks are told.
    pub places: Places,
    /// The MPS daemons.
    pub mps: Arc<Control>,
}

/// What a claim has of a GPU, as a CDI device.
#[derive(Clone, Debug)]
pub struct ClaimDevice {
    /// Its name: no other claim's.
    pub name: String,
    /// The GPU.
    pub gpu: Gpu,
    /// The limits.
    pub limits: Vec<Limit>,
    /// How its container shares the GPU.
    pub share: Sharing,
}

impl ClaimDevice {
    /// Returns its qualified name.
    pub fn qualified(&self) -> String {
        format!("{CLAIM_KIND}={}", self.name)
    }
}

/// Returns the qualified name of a profile's device for a GPU.
pub fn device(profile: &Profile, gpu: u32) -> String {
    format!("{VENDOR}/{}=gpu{gpu}", profile.name)
}

/// Returns the annotation's key under which runtimes look for the devices of a profile.
pub fn annotation(profile: &Profile) -> String {
    format!("cdi.k8s.io/gctgroup_{}", profile.name)
}

/// What a spec of this plugin is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A profile, by name.
    Profile(String),
    /// A claim, by uid.
    Claim(String),
}

impl Purpose {
    /// Returns what a file's spec is for. One of this plugin's says so in its kind and in its
    /// file's name; those of other programs have no purpose here.
    fn of(path: &Path) -> Option<Self> {
        let spec: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let kind = spec["kind"].as_str()?;
        let file = path.file_name()?.to_str()?;
        let name = file.strip_prefix(VENDOR)?.strip_prefix('_')?;
        let name = name.strip_suffix(".json")?;
        if kind.strip_prefix(VENDOR)?.strip_prefix('/') == Some(name) {
            return Some(Self::Profile(name.to_owned()));
        }
        let uid = name.strip_prefix(CLAIM_PREFIX)?;
        (kind == CLAIM_KIND).then(|| Self::Claim(uid.to_owned()))
    }

    fn is_in(&self, config: &Config) -> bool {
        match self {
            Self::Profile(name) => config.profiles.iter().any(|profile| profile.name == *name),
            Self::Claim(_) => config.claims.is_some(),
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Profile(name) => {
                write!(f, "profile {name}: the file has no such profile any more")
            }
            Self::Claim(uid) => write!(f, "claim {uid}: the file has no [dra] any more"),
        }
    }
}

impl Host {
    /// Writes the spec of a profile if it is not there already. Returns whether it was written.
    ///
    /// # Errors
    ///
    /// Those of the file system. Readers see the old file or the new one.
    pub fn write(&self, profile: &Profile, gpus: &[&Gpu]) -> io::Result<bool> {
        let path = self.specs.join(file_of(&profile.name));
        if gpus.is_empty() {
            // A spec without devices is invalid.
            return remove(&path);
        }
        let devices = gpus.iter().map(|gpu| self.spec_device(profile, gpu));
        self.replace(&path, &self.spec(&profile.resource(), devices.collect()))
    }

    /// Removes the specs of what is no longer in the file of profiles: a runtime would start
    /// containers with their limits, though nobody counts them. Returns what they were for.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn remove_others(&self, config: &Config) -> io::Result<Vec<Purpose>> {
        let entries = match fs::read_dir(&self.specs) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut removed = Vec::new();
        for entry in entries {
            let path = entry?.path();
            match Purpose::of(&path) {
                Some(purpose) if !purpose.is_in(config) && remove(&path)? => removed.push(purpose),
                _ => {}
            }
        }
        Ok(removed)
    }

    fn claim_path(&self, uid: &str) -> PathBuf {
        self.specs.join(file_of(&format!("{CLAIM_PREFIX}{uid}")))
    }

    /// Writes the spec of a claim.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn write_claim(&self, uid: &str, devices: &[ClaimDevice]) -> io::Result<()> {
        if devices.is_empty() {
            return self.remove_claim(uid);
        }
        let devices = devices.iter().map(|device| {
            let edits = self.device_edits(&device.gpu, device.share, claim_arguments(device));
            json!({ "name": device.name, "containerEdits": edits })
        });
        let spec = self.spec(CLAIM_KIND, devices.collect());
        self.replace(&self.claim_path(uid), &spec).map(|_| ())
    }

    /// Removes the spec of a claim, if there is one.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn remove_claim(&self, uid: &str) -> io::Result<()> {
        remove(&self.claim_path(uid)).map(|_| ())
    }

    /// Writes a spec if it is not there already. Returns whether it was written.
    fn replace(&self, path: &Path, spec: &Value) -> io::Result<bool> {
        let text = format!("{spec:#}\n");
        if fs::read_to_string(path).is_ok_and(|old| old == text) {
            return Ok(false);
        }
        fs::create_dir_all(&self.specs)?;
        // Runtimes read only files that end in .json.
        let new = path.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(&new, path)?;
        Ok(true)
    }

    fn spec(&self, kind: &str, devices: Vec<Value>) -> Value {
        json!({
            "cdiVersion": VERSION,
            "kind": kind,
            "devices": devices,
            "containerEdits": self.common_edits(),
        })
    }

    /// Returns the edits of a container that has shares of GPUs without a spec, each with its
    /// limits.
    pub fn share_edits(
        &self,
        profile: &str,
        slots: u32,
        shares: &[(Gpu, Vec<Limit>)],
    ) -> Vec<Value> {
        let of_gpu = |(gpu, limits): &(Gpu, Vec<Limit>)| {
            let mut arguments = share_arguments(profile, gpu, limits);
            arguments.push(format!("--slots={slots}"));
            self.device_edits(gpu, Sharing::Turns, arguments)
        };
        let devices = shares.iter().map(of_gpu);
        std::iter::once(self.common_edits())
            .chain(devices)
            .collect()
    }

    /// Returns what a container has whatever its GPUs are.
    fn common_edits(&self) -> Value {
        let nodes: Vec<Value> = SHARED_NODES
            .iter()
            .filter_map(|name| self.node(name))
            .collect();
        let (mut env, mut mounts) = self.driver_edits();
        match self.user_mode() {
            Some((library, folder)) => {
                env.push(format!("{SOCKET_VARIABLE}={SOCKET_FOLDER}/gctd.sock"));
                mounts.push(mount(library, LIBRARY, &READ_ONLY));
                mounts.push(mount(&folder, SOCKET_FOLDER, &READ_ONLY));
            }
            None => {
                let (variable, mode) = KERNEL_CONTAINER;
                env.push(format!("{variable}={mode}"));
            }
        }
        let mut edits = json!({ "deviceNodes": nodes, "env": env });
        if !mounts.is_empty() {
            edits["mounts"] = mounts.into();
        }
        edits
    }

    /// Returns the environment and the mounts that give a container the driver's libraries, and
    /// keep NVIDIA's runtime from adding anything.
    fn driver_edits(&self) -> (Vec<String>, Vec<Value>) {
        let mut env = vec![NOTHING_ELSE.to_owned()];
        let files = self.driver.files();
        if !files.is_empty() {
            env.push(format!("TRITON_LIBCUDA_PATH={}", driver::IN_CONTAINER[0]));
        }
        let mount = |file: &driver::File| json!({ "hostPath": file.host, "containerPath": file.container, "options": READ_ONLY });
        (env, files.iter().map(mount).collect())
    }

    /// Returns the GPU's nodes, the hooks, and under MPS what a client of the daemon needs.
    /// `arguments` are those of the hook that makes the group.
    fn device_edits(&self, gpu: &Gpu, share: Sharing, mut arguments: Vec<String>) -> Value {
        if share == Sharing::Mps {
            arguments.push("--mps".to_owned());
        }
        let nodes = gpu
            .minor
            .and_then(|minor| self.node(&format!("nvidia{minor}")));
        let mut edits = json!({
            "deviceNodes": nodes.into_iter().collect::<Vec<_>>(),
            "hooks": [
                self.hook("createRuntime", "bind", &arguments),
                self.hook("poststop", "release", &[]),
            ],
        });
        if share == Sharing::Mps {
            let options = ["rw", "nosuid", "nodev", "noexec", "bind"];
            edits["env"] = json!([format!("CUDA_MPS_PIPE_DIRECTORY={MPS_FOLDER}")]);
            edits["mounts"] = json!([
                mount(&self.mps.pipe(gpu.index), MPS_FOLDER, &options),
                mount(&self.mps.shm(gpu.index), "/dev/shm", &options),
            ]);
        }
        edits
    }

    fn spec_device(&self, profile: &Profile, gpu: &Gpu) -> Value {
        let arguments = share_arguments(&profile.name, gpu, &profile.limits);
        let edits = self.device_edits(gpu, profile.share, arguments);
        json!({ "name": format!("gpu{}", gpu.index), "containerEdits": edits })
    }

    fn hook(&self, stage: &str, command: &str, arguments: &[String]) -> Value {
        let name = self
            .hook
            .file_name()
            .unwrap_or(OsStr::new("gct-device-plugin"));
        let mut all = vec![name.to_string_lossy().into_owned(), command.to_owned()];
        let places = self.places.arguments();
        all.extend(
            places
                .iter()
                .map(|argument| argument.to_string_lossy().into_owned()),
        );
        all.extend_from_slice(arguments);
        json!({ "hookName": stage, "path": self.hook, "args": all, "timeout": HOOK_TIMEOUT })
    }

    /// Returns a node that exists.
    fn node(&self, name: &str) -> Option<Value> {
        let host = self.devices.join(name);
        let path = format!("/dev/{name}");
        host.exists().then(|| match host == Path::new(&path) {
            true => json!({ "path": path }),
            false => json!({ "path": path, "hostPath": host }),
        })
    }

    /// Returns the library and the folder of the tenants' socket in the user mode.
    fn user_mode(&self) -> Option<(&Path, PathBuf)> {
        let directory = self.places.dir.as_ref()?;
        let folder = SocketPaths::of(directory).tenants.parent()?.to_owned();
        Some((self.library.as_deref()?, folder))
    }
}

/// Returns the name of the file with the spec of a profile, or of a claim's name in files.
fn file_of(name: &str) -> String {
    format!("{VENDOR}_{name}.json")
}

/// Removes a file. Returns whether there was one.
fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        removed => Ok(removed.is_ok()),
    }
}

fn mount(from: &Path, to: &str, options: &[&str]) -> Value {
    json!({ "hostPath": from, "containerPath": to, "options": options })
}

/// Returns what the hook does for the container of a claim.
fn claim_arguments(device: &ClaimDevice) -> Vec<String> {
    let mut all = share_arguments("claim", &device.gpu, &device.limits);
    all.push(format!("--claim={}", device.name));
    all
}

fn share_arguments(profile: &str, gpu: &Gpu, limits: &[Limit]) -> Vec<String> {
    let limits = limits.iter();
    let limits = limits.map(|limit| format!("--limit={}={}", limit.entry.name, limit.content));
    let head = [
        format!("--profile={profile}"),
        format!("--gpu={}", gpu.index),
    ];
    let minor = gpu.minor.map(|minor| format!("{MINOR}{minor}"));
    head.into_iter().chain(minor).chain(limits).collect()
}

#[cfg(test)]
mod tests;
