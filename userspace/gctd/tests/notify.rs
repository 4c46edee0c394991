// SPDX-License-Identifier: GPL-2.0 OR MIT

//! systemd hears that the daemon listens, at a socket with a path or an abstract name.

use gctd_ipc::paths::SocketPaths;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs a daemon until it reports to a socket.
fn reports(directory: &Path, systemd: &UnixDatagram, variable: OsString) {
    systemd
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_gctd"))
        .args(["--gpus", "/nowhere", "--dir"])
        .arg(directory)
        .env("NOTIFY_SOCKET", variable)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut message = [0; 64];
    let received = systemd.recv(&mut message);
    let listens = SocketPaths::of(directory).admin.exists();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(&message[..received.unwrap()], b"READY=1\n");
    assert!(listens, "it is ready before it listens");
}

#[test]
fn systemd_hears_that_the_daemon_is_ready() {
    let directory = std::env::temp_dir().join(format!("gctd-notify-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("systemd");
    let systemd = UnixDatagram::bind(&path).unwrap();
    reports(&directory.join("path"), &systemd, path.into());
    let name = format!("gctd-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let systemd = UnixDatagram::bind_addr(&address).unwrap();
    reports(
        &directory.join("abstract"),
        &systemd,
        format!("@{name}").into(),
    );
    std::fs::remove_dir_all(&directory).unwrap();
}
