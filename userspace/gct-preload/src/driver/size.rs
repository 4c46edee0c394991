// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shows the program the SMs that its limits leave, and scales what libcuda derives from them.

use super::symbols::{
    Libcuda, ACTIVE_CLUSTERS, CTX_GET_EXEC_AFFINITY, DEVICE_GET_ATTRIBUTE, POTENTIAL_BLOCK_SIZE,
    POTENTIAL_BLOCK_SIZE_WITH_FLAGS,
};
use super::{Device, Function, Status, NOT_INITIALIZED, SUCCESS};
use crate::locks::First;
use crate::optional::cannot;
use crate::sys::keep_errno;
use crate::{daemon, limits, worker};
use core::ffi::{c_char, c_int, c_uint, c_void, CStr};
use core::sync::atomic::{AtomicU32, Ordering};
use gct_core::mask::TpcMask;
use gct_core::policy::size;
use gct_core::topology::Topology;
use gctd_ipc::environment::variable;
use std::path::Path;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const SMS: c_int = 16;
/// `CU_EXEC_AFFINITY_TYPE_SM_COUNT`.
const SM_COUNT: c_int = 0;

/// The environment variable with the SMs that the program sees: `granted` or `all`.
const SM_COUNT_VARIABLE: &str = "GCTGROUP_SM_COUNT";

/// Most devices whose SMs are remembered. No host has more.
const DEVICES_MAX: usize = 64;

/// The directory in which the driver lists each GPU by its PCI address.
const GPUS: &str = "/proc/driver/nvidia/gpus";

static CTX_GET_DEVICE: Libcuda = Libcuda::new(c"cuCtxGetDevice");
static DEVICE_GET_PCI_BUS_ID: Libcuda = Libcuda::new(c"cuDeviceGetPCIBusId");

/// The SMs of a GPU, and those that the limits leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sms {
    pub(crate) device: u32,
    pub(crate) granted: u32,
}

/// Returns what the limits leave of a device; `None` for all of it.
///
/// The first call decides. Later changes of the limits do not change it.
fn granted(number: Device) -> Option<&'static Granted> {
    static GRANTED: [First<Option<Granted>>; DEVICES_MAX] = [const { First::new() }; DEVICES_MAX];
    let slot = GRANTED.get(usize::try_from(number).ok()?)?;
    // Another thread may have returned its result to the program already: the first stays.
    let granted = slot.get_or_init(|| keep_errno(|| Granted::find(number)));
    let granted = granted.as_ref()?;
    let shown = granted
        .minor
        .and_then(|minor| SHOWN.get(usize::try_from(minor).ok()?));
    if let Some(shown) = shown {
        shown.store(granted.tpcs.count(), Ordering::Relaxed);
    }
    Some(granted)
}

/// The TPCs that were shown of each GPU, by the N of `/dev/nvidiaN`; 0 if nothing was.
static SHOWN: [AtomicU32; DEVICES_MAX] = [const { AtomicU32::new(0) }; DEVICES_MAX];

/// Returns how many TPCs of a GPU the program was shown; 0 if it has not asked.
pub(crate) fn shown_on(minor: u32) -> u32 {
    let shown = usize::try_from(minor)
        .ok()
        .and_then(|minor| SHOWN.get(minor));
    shown.map_or(0, |shown| shown.load(Ordering::Relaxed))
}

/// What the limits of this process leave of a device.
#[derive(Debug)]
struct Granted {
    tpcs: TpcMask,
    minor: Option<u32>,
    /// The GPCs, once something asks for them.
    topology: First<Topology>,
}

impl Granted {
    fn find(number: Device) -> Option<Self> {
        let minor = bus_id(number).and_then(|id| minor(Path::new(GPUS), &id));
        let tpcs = minor.and_then(daemon::dependable);
        let tpcs = tpcs.or_else(|| worker::lock()?.governors.allowed_on(minor))?;
        Some(Self {
            tpcs,
            minor,
            topology: First::new(),
        })
    }

    /// Returns how many of the device's `count` clusters run at once on the TPCs; `None` if its
    /// GPCs are unknown.
    fn clusters(&self, count: u32) -> Option<u32> {
        let ask = || self.minor.map_or_else(limits::listed, limits::topology);
        let topology = self.topology.get_or_init(ask);
        size::clusters(count, &self.tpcs, topology)
    }
}

/// Returns the SMs of a device. libcuda reports that it has `device` SMs.
fn of(number: Device, device: u32) -> Sms {
    let left = granted(number).map_or(device, |left| size::sms(left.tpcs.count(), device));
    Sms {
        device,
        granted: left.min(device),
    }
}

