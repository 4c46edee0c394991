// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Generates the layouts and names of the driver's interface to GSP from the driver's own headers.
//!
//! The headers come from `$NV_SRC`, or from `build/nv/535.261.03` of this clone. The version of the
//! headers is the version that the device speaks. Without headers the build uses the committed
//! snapshot of the same output for 535.261.03. The snapshot lacks the long lists of names. So the
//! workspace builds anywhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The driver version of the snapshot, whose interface the device speaks without headers.
const SNAPSHOT: &str = "535.261.03";

/// The driver versions whose headers layout.c and the device are written for.
const VERSIONS: &[&str] = &[SNAPSHOT, "580.142", "595.45.04"];

/// Include folders below `src/nvidia`.
const INCLUDES: &[&str] = &[
    "kernel/inc",
    "interface",
    "../common/sdk/nvidia/inc",
    "../common/sdk/nvidia/inc/hw",
    "arch/nvalloc/common/inc",
    "arch/nvalloc/common/inc/gsp",
    "arch/nvalloc/common/inc/deprecated",
    "arch/nvalloc/unix/include",
    "inc",
    "inc/os",
    "../common/shared/inc",
    "../common/shared/msgq/inc",
    "../common/inc",
    "../common/uproc/os/libos-v2.0.0/include",
    "../common/uproc/os/common/include",
    "../common/uproc/os/libos-v2.0.0/debug",
    "../common/inc/swref",
    "../common/inc/swref/published",
    "generated",
    "../common/nvswitch/kernel/inc",
    "../common/nvswitch/interface",
    "../common/nvswitch/common/inc",
    "../common/inc/displayport",
    "../common/nvlink/interface",
    "../common/nvlink/inband/interface",
    "src/mm/uvm/interface",
    "inc/libraries",
    "src/libraries",
    "inc/kernel",
];

/// Macros that the driver's own build defines and its headers need.
const DEFINES: &[&str] = &[
    "NV_LINUX",
    "NV_X86_64",
    "NV_ARCH_BITS=64",
    "_LANGUAGE_C",
    "__NO_CTYPE",
    "NVRM",
    "LOCK_VAL_ENABLED=0",
    "PORT_ATOMIC_64_BIT_SUPPORTED=1",
    "PORT_IS_KERNEL_BUILD=1",
    "PORT_IS_CHECKED_BUILD=1",
    "PORT_MODULE_atomic=1",
    "PORT_MODULE_core=1",
    "PORT_MODULE_cpu=1",
    "PORT_MODULE_crypto=1",
    "PORT_MODULE_debug=1",
    "PORT_MODULE_memory=1",
    "PORT_MODULE_safe=1",
    "PORT_MODULE_string=1",
    "PORT_MODULE_sync=1",
    "PORT_MODULE_thread=1",
    "PORT_MODULE_util=1",
    "PORT_MODULE_example=0",
    "PORT_MODULE_mmio=0",
    "PORT_MODULE_time=0",
    "RS_STANDALONE=0",
    "RS_STANDALONE_TEST=0",
    "RS_COMPATABILITY_MODE=1",
    "RS_PROVIDES_API_STATE=0",
    "NV_CONTAINERS_NO_TEMPLATES",
    "INCLUDE_NVLINK_LIB",
    "INCLUDE_NVSWITCH_LIB",
];

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let snapshot = manifest
        .join("src/abi")
        .join(format!("snapshot_{}.rs", SNAPSHOT.replace('.', "_")));
    println!("cargo:rerun-if-env-changed=NV_SRC");
    println!("cargo:rerun-if-changed=layout");
    println!("cargo:rerun-if-changed={}", snapshot.display());

    let (version, layouts, names) = match source_tree(&manifest) {
        Some((version, tree)) => {
            let layouts = layouts(&manifest, version, &tree, &out);
            if version == SNAPSHOT
                && fs::read_to_string(&snapshot).ok().as_deref() != Some(&layouts)
            {
                println!(
                    "cargo:warning={} differs from the headers' layouts",
                    snapshot.display()
                );
            }
            (version, layouts, names(&tree))
        }
        None => (
            SNAPSHOT,
            fs::read_to_string(&snapshot).expect("the snapshot is committed"),
            Names::default(),
        ),
    };
    println!("cargo:rustc-env=GCT_FAKEGPU_DRIVER={version}");
    fs::write(out.join("layouts.rs"), layouts).expect("OUT_DIR is writable");
    fs::write(out.join("names.rs"), names.to_rust()).expect("OUT_DIR is writable");
}

