// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Creates a tree of plain files from the core's table, and runs gctctl on it.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::{self, JoinHandle};

use gct_core::iface::files::{self, Mode};
use gct_core::iface::Place;

/// A tree in a temporary directory. Dropping it removes the directory.
pub(crate) struct FakeTree {
    root: PathBuf,
}

impl FakeTree {
    /// Creates a tree with version, control and events, and one GPU.
    pub(crate) fn new(test: &str) -> Self {
        let root =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let tree = Self { root };
        tree.directory("", Place::Root);
        tree.write("version", "gctgroup 0.1.0 abi 3\n");
        tree.gpu(0);
        tree
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).expect("a file of the fake tree");
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).expect("a file of the fake tree")
    }

    /// Creates a directory with all files of its place, which hold their defaults.
    fn directory(&self, path: &str, place: Place) {
        fs::create_dir_all(self.path(path)).expect("a directory of the fake tree");
        for entry in files::of(place) {
            let text = match (entry.default, entry.mode) {
                ("", Mode::Read) if entry.name.contains("current") => "0\n".to_owned(),
                ("", _) if entry.name == "tpc.effective" => "all\n".to_owned(),
                ("", _) if entry.name == "tpc.reserved" => "none\n".to_owned(),
                ("", _) => String::new(),
                (default, _) => format!("{default}\n"),
            };
            self.write(
                format!("{path}/{}", entry.name).trim_start_matches('/'),
                &text,
            );
        }
    }

    pub(crate) fn gpu(&self, gpu: u32) {
        let path = format!("gpus/{gpu}");
        self.directory(&path, Place::Gpu);
        for (file, text) in [
            ("uuid", "GPU-6d1a2c3e-0001-0002-0003-000000000000"),
            ("pci", "0000:01:00.0"),
            ("pci.id", "10de:2335 10de:18be"),
            ("minor", "0"),
            ("name", "NVIDIA H200"),
            ("architecture", "hopper"),
            ("tpcs", "66"),
            ("tpcs.list", "0-61,75,78,81,83"),
            ("memory.total", "150754820096"),
            ("mode", "kernel"),
            ("health", "ok"),
            ("features", "compute.weight\ntpc.mask"),
        ] {
            self.write(&format!("{path}/{file}"), &format!("{text}\n"));
        }
    }

    pub(crate) fn group(&self, name: &str, gpus: &[u32]) {
        self.directory(name, Place::Group);
        self.pools(name, gpus);
    }

    pub(crate) fn process(&self, pid: u32, gpus: &[u32]) {
        fs::create_dir_all(self.path(&pid.to_string())).expect("a directory of the fake tree");
        self.pools(&pid.to_string(), gpus);
    }

    fn pools(&self, owner: &str, gpus: &[u32]) {
        for gpu in gpus {
            self.directory(&format!("{owner}/{gpu}"), Place::Pool);
        }
    }

    /// Replaces a file by one that accepts a write, passes it to `then`, and returns the result of
    /// that to one read.
    pub(crate) fn kernel_file(
        &self,
        path: &str,
        then: impl FnOnce(String) -> Option<String> + Send + 'static,
    ) -> JoinHandle<()> {
        let path = self.path(path);
        fs::remove_file(&path).expect("the plain file");
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo runs").success());
        thread::spawn(move || {
            let request = fs::read_to_string(&path).expect("a request");
            if let Some(answer) = then(request) {
                fs::write(&path, answer).expect("an answer is read");
            }
        })
    }

    /// Runs gctctl on the tree.
    pub(crate) fn gctctl(&self, arguments: &[&str]) -> Ran {
        Ran::gctctl("--root", &self.root, arguments)
    }
}

impl Drop for FakeTree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The output of gctctl, with ROOT in place of the tree's directory.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Runs gctctl on the tree that `option` finds in a directory.
    pub(crate) fn gctctl(option: &str, directory: &Path, arguments: &[&str]) -> Self {
        let output = Command::new(env!("CARGO_BIN_EXE_gctctl"))
            .arg(option)
            .arg(directory)
            .args(arguments)
            .output();
        Self::new(output.expect("gctctl runs"), directory)
    }

    pub(crate) fn new(output: Output, root: &Path) -> Self {
        let root = root.display().to_string();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&root, "ROOT");
        Self {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    /// Checks the exit code and returns standard output.
    #[track_caller]
    pub(crate) fn exits(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        &self.stdout
    }
}

/// Compares a text with a golden file. With GCTCTL_BLESS set, writes the file instead.
#[track_caller]
pub(crate) fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("GCTCTL_BLESS").is_some() {
        fs::write(&path, text).expect("the golden file");
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        wanted == text,
        "{} is not what was printed:\n{text}",
        path.display()
    );
}
