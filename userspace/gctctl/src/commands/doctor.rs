// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks whether gctgroup works here, and says what to do about each problem (`doctor`).

mod container;
mod tested;

use std::fs;
use std::path::{Path, PathBuf};

use gct_client::{others, Content, Door, Error, Other, Target, Tree, DEFAULT_ROOT};
use gct_core::iface::{files, File, ABI};
use serde_json::{json, Value};

use crate::outcome::{Failure, Outcome};
use crate::table::Table;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ok,
    /// Worth knowing. gctgroup works.
    Note,
    /// gctgroup does not work, or only in part.
    Problem,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }
}

/// The result of a check with its remedy.
struct Finding {
    check: &'static str,
    status: Status,
    message: String,
    remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self {
            check,
            status: Status::Ok,
            message: message.into(),
            remedy: None,
        }
    }

    fn because(self, status: Status, remedy: impl Into<String>) -> Self {
        Self {
            status,
            remedy: Some(remedy.into()),
            ..self
        }
    }

    fn json(&self) -> Value {
        json!({
            "check": self.check,
            "status": self.status.word(),
            "message": self.message,
            "remedy": self.remedy,
        })
    }
}

pub(crate) fn run(tree: &Tree, system_root: &Path, user_mode: bool) -> Outcome {
    let system = System {
        root: system_root.to_owned(),
    };
    let mut findings = vec![
        system.driver_module(user_mode),
        system.driver_version(user_mode),
    ];
    let inside = container::is_here(user_mode);
    if !user_mode && !inside {
        let of_kernel = [system.kernel_config(), system.lockdown(&tree.door())];
        findings.splice(0..0, of_kernel);
        findings.push(system.door(tree));
    }
    if user_mode && inside {
        findings.push(container::library(&system));
    }
    if inside {
        findings.push(container::nodes(&system));
    }
    findings.extend(check_tree(tree, &system, user_mode, inside));
    if user_mode && !inside {
        findings.extend(tested::findings(tree, &system));
        findings.extend(escapes(tree, &system));
    }
    let mut table = Table::new(&["CHECK", "STATUS", "FINDING"]);
    for finding in &findings {
        let remedy = finding.remedy.as_ref();
        let message = match remedy {
            Some(remedy) => format!("{}\n-> {remedy}", finding.message),
            None => finding.message.clone(),
        };
        table.row([finding.check, finding.status.word(), &message]);
    }
    let problems = findings
        .iter()
        .filter(|finding| finding.status == Status::Problem)
        .count();
    let mut outcome = Outcome {
        text: table.render(),
        json: json!({ "findings": findings.iter().map(Finding::json).collect::<Vec<_>>() }),
        failures: Vec::new(),
    };
    match problems {
        0 => outcome.text.push_str("gctgroup works here.\n"),
        1 => outcome
            .failures
            .push(Failure::new(1, "There is a problem.")),
        many => outcome
            .failures
            .push(Failure::new(1, format!("There are {many} problems."))),
    }
    outcome
}

/// Names the processes that use a GPU unknown to gctd although their group has limits. A user who
/// may not look at others' descriptors learns of their own.
fn escapes(tree: &Tree, system: &System) -> Vec<Finding> {
    const ADVICE: &str = "Start it with the library: gctctl run, or LD_PRELOAD. env -i and sudo take LD_PRELOAD away. /etc/ld.so.preload gives the library to every program. A libcuda that was loaded by dlmopen calls past it.";
    let found = others(tree, &system.root.join("proc")).unwrap_or_default();
    let escapes = found.others.iter().filter_map(Other::escape);
    let finding = |escape| Finding::ok("library", format!("The {escape}."));
    escapes
        .map(|escape| finding(escape).because(Status::Problem, ADVICE))
        .collect()
}

/// The files of the machine outside the tree.
struct System {
    root: PathBuf,
}

impl System {
    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// Checks the configuration in /boot, where Debian and others install it.
    fn kernel_config(&self) -> Finding {
        const CHECK: &str = "kernel configuration";
        let release = self.read("proc/sys/kernel/osrelease");
        let release = release.as_deref().unwrap_or("unknown").trim();
        let Some(config) = self.read(&format!("boot/config-{release}")) else {
            let message = format!("There is no /boot/config-{release}.");
            return Finding::ok(CHECK, message).because(
                Status::Note,
                "Check that the kernel has CONFIG_DEBUG_FS=y and CONFIG_RUST=y.",
            );
        };
        let needed = ["CONFIG_DEBUG_FS=y", "CONFIG_RUST=y"];
        let missing: Vec<&str> = needed
            .into_iter()
            .filter(|option| !config.lines().any(|line| line == *option))
            .collect();
        match missing.is_empty() {
            true => Finding::ok(
                CHECK,
                format!("Linux {release} has {}.", needed.join(" and ")),
            ),
            false => Finding::ok(
                CHECK,
                format!("Linux {release} lacks {}.", missing.join(" and ")),
            )
            .because(Status::Problem, "Boot a kernel that was built with it."),
        }
    }

