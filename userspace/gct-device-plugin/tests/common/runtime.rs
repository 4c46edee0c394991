// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A runtime's side of CDI: it finds a device in the specs and executes its hooks.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{json, Value};

use super::Node;

impl Node {
    /// Creates container number `n` with CDI devices up to the point where its process would run.
    pub(crate) fn create(&self, n: u32, devices: &[String]) -> bool {
        self.make(n);
        self.hooks("createRuntime", n, devices)
    }

    /// Makes what the kernel and the runtime have of a container.
    pub(crate) fn make(&self, n: u32) {
        let write = |path: &str, text: &str| {
            let path = self.folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(&format!("proc/{n}/cgroup"), &format!("0::/kubepods/c{n}\n"));
        write(
            &format!("proc/{n}/stat"),
            &format!("{n} (init) S{} 5000 0\n", " 0".repeat(18)),
        );
        write(
            &format!("cgroups/kubepods/c{n}/cgroup.events"),
            "populated 1\n",
        );
        write(
            &format!("bundles/{n}/config.json"),
            r#"{"root":{"path":"rootfs"}}"#,
        );
        write(&format!("bundles/{n}/rootfs/etc/passwd"), "");
    }

    /// Takes away what the kernel has of a container.
    pub(crate) fn vanish(&self, n: u32) {
        fs::remove_dir_all(self.folder.join(format!("cgroups/kubepods/c{n}"))).unwrap();
        fs::remove_dir_all(self.folder.join(format!("proc/{n}"))).unwrap();
    }

    /// Stops a container in order.
    pub(crate) fn stop(&self, n: u32, devices: &[String]) -> bool {
        self.vanish(n);
        self.hooks("poststop", n, devices)
    }

    /// Executes the hooks of a stage. Returns whether all succeeded.
    fn hooks(&self, stage: &str, n: u32, devices: &[String]) -> bool {
        devices.iter().all(|device| {
            let edits = self.edits(device);
            let hooks = edits["hooks"].as_array().unwrap().clone();
            let mut hooks = hooks.iter().filter(|hook| hook["hookName"] == stage);
            hooks.all(|hook| self.hook(hook, n))
        })
    }

    /// Executes a hook with the state of a container. Returns whether it succeeded.
    pub(crate) fn hook(&self, hook: &Value, n: u32) -> bool {
        let state = json!({
            "ociVersion": "1.1.0",
            "id": format!("c{n}"),
            "bundle": self.folder.join(format!("bundles/{n}")),
            "pid": n,
            "annotations": {
                "io.kubernetes.cri.sandbox-namespace": "default",
                "io.kubernetes.cri.sandbox-name": format!("pod{n}"),
                "io.kubernetes.cri.container-name": "main",
            },
        });
        execute(hook, &state.to_string())
    }

    /// Returns the edits of a qualified CDI device, in the specs that are there.
    pub(crate) fn edits(&self, device: &str) -> Value {
        let (kind, name) = device.split_once('=').unwrap();
        for entry in fs::read_dir(self.folder.join("cdi")).unwrap() {
            let spec: Value =
                serde_json::from_slice(&fs::read(entry.unwrap().path()).unwrap()).unwrap();
            let devices = spec["devices"].as_array().unwrap();
            let found = devices.iter().find(|device| device["name"] == name);
            if let (true, Some(device)) = (spec["kind"] == kind, found) {
                return device["containerEdits"].clone();
            }
        }
        panic!("unresolvable CDI device {device}");
    }
}

fn execute(hook: &Value, state: &str) -> bool {
    let args = hook["args"]
        .as_array()
        .unwrap()
        .iter()
        .skip(1)
        .map(|arg| arg.as_str().unwrap());
    let mut hook = Command::new(hook["path"].as_str().unwrap())
        .args(args)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    hook.stdin
        .take()
        .unwrap()
        .write_all(state.as_bytes())
        .unwrap();
    hook.wait().unwrap().success()
}
