// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Launches that cudarc's builder cannot make: clusters and programmatic dependents.

use anyhow::{ensure, Result};
use core::ffi::c_void;
use cudarc::driver::{sys, CudaFunction, CudaStream};

/// How a kernel is launched beside its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attribute {
    /// Clusters of so many blocks along x.
    Cluster(u32),
    /// It may start before what is before it in the stream has ended.
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
            Self::ProgrammaticDependent => {
                attribute.id =
                    sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
                attribute.value.programmaticStreamSerializationAllowed = 1;
            }
        }
        attribute
    }
}

/// Launches `function` with an attribute.
///
/// # Safety
///
/// `arguments` point to the values that the function takes, and what these point to is valid
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
    let config = sys::CUlaunchConfig {
        gridDimX: grid.0,
        gridDimY: grid.1,
        gridDimZ: grid.2,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream.cu_stream(),
        attrs: &mut attribute,
        numAttrs: 1,
    };
    // SAFETY: the configuration lives for the call; the arguments are the caller's.
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
        "a launch with an attribute failed: {result:?}"
    );
    Ok(())
}