/// Returns the driver's source tree and its version, if there is one that the device knows.
fn source_tree(manifest: &Path) -> Option<(&'static str, PathBuf)> {
    // The Makefile exports NV_SRC empty when it is not set.
    if let Some(given) = env::var_os("NV_SRC").filter(|path| !path.is_empty()) {
        let tree = PathBuf::from(given);
        if let Some(version) = known_version(&tree) {
            return Some((version, tree));
        }
        println!(
            "cargo:warning={} is no driver that the software GPU knows ({}): built for {SNAPSHOT}",
            tree.display(),
            VERSIONS.join(", ")
        );
    }
    let tree = manifest.join("../../../build/nv").join(SNAPSHOT);
    (known_version(&tree)? == SNAPSHOT).then_some((SNAPSHOT, tree))
}

/// Returns the version of a tree with headers, if it is one of [`VERSIONS`].
fn known_version(tree: &Path) -> Option<&'static str> {
    let makefile = tree.join("version.mk");
    let text = fs::read_to_string(&makefile).ok()?;
    println!("cargo:rerun-if-changed={}", makefile.display());
    let mut lines = text.lines();
    let version = lines.find_map(|line| line.strip_prefix("NVIDIA_VERSION ="))?;
    let has_headers = tree.join("src/nvidia/generated").is_dir();
    let known = VERSIONS.iter().find(|known| **known == version.trim());
    known.copied().filter(|_| has_headers)
}

/// Compiles and runs the program that prints the layouts.
fn layouts(manifest: &Path, version: &str, tree: &Path, out: &Path) -> String {
    let program = out.join("layout");
    let rm = tree.join("src/nvidia");
    let mut compile = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.args(["-w", "-std=gnu11", "-ffreestanding", "-fno-strict-aliasing"]);
    compile
        .arg("-include")
        .arg(rm.join("../common/sdk/nvidia/inc/cpuopsys.h"));
    compile.args(DEFINES.iter().map(|define| format!("-D{define}")));
    let major = version.split('.').next().unwrap_or_default();
    compile.arg(format!("-DDRIVER={major}"));
    for include in INCLUDES {
        compile.arg("-I").arg(rm.join(include));
    }
    compile
        .arg(manifest.join("layout/layout.c"))
        .arg("-o")
        .arg(&program);
    let status = compile.status().expect("a C compiler is installed");
    assert!(
        status.success(),
        "layout.c does not compile against {}",
        tree.display()
    );
    let output = Command::new(&program)
        .output()
        .expect("the layout program runs");
    assert!(output.status.success(), "the layout program failed");
    let rust = String::from_utf8(output.stdout).expect("it prints ASCII");
    format!("// SPDX-License-Identifier: GPL-2.0 OR MIT\n// Printed by layout/layout.c, compiled against the headers of {version}.\n{rust}")
}

/// Numbers and names of controls and classes.
#[derive(Default)]
struct Names {
    controls: BTreeMap<u32, String>,
    classes: BTreeMap<u32, String>,
}

impl Names {
    fn to_rust(&self) -> String {
        let table = |name: &str, entries: &BTreeMap<u32, String>| {
            let lines: String = entries
                .iter()
                .map(|(number, name)| format!("    ({number:#x}, \"{name}\"),\n"))
                .collect();
            format!("pub(super) const {name}: &[(u32, &str)] = &[\n{lines}];\n")
        };
        table("CONTROL_NAMES", &self.controls) + &table("CLASS_NAMES", &self.classes)
    }
}

/// Collects the names from the headers' `#define` lines.
fn names(tree: &Path) -> Names {
    let sdk = tree.join("src/common/sdk/nvidia/inc");
    let mut names = Names::default();
    for (_, name, number) in defines_below(&sdk.join("ctrl")) {
        if name.contains("_CTRL_CMD_") && number > 0xffff {
            names.controls.entry(number).or_insert(name);
        }
    }
    for (file, name, number) in defines_below(&sdk.join("class")) {
        // A class's own header is named after its number.
        if file == format!("cl{number:04x}.h") {
            // The number zero has two names; clients are allocated by this one.
            if number != 0 || name == "NV01_ROOT" {
                names.classes.entry(number).or_insert(name);
            }
        }
    }
    names
}

/// Returns every `#define NAME (0x...)` below `folder`, with the name of its file.
fn defines_below(folder: &Path) -> Vec<(String, String, u32)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<_> = fs::read_dir(folder)
            .expect("the header folder can be read")
            .flatten()
            .map(|entry| entry.path())
            .collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let file = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let text = fs::read_to_string(&path).unwrap_or_default();
            found.extend(
                text.lines()
                    .filter_map(define)
                    .map(|(name, number)| (file.clone(), name, number)),
            );
        }
    }
    found
}

/// Parses one `#define NAME (0x...)` line.
fn define(line: &str) -> Option<(String, u32)> {
    let mut words = line.strip_prefix("#define")?.split_whitespace();
    let name = words.next()?;
    let number = words
        .next()?
        .trim_matches(|c| c == '(' || c == ')' || c == 'U')
        .strip_prefix("0x")?;
    Some((name.to_string(), u32::from_str_radix(number, 16).ok()?))
}
