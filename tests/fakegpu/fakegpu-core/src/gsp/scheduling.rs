// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Handles controls that decide which channels run, for how long at a time, and by which ring.

use crate::abi::{self, Malformed};
use crate::gsp::objects::{ObjectKey, Objects};
use crate::host::Host;

/// Applies control `command` on `object` to the host.
pub(super) fn observe(
    host: &mut Host,
    objects: &Objects,
    object: ObjectKey,
    command: u32,
    params: &[u8],
) -> Result<(), Malformed> {
    let called = object;
    let object = objects.origin(object);
    match command {
        abi::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE | abi::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE => {
            use abi::NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS as P;
            host.schedule(object, abi::get(params, P::bEnable)? != 0);
        }
        abi::NVA06F_CTRL_CMD_STOP_CHANNEL => host.stop(object),
        abi::NVA06C_CTRL_CMD_SET_TIMESLICE => {
            use abi::NVA06C_CTRL_TIMESLICE_PARAMS as P;
            host.set_timeslice(object, abi::get(params, P::timesliceUs)?);
        }
        abi::NVA06C_CTRL_CMD_PREEMPT => host.preempt(object),
        abi::NV2080_CTRL_CMD_SET_GPFIFO => {
            use abi::NV2080_CTRL_CMD_SET_GPFIFO_PARAMS as P;
            let channel = ObjectKey {
                client: called.client,
                handle: abi::get_u32(params, P::hChannel)?,
            };
            let ring = abi::get(params, P::base)?;
            let entries = abi::get_u32(params, P::numEntries)?;
            host.set_ring(objects.origin(channel), ring, entries);
        }
        abi::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS => disable_channels(host, objects, params)?,
        _ => {}
    }
    Ok(())
}

/// Disables or enables a list of channels.
fn disable_channels(host: &mut Host, objects: &Objects, params: &[u8]) -> Result<(), Malformed> {
    use abi::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS as P;
    let disable = abi::get(params, P::bDisable)? != 0;
    let only_scheduling = abi::get(params, P::bOnlyDisableScheduling)? != 0;
    let count = usize::try_from(abi::get(params, P::numChannels)?).unwrap_or(usize::MAX);
    for index in 0..count.min(P::hChannelList.count()) {
        let channel = ObjectKey {
            client: abi::get_u32(params, P::hClientList.get(index))?,
            handle: abi::get_u32(params, P::hChannelList.get(index))?,
        };
        match disable {
            true => host.disable(objects.origin(channel), only_scheduling),
            false => host.enable(objects.origin(channel)),
        }
    }
    Ok(())
}
