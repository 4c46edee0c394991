// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recognises NVIDIA's device nodes.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

/// A device node of NVIDIA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceNode {
    Control,
    /// `/dev/nvidiaN`.
    Gpu(u32),
    Uvm,
}

/// Returns which of NVIDIA's nodes a descriptor is. A container may rename them, so the device
/// number decides.
pub(crate) fn device_node(fd: c_int) -> Option<DeviceNode> {
    /// The driver's major number, `NV_MAJOR_DEVICE_NUMBER`.
    const MAJOR: u32 = 195;
    /// `NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE`.
    const CONTROL: u32 = 255;
    // SAFETY: all zero is a valid `stat`.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` lives for the call.
    let known = unsafe { libc::fstat(fd, &mut stat) } == 0;
    let character = known && stat.st_mode & libc::S_IFMT == libc::S_IFCHR;
    if !character {
        return None;
    }
    match (libc::major(stat.st_rdev), libc::minor(stat.st_rdev)) {
        (MAJOR, CONTROL) => Some(DeviceNode::Control),
        (MAJOR, number) => Some(DeviceNode::Gpu(number)),
        // The other UVM node, for tools, has another minor number.
        (major, 0) if is_uvm(major) => Some(DeviceNode::Uvm),
        _ => None,
    }
}

/// Returns whether a device number's major is the UVM driver's. It differs from boot to boot.
fn is_uvm(major: u32) -> bool {
    /// The major; 0 until it is known.
    static MAJOR: AtomicU32 = AtomicU32::new(0);
    let known = match MAJOR.load(Ordering::Relaxed) {
        0 => {
            let devices = std::fs::read_to_string("/proc/devices").unwrap_or_default();
            let read = major_in(&devices).unwrap_or(0);
            MAJOR.store(read, Ordering::Relaxed);
            read
        }
        known => known,
    };
    known != 0 && major == known
}

fn major_in(devices: &str) -> Option<u32> {
    let lines = devices
        .lines()
        .filter_map(|line| line.trim().split_once(' '));
    let mut found = lines.filter(|(_, name)| *name == "nvidia-uvm");
    found.next()?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_number_is_found() {
        let devices = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n\
            235 nvidia-uvm-tools\n236 nvidia-uvm\n\nBlock devices:\n259 blkext\n";
        assert_eq!(major_in(devices), Some(236));
        assert_eq!(major_in("Character devices:\n  1 mem\n"), None);
        assert!(!is_uvm(0), "where there is no driver");
    }
}
