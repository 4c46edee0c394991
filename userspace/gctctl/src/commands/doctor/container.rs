// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks what a container needs, from inside.

use std::env;
use std::fs;

use gct_client::KERNEL_CONTAINER;
use gctd_ipc::paths::{preloads, LIBRARY, SOCKET_VARIABLE};

use super::{Finding, Status, System};

/// Returns whether this is a container, or another place that an administrator has prepared for
/// tenants. The CDI specs of gct-device-plugin set either variable.
pub(super) fn is_here(user_mode: bool) -> bool {
    let (variable, mode) = KERNEL_CONTAINER;
    match user_mode {
        true => env::var_os(SOCKET_VARIABLE).is_some(),
        false => env::var_os(variable).is_some_and(|value| value == mode),
    }
}

/// Checks that programs started here have the library. Nothing else limits them.
pub(super) fn library(system: &System) -> Finding {
    const CHECK: &str = "library";
    let variable = env::var("LD_PRELOAD").unwrap_or_default();
    // The hook of gct-device-plugin writes it.
    let file = fs::read(system.root.join("etc/ld.so.preload")).unwrap_or_default();
    let of_file = preloads(&file).filter_map(|path| std::str::from_utf8(path).ok());
    let mut named = variable.split([':', ' ']).chain(of_file);
    match named.find(|path| path.rsplit('/').next() == Some(LIBRARY)) {
        Some(path) if system.root.join(path.trim_start_matches('/')).exists() => {
            Finding::ok(CHECK, format!("Programs have {path}."))
        }
        Some(path) => Finding::ok(CHECK, format!("Programs should have {path}, which is not here."))
            .because(
                Status::Problem,
                "Mount it from the host; a runtime with CDI does: see kubernetes.md.",
            ),
        None => Finding::ok(
            CHECK,
            "Neither /etc/ld.so.preload nor LD_PRELOAD names the library: programs have no limits.",
        )
        .because(
            Status::Problem,
            format!("Add /usr/lib/gctgroup/{LIBRARY} to /etc/ld.so.preload again: a script has removed it."),
        ),
    }
}

/// Checks that there is a GPU's node.
pub(super) fn nodes(system: &System) -> Finding {
    const CHECK: &str = "device nodes";
    let entries = fs::read_dir(system.root.join("dev")).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_gpu = |name: &String| {
        let number = name.strip_prefix("nvidia");
        number.is_some_and(|text| text.parse::<u32>().is_ok())
    };
    let mut gpus: Vec<String> = names.filter(is_gpu).collect();
    gpus.sort();
    match gpus.is_empty() {
        false => Finding::ok(CHECK, format!("There are {}.", gpus.join(", "))),
        true => Finding::ok(CHECK, "There is no /dev/nvidia<N>.").because(
            Status::Problem,
            "Use a runtime with CDI, such as containerd with enable_cdi: see kubernetes.md.",
        ),
    }
}