/// Returns the current context's device; `None` without a context.
pub(super) fn current_device() -> Option<Device> {
    type GetDevice = unsafe extern "C" fn(*mut Device) -> Status;
    // SAFETY: the type is that of the function.
    let get_device = unsafe { CTX_GET_DEVICE.function::<GetDevice>() }?;
    let mut number = 0;
    // SAFETY: `number` is valid for the call.
    (unsafe { get_device(&mut number) } == SUCCESS).then_some(number)
}

/// Returns the size of the current context's device; `None` without a context.
pub(crate) fn current() -> Option<Sms> {
    let number = current_device()?;
    // SAFETY: the type is that of the function.
    let get_attribute = unsafe { DEVICE_GET_ATTRIBUTE.function::<GetAttribute>() }?;
    let mut sms = 0;
    // SAFETY: `sms` is valid for the call.
    if unsafe { get_attribute(&mut sms, SMS, number) } != SUCCESS {
        return None;
    }
    Some(of(number, u32::try_from(sms).ok()?))
}

/// Returns the PCI address of a device, such as `0000:04:00.0`.
pub(super) fn bus_id(number: Device) -> Option<String> {
    type GetBusId = unsafe extern "C" fn(*mut c_char, c_int, Device) -> Status;
    // SAFETY: the type is that of the function.
    let get = unsafe { DEVICE_GET_PCI_BUS_ID.function::<GetBusId>() }?;
    let mut text = [0u8; 32];
    // CAST: 32.
    let len = text.len() as c_int;
    // SAFETY: `text` has room for `len` bytes.
    if unsafe { get(text.as_mut_ptr().cast(), len, number) } != SUCCESS {
        return None;
    }
    let text = CStr::from_bytes_until_nul(&text).ok()?;
    Some(text.to_str().ok()?.to_ascii_lowercase())
}

/// Returns the N of `/dev/nvidiaN` for a PCI address.
fn minor(gpus: &Path, bus_id: &str) -> Option<u32> {
    let text = std::fs::read_to_string(gpus.join(bus_id).join("information")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Device Minor:"))?;
    line.trim().parse().ok()
}

/// Returns whether the program sees all SMs despite its limits (`GCTGROUP_SM_COUNT=all`). Its
/// launches stay within the limits, so it harms no neighbour.
fn shows_all() -> bool {
    static ALL: First<bool> = First::new();
    *ALL.get_or_init(|| {
        let value = variable(SM_COUNT_VARIABLE).unwrap_or_default();
        if value != "all" && value != "granted" && !value.is_empty() {
            let value = value.to_string_lossy();
            cannot(&format!(
                "{SM_COUNT_VARIABLE}: '{value}' is not all or granted"
            ));
        }
        value == "all"
    })
}

/// Replaces a number that counts for the whole device by the part that the program sees.
fn scale(number: &mut c_int, part: impl FnOnce(u32) -> Option<u32>) {
    let Ok(count) = u32::try_from(*number) else {
        return;
    };
    let part = match shows_all() {
        true => None,
        false => part(count),
    };
    // A number that was not zero stays so: a program divides by it.
    let part = part.unwrap_or(count).clamp(count.min(1), count);
    // CAST: at most `number`.
    *number = part as c_int;
}

/// Returns the part of `count` blocks that the SMs hold which the limits leave.
fn blocks(count: u32) -> Option<u32> {
    let sms = current()?;
    Some(size::share(count, sms.granted, sms.device))
}

/// Returns how many of `count` clusters run at once on the TPCs that the limits leave.
fn clusters(count: u32) -> Option<u32> {
    let left = granted(current_device()?)?;
    // Without GPCs clusters count as blocks.
    left.clusters(count).or_else(|| blocks(count))
}

/// Scales a number of blocks or clusters that libcuda has written, if the call succeeded.
///
/// # Safety
///
/// If `status` is a success, libcuda has written `number`.
unsafe fn scaled(
    status: Status,
    number: *mut c_int,
    part: impl FnOnce(u32) -> Option<u32>,
) -> Status {
    if status == SUCCESS {
        // SAFETY: by contract.
        scale(unsafe { &mut *number }, part);
    }
    status
}

type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, Device) -> Status;

