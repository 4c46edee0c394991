// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Declares the parameters of controls.

use crate::layout::{layouts, Description, Layout};

layouts! {
    /// A device's numbers. `ctrl/ctrl0000/ctrl0000gpu.h`.
    IdInfo = "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS", 32 {
        gpu_id: u32 = "gpuId",
        flags: u32 = "gpuFlags",
        device_instance: u32 = "deviceInstance",
        subdevice_instance: u32 = "subDeviceInstance",
        sli_status: u32 = "sliStatus",
        board_id: u32 = "boardId",
        gpu_instance: u32 = "gpuInstance",
        numa_node: i32 = "numaId",
    }

    /// The id of a subdevice's GPU. `ctrl/ctrl2080/ctrl2080gpu.h`.
    GpuId = "NV2080_CTRL_GPU_GET_ID_PARAMS", 4 {
        gpu_id: u32 = "gpuId",
    }

    /// Facts about a GPU's memory: pairs of index and data. `ctrl/ctrl2080/ctrl2080fb.h`.
    MemoryInfo = "NV2080_CTRL_FB_GET_INFO_V2_PARAMS", 436 {
        count: u32 = "fbInfoListSize",
        list: [[[u32; 2]; 27]; 2] = "fbInfoList",
    }

    /// Binds a channel or a group to an engine. `ctrl/ctrla06f/ctrla06fgpfifo.h`.
    Bind = "NVA06F_CTRL_BIND_PARAMS", 4 {
        engine: u32 = "engineType",
    }

    /// Puts a channel or a group on the runlist. `ctrl/ctrla06f/ctrla06fgpfifo.h`.
    Schedule = "NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS", 2 {
        enable: u8 = "bEnable",
        skip_submit: u8 = "bSkipSubmit",
    }

    /// A channel group's time slice. `ctrl/ctrla06c.h`.
    Timeslice = "NVA06C_CTRL_TIMESLICE_PARAMS", 8 {
        us: u64 = "timesliceUs",
    }

    /// Disables channels, or enables them again. `ctrl/ctrl2080/ctrl2080fifo.h`.
    DisableChannels = "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS", 536 {
        disable: u8 = "bDisable",
        padding: [u8; 3],
        count: u32 = "numChannels",
        only_scheduling: u8 = "bOnlyDisableScheduling",
        rewind: u8 = "bRewindGpPut",
        padding_too: [u8; 6],
        event: u64 = "pRunlistPreemptEvent",
        clients: [[u32; 32]; 2] = "hClientList",
        channels: [[u32; 32]; 2] = "hChannelList",
    }

    /// Gives a channel another ring and other positions. `ctrl/ctrl2080/ctrl2080fifo.h`.
    UpdateChannel = "NV2080_CTRL_FIFO_UPDATE_CHANNEL_INFO_PARAMS", 32 {
        client: u32 = "hClient",
        channel: u32 = "hChannel",
        positions: u32 = "hUserdMemory",
        entries: u32 = "gpFifoEntries",
        ring: u64 = "gpFifoOffset",
        offset: u64 = "userdOffset",
    }

    /// A channel group's number. `ctrl/ctrla06c.h`.
    GroupInfo = "NVA06C_CTRL_GET_INFO_PARAMS", 4 {
        number: u32 = "tsgID",
    }

    /// A GPU's UUID. `ctrl/ctrl0000/ctrl0000gpu.h`.
    Uuid = "NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS", 268 {
        gpu_id: u32 = "gpuId",
        flags: u32 = "flags",
        uuid: [[u8; 16]; 16] = "gpuUuid",
        length: u32 = "uuidStrLen",
    }

    /// The token to write to the doorbell. `ctrl/ctrlc36f.h`.
    WorkToken = "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS", 4 {
        token: u32 = "workSubmitToken",
    }
}

/// Structures that are the same in every supported driver.
pub(super) const COMMON: &[Description] = &[
    IdInfo::DESCRIPTION,
    GpuId::DESCRIPTION,
    MemoryInfo::DESCRIPTION,
    Bind::DESCRIPTION,
    Schedule::DESCRIPTION,
    Timeslice::DESCRIPTION,
    DisableChannels::DESCRIPTION,
    UpdateChannel::DESCRIPTION,
    GroupInfo::DESCRIPTION,
    Uuid::DESCRIPTION,
    WorkToken::DESCRIPTION,
];
