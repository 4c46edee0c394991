// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Slow and hostile clients do not keep others from the metrics.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use common::Exporter;
use gctd::testing::Daemon;

/// Most connections at a time, as src/server.rs has it.
const CONNECTIONS_MAX: usize = 64;

/// A daemon and an exporter on it.
struct Bed(Exporter, #[allow(dead_code, reason = "it runs")] Daemon);

impl Bed {
    fn new(test: &str) -> Self {
        let daemon = Daemon::new(test, 1);
        let exporter = Exporter::new(&["--dir".as_ref(), daemon.directory.as_os_str()]);
        Self(exporter, daemon)
    }
}

/// Returns whether the server has closed a connection, without waiting.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0; 256]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[test]
fn clients_that_never_finish_a_request_do_not_keep_others_out() {
    let Bed(exporter, _daemon) = &Bed::new("slow");
    let mut slow: Vec<TcpStream> = (0..3 * CONNECTIONS_MAX)
        .map(|_| {
            let mut stream = exporter.connect();
            stream
                .write_all(b"GET /metrics HTTP/1.1\r\nHost: ")
                .unwrap();
            stream
        })
        .collect();
    let started = Instant::now();
    let page = exporter.page();
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(page.get("gctgroup_up"), Some(1.0));
    let closed = page.get("gctgroup_exporter_connections_closed_total");
    // All but the last ones, and the scrape itself.
    let beyond = 2 * CONNECTIONS_MAX + 1;
    assert_eq!(closed, u32::try_from(beyond).ok().map(f64::from));
    let open = slow
        .iter_mut()
        .filter_map(|stream| (!is_closed(stream)).then_some(()));
    assert_eq!(open.count(), CONNECTIONS_MAX - 1);
}

#[test]
fn a_client_that_sends_a_byte_now_and_then_is_closed() {
    let Bed(exporter, _daemon) = &Bed::new("drip");
    let mut stream = exporter.connect();
    let started = Instant::now();
    let mut closed = false;
    while !closed && started.elapsed() < Duration::from_secs(15) {
        // The server has closed if this fails.
        closed = stream.write_all(b"G").is_err() || is_closed(&mut stream);
        thread::sleep(Duration::from_millis(200));
    }
    assert!(closed);
    assert_eq!(exporter.page().get("gctgroup_up"), Some(1.0));
}

#[test]
fn other_requests_get_their_status() {
    let Bed(exporter, _daemon) = &mut Bed::new("status");
    let status = |request: &str| {
        let answer = exporter.ask(request);
        let status = answer.split(' ').nth(1).map(str::to_owned);
        (status.unwrap_or_default(), answer)
    };
    let of = |request: &str| status(&format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n"));
    assert_eq!(of("GET /").0, "200");
    assert_eq!(of("GET /metrics?x=y").0, "200");
    assert_eq!(of("GET /nothing").0, "404");
    let (code, answer) = of("POST /metrics");
    assert_eq!(code, "405");
    assert!(
        answer.to_ascii_lowercase().contains("allow: get, head"),
        "{answer}"
    );
    let (code, answer) = of("HEAD /metrics");
    assert_eq!(code, "200");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
    assert_eq!(status("\0\x01\x02\r\n\r\n").0, "400");
    let long = format!(
        "GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    assert_ne!(status(&long).0, "200");
    let body = "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n";
    assert_eq!(status(body).0, "405");
    assert_eq!(exporter.page().get("gctgroup_up"), Some(1.0));
    assert!(exporter.runs());
}

#[test]
fn many_requests_cost_few_reads() {
    let Bed(exporter, _daemon) = &Bed::new("many");
    let mut pages = std::collections::BTreeSet::new();
    let started = Instant::now();
    let mut requests = 0;
    while started.elapsed() < Duration::from_secs(1) {
        // Each read takes another time.
        let (_, body) = exporter.metrics();
        pages.insert(body);
        requests += 1;
    }
    assert!(
        requests > 50 && pages.len() <= 11,
        "{requests}, {}",
        pages.len()
    );
}