/// Interposes libcuda's function: reports the SMs that the limits leave.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: Device,
) -> Status {
    // SAFETY: the type is that of the function.
    let Some(real) = (unsafe { DEVICE_GET_ATTRIBUTE.function::<GetAttribute>() }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: passes on the caller's contract.
    let status = unsafe { real(value, attribute, device) };
    if status == SUCCESS && attribute == SMS {
        // SAFETY: libcuda has just written it.
        let value = unsafe { &mut *value };
        scale(value, |all| Some(of(device, all).granted));
    }
    status
}

/// Interposes libcuda's function: reports the SMs of a context, which MPS may have limited too.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuCtxGetExecAffinity(affinity: *mut c_void, kind: c_int) -> Status {
    type Real = unsafe extern "C" fn(*mut c_void, c_int) -> Status;
    // SAFETY: the type is that of the function.
    let Some(real) = (unsafe { CTX_GET_EXEC_AFFINITY.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: passes on the caller's contract.
    let status = unsafe { real(affinity, kind) };
    if status == SUCCESS && kind == SM_COUNT && !shows_all() {
        // SAFETY: libcuda has just written this `CUexecAffinityParam`: a type, then the number.
        let count = unsafe { &mut *affinity.cast::<c_uint>().add(1) };
        if let Some(sms) = current() {
            *count = sms.granted.min(*count);
        }
    }
    status
}

/// Interposes libcuda's function: the grid is one wave of the SMs that the program sees.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut c_int,
    block: *mut c_int,
    function: Function,
    shared_of_block: *mut c_void,
    shared: usize,
    limit: c_int,
) -> Status {
    type Real =
        unsafe extern "C" fn(*mut c_int, *mut c_int, Function, *mut c_void, usize, c_int) -> Status;
    // SAFETY: the type is that of the function.
    let Some(real) = (unsafe { POTENTIAL_BLOCK_SIZE.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: passes on the caller's contract.
    let status = unsafe { real(grid, block, function, shared_of_block, shared, limit) };
    // SAFETY: libcuda has just written it.
    unsafe { scaled(status, grid, blocks) }
}

/// Interposes libcuda's function, as [`cuOccupancyMaxPotentialBlockSize`].
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: *mut c_int,
    block: *mut c_int,
    function: Function,
    shared_of_block: *mut c_void,
    shared: usize,
    limit: c_int,
    flags: c_uint,
) -> Status {
    type Real = unsafe extern "C" fn(
        *mut c_int,
        *mut c_int,
        Function,
        *mut c_void,
        usize,
        c_int,
        c_uint,
    ) -> Status;
    // SAFETY: the type is that of the function.
    let Some(real) = (unsafe { POTENTIAL_BLOCK_SIZE_WITH_FLAGS.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: passes on the caller's contract.
    let status = unsafe { real(grid, block, function, shared_of_block, shared, limit, flags) };
    // SAFETY: libcuda has just written it.
    unsafe { scaled(status, grid, blocks) }
}

/// Interposes libcuda's function: counts the clusters in what the limits leave of each GPC.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuOccupancyMaxActiveClusters(
    clusters: *mut c_int,
    function: Function,
    config: *const c_void,
) -> Status {
    type Real = unsafe extern "C" fn(*mut c_int, Function, *const c_void) -> Status;
    // SAFETY: the type is that of the function.
    let Some(real) = (unsafe { ACTIVE_CLUSTERS.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: passes on the caller's contract.
    let status = unsafe { real(clusters, function, config) };
    // SAFETY: libcuda has just written it.
    unsafe { scaled(status, clusters, self::clusters) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_address_has_a_minor_number() {
        let gpus = std::env::temp_dir().join(format!("gct-gpus-{}", std::process::id()));
        let one = gpus.join("0000:04:00.0");
        std::fs::create_dir_all(&one).unwrap();
        let text = "Model: \t\t NVIDIA H200\nDevice Minor: \t 3\nGPU Excluded:\t No\n";
        std::fs::write(one.join("information"), text).unwrap();
        let found = minor(&gpus, "0000:04:00.0");
        let other = minor(&gpus, "0000:05:00.0");
        std::fs::remove_dir_all(&gpus).unwrap();
        assert_eq!((found, other), (Some(3), None));
    }

    #[test]
    fn a_scaled_number_is_zero_only_if_it_was() {
        let scaled = |mut number: c_int, part| {
            scale(&mut number, |_| part);
            number
        };
        assert_eq!((scaled(132, Some(2)), scaled(62, Some(0))), (2, 1));
        assert_eq!((scaled(0, Some(5)), scaled(-1, Some(5))), (0, -1));
        assert_eq!(scaled(132, None), 132, "no context");
    }

    #[test]
    fn clusters_need_known_gpcs() {
        let granted = |all| {
            let topology = First::new();
            topology.get_or_init(|| all);
            Granted {
                tpcs: TpcMask::parse(b"0-3").unwrap(),
                minor: None,
                topology,
            }
        };
        let all = TpcMask::parse(b"0-15").unwrap();
        assert_eq!(granted(Topology::together(all)).clusters(16), Some(4));
        assert_eq!(granted(Topology::apart(all)).clusters(16), None);
    }
}
