// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Limits cgroups by NVML of r615 and later, which is loaded only when it is asked for.
//!
//! The function and its structure are those of NVIDIA's NVML API reference (`nvmlDeviceSetMemory-
//! Limits_v1`, `nvmlSetMemoryLimits_v1_t`); nvml-wrapper does not have them yet.

use super::Device;
use libloading::Library;
use nvml_wrapper::error::{nvml_try, NvmlError};
use nvml_wrapper::Nvml;
use std::ffi::{c_char, c_uint, c_ulonglong, c_void, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// As for clocks: the name without a number is often absent.
const LIBRARY: &str = "libnvidia-ml.so.1";
const FUNCTION: &[u8] = b"nvmlDeviceSetMemoryLimits_v1";

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`: no hard limit.
const MAX: c_ulonglong = c_ulonglong::MAX;
/// The soft limit. Under MPS a client beyond its soft limit is ended when a client within its own
/// finds no memory, and gctgroup moves pages instead. As 0, it also leaves nothing behind in the
/// cgroups above, where the driver adds up soft limits.
const SOFT: c_ulonglong = 0;

/// `nvmlSetMemoryLimits_v1_t`.
#[repr(C)]
struct SetMemoryLimits {
    /// The full path of the cgroup's directory.
    name_space: *const c_char,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
}

type SetFunction = unsafe extern "C" fn(*mut c_void, *mut SetMemoryLimits) -> c_uint;

/// Loads NVML, and does not start it yet.
///
/// # Errors
///
/// A text if it cannot be loaded, or is older than r615.
pub(crate) fn load() -> Result<Loaded, String> {
    // SAFETY: NVML's constructors and destructors may run at any time, in any thread.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|error| error.to_string())?;
    // SAFETY: the function has this type in every NVML that has the name, whose end is its version.
    let set = unsafe { library.get::<SetFunction>(FUNCTION) };
    let set = *set.map_err(|_| "the driver is older than r615".to_owned())?;
    Ok(Loaded {
        nvml: None,
        set,
        _library: library,
    })
}

/// NVML, loaded. It is started by the first limit.
#[derive(Debug)]
pub(crate) struct Loaded {
    nvml: Option<Nvml>,
    set: SetFunction,
    /// Has the function.
    _library: Library,
}

impl Device for Loaded {
    fn limit(&mut self, pci: &str, cgroup: &Path, most: Option<u64>) -> Result<(), String> {
        let path =
            CString::new(cgroup.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        let started = match self.nvml.take() {
            Some(nvml) => Ok(nvml),
            None => Nvml::builder().lib_path(LIBRARY.as_ref()).init(),
        };
        let text = |error: NvmlError| format!("NVML: {error}");
        let nvml = self.nvml.insert(started.map_err(text)?);
        let device = nvml.device_by_pci_bus_id(pci).map_err(text)?;
        let mut limits = SetMemoryLimits {
            name_space: path.as_ptr(),
            soft_limit: SOFT,
            hard_limit: most.unwrap_or(MAX),
        };
        // SAFETY: the handle is of this NVML, which lives through the call. `limits` is writable
        // and of the function's type, and the path that it points to ends with a zero byte and
        // lives through the call, too. The library that has the function is loaded.
        let outcome = unsafe { (self.set)(device.handle().cast(), &raw mut limits) };
        nvml_try(outcome).map_err(text)
    }
}
