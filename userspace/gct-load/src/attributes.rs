// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Launches kernels with attributes that cudarc's builder lacks: clusters, cooperative launches and
//! programmatic dependents.

use anyhow::{ensure, Result};
use core::ffi::c_void;
use cudarc::driver::{sys, CudaFunction, CudaStream};

/// A launch attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attribute {
    /// Clusters of this many blocks along x.
    Cluster(u32),
    /// All blocks are resident at the same time.
    Cooperative,
    /// The launch may start before the previous one in the stream has ended.
    ProgrammaticDependent,
}

impl Attribute {
    fn to_driver(self) -> sys::CUlaunchAttribute {
        // SAFETY: all zero is a valid attribute: CU_LAUNCH_ATTRIBUTE_IGNORE.
        let mut attribute: sys::CUlaunchAttribute = unsafe { core::mem::zeroed() };
        match self {
            Self::Cluster(width) => {
                attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
                attribute.value.clusterDim.x = width;
                attribute.value.clusterDim.y = 1;
                attribute.value.clusterDim.z = 1;
            }
            Self::Cooperative => {
                attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
                attribute.value.cooperative = 1;
            }
            Self::ProgrammaticDependent => {
                attribute.id =
                    sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
                attribute.value.programmaticStreamSerializationAllowed = 1;
            }
        }
        attribute
    }
}

/// Returns the configuration of a launch with one attribute, to which it points.
fn config(
    stream: &CudaStream,
    grid: (u32, u32, u32),
    threads: u32,
    attribute: &mut sys::CUlaunchAttribute,
) -> sys::CUlaunchConfig {
    sys::CUlaunchConfig {
        gridDimX: grid.0,
        gridDimY: grid.1,
        gridDimZ: grid.2,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream.cu_stream(),
        attrs: attribute,
        numAttrs: 1,
    }
}

/// Returns how many clusters of `width` blocks the device holds at once.
pub(crate) fn max_clusters(
    stream: &CudaStream,
    function: &CudaFunction,
    threads: u32,
    width: u32,
) -> Result<u32> {
    let mut attribute = Attribute::Cluster(width).to_driver();
    let config = config(stream, (width, 1, 1), threads, &mut attribute);
    let mut clusters = 0;
    // SAFETY: the configuration, its attribute and the number live for the call.
    let result = unsafe {
        sys::cuOccupancyMaxActiveClusters(&mut clusters, function.cu_function(), &config)
    };
    ensure!(
        result == sys::CUresult::CUDA_SUCCESS,
        "cuOccupancyMaxActiveClusters failed: {result:?}"
    );
    Ok(u32::try_from(clusters)?)
}

/// Launches a kernel with an attribute.
///
/// # Safety
///
/// `arguments` point at the values that the function takes. Memory that these point at is valid
/// until the launch has ended.
pub(crate) unsafe fn launch(
    stream: &CudaStream,
    function: &CudaFunction,
    grid: (u32, u32, u32),
    threads: u32,
    attribute: Attribute,
    arguments: &mut [*mut c_void],
) -> Result<()> {
    let mut attribute = attribute.to_driver();
    let config = config(stream, grid, threads, &mut attribute);
    // SAFETY: the configuration and its attribute live for the call. The caller guarantees the
    // arguments.
    let result = unsafe {
        sys::cuLaunchKernelEx(
            &config,
            function.cu_function(),
            arguments.as_mut_ptr(),
            core::ptr::null_mut(),
        )
    };
    ensure!(
        result == sys::CUresult::CUDA_SUCCESS,
        "cuLaunchKernelEx failed: {result:?}"
    );
    Ok(())
}
