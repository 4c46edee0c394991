// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes the clients and servers of the kubelet's services. The messages are in `src/api.rs`.

use tonic_build::manual::{Builder, Method, Service};

/// Returns a method of a service. `stream` is for one with a stream of answers.
fn method(name: &str, route: &str, input: &str, output: &str, stream: bool) -> Method {
    let method = Method::builder()
        .name(name)
        .route_name(route)
        .input_type(format!("crate::api::{input}"))
        .output_type(format!("crate::api::{output}"))
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
    let lister = vec![method(
        "list",
        "List",
        "ListPodResourcesRequest",
        "ListPodResourcesResponse",
        false,
    )];
    Builder::new().compile(&[
        service("v1beta1", "Registration", registration),
        service("v1beta1", "DevicePlugin", plugin),
        service("v1", "PodResourcesLister", lister),
    ]);
}
