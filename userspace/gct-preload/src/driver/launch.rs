// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Refuses cooperative launches that the granted SMs cannot hold, as a smaller GPU would.
//!
//! libcuda compares a launch with all SMs of the GPU. One that exceeds the granted TPCs would have
//! to run outside the limits, or would never end.

use super::calls::Call;
use super::pageable::launching;
use super::symbols::{
    Libcuda, Symbol, GRAPH_NODE_SET_ATTRIBUTE, LAUNCH_COOPERATIVE, LAUNCH_COOPERATIVE_PER_THREAD,
    LAUNCH_EX, LAUNCH_EX_PER_THREAD,
};
use super::{size, Function, Shape, Status, Stream, NOT_INITIALIZED, SUCCESS, TOO_LARGE};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use gct_core::policy::size::holds;

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
const COOPERATIVE: c_int = 2;

static BLOCKS_PER_SM: Libcuda = Libcuda::new(c"cuOccupancyMaxActiveBlocksPerMultiprocessor");
static GRAPH_NODE_GET_PARAMS: Libcuda = Libcuda::new(c"cuGraphKernelNodeGetParams_v2");

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Debug)]
struct Attribute {
    id: c_int,
    _pad: c_int,
    value: Value,
}

/// `CUlaunchAttributeValue`: a union. Its first word says whether a launch is cooperative.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct Value([c_int; 16]);

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    shape: ConfigShape,
    stream: Stream,
    attributes: *const Attribute,
    count: c_uint,
}

/// The dimensions in a `CUlaunchConfig` and in a `CUDA_KERNEL_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ConfigShape {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
struct NodeParams {
    function: Function,
    shape: ConfigShape,
    _arguments: [*mut c_void; 2],
    /// A `CUkernel`, if there is no function.
    kernel: Function,
    _context: *mut c_void,
}

impl From<ConfigShape> for Shape {
    fn from(from: ConfigShape) -> Self {
        Self {
            grid: from.grid,
            block: from.block,
            shared: from.shared,
        }
    }
}

/// A grid that no GPU holds at once. It is a multiple of any cluster along x, and 32 bits count its
/// blocks.
///
/// libcuda gets it in place of a grid that is too large for the limits. So libcuda itself refuses
/// the launch, with all side effects, such as the end of a capture.
const NO_GPU_HOLDS: [c_uint; 3] = [1 << 30, 1, 1];

/// Returns whether the granted SMs cannot hold a cooperative launch at once. Returns `false` if its
/// size is unknown: libcuda then decides.
///
/// # Safety
///
/// `function` is the function that the program launches.
unsafe fn too_large(function: Function, shape: Shape) -> bool {
    let Some(sms) = size::current().filter(|sms| sms.granted < sms.device) else {
        return false;
    };
    type Blocks = unsafe extern "C" fn(*mut c_int, Function, c_int, usize) -> Status;
    // SAFETY: the type is that of the function.
    let blocks = unsafe { BLOCKS_PER_SM.function::<Blocks>() };
    let (Some(blocks), Ok(threads)) = (blocks, c_int::try_from(shape.threads())) else {
        return false;
    };
    let mut per_sm = 0;
    // CAST: widening.
    let shared = shape.shared as usize;
    // SAFETY: `per_sm` is valid for the call. The program passes `function` to libcuda itself.
    let status = unsafe { blocks(&mut per_sm, function, threads, shared) };
    let per_sm = u32::try_from(per_sm).unwrap_or(0);
    // If no SM can hold a block, libcuda returns an error of its own.
    status == SUCCESS && per_sm > 0 && !holds(sms.granted, per_sm, shape.blocks())
}

type Cooperative = unsafe extern "C" fn(
    Function,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Stream,
    *mut *mut c_void,
) -> Status;

macro_rules! cooperative {
    ($($name:ident is $symbol:ident;)*) => {$(
        /// Interposes libcuda's function: refuses a grid that the granted SMs cannot hold.
        ///
        /// # Safety
        ///
        /// As for libcuda's function.
        #[no_mangle]
        #[allow(non_snake_case, reason = "libcuda's name")]
        #[allow(clippy::too_many_arguments, reason = "libcuda's arguments")]
        pub unsafe extern "C" fn $name(
            function: Function,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared: c_uint,
            stream: Stream,
            arguments: *mut *mut c_void,
        ) -> Status {
            // SAFETY: the type is that of the function.
            let Some(real) = (unsafe { $symbol.function::<Cooperative>() }) else {
                return NOT_INITIALIZED;
            };
            let shape = Shape {
                grid: [grid_x, grid_y, grid_z],
                block: [block_x, block_y, block_z],
                shared,
            };
            // SAFETY: the program launches it.
            let [grid_x, grid_y, grid_z] = match unsafe { too_large(function, shape) } {
                true => NO_GPU_HOLDS,
                false => shape.grid,
            };
            // SAFETY: the program launches it.
            unsafe { launching(&$symbol, function, stream, arguments, ptr::null_mut()) };
            let _call = Call::begin();
            // SAFETY: passed on; a grid that is refused reads no arguments.
            unsafe {
                real(
                    function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
                    arguments,
                )
            }
        }
    )*};
}

cooperative! {
    cuLaunchCooperativeKernel is LAUNCH_COOPERATIVE;
    cuLaunchCooperativeKernel_ptsz is LAUNCH_COOPERATIVE_PER_THREAD;
}