    fn lockdown(&self, door: &Door) -> Finding {
        const CHECK: &str = "lockdown";
        let text = self.read("sys/kernel/security/lockdown");
        match text.as_deref().map(str::trim) {
            Some(text) if text.contains("[integrity]") || text.contains("[confidentiality]") => {
                let finding = Finding::ok(CHECK, format!("The kernel is locked down: {text}."));
                match door {
                    Door::Device(_) => finding,
                    _ => finding.because(
                        Status::Problem,
                        "Limits in debugfs cannot be read or written then: use a driver that has /dev/gctgroup, or gctd, or disable Secure Boot, or boot with lockdown=none.",
                    ),
                }
            }
            Some(text) => Finding::ok(CHECK, format!("The kernel is not locked down: {text}.")),
            None => Finding::ok(CHECK, "The kernel has no lockdown."),
        }
    }

    fn driver_module(&self, user_mode: bool) -> Finding {
        const CHECK: &str = "driver module";
        let modules = self.read("proc/modules").unwrap_or_default();
        let loaded = |name: &str| {
            modules
                .lines()
                .any(|line| line.split_whitespace().next() == Some(name))
        };
        match (loaded("nvidia"), loaded("nvidia_uvm")) {
            (true, true) => Finding::ok(CHECK, "nvidia and nvidia_uvm are loaded."),
            (true, false) => Finding::ok(CHECK, "nvidia is loaded, nvidia_uvm is not.").because(
                Status::Note,
                "CUDA needs it: modprobe nvidia_uvm, or run nvidia-modprobe -u.",
            ),
            (false, _) => Finding::ok(CHECK, "nvidia is not loaded.").because(
                Status::Problem,
                match user_mode {
                    true => "Install NVIDIA's driver, or load it: modprobe nvidia.",
                    false => "Load the patched module: modprobe nvidia, or insmod nvidia.ko.",
                },
            ),
        }
    }

    fn driver_version(&self, user_mode: bool) -> Finding {
        const CHECK: &str = "driver version";
        let version = self
            .read("sys/module/nvidia/version")
            .or_else(|| self.read("proc/driver/nvidia/version"));
        let line = version.as_deref().and_then(|text| text.lines().next());
        match line {
            Some(line) => Finding::ok(CHECK, line.trim()),
            None => Finding::ok(CHECK, "The driver does not report its version.").because(
                Status::Note,
                match user_mode {
                    true => "nvidia-smi shows it once the driver works.",
                    false => "Check modinfo nvidia: each patch series is for one driver version.",
                },
            ),
        }
    }

    /// Says by which door the tree is used, and why.
    fn door(&self, tree: &Tree) -> Finding {
        const CHECK: &str = "door";
        let root = tree.root();
        if let Door::Device(reason) = tree.door() {
            let why = reason.map_or(String::new(), |error| {
                format!(": {DEFAULT_ROOT} cannot be used ({error})")
            });
            return Finding::ok(
                CHECK,
                format!("The tree is used by {}{why}.", root.display()),
            );
        }
        if root != Path::new(DEFAULT_ROOT) {
            return Finding::ok(
                CHECK,
                format!("The tree is the directory {}.", root.display()),
            );
        }
        let mounts = self.read("proc/mounts").unwrap_or_default();
        let at = mounts.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            let (point, kind) = (fields.nth(1)?, fields.next()?);
            (kind == "debugfs").then_some(point)
        });
        match at {
            Some("/sys/kernel/debug") => {
                Finding::ok(CHECK, "debugfs is used: it is mounted at /sys/kernel/debug.")
            }
            Some(point) => Finding::ok(CHECK, format!("debugfs is mounted at {point} only."))
                .because(Status::Problem, format!("Use --root {point}/gctgroup.")),
            None => Finding::ok(CHECK, "debugfs is not mounted, and there is no /dev/gctgroup.").because(
                Status::Problem,
                "Load the patched driver, and mount debugfs: mount -t debugfs none /sys/kernel/debug.",
            ),
        }
    }

    /// Returns how many GPUs the driver lists.
    fn gpus(&self) -> Option<usize> {
        fs::read_dir(self.root.join("proc/driver/nvidia/gpus"))
            .ok()
            .map(Iterator::count)
    }
}

