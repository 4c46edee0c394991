// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the driver's libraries on the host, which containers need and images must not have.
//!
//! A container has them under the names that programs open, in the folders that loaders search: the
//! one of Debian and Ubuntu, and the one of the others. So neither NVIDIA's runtime nor an entry in
//! the loader's cache is needed.

use std::fs;
use std::path::{Path, PathBuf};

use gctd_ipc::selftest::driver_version;

/// The libraries of CUDA, NVML and video, and the ends of the names under which programs open them.
/// Of those without an end it is the driver's version.
const LIBRARIES: [(&str, &[&str]); 13] = [
    ("libcuda.so", &[".1", ""]),
    ("libcudadebugger.so", &[".1"]),
    ("libnvcuvid.so", &[".1"]),
    ("libnvidia-allocator.so", &[".1"]),
    ("libnvidia-cfg.so", &[".1"]),
    ("libnvidia-encode.so", &[".1"]),
    ("libnvidia-gpucomp.so", &[]),
    ("libnvidia-ml.so", &[".1"]),
    ("libnvidia-nvvm.so", &[".4"]),
    ("libnvidia-opencl.so", &[".1"]),
    ("libnvidia-opticalflow.so", &[".1"]),
    ("libnvidia-pkcs11-openssl3.so", &[]),
    ("libnvidia-ptxjitcompiler.so", &[".1"]),
];
/// The library by which the driver's folder and version are found.
const CUDA: &str = "libcuda.so.";
/// Where a host may have them: as Debian, NVIDIA's installer, Red Hat, SUSE and Arch have them.
const FOLDERS: [&str; 6] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib64",
    "usr/lib64/nvidia",
    "usr/lib",
    "usr/lib/nvidia",
];
/// Where the loaders of images search: the first is Debian's, the other Red Hat's.
pub const IN_CONTAINER: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"];
/// The library that answers questions about GPUs.
const NVML: &str = "libnvidia-ml.so.";
/// The program of the driver that people look for.
const SMI: &str = "usr/bin/nvidia-smi";

/// Where the driver's files are.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Its root file system, on the host.
    pub root: PathBuf,
    /// Where this process sees that.
    pub seen: PathBuf,
    /// What the loaded module says of itself.
    pub version: PathBuf,
}

/// A file of the driver in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path on the host.
    pub host: PathBuf,
    /// Its path in the container.
    pub container: PathBuf,
}

impl Driver {
    /// Returns the files that a container needs; none without a libcuda of the loaded driver.
    pub fn files(&self) -> Vec<File> {
        let Some((folder, version)) = self.find() else {
            return Vec::new();
        };
        let mut files = Vec::new();
        for (name, ends) in LIBRARIES {
            let library = Path::new(folder).join(format!("{name}.{version}"));
            if !self.has(&library) {
                continue;
            }
            let own = [format!(".{version}")];
            let ends = ends.iter().map(|end| (*end).to_owned());
            let ends: Vec<String> = match ends.len() {
                0 => own.into(),
                _ => ends.collect(),
            };
            for end in ends {
                files.extend(IN_CONTAINER.map(|folder| File {
                    host: self.root.join(&library),
                    container: Path::new(folder).join(format!("{name}{end}")),
                }));
            }
        }
        if self.has(Path::new(SMI)) {
            files.push(File {
                host: self.root.join(SMI),
                container: Path::new("/").join(SMI),
            });
        }
        files
    }

    /// Returns NVML, as this process sees it.
    pub fn nvml(&self) -> Option<PathBuf> {
        let (folder, version) = self.find()?;
        let library = Path::new(folder).join(format!("{NVML}{version}"));
        self.has(&library).then(|| self.seen.join(library))
    }

    /// Returns the version of the loaded module.
    pub fn loaded(&self) -> Option<String> {
        let text = fs::read_to_string(&self.version).ok()?;
        driver_version(&text).map(str::to_owned)
    }

    fn has(&self, path: &Path) -> bool {
        fs::symlink_metadata(self.seen.join(path)).is_ok_and(|facts| facts.is_file())
    }

