// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the GPUs of the tree, and whether they are healthy.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use gct_client::{Content, Error, Kind, Target, Tree};
use gct_core::iface::{files, File};

/// Node of nvidia-uvm.ko. The driver's tools make it when the first program of the host needs it,
/// and no program of a container can.
pub const UVM: &str = "nvidia-uvm";

/// A GPU of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Its index.
    pub index: u32,
    /// The N of `/dev/nvidiaN`, if it is known.
    pub minor: Option<u32>,
    /// Its PCI address.
    pub pci: String,
    /// Its UUID, if it is known.
    pub uuid: Option<String>,
    /// Its marketing name, if it is known.
    pub name: Option<String>,
    /// Its architecture in lower case, if it is known.
    pub architecture: Option<String>,
    /// Its compute capability, such as `9.0`, if NVML has said it.
    pub capability: Option<String>,
    /// Its NUMA node, if the machine says one.
    pub numa_node: Option<i64>,
    /// What the driver says of its health; `None` in the user-space mode.
    pub health: Option<String>,
    /// The files that are enforced or measured.
    pub features: BTreeSet<String>,
    /// Its TPCs, if they are known.
    pub tpcs: Option<u64>,
    /// Its memory in bytes, if it is known.
    pub memory: Option<u64>,
}

impl Gpu {
    /// Returns why it will enforce more than now, and what to do, if it will. The patched driver
    /// learns a GPU's TPCs from its first client, and enforces what is about TPCs from then on. No
    /// container is that client: none is scheduled.
    pub fn advice(&self) -> Option<&'static str> {
        let waits = self.tpcs.is_none() && self.features.contains("channel.owned");
        waits.then_some("its TPCs are unknown until a program has used it: run nvidia-smi once")
    }
}

/// A GPU that claims or annotations may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The GPU.
    pub gpu: Gpu,
    /// Why nobody new gets it, in a word.
    pub fault: Option<String>,
}

/// Reads all GPUs of the tree, and from `/sys` their NUMA nodes.
///
/// # Errors
///
/// Those of a tree that cannot be read. A fact that the driver has not reported is none.
pub fn read(tree: &Tree, sys: &Path) -> Result<Vec<Gpu>, Error> {
    let gpus = tree.gpus()?;
    let gpus = gpus.into_iter().map(|index| gpu(tree, sys, index));
    gpus.collect()
}

/// Returns the NUMA node of a PCI device. A machine without NUMA says -1.
fn numa_node(sys: &Path, pci: &str) -> Option<i64> {
    let path = sys.join("bus/pci/devices").join(pci).join("numa_node");
    let node = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    (node >= 0).then_some(node)
}

fn gpu(tree: &Tree, sys: &Path, index: u32) -> Result<Gpu, Error> {
    let line = |file| -> Result<Option<String>, Error> {
        match tree.read(&Target::Gpu(index), files::entry(file)) {
            Ok(Content::Line(line)) => Ok(Some(line)),
            Ok(_) => Ok(None),
            // ENODATA is a refusal of the core.
            Err(error) if error.kind() != Kind::Unavailable && error.core().is_some() => Ok(None),
            Err(error) => Err(error),
        }
    };
    let number = |file| line(file).map(|text| text.and_then(|text| text.parse::<u64>().ok()));
    let features = match tree.read(&Target::Gpu(index), files::entry(File::GpuFeatures))? {
        Content::Words(words) => words.into_iter().collect(),
        _ => BTreeSet::new(),
    };
    let pci = line(File::GpuPci)?.unwrap_or_default();
    Ok(Gpu {
        index,
        minor: number(File::GpuMinor)?.and_then(|minor| u32::try_from(minor).ok()),
        uuid: line(File::GpuUuid)?,
        name: line(File::GpuName)?,
        architecture: line(File::GpuArchitecture)?,
        capability: None,
        numa_node: numa_node(sys, &pci),
        pci,
        health: line(File::GpuHealth)?,
        features,
        tpcs: number(File::GpuTpcs)?,
        memory: number(File::GpuMemoryTotal)?,
    })
}

/// Why a GPU is not healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its node is gone.
    Node(PathBuf),
    /// The node that programs of CUDA need beside any GPU's is missing.
    Uvm(PathBuf),
    /// The driver reported an error after which the GPU needs a reset: `xid N`.
    Driver(String),
    /// NVML says that the GPU needs this before it may be used again.
    Needs(String),
    /// Its MPS daemon does not serve.
    Mps(String),
}

