// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Talks to the program as a virtual machine monitor does.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;
use vfio_user::Client;

/// A running server. Dropping it kills the server, if the test fails before it exits.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(name: &str, slot_id: u8) -> Self {
        let socket =
            std::env::temp_dir().join(format!("fakegpu-{}-{name}-{slot_id}", std::process::id()));
        let child = Command::new(env!("CARGO_BIN_EXE_fakegpu"))
            .args(["--slot-id", &slot_id.to_string(), "--socket"])
            .arg(&socket)
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !socket.exists() {
            assert!(Instant::now() < deadline, "no socket after 60 s");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { child, socket }
    }

    fn connect(&self) -> Client {
        Client::new(&self.socket).expect("the handshake succeeds")
    }

    /// Waits for the server to exit.
    fn wait(mut self) {
        let status = self.child.wait().expect("the server ends");
        assert!(status.success(), "{status}");
        assert!(!self.socket.exists(), "the socket is left behind");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server has already exited unless the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_u32(client: &mut Client, region: u32, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    client
        .region_read(region, offset, &mut bytes)
        .expect("a read is answered");
    u32::from_le_bytes(bytes)
}

#[test]
fn it_shows_a_gh100_and_ends_with_its_client() {
    let server = Server::start("identity", 0);
    let mut client = server.connect();
    assert_eq!(
        read_u32(&mut client, VFIO_PCI_CONFIG_REGION_INDEX, 0),
        0x2330_10de
    );
    assert_eq!(read_u32(&mut client, 0, 0), 0x1800_00a1);
    let sizes: Vec<u64> = (0..6)
        .map(|bar| client.region(bar).map_or(0, |region| region.size))
        .collect();
    assert_eq!(sizes, [16 << 20, 0, 256 << 20, 0, 32 << 20, 0]);
    drop(client);
    server.wait();
}

#[test]
fn eight_live_side_by_side() {
    let servers: Vec<Server> = (0..8).map(|slot| Server::start("eight", slot)).collect();
    let mut clients: Vec<Client> = servers.iter().map(Server::connect).collect();
    for (value, client) in (1u32..).zip(&mut clients) {
        client
            .region_write(0, 0x10_0000, &value.to_le_bytes())
            .expect("a write is answered");
    }
    for (value, client) in (1u32..).zip(&mut clients) {
        assert_eq!(read_u32(client, 0, 0x10_0000), value);
    }
    drop(clients);
    servers.into_iter().for_each(Server::wait);
}

#[test]
fn odd_accesses_are_answered_and_reset_works() {
    let server = Server::start("odd", 0);
    let mut client = server.connect();
    for region in 0..9 {
        for offset in [0, 1, 3, 0xffe, 0xfff, (16 << 20) - 1, u64::MAX] {
            for len in [0, 1, 2, 3, 5, 8, 64] {
                client
                    .region_write(region, offset, &vec![0xff; len])
                    .expect("a write is answered");
                client
                    .region_read(region, offset, &mut vec![0; len])
                    .expect("a read is answered");
            }
        }
    }
    client
        .region_write(0, 0x10_0000, &[1; 4])
        .expect("a write is answered");
    client.reset().expect("a reset is answered");
    assert_eq!(read_u32(&mut client, 0, 0x10_0000), 0);
    drop(client);
    server.wait();
}

#[test]
fn a_socket_in_use_is_an_error() {
    let server = Server::start("taken", 0);
    let second = Command::new(env!("CARGO_BIN_EXE_fakegpu"))
        .arg("--socket")
        .arg(&server.socket)
        .output()
        .expect("the second starts");
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("Cannot listen on"));
    drop(server.connect());
    server.wait();
}