    /// Returns the folder with libcuda, and its version. Of several it is that of the loaded
    /// module.
    fn find(&self) -> Option<(&'static str, String)> {
        let loaded = fs::read_to_string(&self.version).ok();
        let is_loaded = |version: &str| match &loaded {
            Some(text) => driver_version(text) == Some(version),
            None => true,
        };
        FOLDERS.into_iter().find_map(|folder| {
            let entries = fs::read_dir(self.seen.join(folder)).ok()?;
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let mut versions = names.filter_map(|name| Some(name.strip_prefix(CUDA)?.to_owned()));
            let version = versions.find(|version| {
                let library = Path::new(folder).join(format!("{CUDA}{version}"));
                version.contains('.') && is_loaded(version) && self.has(&library)
            });
            Some((folder, version?))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A host's root with files, seen elsewhere.
    fn driver(test: &str, files: &[&str]) -> Driver {
        let name = format!("gct-plugin-driver-{test}-{}", std::process::id());
        let seen = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&seen);
        for file in files {
            let path = seen.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        Driver {
            root: "/run/driver".into(),
            version: seen.join("version"),
            seen,
        }
    }

    fn named(driver: &Driver) -> Vec<[String; 2]> {
        let files = driver.files().into_iter();
        let named = files.map(|file| [file.host, file.container]);
        named
            .map(|pair| pair.map(|path| path.to_str().unwrap().to_owned()))
            .collect()
    }

    #[test]
    fn a_container_has_the_libraries_by_the_names_that_programs_open() {
        let folder = "usr/lib64";
        let driver = driver(
            "names",
            &[
                "usr/lib64/libcuda.so.550.54.14",
                "usr/lib64/libnvidia-gpucomp.so.550.54.14",
                "usr/lib64/libnvidia-nvvm.so.550.54.14",
                "usr/lib64/libGL.so.550.54.14",
                "usr/bin/nvidia-smi",
            ],
        );
        symlink(
            "libcuda.so.550.54.14",
            driver.seen.join(folder).join("libcuda.so.1"),
        )
        .unwrap();
        let named = named(&driver);
        let wanted = [
            ["libcuda.so.550.54.14", "libcuda.so.1"],
            ["libcuda.so.550.54.14", "libcuda.so"],
            [
                "libnvidia-gpucomp.so.550.54.14",
                "libnvidia-gpucomp.so.550.54.14",
            ],
            ["libnvidia-nvvm.so.550.54.14", "libnvidia-nvvm.so.4"],
        ];
        let mut all = Vec::new();
        for [host, container] in wanted {
            let host = format!("/run/driver/usr/lib64/{host}");
            all.extend(IN_CONTAINER.map(|folder| [host.clone(), format!("{folder}/{container}")]));
        }
        all.push(["/run/driver/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"].map(str::to_owned));
        assert_eq!(named, all);
        let _ = fs::remove_dir_all(&driver.seen);
    }

    #[test]
    fn the_version_is_that_of_the_loaded_module() {
        let folder = "usr/lib/x86_64-linux-gnu";
        let versions =
            ["535.1.2", "550.54.14"].map(|version| format!("{folder}/libcuda.so.{version}"));
        let driver = driver("version", &versions.each_ref().map(String::as_str));
        for (loaded, path) in ["535.1.2", "550.54.14"].into_iter().zip(&versions) {
            fs::write(
                &driver.version,
                format!("NVRM version: Module  {loaded}  Mon\n"),
            )
            .unwrap();
            assert_eq!(named(&driver)[0][0], format!("/run/driver/{path}"));
        }
        fs::write(&driver.version, "NVRM version: Module  570.1  Mon\n").unwrap();
        assert_eq!(driver.files(), []);
        let _ = fs::remove_dir_all(&driver.seen);
    }

    #[test]
    fn a_host_without_a_driver_gives_nothing() {
        let driver = driver("none", &["usr/lib/libcuda.so.1"]);
        assert_eq!(driver.files(), []);
        let _ = fs::remove_dir_all(&driver.seen);
    }
}
