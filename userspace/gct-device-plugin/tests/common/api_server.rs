// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An API server for ResourceSlices, ResourceClaims and a node. It refuses what the published
//! schema of `resource.k8s.io/v1` (1.37) does not have, or what its descriptions forbid.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gct_device_plugin::dra::quantity;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{json, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

const TOKEN: &str = "Bearer secret";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";

#[derive(Default)]
struct State {
    objects: Mutex<BTreeMap<String, Value>>,
    requests: AtomicUsize,
    /// The gate DRADeviceTaints is off.
    drops_taints: AtomicBool,
}

/// An API server. Dropping it stops it.
pub(crate) struct ApiServer {
    pub(crate) url: String,
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl ApiServer {
    /// Starts a server that knows one node.
    pub(crate) async fn start(node: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::serve(node, listener, None)
    }

    /// Starts one whose certificate is `tests/tls/server.pem`, which is for 127.0.0.1.
    pub(crate) async fn start_with_tls(node: &str, address: &str) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        Self::serve(node, listener, Some(acceptor()))
    }

    fn serve(node: &str, listener: TcpListener, tls: Option<TlsAcceptor>) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let state = Arc::new(State::default());
        state.objects.lock().unwrap().insert(
            format!("/api/v1/nodes/{node}"),
            json!({ "metadata": { "uid": "node-uid" } }),
        );
        let all = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (state, tls) = (Arc::clone(&all), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        // A client that refuses the certificate leaves.
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                converse(state, stream).await;
                            }
                        }
                        None => converse(state, stream).await,
                    }
                });
            }
        });
        Self { url, state, task }
    }

    /// Returns how many requests there were.
    pub(crate) fn requests(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// Turns the gate DRADeviceTaints off.
    pub(crate) fn drop_taints(&self) {
        self.state.drops_taints.store(true, Ordering::Relaxed);
    }

    /// Returns the slices, by name.
    pub(crate) fn slices(&self) -> Vec<Value> {
        let objects = self.state.objects.lock().unwrap();
        let slices = objects.iter().filter(|(path, _)| path.starts_with(SLICES));
        slices.map(|(_, slice)| slice.clone()).collect()
    }

    /// Deletes all slices, as a starting kubelet does.
    pub(crate) fn delete_slices(&self) {
        self.state
            .objects
            .lock()
            .unwrap()
            .retain(|path, _| !path.starts_with(SLICES));
    }

    /// Adds a claim that the scheduler has allocated.
    pub(crate) fn allocate(&self, name: &str, uid: &str, results: Value) {
        self.allocate_with(name, uid, json!({ "results": results }));
    }

    /// Adds a claim with these devices, and what its DeviceClass configures.
    pub(crate) fn allocate_with(&self, name: &str, uid: &str, devices: Value) {
        let claim = json!({
            "metadata": { "namespace": "default", "name": name, "uid": uid },
            "status": { "allocation": { "devices": devices } },
        });
        let mut objects = self.state.objects.lock().unwrap();
        objects.insert(format!("{CLAIMS}/{name}"), claim);
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn acceptor() -> TlsAcceptor {
    let tls = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    let certificate = CertificateDer::from_pem_file(tls.join("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(tls.join("server.key")).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Answers the requests of a connection.
async fn converse<S>(state: Arc<State>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let state = Arc::clone(&state);
        async move { answer(&state, request).await }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let _ = connection.await;
}

async fn answer(
    state: &State,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    state.requests.fetch_add(1, Ordering::Relaxed);
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let is_known = head
        .headers
        .get("authorization")
        .is_some_and(|value| value == TOKEN);
    let (status, value) = match is_known {
        true => act(state, &head.method, head.uri.path(), &body),
        false => refused(401, "Unauthorized"),
    };
    let response = Response::builder().status(status);
    Ok(response.body(Full::new(value.to_string().into())).unwrap())
}

fn refused(status: u16, message: &str) -> (StatusCode, Value) {
    let value = json!({ "kind": "Status", "message": message });
    (StatusCode::from_u16(status).unwrap(), value)
}

fn act(state: &State, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
    let mut objects = state.objects.lock().unwrap();
    let old = objects.get(path).cloned();
    if *method == Method::GET {
        return old.map_or_else(|| refused(404, "not found"), |old| (StatusCode::OK, old));
    }
    let mut new: Value = serde_json::from_slice(body).unwrap();
    if let Err(message) = check(&new) {
        return refused(422, &message);
    }
    let version = match (method.as_str(), &old) {
        ("POST", None) if path == SLICES => 1,
        ("PUT", None) => return refused(404, "not found"),
        ("PUT", Some(old)) => {
            if old["metadata"]["resourceVersion"] != new["metadata"]["resourceVersion"] {
                return refused(409, "the object has been modified");
            }
            let generation = |object: &Value| object["spec"]["pool"]["generation"].as_u64();
            if generation(&new) <= generation(old) {
                return refused(422, "the generation has not grown");
            }
            let version = old["metadata"]["resourceVersion"].as_str().unwrap();
            version.parse::<u64>().unwrap() + 1
        }
        _ => return refused(405, "no such method"),
    };
    new["metadata"]["resourceVersion"] = json!(version.to_string());
    taints(&mut new["spec"], state.drops_taints.load(Ordering::Relaxed));
    canonical(&mut new["spec"]);
    let name = new["metadata"]["name"].as_str().unwrap().to_owned();
    let path = format!("{SLICES}/{name}");
    if *method == Method::POST && objects.contains_key(&path) {
        return refused(409, "already exists");
    }
    objects.insert(path, new.clone());
    (StatusCode::CREATED, new)
}

/// Drops taints, or writes down when they came.
fn taints(spec: &mut Value, drops: bool) {
    let devices = spec["devices"].as_array_mut().into_iter().flatten();
    for device in devices {
        let device = device.as_object_mut().unwrap();
        if drops {
            device.remove("taints");
        }
        let taints = device.get_mut("taints").and_then(Value::as_array_mut);
        for taint in taints.into_iter().flatten() {
            taint["timeAdded"] = json!("2026-11-29T14:00:00Z");
        }
    }
}

/// Checks a taint. Its key is a label's name, and its value a label's.
fn check_taint(taint: &Value) -> Result<(), String> {
    fields("taint", taint, &["*key", "value", "*effect", "timeAdded"])?;
    let is_word = |text: &str, more: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
        let ends = |c: char| c.is_ascii_alphanumeric();
        text.len() <= 63
            && text.chars().all(inner)
            && text.starts_with(ends)
            && text.ends_with(ends)
    };
    let text = |name: &str| taint[name].as_str().unwrap_or_default();
    let (domain, key) = text("key").split_once('/').ok_or("the key has no domain")?;
    let is_valid = is_word(domain, ".-") && is_word(key, "-_.") && is_word(text("value"), "-_.");
    let effects = ["None", "NoSchedule", "NoExecute"];
    match is_valid && effects.contains(&text("effect")) {
        true => Ok(()),
        false => Err(format!("{taint} is no taint")),
    }
}

/// Checks a version: three numbers without zeros in front.
fn check_version(text: &str) -> Result<(), String> {
    let parts: Vec<&str> = text.split('.').collect();
    let is_number = |part: &&str| part.parse::<u64>().is_ok_and(|n| n.to_string() == **part);
    let is_version = parts.len() == 3 && parts.iter().all(is_number) && text.len() <= 64;
    is_version
        .then_some(())
        .ok_or(format!("{text} is no version"))
}

/// Writes quantities in another form, as the API server does.
fn canonical(value: &mut Value) {
    match value {
        Value::String(text) => {
            let number = text
                .ends_with("Mi")
                .then(|| quantity::parse(text))
                .flatten();
            if let Some(gib) = number.filter(|bytes| bytes % (1 << 30) == 0) {
                *value = json!(format!("{}Gi", gib >> 30));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(canonical),
        Value::Object(fields) => fields.values_mut().for_each(canonical),
        _ => {}
    }
}

/// Checks that an object has these fields and no other. `*` marks a required one.
fn fields(what: &str, value: &Value, known: &[&str]) -> Result<(), String> {
    let object = value.as_object().ok_or(format!("{what} is no object"))?;
    for key in object.keys() {
        if !known
            .iter()
            .any(|known| known.trim_start_matches('*') == key)
        {
            return Err(format!("{what} has no field {key}"));
        }
    }
    for known in known.iter().filter_map(|known| known.strip_prefix('*')) {
        if object.get(known).is_none_or(Value::is_null) {
            return Err(format!("{what} needs {known}"));
        }
    }
    Ok(())
}

fn check(slice: &Value) -> Result<(), String> {
    fields(
        "slice",
        slice,
        &["*apiVersion", "*kind", "*metadata", "*spec"],
    )?;
    let spec = &slice["spec"];
    let known = ["*driver", "*pool", "*nodeName", "devices", "sharedCounters"];
    fields("spec", spec, &known)?;
    let known = ["*name", "*generation", "*resourceSliceCount"];
    fields("pool", &spec["pool"], &known)?;
    if spec["pool"]["resourceSliceCount"]
        .as_u64()
        .is_none_or(|count| count == 0)
    {
        return Err("resourceSliceCount must be greater than zero".to_owned());
    }
    for device in spec["devices"].as_array().into_iter().flatten() {
        let known = [
            "*name",
            "attributes",
            "capacity",
            "allowMultipleAllocations",
            "taints",
        ];
        fields("device", device, &known)?;
        for (name, attribute) in device["attributes"].as_object().into_iter().flatten() {
            fields(name, attribute, &["bool", "int", "string", "version"])?;
            if attribute.as_object().unwrap().len() != 1 {
                return Err(format!("{name} must have one value"));
            }
            if attribute["string"]
                .as_str()
                .is_some_and(|text| text.len() > 64)
            {
                return Err(format!("{name} is too long"));
            }
            attribute["version"]
                .as_str()
                .map_or(Ok(()), check_version)?;
        }
        for taint in device["taints"].as_array().into_iter().flatten() {
            check_taint(taint)?;
        }
        for (name, capacity) in device["capacity"].as_object().into_iter().flatten() {
            check_capacity(name, capacity, device["allowMultipleAllocations"] == true)?;
        }
    }
    Ok(())
}

fn check_capacity(name: &str, capacity: &Value, is_shared: bool) -> Result<(), String> {
    fields(name, capacity, &["*value", "requestPolicy"])?;
    let policy = &capacity["requestPolicy"];
    if policy.is_null() {
        return Ok(());
    }
    if !is_shared {
        return Err("a requestPolicy needs allowMultipleAllocations".to_owned());
    }
    fields(
        "requestPolicy",
        policy,
        &["*default", "validRange", "validValues"],
    )?;
    let range = &policy["validRange"];
    fields("validRange", range, &["*min", "max", "step"])?;
    let number = |value: &Value| {
        let text = value.as_str().unwrap_or_default();
        quantity::parse(text).ok_or(format!("{value} is no quantity"))
    };
    let (value, default) = (number(&capacity["value"])?, number(&policy["default"])?);
    let (min, step) = (number(&range["min"])?, number(&range["step"])?);
    let is_valid = min <= default && default <= value && default % step == 0 && min + step <= value;
    is_valid
        .then_some(())
        .ok_or(format!("{name}: its default is not in its range"))
}
