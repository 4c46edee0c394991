// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the classes that clients may allocate on GSP.

/// The classes that the device knows. Firmware knows more; a class belongs here when somebody has
/// decided what its objects do.
#[rustfmt::skip]
const CLASSES: &[u32] = &[
    0x0000, // NV01_ROOT
    0x0001, // NV01_ROOT_NON_PRIV
    0x0005, // NV01_EVENT
    0x003e, // NV01_MEMORY_SYSTEM
    0x003f, // NV01_MEMORY_LOCAL_PRIVILEGED
    0x0040, // NV01_MEMORY_LOCAL_USER
    0x0041, // NV01_ROOT_CLIENT
    0x0070, // NV01_MEMORY_VIRTUAL
    0x0071, // NV01_MEMORY_SYSTEM_OS_DESCRIPTOR
    0x0078, // NV01_EVENT_KERNEL_CALLBACK
    0x0079, // NV01_EVENT_OS_EVENT
    0x007e, // NV01_EVENT_KERNEL_CALLBACK_EX
    0x0080, // NV01_DEVICE_0
    0x0090, // KERNEL_GRAPHICS_CONTEXT
    0x2080, // NV20_SUBDEVICE_0
    0x2081, // NV2081_BINAPI
    0x208f, // NV20_SUBDEVICE_DIAG
    0x402c, // NV40_I2C
    0x50a0, // NV50_MEMORY_VIRTUAL
    0x83de, // GT200_DEBUGGER: libcuda has one for each context, and asks it for errors of SMs
    0x902d, // FERMI_TWOD_A
    0x9067, // FERMI_CONTEXT_SHARE_A
    0x90e6, // GF100_SUBDEVICE_MASTER
    0x90e7, // GF100_SUBDEVICE_INFOROM
    0x90f1, // FERMI_VASPACE_A
    0xa06c, // KEPLER_CHANNEL_GROUP_A
    0xa140, // KEPLER_INLINE_TO_MEMORY_B
    0xb069, // MAXWELL_FAULT_BUFFER_A
    0xc076, // GP100_UVM_SW
    0xc361, // VOLTA_USERMODE_A
    0xc365, // ACCESS_COUNTER_NOTIFY_BUFFER
    0xc369, // MMU_FAULT_BUFFER
    0xc36f, // VOLTA_CHANNEL_GPFIFO_A
    0xc574, // UVM_CHANNEL_RETAINER
    0xc661, // HOPPER_USERMODE_A
    0xc86f, // HOPPER_CHANNEL_GPFIFO_A
    0xc8b5, // HOPPER_DMA_COPY_A
    0xcb97, // HOPPER_A
    0xcbc0, // HOPPER_COMPUTE_A
];

/// Returns whether an object of a class may be allocated.
pub(super) fn is_known(class: u32) -> bool {
    CLASSES.binary_search(&class).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_sorted() {
        assert!(CLASSES.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(is_known(0xc86f) && !is_known(0x5080));
    }
}
