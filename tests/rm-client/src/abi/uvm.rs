// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Declares the structures of UVM's ioctls.

use crate::layout::{layouts, Description, Layout};

layouts! {
    /// The first call to UVM. `uvm_linux_ioctl.h`.
    UvmInitialize = "UVM_INITIALIZE_PARAMS", 16 {
        flags: u64 = "flags",
        status: u32 = "rmStatus",
        padding: u32,
    }

    /// Binds UVM's file to the process, through a second file. `uvm_ioctl.h`.
    UvmMmInitialize = "UVM_MM_INITIALIZE_PARAMS", 8 {
        file: i32 = "uvmFd",
        status: u32 = "rmStatus",
    }

    /// Registers a GPU with UVM. `uvm_ioctl.h`.
    UvmRegisterGpu = "UVM_REGISTER_GPU_PARAMS", 40 {
        uuid: [u8; 16] = "gpu_uuid",
        numa_enabled: u8 = "numaEnabled",
        padding: [u8; 3],
        numa_node: i32 = "numaNodeId",
        control: i32 = "rmCtrlFd",
        client: u32 = "hClient",
        partition: u32 = "hSmcPartRef",
        status: u32 = "rmStatus",
    }

    /// Registers an address space with UVM. `uvm_ioctl.h`.
    UvmRegisterSpace = "UVM_REGISTER_GPU_VASPACE_PARAMS", 32 {
        uuid: [u8; 16] = "gpuUuid",
        control: i32 = "rmCtrlFd",
        client: u32 = "hClient",
        space: u32 = "hVaSpace",
        status: u32 = "rmStatus",
    }

    /// Unregisters a GPU. `uvm_ioctl.h`.
    UvmUnregisterGpu = "UVM_UNREGISTER_GPU_PARAMS", 20 {
        uuid: [u8; 16] = "gpu_uuid",
        status: u32 = "rmStatus",
    }

    /// Unregisters an address space. `uvm_ioctl.h`.
    UvmUnregisterSpace = "UVM_UNREGISTER_GPU_VASPACE_PARAMS", 20 {
        uuid: [u8; 16] = "gpuUuid",
        status: u32 = "rmStatus",
    }

    /// Gives reserved addresses back. `uvm_ioctl.h`.
    UvmFree = "UVM_FREE_PARAMS", 24 {
        base: u64 = "base",
        length: u64 = "length",
        status: u32 = "rmStatus",
        padding: u32,
    }

    /// Gives all addresses back that were reserved together, in 595.45.04. `uvm_ioctl.h`.
    UvmFreeAll = "UVM_FREE_PARAMS", 16 {
        base: u64 = "base",
        status: u32 = "rmStatus",
        padding: u32,
    }

    /// Unmaps memory at reserved addresses. `uvm_ioctl.h`.
    UvmUnmapExternal = "UVM_UNMAP_EXTERNAL_PARAMS", 40 {
        base: u64 = "base",
        length: u64 = "length",
        uuid: [u8; 16] = "gpuUuid",
        status: u32 = "rmStatus",
        padding: u32,
    }

    /// Registers a channel with UVM. `uvm_ioctl.h`.
    UvmRegisterChannel = "UVM_REGISTER_CHANNEL_PARAMS", 56 {
        uuid: [u8; 16] = "gpuUuid",
        control: i32 = "rmCtrlFd",
        client: u32 = "hClient",
        channel: u32 = "hChannel",
        padding: u32,
        base: u64 = "base",
        length: u64 = "length",
        status: u32 = "rmStatus",
        padding_end: u32,
    }

    /// NVIDIA's test that flushes the buffer of faults. `uvm_test_ioctl.h`.
    UvmTestFlush = "UVM_TEST_FAULT_BUFFER_FLUSH_PARAMS", 16 {
        iterations: u64 = "iterations",
        status: u32 = "rmStatus",
        padding: u32,
    }

    /// NVIDIA's test that waits until no fault is left. `uvm_test_ioctl.h`.
    UvmTestDrain = "UVM_TEST_DRAIN_REPLAYABLE_FAULTS_PARAMS", 32 {
        uuid: [u8; 16] = "gpu_uuid",
        timeout_ns: u64 = "timeout_ns",
        status: u32 = "rmStatus",
        padding: u32,
    }

    /// NVIDIA's test that looks a channel's address space up, as for a fault. `uvm_test_ioctl.h`.
    UvmTestChannel = "UVM_TEST_CHECK_CHANNEL_VA_SPACE_PARAMS", 40 {
        uuid: [u8; 16] = "gpu_uuid",
        control: i32 = "rm_ctrl_fd",
        client: u32 = "client",
        channel: u32 = "channel",
        subcontext: u32 = "ve_id",
        space: i32 = "va_space_fd",
        status: u32 = "rmStatus",
    }

    /// NVIDIA's test that chooses what a fault fetches along. `uvm_test_ioctl.h`.
    UvmTestPrefetch = "UVM_TEST_SET_PAGE_PREFETCH_POLICY_PARAMS", 8 {
        policy: u32 = "policy",
        status: u32 = "rmStatus",
    }

    /// Says where managed memory should be, in 535.261.03. `uvm_ioctl.h`.
    UvmPreferredLocation = "UVM_SET_PREFERRED_LOCATION_PARAMS", 40 {
        base: u64 = "requestedBase",
        length: u64 = "length",
        location: [u8; 16] = "preferredLocation",
        status: u32 = "rmStatus",
        padding: u32,
    }

    /// Says where managed memory should be, in 580.142. `uvm_ioctl.h`.
    UvmPreferredLocationWithNode = "UVM_SET_PREFERRED_LOCATION_PARAMS", 40 {
        base: u64 = "requestedBase",
        length: u64 = "length",
        location: [u8; 16] = "preferredLocation",
        node: i32 = "preferredCpuNumaNode",
        status: u32 = "rmStatus",
    }

    /// Moves managed memory to a processor. `uvm_ioctl.h`.
    UvmMigrate = "UVM_MIGRATE_PARAMS", 80 {
        base: u64 = "base",
        length: u64 = "length",
        destination: [u8; 16] = "destinationUuid",
        flags: u32 = "flags",
        padding: u32,
        semaphore: u64 = "semaphoreAddress",
        payload: u32 = "semaphorePayload",
        node: u32 = "cpuNumaNode",
        start: u64 = "userSpaceStart",
        rest: u64 = "userSpaceLength",
        status: u32 = "rmStatus",
        padding_end: u32,
    }

    /// Reserves addresses for memory that the caller maps. `uvm_ioctl.h`.
    UvmExternalRange = "UVM_CREATE_EXTERNAL_RANGE_PARAMS", 24 {
        base: u64 = "base",
        length: u64 = "length",
        status: u32 = "rmStatus",
        padding: u32,
    }

    /// A GPU's mapping attributes. `uvm_types.h`.
    UvmAttributes = "UvmGpuMappingAttributes", 36 {
        uuid: [u8; 16] = "gpuUuid",
        mapping: u32 = "gpuMappingType",
        caching: u32 = "gpuCachingType",
        format: u32 = "gpuFormatType",
        element_bits: u32 = "gpuElementBits",
        compression: u32 = "gpuCompressionType",
    }

    /// Maps memory at reserved addresses, in 535.261.03. `uvm_ioctl.h`.
    UvmMapExternal = "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", 1200 {
        base: u64 = "base",
        length: u64 = "length",
        offset: u64 = "offset",
        attributes: [UvmAttributes; 32] = "perGpuAttributes",
        attributes_count: u64 = "gpuAttributesCount",
        control: i32 = "rmCtrlFd",
        client: u32 = "hClient",
        memory: u32 = "hMemory",
        status: u32 = "rmStatus",
    }

    /// Maps memory at reserved addresses, in 580.142: of 256 GPUs. `uvm_ioctl.h`.
    UvmMapExternalMany = "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", 9264 {
        base: u64 = "base",
        length: u64 = "length",
        offset: u64 = "offset",
        attributes: [[UvmAttributes; 32]; 8] = "perGpuAttributes",
        attributes_count: u64 = "gpuAttributesCount",
        control: i32 = "rmCtrlFd",
        client: u32 = "hClient",
        memory: u32 = "hMemory",
        status: u32 = "rmStatus",
    }
}

/// Structures that are the same in every supported driver.
pub(super) const COMMON: &[Description] = &[
    UvmInitialize::DESCRIPTION,
    UvmMmInitialize::DESCRIPTION,
    UvmRegisterGpu::DESCRIPTION,
    UvmRegisterSpace::DESCRIPTION,
    UvmUnregisterGpu::DESCRIPTION,
    UvmUnregisterSpace::DESCRIPTION,
    UvmFree::DESCRIPTION,
    UvmUnmapExternal::DESCRIPTION,
    UvmRegisterChannel::DESCRIPTION,
    UvmTestFlush::DESCRIPTION,
    UvmTestDrain::DESCRIPTION,
    UvmTestChannel::DESCRIPTION,
    UvmTestPrefetch::DESCRIPTION,
    UvmMigrate::DESCRIPTION,
    UvmExternalRange::DESCRIPTION,
    UvmAttributes::DESCRIPTION,
];