fn check_tree(tree: &Tree, system: &System, user_mode: bool, inside: bool) -> Vec<Finding> {
    let version = match tree.version() {
        Ok(version) => version,
        Err(Error::NoTree { .. }) if inside && !user_mode => {
            let message = "It is outside of this container, and limits are set there.";
            return vec![Finding::ok("tree", message)];
        }
        Err(error) => {
            let remedy = match &error {
                Error::NoTree { .. } if user_mode => {
                    "No daemon listens there: start gctd, or name its directory with --dir."
                }
                Error::NoTree { .. } => {
                    "The loaded driver has no gctgroup: load the patched nvidia.ko. If it is loaded, see dmesg."
                }
                Error::Permission { .. } => "Run gctctl as root.",
                _ => "Use the gctctl of the release that the module was built from.",
            };
            return vec![Finding::ok("tree", error.to_string()).because(Status::Problem, remedy)];
        }
    };
    let [major, minor, patch] = version.release;
    let shown = format!("gctgroup {major}.{minor}.{patch} abi {}", version.abi);
    let tree_finding = Finding::ok("tree", format!("{} shows {shown}.", tree.root().display()));
    let tree_finding = match version.abi == ABI {
        true => tree_finding,
        false => tree_finding.because(
            Status::Problem,
            format!("This gctctl was made for abi {ABI}: use the one of that release."),
        ),
    };
    vec![
        tree_finding,
        permission(tree, inside),
        gpus(tree, system),
        events(tree),
    ]
}

fn permission(tree: &Tree, inside: bool) -> Finding {
    const CHECK: &str = "permission";
    if inside && tree.may_control().is_err() {
        return Finding::ok(CHECK, "Limits are set outside of this container.");
    }
    let control = tree.path(&Target::Root, files::entry(File::Control));
    match tree.may_control() {
        Ok(_) => Finding::ok(CHECK, "Groups can be created and limits set."),
        Err(error) => Finding::ok(
            CHECK,
            format!("{} cannot be written: {error}.", control.display()),
        )
        .because(Status::Problem, "Run gctctl as root."),
    }
}

fn gpus(tree: &Tree, system: &System) -> Finding {
    const CHECK: &str = "GPUs";
    let found = match tree.gpus() {
        Ok(found) => found,
        Err(error) => {
            return Finding::ok(CHECK, error.to_string()).because(
                Status::Problem,
                "Use the gctctl of the release that the module was built from.",
            )
        }
    };
    let described: Vec<String> = found
        .iter()
        .map(|gpu| {
            let read = |file| tree.read(&Target::Gpu(*gpu), files::entry(file));
            let name = match read(File::GpuName) {
                Ok(content) => content.to_string(),
                Err(_) => "not initialised yet".to_owned(),
            };
            let enforced = match read(File::GpuFeatures) {
                Ok(Content::Words(words)) if !words.is_empty() => words.join(", "),
                _ => "nothing".to_owned(),
            };
            format!("{gpu}: {name}; enforced or measured: {enforced}")
        })
        .collect();
    let finding = Finding::ok(CHECK, described.join("\n"));
    match (found.len(), system.gpus()) {
        (0, _) => Finding::ok(CHECK, "The driver has reported no GPU to gctgroup.").because(
            Status::Problem,
            "Check lspci -d 10de: for a GPU, and dmesg for errors of nvidia.",
        ),
        (known, Some(listed)) if known != listed => finding.because(
            Status::Problem,
            format!("The driver lists {listed} GPUs and gctgroup {known}: report this with dmesg."),
        ),
        _ => finding,
    }
}

fn events(tree: &Tree) -> Finding {
    const CHECK: &str = "events";
    match tree.read(&Target::Root, files::entry(File::Events)) {
        Ok(Content::Stat(lines)) => {
            let counted: Vec<String> = lines
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(key, count)| format!("{key} {count}"))
                .collect();
            match counted.is_empty() {
                true => Finding::ok(CHECK, "All reports of the driver were tracked."),
                false => Finding::ok(
                    CHECK,
                    format!("Left to the stock driver: {}.", counted.join(", ")),
                )
                .because(
                    Status::Note,
                    "The owners that this concerns are not limited; see safety.md.",
                ),
            }
        }
        Ok(_) => Finding::ok(CHECK, "Nothing is counted."),
        Err(error) => Finding::ok(CHECK, error.to_string())
            .because(Status::Note, "gctgroup works all the same."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lockdown_is_no_problem_where_the_device_is_used() {
        let root = std::env::temp_dir().join(format!("gctctl-lockdown-{}", std::process::id()));
        let file = root.join("sys/kernel/security/lockdown");
        fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
        fs::write(file, "none [integrity] confidentiality\n").expect("a file");
        let system = System { root: root.clone() };
        let by_device = system.lockdown(&Door::Device(None));
        let by_debugfs = system.lockdown(&Door::Directory);
        fs::remove_dir_all(root).expect("the directory");
        assert_eq!(by_device.status, Status::Ok);
        assert!(by_device.message.contains("is locked down"));
        assert_eq!(by_debugfs.status, Status::Problem);
    }
}
