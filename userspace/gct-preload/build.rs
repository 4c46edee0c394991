// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Links the library for glibc 2.17, whatever the glibc of the machine that builds it. Containers
//! have older ones, and the loader ends each program whose libc lacks a version that a preloaded
//! library needs.
//!
//! The linker takes a function's version from the library that it links against. So this makes
//! libraries without code, which have the functions of `glibc/*.map` in the versions given there.
//! Likewise the unwinder comes from GCC's archive: not every image has `libgcc_s.so.1`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The libraries: what `-l` calls them, and their names in programs.
const LIBRARIES: [(&str, &str); 3] = [
    ("libc", "libc.so.6"),
    ("libpthread", "libpthread.so.0"),
    ("libdl", "libdl.so.2"),
];

fn main() {
    println!("cargo:rerun-if-changed=glibc");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    for (name, soname) in LIBRARIES {
        make(&out, name, soname);
    }
    let stat = out.join("stat.o");
    compile(&["-c", "glibc/stat.s", "-o"], &stat);
    // What glibc links into programs itself, and the loader's own functions.
    let others = "-l:libc_nonshared.a AS_NEEDED(-l:ld-linux-x86-64.so.2)";
    let libc = out.join("libc.so.6");
    let script = format!("INPUT({} {} {others})\n", libc.display(), stat.display());
    fs::write(out.join("libc.so"), script).unwrap();
    fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n").unwrap();
    println!("cargo:rustc-cdylib-link-arg=-L{}", out.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
}

/// Makes the library of a map: its functions in their versions, without code.
fn make(out: &Path, name: &str, soname: &str) {
    let map = format!("glibc/{name}.map");
    let text = fs::read_to_string(&map).unwrap();
    let (_, text) = text.split_once("*/").unwrap();
    let functions = text
        .split([';', '{'])
        .filter_map(|part| part.split_ascii_whitespace().next_back())
        .filter(|word| !word.starts_with("GLIBC_") && !word.starts_with('}'));
    let source: String = functions
        .map(|function| format!(".globl {function}\n.type {function}, @function\n{function}:\n"))
        .collect();
    let assembly = out.join(format!("{name}.s"));
    fs::write(&assembly, source).unwrap();
    let link = format!("-Wl,-soname,{soname},--version-script,{map}");
    let to = match name {
        "libc" => out.join(soname),
        _ => out.join(format!("{name}.so")),
    };
    let assembly = assembly.to_str().unwrap();
    compile(&["-shared", "-nostdlib", &link, assembly, "-o"], &to);
}

fn compile(options: &[&str], to: &Path) {
    println!("cargo:rerun-if-env-changed=CC");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(&compiler).args(options).arg(to).status();
    let status = status.unwrap_or_else(|error| panic!("{compiler:?}: {error}"));
    assert!(status.success(), "{compiler:?} {options:?}: {status}");
}
