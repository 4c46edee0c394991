// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes the clients and servers of the kubelet's services. The messages are in `src/api.rs` and
//! `src/dra/api.rs`.

use tonic_build::manual::{Builder, Method, Service};

/// Returns a method of a device plugin's service. `stream` is for one with a stream of answers.
fn method(name: &str, route: &str, input: &str, output: &str, stream: bool) -> Method {
    method_of("crate::api", name, route, input, output, stream)
}

/// Returns a method of a driver's service.
fn dra(name: &str, route: &str, input: &str, output: &str) -> Method {
    method_of("crate::dra::api", name, route, input, output, false)
}

fn method_of(
    module: &str,
    name: &str,
    route: &str,
    input: &str,
    output: &str,
    stream: bool,
) -> Method {
    let method = Method::builder()
        .name(name)
        .route_name(route)
        .input_type(format!("{module}::{input}"))
        .output_type(format!("{module}::{output}"))
        .codec_path("tonic_prost::ProstCodec");
    match stream {
        true => method.server_streaming().build(),
        false => method.build(),
    }
}

fn service(package: &str, name: &str, methods: Vec<Method>) -> Service {
    let service = Service::builder().name(name).package(package);
    methods
        .into_iter()
        .fold(service, |service, method| service.method(method))
        .build()
}

fn main() {
    let registration = vec![method(
        "register",
        "Register",
        "RegisterRequest",
        "Empty",
        false,
    )];
    let plugin = vec![
        method(
            "get_device_plugin_options",
            "GetDevicePluginOptions",
            "Empty",
            "DevicePluginOptions",
            false,
        ),
        method(
            "list_and_watch",
            "ListAndWatch",
            "Empty",
            "ListAndWatchResponse",
            true,
        ),
        method(
            "get_preferred_allocation",
            "GetPreferredAllocation",
            "PreferredAllocationRequest",
            "PreferredAllocationResponse",
            false,
        ),
        method(
            "allocate",
            "Allocate",
            "AllocateRequest",
            "AllocateResponse",
            false,
        ),
        method(
            "pre_start_container",
            "PreStartContainer",
            "PreStartContainerRequest",
            "PreStartContainerResponse",
            false,
        ),
    ];
    let watcher = vec![
        dra("get_info", "GetInfo", "InfoRequest", "PluginInfo"),
        dra(
            "notify_registration_status",
            "NotifyRegistrationStatus",
            "RegistrationStatus",
            "RegistrationStatusResponse",
        ),
    ];
    let claims = || {
        vec![
            dra(
                "node_prepare_resources",
                "NodePrepareResources",
                "ClaimsRequest",
                "PrepareResponse",
            ),
            dra(
                "node_unprepare_resources",
                "NodeUnprepareResources",
                "ClaimsRequest",
                "UnprepareResponse",
            ),
        ]
    };
    Builder::new().compile(&[
        service("pluginregistration", "Registration", watcher),
        service("k8s.io.kubelet.pkg.apis.dra.v1", "DRAPlugin", claims()),
        service("k8s.io.kubelet.pkg.apis.dra.v1beta1", "DRAPlugin", claims()),
        service("v1beta1", "Registration", registration),
        service("v1beta1", "DevicePlugin", plugin),
    ]);
}
