// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks what the library asks of a program's loader. The loader ends every program, a shell too,
//! whose libc lacks a version or whose system lacks a library that a preloaded one needs.

use std::process::Command;

/// The oldest glibc: that of RHEL 7, and the oldest that Rust's standard library supports.
const GLIBC: [u32; 2] = [2, 17];

/// Returns what objdump says of the library's headers.
fn headers() -> String {
    let test = std::env::current_exe().unwrap();
    let library = test.with_file_name("libgct_preload.so");
    let said = Command::new("objdump").arg("-p").arg(library).output();
    let said = said.expect("objdump comes with the C compiler");
    assert!(said.status.success(), "{said:?}");
    String::from_utf8(said.stdout).unwrap()
}

#[test]
fn the_library_needs_no_newer_glibc_than_2_17() {
    let headers = headers();
    let versions = headers
        .split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix("GLIBC_"));
    let numbers = |version: &str| -> Vec<u32> {
        let numbers = version.split('.').map(|number| number.parse().unwrap());
        numbers.collect()
    };
    let (old, new): (Vec<_>, Vec<_>) =
        versions.partition(|version| numbers(version)[..] <= GLIBC[..]);
    assert!(old.contains(&"2.2.5"), "{headers}");
    assert_eq!(new, [""; 0]);
}

#[test]
fn the_library_needs_no_file_but_those_of_glibc() {
    let headers = headers();
    let lines = headers.lines().map(str::split_ascii_whitespace);
    let mut needed: Vec<_> = lines
        .filter_map(|mut words| (words.next() == Some("NEEDED")).then(|| words.next().unwrap()))
        .collect();
    needed.sort_unstable();
    let of_glibc = [
        "ld-linux-x86-64.so.2",
        "libc.so.6",
        "libdl.so.2",
        "libpthread.so.0",
    ];
    assert_eq!(needed, of_glibc);
}
