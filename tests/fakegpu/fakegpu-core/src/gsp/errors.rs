// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reports the errors of channels to the driver, which logs them as Xids.

use crate::abi;
use crate::gsp::msgq::Record;
use crate::host::execute::ChannelFault;

/// A fault at this address stands for the loss of the GPU: Xid 79 of no channel.
const LOST_AT: u64 = 0x79_0000_0000;
/// ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS.
const FALLEN_OFF: u32 = 79;
/// The number of no channel and no runlist.
const NONE: u64 = 0xffff_ffff;

/// Returns the event that reports a fault to the driver. The driver knows the channel's process.
pub(super) fn report(fault: &ChannelFault) -> Record {
    if fault.va == LOST_AT {
        return event(FALLEN_OFF, NONE, NONE, "GPU has fallen off the bus.");
    }
    let text = format!(
        "Ch {:08x}, intr 00000000. MMU Fault: ENGINE HOST faulted @ {:#x}",
        fault.id.channel, fault.va
    );
    event(
        abi::ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT,
        u64::from(fault.id.runlist),
        u64::from(fault.id.channel),
        &text,
    )
}

/// Returns the event that makes the driver log an Xid.
fn event(xid: u32, runlist: u64, channel: u64, text: &str) -> Record {
    use abi::rpc_os_error_log_v as Event;
    let mut payload = vec![0; Event::SIZE];
    let fields = [
        (Event::exceptType, u64::from(xid)),
        (Event::runlistId, runlist),
        (Event::chid, channel),
    ];
    for (field, value) in fields {
        // PANIC: the fields lie in the structure.
        abi::set(&mut payload, field, value).expect("an event has its fields");
    }
    // The array keeps a zero after the text.
    let string = &mut payload[Event::errString.offset()..];
    let length = text.len().min(string.len().saturating_sub(1));
    string[..length].copy_from_slice(&text.as_bytes()[..length]);
    Record {
        function: abi::NV_VGPU_MSG_EVENT_OS_ERROR_LOG,
        length: payload.len(),
        payload,
        ..Record::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gsp::objects::ObjectKey;
    use crate::host::channel::ChannelId;

    #[test]
    fn a_report_names_the_channel_and_the_address() {
        let record = report(&ChannelFault {
            object: ObjectKey {
                client: 0xc1d0_0001,
                handle: 5,
            },
            id: ChannelId {
                runlist: 3,
                channel: 9,
            },
            va: 0xdead_0000,
        });
        let field = |field| abi::get_u32(&record.payload, field).unwrap();
        assert_eq!(field(abi::rpc_os_error_log_v::runlistId), 3);
        assert_eq!(field(abi::rpc_os_error_log_v::chid), 9);
        let string = &record.payload[abi::rpc_os_error_log_v::errString.offset()..];
        let end = string.iter().position(|byte| *byte == 0).unwrap();
        let text = String::from_utf8_lossy(&string[..end]);
        assert!(text.starts_with("Ch 00000009, "), "{text}");
        assert!(text.ends_with("@ 0xdead0000"), "{text}");
    }
}
