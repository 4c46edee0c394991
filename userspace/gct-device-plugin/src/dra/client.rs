// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks the API server: JSON over HTTP/1.1, with the pod's service account.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// Most time of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer. Objects of the API server have at most 3 MiB.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// The files of a pod's service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Where the API server is, and how it knows this program.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerOptions {
    /// The API server's URL, for [dra]. Default: that of the pod's cluster.
    #[arg(long, value_name = "URL")]
    pub api_server: Option<String>,

    /// The certificate of the API server's authority.
    #[arg(long, value_name = "FILE", default_value_os_t = Path::new(ACCOUNT).join("ca.crt"))]
    pub api_ca: PathBuf,

    /// The token for the API server.
    #[arg(long, value_name = "FILE", default_value_os_t = Path::new(ACCOUNT).join("token"))]
    pub api_token: PathBuf,
}

/// An API server.
#[derive(Clone)]
pub struct Server {
    authority: String,
    tls: Option<Tls>,
    token: PathBuf,
}

/// How the server proves who it is.
#[derive(Clone)]
struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
    /// The file with the certificate of its authority.
    file: PathBuf,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Server").field(&self.authority).finish()
    }
}

impl Server {
    /// Returns the server that options name.
    ///
    /// # Errors
    ///
    /// Fails if the URL is none, or the authority's certificate cannot be read.
    pub fn new(options: &ServerOptions) -> Result<Self> {
        let url = match &options.api_server {
            Some(url) => url.clone(),
            None => in_cluster().context("There is no API server: name it with --api-server")?,
        };
        let uri: Uri = url.parse().with_context(|| format!("{url} is no URL"))?;
        let host = uri.host().with_context(|| format!("{url} names no host"))?;
        let host = host.trim_matches(['[', ']']);
        let (port, tls) = match uri.scheme_str() {
            Some("https") => (443, Some(Tls::new(host, &options.api_ca)?)),
            Some("http") => (80, None),
            _ => bail!("{url} is neither http nor https"),
        };
        let port = uri.port_u16().unwrap_or(port);
        let authority = match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        Ok(Self {
            authority,
            tls,
            token: options.api_token.clone(),
        })
    }

    /// Calls the server. Returns `None` if there is no such object.
    ///
    /// # Errors
    ///
    /// Those of the connection, and any other refusal with the server's message.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Option<Value>> {
        let what = format!("{method} {path}");
        let call = self.answer(method, path, body);
        let answer = tokio::time::timeout(CALL_TIMEOUT, call).await;
        let (status, value) = answer
            .map_err(anyhow::Error::from)
            .and_then(|answer| answer)
            .with_context(|| what.clone())?;
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        ensure!(
            status != StatusCode::UNAUTHORIZED,
            "{what}: {status}: the API server refuses the token in {} (--api-token), or it has none",
            self.token.display()
        );
        let message = value["message"].as_str().unwrap_or_default();
        ensure!(status.is_success(), "{what}: {status} {message}");
        Ok(Some(value))
    }

    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value)> {
        let stream = TcpStream::connect(&self.authority).await?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.authority)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .header(CONNECTION, "close");
        // Kubernetes replaces it from time to time.
        if let Ok(token) = fs::read_to_string(&self.token) {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        match &self.tls {
            Some(tls) => exchange(tls.connect(stream).await?, request).await,
            None => exchange(stream, request).await,
        }
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<(StatusCode, Value)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX)
        .collect()
        .await;
    connection.abort();
    let body = body.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
    Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

fn in_cluster() -> Option<String> {
    let host = std::env::var("KUBERNETES_SERVICE_HOST").ok()?;
    let port = std::env::var("KUBERNETES_SERVICE_PORT").ok()?;
    Some(match host.contains(':') {
        true => format!("https://[{host}]:{port}"),
        false => format!("https://{host}:{port}"),
    })
}

impl Tls {
    fn new(host: &str, file: &Path) -> Result<Self> {
        let failed = || format!("{} (--api-ca) cannot be read", file.display());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(file).with_context(failed)? {
            roots.add(certificate.with_context(failed)?)?;
        }
        let is_empty = roots.is_empty();
        ensure!(
            !is_empty,
            "{} (--api-ca) has no certificate",
            file.display()
        );
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            name: ServerName::try_from(host.to_owned())?,
            file: file.to_owned(),
        })
    }

    async fn connect(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>> {
        let stream = self.connector.connect(self.name.clone(), stream).await;
        let file = self.file.display();
        stream.with_context(|| format!("no TLS with the authority in {file} (--api-ca)"))
    }
}
