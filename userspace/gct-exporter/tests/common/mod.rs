// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the exporter and asks it over HTTP.
#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod openmetrics;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use openmetrics::Page;

/// Most time of a request. A read of the tree takes milliseconds.
const REQUEST_TIME: Duration = Duration::from_secs(20);
/// Most time until a change is on the page.
const PAGE_TIME: Duration = Duration::from_secs(120);

/// A running exporter. Dropping it ends it.
pub(crate) struct Exporter {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Exporter {
    /// Starts the exporter at a free port.
    pub(crate) fn new(options: &[&OsStr]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gct-exporter"))
            .args(["--listen", "127.0.0.1:0"])
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the exporter starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("standard error"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("a line");
        let address = line.trim_end().rsplit(' ').next().map(str::parse);
        let address = address.expect("an address").expect("a socket's address");
        // The exporter must never wait for a reader of its messages.
        thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Self { child, address }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        let limit = Some(REQUEST_TIME);
        stream.set_read_timeout(limit).expect("a time limit");
        stream
    }

    /// Sends a request and returns the whole answer.
    pub(crate) fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        // A server that refuses a request early closes while it is sent.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    /// Returns head and body of the metrics.
    pub(crate) fn metrics(&self) -> (String, String) {
        let answer = self.ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        (head.to_ascii_lowercase(), body.to_owned())
    }

    /// Returns the metrics, which must be OpenMetrics.
    pub(crate) fn page(&self) -> Page {
        let (_, body) = self.metrics();
        Page::parse(&body).unwrap_or_else(|why| panic!("{why}\n{body}"))
    }

    /// Waits for a page on which a series has a value. A page is reused for four times as long as
    /// it took to read, however long that is on this host.
    pub(crate) fn page_with(&self, series: &str, value: f64) -> Page {
        let started = Instant::now();
        loop {
            let page = self.page();
            let is = page.get(series);
            if is == Some(value) {
                return page;
            }
            assert!(started.elapsed() < PAGE_TIME, "{series} is {is:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns whether the process still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
