// SPDX-License-Identifier: GPL-2.0 OR MIT

//! systemd hears that the daemon listens, at a socket with a path or an abstract name, and again
//! and again that it serves.

use gctd_ipc::paths::SocketPaths;
use rustix::process::{kill_process, Pid, Signal};
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The time after which systemd would end a daemon that it does not hear.
const WATCHDOG: Duration = Duration::from_millis(200);

/// Runs a daemon until it has reported to a socket that it listens, and twice that it serves.
fn reports(directory: &Path, systemd: &UnixDatagram, variable: OsString) {
    systemd
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_gctd"))
        .args(["--gpus", "/nowhere", "--dir"])
        .arg(directory)
        .env("NOTIFY_SOCKET", variable)
        .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let hear = || {
        let mut message = [0; 64];
        let bytes = systemd.recv(&mut message)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&message[..bytes]).into_owned())
    };
    let first = hear();
    let listens = SocketPaths::of(directory).admin.exists();
    let later = [(); 2].map(|()| hear());
    // It hears nothing from a daemon that does not serve.
    stop(&child);
    systemd.set_nonblocking(true).unwrap();
    while hear().is_ok() {}
    std::thread::sleep(2 * WATCHDOG);
    let silent = hear().is_err();
    systemd.set_nonblocking(false).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(first.unwrap(), "READY=1\n");
    assert!(listens, "it is ready before it listens");
    assert_eq!(later.map(Result::unwrap), ["WATCHDOG=1\n"; 2]);
    assert!(silent, "it is stopped");
}

/// Stops a process, and waits until it is.
fn stop(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    while !state().contains(") T ") {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn systemd_hears_that_the_daemon_is_ready_and_serves() {
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