/// Returns whether a configuration requests a cooperative launch.
///
/// # Safety
///
/// `config.attributes` is null or points to `config.count` attributes.
unsafe fn is_cooperative(config: &Config) -> bool {
    if config.attributes.is_null() {
        return false;
    }
    // CAST: widening.
    let count = config.count as usize;
    // SAFETY: by contract.
    let attributes = unsafe { core::slice::from_raw_parts(config.attributes, count) };
    let is = |a: &Attribute| a.id == COOPERATIVE && a.value.0[0] != 0;
    attributes.iter().any(is)
}

/// Launches with a configuration, unless the launch is cooperative and too large.
///
/// # Safety
///
/// As for `cuLaunchKernelEx`. `symbol` is one of its variants.
unsafe fn launch_ex(
    symbol: &Symbol,
    config: *const Config,
    function: Function,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Status {
    type Real =
        unsafe extern "C" fn(*const Config, Function, *mut *mut c_void, *mut *mut c_void) -> Status;
    // SAFETY: the type is that of the function.
    let Some(real) = (unsafe { symbol.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: null or a valid configuration, which the program does not change during the call.
    if let Some(asked) = unsafe { config.as_ref() } {
        // SAFETY: libcuda reads the attributes too, and the program launches the function.
        if unsafe { is_cooperative(asked) && too_large(function, asked.shape.into()) } {
            let mut refused = *asked;
            refused.shape.grid = NO_GPU_HOLDS;
            // SAFETY: `refused` lives for the call, which reads no arguments.
            return unsafe { real(&refused, function, arguments, extra) };
        }
        // SAFETY: the program launches it.
        unsafe { launching(symbol, function, asked.stream, arguments, extra) };
    }
    let _call = Call::begin();
    // SAFETY: passed on.
    unsafe { real(config, function, arguments, extra) }
}

/// Interposes libcuda's function: refuses a cooperative grid that the granted SMs cannot hold.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const Config,
    function: Function,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Status {
    // SAFETY: passes on the caller's contract.
    unsafe { launch_ex(&LAUNCH_EX, config, function, arguments, extra) }
}

/// Interposes libcuda's function, as [`cuLaunchKernelEx`].
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuLaunchKernelEx_ptsz(
    config: *const Config,
    function: Function,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Status {
    // SAFETY: passes on the caller's contract.
    unsafe { launch_ex(&LAUNCH_EX_PER_THREAD, config, function, arguments, extra) }
}

/// Returns the function and the dimensions of a graph's kernel node, if libcuda reports them.
///
/// # Safety
///
/// `node` is a node of a graph.
unsafe fn launched_by(node: *mut c_void) -> Option<(Function, Shape)> {
    type Params = unsafe extern "C" fn(*mut c_void, *mut NodeParams) -> Status;
    // SAFETY: the type is that of the function.
    let get = unsafe { GRAPH_NODE_GET_PARAMS.function::<Params>() }?;
    let mut params = NodeParams {
        function: core::ptr::null_mut(),
        shape: ConfigShape::default(),
        _arguments: [core::ptr::null_mut(); 2],
        kernel: core::ptr::null_mut(),
        _context: core::ptr::null_mut(),
    };
    // SAFETY: `params` is valid for the call, `node` by contract.
    let status = unsafe { get(node, &mut params) };
    let function = match params.function.is_null() {
        true => params.kernel,
        false => params.function,
    };
    (status == SUCCESS && !function.is_null()).then(|| (function, params.shape.into()))
}

/// Interposes libcuda's function: refuses to make a node cooperative if the granted SMs cannot hold
/// its grid. libcuda checks the size here, and not again when the graph is instantiated.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuGraphKernelNodeSetAttribute(
    node: *mut c_void,
    attribute: c_int,
    value: *const Value,
) -> Status {
    type Real = unsafe extern "C" fn(*mut c_void, c_int, *const Value) -> Status;
    // SAFETY: the type is that of the function.
    let Some(real) = (unsafe { GRAPH_NODE_SET_ATTRIBUTE.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: null or a valid value. libcuda reads this word too.
    let cooperative = unsafe { value.as_ref() }.is_some_and(|value| value.0[0] != 0);
    if attribute == COOPERATIVE && cooperative {
        // SAFETY: the program passes this node to libcuda.
        let launched = unsafe { launched_by(node) };
        // SAFETY: it is the node's own function.
        if launched.is_some_and(|(function, shape)| unsafe { too_large(function, shape) }) {
            return TOO_LARGE;
        }
    }
    // SAFETY: passes on the caller's contract.
    unsafe { real(node, attribute, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the sizes are those of cuda.h of CUDA 12.9 and 13.0.
    #[test]
    fn structures_have_the_layout_of_cuda_h() {
        assert_eq!(size_of::<Attribute>(), 72);
        assert_eq!(size_of::<Config>(), 56);
        assert_eq!(size_of::<NodeParams>(), 72);
        assert_eq!(core::mem::offset_of!(NodeParams, kernel), 56);
    }

    #[test]
    fn only_the_cooperative_attribute_makes_a_launch_cooperative() {
        let attribute = |id, value: c_int| {
            let mut words = [0; 16];
            words[0] = value;
            Attribute {
                id,
                _pad: 0,
                value: Value(words),
            }
        };
        let ask = |attributes: &[Attribute]| {
            let config = Config {
                shape: ConfigShape::default(),
                stream: core::ptr::null_mut(),
                attributes: attributes.as_ptr(),
                count: attributes.len() as c_uint,
            };
            // SAFETY: the slice is valid for the call and has `count` elements.
            unsafe { is_cooperative(&config) }
        };
        assert!(ask(&[attribute(4, 2), attribute(COOPERATIVE, 1)]));
        assert!(!ask(&[attribute(COOPERATIVE, 0), attribute(4, 1)]));
        assert!(!ask(&[]));
    }
}
