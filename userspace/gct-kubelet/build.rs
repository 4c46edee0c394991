// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes client and server of the kubelet's list of pods. The messages are in `src/api.rs`.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let list = Method::builder()
        .name("list")
        .route_name("List")
        .input_type("crate::api::ListPodResourcesRequest")
        .output_type("crate::api::ListPodResourcesResponse")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let lister = Service::builder()
        .name("PodResourcesLister")
        .package("v1")
        .method(list)
        .build();
    Builder::new().compile(&[lister]);
}
