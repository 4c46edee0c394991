// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tree through FUSE equals the tree on the socket. Skipped without FUSE.

use gct_core::error::Error;
use gct_core::iface::files::{self, Mode, Place};
use gctd::testing::Daemon;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn write(path: &Path, text: &str) -> Result<(), i32> {
    let file = OpenOptions::new().write(true).truncate(true).open(path);
    let written = file.and_then(|mut file| file.write(text.as_bytes()));
    match written {
        Ok(bytes) => {
            assert_eq!(bytes, text.len());
            Ok(())
        }
        Err(error) => Err(error.raw_os_error().unwrap()),
    }
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap().map(Result::unwrap);
    let mut names: Vec<String> = entries
        .map(|entry| {
            let slash = if entry.file_type().unwrap().is_dir() {
                "/"
            } else {
                ""
            };
            format!("{}{slash}", entry.file_name().to_str().unwrap())
        })
        .collect();
    names.sort();
    names
}

#[test]
fn the_mount_shows_the_files_of_the_socket() {
    let mut daemon = Daemon::new("fuse", 2);
    let Some((tree, _mount)) = daemon.mounted() else {
        return;
    };
    let client = daemon.client();
    assert_eq!(write(&tree.join("control"), "create web\n"), Ok(()));
    for (directory, place) in [
        ("", Place::Root),
        ("gpus/1", Place::Gpu),
        ("web", Place::Group),
        ("web/0", Place::Pool),
    ] {
        let mut expected = client.list(directory).unwrap();
        expected.sort();
        assert_eq!(names(&tree.join(directory)), expected, "{directory}");
        for entry in files::of(place) {
            let name = format!("{directory}/{}", entry.name);
            let path = tree.join(directory).join(entry.name);
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, u32::from(entry.mode.bits()), "{name}");
            let read = fs::read_to_string(&path).map_err(|e| e.raw_os_error().unwrap());
            assert_eq!(read, client.read(&name), "{name}");
            if entry.mode == Mode::Read {
                assert_eq!(write(&path, "1"), Err(Error::Access.errno()), "{name}");
            }
        }
    }
    assert_eq!(write(&tree.join("web/0/tpc.mask"), "0-3,9\n"), Ok(()));
    assert_eq!(client.read("web/0/tpc.mask"), Ok("0-3,9\n".into()));
    assert_eq!(
        write(&tree.join("web/0/slip.power"), "7"),
        Err(Error::Unsupported.errno())
    );
    assert_eq!(
        write(&tree.join("web/0/tpc.mask"), "junk"),
        Err(Error::Syntax.errno())
    );
    assert!(fs::create_dir(tree.join("other")).is_err());
    assert!(fs::remove_file(tree.join("version")).is_err());
}

#[test]
fn a_shell_joins_with_echo_and_reads_in_parts() {
    let mut daemon = Daemon::new("shell", 1);
    let Some((tree, _mount)) = daemon.mounted() else {
        return;
    };
    let script = "echo create web >control && echo 0 >web/group.procs && cat web/group.procs && \
        echo $$ && dd if=gpus/0/name bs=3 2>/dev/null && printf 0-1 >web/0/tpc.mask && cat web/0/tpc.mask";
    let output = Command::new("sh")
        .args(["-c", script])
        .current_dir(&tree)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let [member, own, name, mask] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("{text}{}", String::from_utf8_lossy(&output.stderr));
    };
    assert_eq!((member, name, mask), (own, "NVIDIA H200", "0-1"));
}

#[test]
fn an_open_file_of_a_removed_group_refuses_writes() {
    let mut daemon = Daemon::new("gone", 1);
    let Some((tree, _mount)) = daemon.mounted() else {
        return;
    };
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    let mask = tree.join("web/0/tpc.mask");
    let mut open = OpenOptions::new().write(true).open(&mask).unwrap();
    let mut reader = File::open(&mask).unwrap();
    client.write("control", "remove web").unwrap();
    let refused = open.write(b"0-1").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Error::Gone.errno()));
    // A read still returns the text of the moment when it was opened.
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "all\n");
    assert!(!mask.exists());
}
