// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The API server over TLS: which one the plugin believes, and which token it shows it.

#[allow(
    dead_code,
    unused_imports,
    reason = "not every test program needs all of it"
)]
mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{until, ApiServer, Node};
use gct_device_plugin::dra::client::{Server, ServerOptions};
use hyper::Method;

const NODE: &str = "/api/v1/nodes/node1";

/// Returns a certificate of `tests/tls`.
fn certificate(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/tls")
        .join(name)
}

/// Returns a file that goes with the test.
fn file(test: &str, text: &str) -> PathBuf {
    let name = format!("gct-plugin-tls-{test}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    fs::write(&path, text).unwrap();
    path
}

fn options(url: &str, authority: &Path, token: &Path) -> ServerOptions {
    ServerOptions {
        api_server: Some(url.to_owned()),
        api_ca: authority.to_owned(),
        api_token: token.to_owned(),
    }
}

/// Asks for the node. Returns whether it is there, or the error.
async fn ask(options: &ServerOptions) -> Result<bool, String> {
    let server = Server::new(options).unwrap();
    let answer = server.call(Method::GET, NODE, None).await;
    let found = answer.map_err(|error| format!("{error:#}"))?;
    Ok(found.is_some())
}

#[tokio::test]
async fn a_server_that_is_not_the_clusters_is_told_nothing() {
    let token = file("refused", "secret");
    let good = ApiServer::start_with_tls("node1", "127.0.0.1").await;
    let elsewhere = ApiServer::start_with_tls("node1", "127.0.0.2").await;
    let plain = ApiServer::start("node1").await;
    let without_tls = plain.url.replace("http:", "https:");
    for (url, authority, says) in [
        (&good.url, "other.pem", "UnknownIssuer"),
        (&elsewhere.url, "ca.pem", "not valid for name"),
        (&without_tls, "ca.pem", "InvalidContentType"),
    ] {
        let error = ask(&options(url, &certificate(authority), &token)).await;
        let error = error.unwrap_err();
        assert!(error.contains(says), "{error}, not {says}");
        assert!(error.contains("--api-ca"), "{error}");
    }
    for server in [&good, &elsewhere, &plain] {
        assert_eq!(server.requests(), 0, "a token was shown to {}", server.url);
    }
    assert_eq!(
        ask(&options(&good.url, &certificate("ca.pem"), &token)).await,
        Ok(true)
    );
    fs::remove_file(token).unwrap();
}

#[tokio::test]
async fn each_call_shows_the_token_that_is_in_the_file() {
    let server = ApiServer::start_with_tls("node1", "127.0.0.1").await;
    let token = file("token", "expired\n");
    let options = options(&server.url, &certificate("ca.pem"), &token);
    let refused = |error: Result<bool, String>| {
        let error = error.unwrap_err();
        assert!(error.contains("401"), "{error}");
        assert!(error.contains(&token.display().to_string()), "{error}");
    };
    refused(ask(&options).await);
    fs::write(&token, "secret\n").unwrap();
    assert_eq!(ask(&options).await, Ok(true));
    fs::remove_file(&token).unwrap();
    refused(ask(&options).await);
}

#[tokio::test]
async fn an_authority_without_a_certificate_is_refused_at_once() {
    let empty = file("empty", "no certificate\n");
    let missing = Path::new("/nowhere/ca.crt");
    for (authority, says) in [
        (empty.as_path(), "has no certificate"),
        (missing, "cannot be read"),
    ] {
        let made = Server::new(&options("https://127.0.0.1:1", authority, &empty));
        let error = format!("{:#}", made.unwrap_err());
        assert!(error.contains(says), "{error}, not {says}");
        assert!(error.contains(&authority.display().to_string()), "{error}");
    }
    fs::remove_file(&empty).unwrap();
}

#[tokio::test]
async fn the_plugin_publishes_its_slice_over_tls() {
    let server = ApiServer::start_with_tls("node1", "127.0.0.1").await;
    let mut node = Node::new("tls", "[dra]\n");
    let token = node.folder.join("token");
    fs::write(&token, "secret\n").unwrap();
    let arguments = |authority: &str| {
        let paths = [certificate(authority), token.clone()];
        let [authority, token] = paths.map(|path| path.display().to_string());
        let url = server.url.clone();
        let named = [("--node", "node1".to_owned()), ("--api-server", url)];
        let files = [("--api-ca", authority), ("--api-token", token)];
        let all = named.into_iter().chain(files);
        all.flat_map(|(option, value)| [option.to_owned(), value])
            .collect()
    };
    node.arguments = arguments("other.pem");
    node.start_plugin();
    until("a refusal", || {
        let log = node.file("plugin.log");
        log.contains("no ResourceSlice") && log.contains("UnknownIssuer")
    })
    .await;
    node.kill_plugin();
    assert_eq!(server.requests(), 0);

    node.arguments = arguments("ca.pem");
    node.start_plugin();
    until("a slice", || server.slices().len() == 1).await;
}