impl Fault {
    /// Returns it as a word, which is a value of a label.
    pub fn word(&self) -> String {
        match self {
            Self::Node(_) => "node-gone".to_owned(),
            Self::Uvm(_) => "uvm-missing".to_owned(),
            Self::Driver(health) => health.replace(' ', "-"),
            Self::Needs(action) => action.clone(),
            Self::Mps(_) => "mps".to_owned(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(path) => write!(f, "{} is gone", path.display()),
            Self::Uvm(path) => {
                write!(f, "there is no {}: run nvidia-modprobe -u", path.display())
            }
            Self::Driver(health) => write!(f, "the driver reported {health}"),
            Self::Needs(action) => write!(f, "NVML says {action}"),
            Self::Mps(error) => f.write_str(error),
        }
    }
}

/// Returns why a GPU is not healthy, if it is not.
pub fn fault(gpu: &Gpu, devices: &Path) -> Option<Fault> {
    if let Some(minor) = gpu.minor {
        let node = devices.join(format!("nvidia{minor}"));
        if !node.exists() {
            return Some(Fault::Node(node));
        }
    }
    let uvm = devices.join(UVM);
    if !uvm.exists() {
        return Some(Fault::Uvm(uvm));
    }
    let health = gpu.health.as_ref()?;
    (health != "ok").then(|| Fault::Driver(health.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of files with one GPU.
    struct Files(PathBuf);

    impl Files {
        fn new(test: &str) -> Self {
            let name = format!("gct-plugin-gpus-{test}-{}", std::process::id());
            let files = Self(std::env::temp_dir().join(name));
            let _ = fs::remove_dir_all(&files.0);
            for (path, text) in [
                ("gpus/0/minor", "3"),
                ("gpus/0/pci", "0000:01:00.0"),
                ("gpus/0/uuid", "GPU-00112233-4455-6677-8899-aabbccddeeff"),
                ("gpus/0/name", "NVIDIA H200"),
                ("gpus/0/architecture", "hopper"),
                ("sys/bus/pci/devices/0000:01:00.0/numa_node", "1"),
                ("gpus/0/health", "ok"),
                ("gpus/0/features", "gmem.limit\ncompute.events"),
                ("gpus/0/tpcs", "66"),
                ("gpus/0/memory.total", "1073741824"),
                ("dev/nvidia3", ""),
                ("dev/nvidia-uvm", ""),
            ] {
                files.write(path, text);
            }
            files
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        fn fault(&self) -> Option<Fault> {
            let gpus = read(&Tree::at(&self.0), &self.0.join("sys")).unwrap();
            fault(&gpus[0], &self.0.join("dev"))
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_facts_of_a_gpu_are_those_of_the_tree() {
        let files = Files::new("facts");
        let sys = files.0.join("sys");
        let gpus = read(&Tree::at(&files.0), &sys).unwrap();
        let [gpu] = &gpus[..] else { panic!("{gpus:?}") };
        assert_eq!((gpu.minor, gpu.health.as_deref()), (Some(3), Some("ok")));
        assert_eq!((gpu.tpcs, gpu.memory), (Some(66), Some(1 << 30)));
        assert!(gpu.features.contains("gmem.limit"));
        let shown = [&gpu.uuid, &gpu.name, &gpu.architecture].map(|fact| fact.clone().unwrap());
        let uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(shown, [uuid, "NVIDIA H200", "hopper"]);
        assert_eq!(gpu.numa_node, Some(1));
        files.write("sys/bus/pci/devices/0000:01:00.0/numa_node", "-1");
        let gpus = read(&Tree::at(&files.0), &sys).unwrap();
        assert_eq!(gpus[0].numa_node, None);
        assert!(read(&Tree::at(files.0.join("nothing")), &sys).is_err());
    }

    #[test]
    fn a_gpu_whose_node_is_gone_is_not_healthy() {
        let files = Files::new("node");
        assert_eq!(files.fault(), None);
        fs::remove_file(files.0.join("dev/nvidia3")).unwrap();
        assert_eq!(
            files.fault(),
            Some(Fault::Node(files.0.join("dev/nvidia3")))
        );
    }

    #[test]
    fn without_the_node_of_uvm_no_gpu_is_healthy() {
        let files = Files::new("uvm");
        let node = files.0.join("dev/nvidia-uvm");
        fs::remove_file(&node).unwrap();
        let fault = files.fault().unwrap();
        assert_eq!(fault, Fault::Uvm(node));
        assert!(fault.to_string().ends_with(": run nvidia-modprobe -u"));
    }

    #[test]
    fn a_gpu_that_the_driver_gave_up_is_not_healthy() {
        let files = Files::new("health");
        assert_eq!(files.fault(), None);
        files.write("gpus/0/health", "xid 79");
        assert_eq!(files.fault(), Some(Fault::Driver("xid 79".to_owned())));
    }
}
