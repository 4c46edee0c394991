// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the numbers of RM's interface, each with its name in C.
//!
//! `ci/test-rm.sh` compares all of them with the headers of each driver.

use crate::layout::Number;

macro_rules! numbers {
    ($($(#[$note:meta])* $name:ident: $type:ty = $value:literal, $c_name:literal;)*) => {
        $($(#[$note])* pub const $name: $type = $value;)*

        // CAST: every type above is narrower than 64 bits.
        pub(crate) const NUMBERS: &[Number] = &[$(($c_name, $name as u64),)*];
    };
}

numbers! {
    /// Escape: allocate memory, the oldest one.
    ESCAPE_ALLOC_MEMORY: u8 = 0x27, "NV_ESC_RM_ALLOC_MEMORY";
    /// Escape: allocate an object without parameters.
    ESCAPE_ALLOC_OBJECT: u8 = 0x28, "NV_ESC_RM_ALLOC_OBJECT";
    /// Escape: free an object.
    ESCAPE_FREE: u8 = 0x29, "NV_ESC_RM_FREE";
    /// Escape: send a control.
    ESCAPE_CONTROL: u8 = 0x2a, "NV_ESC_RM_CONTROL";
    /// Escape: allocate an object.
    ESCAPE_ALLOC: u8 = 0x2b, "NV_ESC_RM_ALLOC";
    /// Escape: say who may give an object a second name.
    ESCAPE_SHARE: u8 = 0x35, "NV_ESC_RM_SHARE";
    /// Who may: everybody.
    SHARE_WITH_ALL: u16 = 1, "RS_SHARE_TYPE_ALL";
    /// What they may: give it a second name.
    SHARE_DUP: u32 = 1, "(1 << RS_ACCESS_DUP_OBJECT)";
    /// Escape: give an object a second name.
    ESCAPE_DUP: u8 = 0x34, "NV_ESC_RM_DUP_OBJECT";
    /// Escape: allocate memory by the old interface.
    ESCAPE_VID_HEAP: u8 = 0x4a, "NV_ESC_RM_VID_HEAP_CONTROL";
    /// Escape: read or write a key of RM's.
    ESCAPE_REGISTRY: u8 = 0x4d, "NV_ESC_RM_ACCESS_REGISTRY";
    /// Escape: wait for the end of channels.
    ESCAPE_IDLE: u8 = 0x41, "NV_ESC_RM_IDLE_CHANNELS";
    /// Write a number.
    WRITE_DWORD: u32 = 2, "NVOS38_ACCESS_TYPE_WRITE_DWORD";
    /// Escape: prepare an mmap.
    ESCAPE_MAP: u8 = 0x4e, "NV_ESC_RM_MAP_MEMORY";
    /// Escape: end what an mmap may map.
    ESCAPE_UNMAP: u8 = 0x4f, "NV_ESC_RM_UNMAP_MEMORY";
    /// Escape: name the address of a mapping.
    ESCAPE_UPDATE_MAPPING: u8 = 0x5e, "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO";
    /// Escape: map into a GPU's address space.
    ESCAPE_MAP_DMA: u8 = 0x57, "NV_ESC_RM_MAP_MEMORY_DMA";
    /// Escape: unmap it.
    ESCAPE_UNMAP_DMA: u8 = 0x58, "NV_ESC_RM_UNMAP_MEMORY_DMA";
    /// Map at the address that the caller names.
    MAP_DMA_FIXED: u32 = 0x8000, "DRF_DEF(OS46, _FLAGS, _DMA_OFFSET_FIXED, _TRUE)";
    /// Escape: export memory to a dma-buf.
    ESCAPE_EXPORT_DMA_BUF: u8 = 217, "NV_ESC_EXPORT_TO_DMABUF_FD";
    /// Escape: list GPUs.
    ESCAPE_CARD_INFO: u8 = 200, "NV_ESC_CARD_INFO";
    /// Escape: bind a device's file to a control file.
    ESCAPE_REGISTER_FD: u8 = 201, "NV_ESC_REGISTER_FD";
    /// Escape: compare or return the version.
    ESCAPE_VERSION: u8 = 210, "NV_ESC_CHECK_VERSION_STR";
    /// Escape: hold GPUs open by a control file.
    ESCAPE_ATTACH_GPUS: u8 = 212, "NV_ESC_ATTACH_GPUS_TO_FD";

    /// Return the version instead of comparing it.
    VERSION_QUERY: u32 = 0x32, "NV_RM_API_VERSION_CMD_QUERY";
    /// The version was recognised.
    VERSION_RECOGNIZED: u32 = 1, "NV_RM_API_VERSION_REPLY_RECOGNIZED";
    /// The old memory interface: allocate by size.
    VID_HEAP_ALLOC_SIZE: u32 = 2, "NVOS32_FUNCTION_ALLOC_SIZE";
    /// The old memory interface: free.
    VID_HEAP_FREE: u32 = 3, "NVOS32_FUNCTION_FREE";

    /// Class: a client, as libcuda allocates it.
    CLIENT: u32 = 0x41, "NV01_ROOT_CLIENT";
    /// Class: a device.
    DEVICE: u32 = 0x80, "NV01_DEVICE_0";
    /// Class: a subdevice.
    SUBDEVICE: u32 = 0x2080, "NV20_SUBDEVICE_0";
    /// Class: an address space.
    ADDRESS_SPACE: u32 = 0x90f1, "FERMI_VASPACE_A";
    /// Class: a range of addresses.
    VIRTUAL_RANGE: u32 = 0x70, "NV01_MEMORY_VIRTUAL";
    /// Class: device memory.
    DEVICE_MEMORY: u32 = 0x40, "NV01_MEMORY_LOCAL_USER";
    /// Class: the GPU's registers, which only the kernel maps.
    REGISTERS: u32 = 0x3f, "NV01_MEMORY_LOCAL_PRIVILEGED";
    /// Class: host memory.
    HOST_MEMORY: u32 = 0x3e, "NV01_MEMORY_SYSTEM";
    /// Class: memory that a mapping of the caller's leads to.
    OS_DESCRIPTOR: u32 = 0x71, "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR";
    /// As it is mapped: uncached and contiguous, which is I/O memory. The driver maps it nowhere.
    IO_MEMORY: u32 = 0x4000_0000, "DRF_DEF(OS02, _FLAGS, _MAPPING, _NO_MAP)";
    /// Class: a channel group.
    CHANNEL_GROUP: u32 = 0xa06c, "KEPLER_CHANNEL_GROUP_A";
    /// Class: a context share.
    CONTEXT_SHARE: u32 = 0x9067, "FERMI_CONTEXT_SHARE_A";
    /// Class: Hopper's channel.
    CHANNEL: u32 = 0xc86f, "HOPPER_CHANNEL_GPFIFO_A";
    /// Class: Hopper's copy engine.
    COPY: u32 = 0xc8b5, "HOPPER_DMA_COPY_A";
    /// Class: Hopper's compute engine.
    COMPUTE: u32 = 0xcbc0, "HOPPER_COMPUTE_A";
    /// Class: Hopper's doorbell page.
    USERMODE: u32 = 0xc661, "HOPPER_USERMODE_A";

    /// Control of a client: the handle of a child of an object.
    GET_CHILD_HANDLE: u32 = 0xd05, "NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE";
    /// Control of a client: numbers of a GPU.
    GET_ID_INFO: u32 = 0x205, "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2";
    /// Control of a subdevice: its GPU's id.
    GET_GPU_ID: u32 = 0x2080_0142, "NV2080_CTRL_CMD_GPU_GET_ID";
    /// Control of a subdevice: facts about its memory.
    GET_MEMORY_INFO: u32 = 0x2080_1303, "NV2080_CTRL_CMD_FB_GET_INFO_V2";
    /// The size of the memory, in KiB.
    MEMORY_SIZE: u32 = 7, "NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE";
    /// All of it, in KiB.
    MEMORY_TOTAL: u32 = 8, "NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE";
    /// The size of the heap, in KiB.
    HEAP_SIZE: u32 = 9, "NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE";
    /// The width of the memory's bus, in bits.
    MEMORY_BUS_WIDTH: u32 = 11, "NV2080_CTRL_FB_INFO_INDEX_BUS_WIDTH";
    /// What is free of the heap, in KiB.
    HEAP_FREE: u32 = 22, "NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE";
    /// Control of a client: a GPU's UUID.
    GET_UUID: u32 = 0x275, "NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID";
    /// The UUID as 16 bytes.
    UUID_BINARY: u32 = 2, "NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID_FLAGS_FORMAT_BINARY";
    /// The kind of a context share that runs beside others of its channel group.
    ASYNCHRONOUS: u32 = 1, "NV_CTXSHARE_ALLOCATION_FLAGS_SUBCONTEXT_ASYNC";
    /// Control of a channel group: put it on the runlist.
    GROUP_SCHEDULE: u32 = 0xa06c_0101, "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE";
    /// Control of a channel: put it on the runlist. Its class does not matter.
    CHANNEL_SCHEDULE: u32 = 0xa06f_0103, "NVA06F_CTRL_CMD_GPFIFO_SCHEDULE";
    /// Control of a device: put channels on the runlist.
    START_CHANNELS: u32 = 0x0080_1705, "NV0080_CTRL_CMD_FIFO_START_SELECTED_CHANNELS";
    /// Control of a channel group: set its time slice.
    SET_TIMESLICE: u32 = 0xa06c_0103, "NVA06C_CTRL_CMD_SET_TIMESLICE";
    /// Control of a channel group: read its time slice.
    GET_TIMESLICE: u32 = 0xa06c_0104, "NVA06C_CTRL_CMD_GET_TIMESLICE";
    /// Control of a subdevice: disable channels, or enable them again.
    DISABLE_CHANNELS: u32 = 0x2080_110b, "NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS";
    /// Control of a subdevice: another ring and other positions for a channel.
    UPDATE_CHANNEL: u32 = 0x2080_1116, "NV2080_CTRL_CMD_FIFO_UPDATE_CHANNEL_INFO";
    /// Control of a channel group: its number.
    GROUP_INFO: u32 = 0xa06c_0106, "NVA06C_CTRL_CMD_GET_INFO";
    /// Control of a channel: bind it to an engine.
    CHANNEL_BIND: u32 = 0xa06f_0104, "NVA06F_CTRL_CMD_BIND";
    /// Control of a channel: the token to write to the doorbell.
    GET_WORK_TOKEN: u32 = 0xc36f_0108, "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN";

    /// Control of a client: export an object to a file.
    EXPORT: u32 = 0x3d05, "NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD";
    /// Control of a client: import it.
    IMPORT: u32 = 0x3d06, "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD";
    /// Control of a client: export several objects to a file.
    EXPORT_MANY: u32 = 0x3d0b, "NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD";
    /// Control of a client: import them.
    IMPORT_MANY: u32 = 0x3d0c, "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD";
    /// The exported object is an RM object.
    EXPORT_OBJECT: u32 = 1, "NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TYPE_RM";

    /// UVM: the first call.
    UVM_INITIALIZE: u32 = 0x3000_0001, "UVM_INITIALIZE";
    /// UVM: the first call, on the second file.
    UVM_MM_INITIALIZE: u32 = 75, "UVM_MM_INITIALIZE";
    /// UVM: register a GPU.
    UVM_REGISTER_GPU: u32 = 37, "UVM_REGISTER_GPU";
    /// UVM: register an address space.
    UVM_REGISTER_SPACE: u32 = 25, "UVM_REGISTER_GPU_VASPACE";
    /// UVM: register a channel.
    UVM_REGISTER_CHANNEL: u32 = 27, "UVM_REGISTER_CHANNEL";
    /// UVM: reserve addresses.
    UVM_EXTERNAL_RANGE: u32 = 73, "UVM_CREATE_EXTERNAL_RANGE";
    /// UVM: map memory there.
    UVM_MAP_EXTERNAL: u32 = 33, "UVM_MAP_EXTERNAL_ALLOCATION";
    /// UVM: move managed memory.
    UVM_MIGRATE: u32 = 51, "UVM_MIGRATE";
    /// UVM: say where managed memory should be.
    UVM_PREFER: u32 = 42, "UVM_SET_PREFERRED_LOCATION";
    /// UVM: unregister a GPU.
    UVM_UNREGISTER_GPU: u32 = 38, "UVM_UNREGISTER_GPU";
    /// UVM: unregister an address space.
    UVM_UNREGISTER_SPACE: u32 = 26, "UVM_UNREGISTER_GPU_VASPACE";
    /// UVM: unmap memory at reserved addresses.
    UVM_UNMAP_EXTERNAL: u32 = 66, "UVM_UNMAP_EXTERNAL";
    /// UVM: give addresses back.
    UVM_FREE: u32 = 34, "UVM_FREE";
    /// A test of NVIDIA's: flush the buffer of faults.
    UVM_TEST_FLUSH: u32 = 227, "UVM_TEST_FAULT_BUFFER_FLUSH";
    /// A test of NVIDIA's: wait until no fault is left.
    UVM_TEST_DRAIN: u32 = 274, "UVM_TEST_DRAIN_REPLAYABLE_FAULTS";
    /// A test of NVIDIA's: look a channel's address space up.
    UVM_TEST_CHANNEL: u32 = 259, "UVM_TEST_CHECK_CHANNEL_VA_SPACE";
    /// A test of NVIDIA's: choose what a fault fetches along.
    UVM_TEST_PREFETCH: u32 = 246, "UVM_TEST_SET_PAGE_PREFETCH_POLICY";
    /// An address space whose page tables are UVM's.
    SPACE_OF_UVM: u32 = 8, "NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED";
    /// An address space whose faults UVM serves.
    SPACE_WITH_FAULTS: u32 = 64, "NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING";

    /// Control: have a channel fetch from another ring.
    SET_GPFIFO: u32 = 0x2080_1102, "NV2080_CTRL_CMD_SET_GPFIFO";
    /// Control: read a page table entry.
    GET_PTE: u32 = 0x80_1801, "NV0080_CTRL_CMD_DMA_GET_PTE_INFO";
    /// Control: write a page table entry.
    SET_PTE: u32 = 0x80_180a, "NV0080_CTRL_CMD_DMA_SET_PTE_INFO";
    /// Control: say when a context is switched.
    PREEMPTION_MODE: u32 = 0x2080_1210, "NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE";
    /// Class: a debugger of an engine's object.
    DEBUGGER: u32 = 0x83de, "GT200_DEBUGGER";
    /// Control: read what is mapped at an address of a debugged channel.
    READ_SURFACE: u32 = 0x83de_031a, "NV83DE_CTRL_CMD_READ_SURFACE";
    /// Control: write there.
    WRITE_SURFACE: u32 = 0x83de_031b, "NV83DE_CTRL_CMD_WRITE_SURFACE";
    /// Control: say which exceptions a debugger hears of.
    EXCEPTION_MASK: u32 = 0x83de_0309, "NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK";
    /// Class: calls that a channel's methods make.
    DEFERRED_API: u32 = 0x5080, "NV50_DEFERRED_API_CLASS";
    /// Flag of a control: its parameters are serialized.
    SERIALIZED: u32 = 4, "NVOS54_FLAGS_FINN_SERIALIZED";

    /// Engine: graphics and compute.
    ENGINE_GRAPHICS: u32 = 1, "NV2080_ENGINE_TYPE_GRAPHICS";
    /// Engine: the first copy engine.
    ENGINE_COPY0: u32 = 9, "NV2080_ENGINE_TYPE_COPY0";

    /// Status: success.
    OK: u32 = 0, "NV_OK";
    /// Status: something uses it.
    IN_USE: u32 = 0x17, "NV_ERR_IN_USE";
    /// Status: nothing that the call could act on is there.
    INVALID_ADDRESS: u32 = 0x1e, "NV_ERR_INVALID_ADDRESS";
    /// Status: UVM has something there.
    ADDRESS_IN_USE: u32 = 0x68, "NV_ERR_UVM_ADDRESS_IN_USE";
    /// Status: the handle is in use.
    INSERT_DUPLICATE_NAME: u32 = 0x19, "NV_ERR_INSERT_DUPLICATE_NAME";
    /// Status: not for this caller.
    INSUFFICIENT_PERMISSIONS: u32 = 0x1b, "NV_ERR_INSUFFICIENT_PERMISSIONS";
    /// Status: a parameter is wrong.
    INVALID_ARGUMENT: u32 = 0x1f, "NV_ERR_INVALID_ARGUMENT";
    /// Status: a maximum is reached.
    INSUFFICIENT_RESOURCES: u32 = 0x1a, "NV_ERR_INSUFFICIENT_RESOURCES";
    /// Status: no such client.
    INVALID_CLIENT: u32 = 0x23, "NV_ERR_INVALID_CLIENT";
    /// Status: no such object.
    INVALID_OBJECT_HANDLE: u32 = 0x33, "NV_ERR_INVALID_OBJECT_HANDLE";
    /// Status: the parent cannot have such a child.
    INVALID_OBJECT_PARENT: u32 = 0x36, "NV_ERR_INVALID_OBJECT_PARENT";
    /// Status: no memory.
    NO_MEMORY: u32 = 0x51, "NV_ERR_NO_MEMORY";
    /// Status: the object does not exist.
    OBJECT_NOT_FOUND: u32 = 0x57, "NV_ERR_OBJECT_NOT_FOUND";
    /// Status: not for this GPU or object.
    NOT_SUPPORTED: u32 = 0x56, "NV_ERR_NOT_SUPPORTED";

    /// Offset of the consumer's position in the host's view of a channel.
    USERD_GP_GET: u16 = 0x88, "offsetof(Nvc86fControl, GPGet)";
    /// Offset of the producer's position there.
    USERD_GP_PUT: u16 = 0x8c, "offsetof(Nvc86fControl, GPPut)";
    /// Offset of the doorbell in its page.
    DOORBELL: u16 = 0x90, "NVC361_NOTIFY_CHANNEL_PENDING";
    /// Method: address of a semaphore.
    SEM_ADDR_LO: u16 = 0x5c, "NVC86F_SEM_ADDR_LO";
    /// Method: operation on a semaphore; 1 releases it.
    SEM_EXECUTE: u16 = 0x6c, "NVC86F_SEM_EXECUTE";
    /// Release the semaphore.
    SEM_RELEASE: u32 = 1, "NVC86F_SEM_EXECUTE_OPERATION_RELEASE";
}

/// Returns the name of a status, if this crate knows it.
pub fn status_name(status: u32) -> Option<&'static str> {
    /// The statuses of the list above.
    const STATUSES: &[u32] = &[
        OK,
        IN_USE,
        INVALID_ADDRESS,
        ADDRESS_IN_USE,
        INSERT_DUPLICATE_NAME,
        INSUFFICIENT_PERMISSIONS,
        INSUFFICIENT_RESOURCES,
        INVALID_CLIENT,
        INVALID_OBJECT_HANDLE,
        INVALID_OBJECT_PARENT,
        NO_MEMORY,
        OBJECT_NOT_FOUND,
        NOT_SUPPORTED,
    ];
    STATUSES.contains(&status).then_some(())?;
    let named = |(name, value): &&Number| *value == u64::from(status) && name.starts_with("NV_ERR");
    NUMBERS.iter().find(named).map(|(name, _)| *name)
}
