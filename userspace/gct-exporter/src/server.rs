// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the page over HTTP/1.1.
//!
//! A client may be slow or hostile:
//!
//! - A connection has one request, [`HEADER_TIME`] for its header, and [`CONNECTION_TIME`] in all.
//! - Beyond [`CONNECTIONS_MAX`] connections the oldest is closed, so that clients that wait for
//!   ever cannot keep others out. A scrape is short, so the oldest is rarely one.
//! - One thread at a time reads the tree. A page is reused for [`REUSE_MIN`], and for
//!   [`REUSE_TIMES`] as long as reading it took. So the tree is read for a fifth of the time at
//!   most.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderValue, ACCEPT, ALLOW, CONTENT_TYPE, VARY};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time;

use crate::metrics::Own;
use crate::reader::Reader;
use crate::samples::Number;
use crate::text;

const HEADER_TIME: Duration = Duration::from_secs(5);
/// Includes the time for which a stopped daemon is waited for.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
const CONNECTIONS_MAX: usize = 64;
const REUSE_MIN: Duration = Duration::from_millis(100);
const REUSE_TIMES: u32 = 4;
/// Most bytes of a request's header. Prometheus sends some 300.
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Time until the next attempt to accept a connection, after there was no file descriptor for it.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const FRONT: &str = "gct-exporter: the metrics are at /metrics\n";

/// One read of the tree in each format.
#[derive(Clone, Debug)]
struct Texts {
    openmetrics: Bytes,
    prometheus: Bytes,
}

/// What is served, and until when.
#[derive(Debug)]
struct Page {
    reader: Reader,
    last: Option<(Instant, Texts)>,
}

/// The state that all connections share.
#[derive(Debug)]
struct Shared {
    page: Mutex<Page>,
    closed: AtomicU64,
}

impl Shared {
    /// Returns the page, which is read again if it is too old. Blocks.
    fn page(&self) -> Result<Texts, std::fmt::Error> {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((until, texts)) = &page.last {
            if Instant::now() < *until {
                return Ok(texts.clone());
            }
        }
        let started = Instant::now();
        let mut samples = page.reader.read();
        let closed = Number::Whole(self.closed.load(Ordering::Relaxed));
        samples.push_own(Own::Evicted, Vec::new(), closed);
        let texts = Texts {
            prometheus: Bytes::from(text::render(&samples)?),
            openmetrics: Bytes::from(samples.render()?),
        };
        let reuse = started.elapsed().saturating_mul(REUSE_TIMES);
        page.last = Some((Instant::now() + reuse.max(REUSE_MIN), texts.clone()));
        Ok(texts)
    }
}

/// Accepts connections for ever.
pub(crate) async fn run(listener: TcpListener, reader: Reader) -> Infallible {
    let page = Mutex::new(Page { reader, last: None });
    let shared = Arc::new(Shared {
        page,
        closed: AtomicU64::new(0),
    });
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= CONNECTIONS_MAX {
            if let Some(oldest) = connections.pop_front() {
                oldest.abort();
                shared.closed.fetch_add(1, Ordering::Relaxed);
            }
        }
        let serving = time::timeout(CONNECTION_TIME, connection(stream, shared.clone()));
        connections.push_back(tokio::spawn(serving).abort_handle());
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(|request| respond(request, shared.clone()));
    // A client that breaks the protocol, or goes, is no event of ours.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(HEADER_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Returns whether a client asks for text and does not say that it knows OpenMetrics. Who asks for
/// nothing, or for anything, gets OpenMetrics.
fn wants_text(headers: &HeaderMap) -> bool {
    let asked = headers.get_all(ACCEPT).iter();
    let asked: Vec<&str> = asked.filter_map(|accept| accept.to_str().ok()).collect();
    let has = |kind: &str| asked.iter().any(|accept| accept.contains(kind));
    has("text/plain") && !has("application/openmetrics-text")
}

async fn respond(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Full<Bytes>>, hyper::http::Error> {
    let answer = |status, kind, body: Bytes| {
        let response = Response::builder().status(status);
        response.header(CONTENT_TYPE, kind).body(Full::new(body))
    };
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let response = Response::builder().status(StatusCode::METHOD_NOT_ALLOWED);
        return response.header(ALLOW, "GET, HEAD").body(Full::default());
    }
    match request.uri().path() {
        "/metrics" => match tokio::task::spawn_blocking(move || shared.page()).await {
            Ok(Ok(texts)) => {
                let (kind, page) = match wants_text(request.headers()) {
                    true => (PROMETHEUS, texts.prometheus),
                    false => (OPENMETRICS, texts.openmetrics),
                };
                let mut response = answer(StatusCode::OK, kind, page)?;
                let by_accept = HeaderValue::from_static("accept");
                response.headers_mut().insert(VARY, by_accept);
                Ok(response)
            }
            _ => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, Bytes::new()),
        },
        "/" => answer(StatusCode::OK, TEXT, Bytes::from_static(FRONT.as_bytes())),
        _ => answer(
            StatusCode::NOT_FOUND,
            TEXT,
            Bytes::from_static(b"not found\n"),
        ),
    }
}
