// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the driver's requests to the device, for tests to assert on.

use crate::abi;
use crate::faults::Batch;
use crate::gsp::objects::ObjectKey;
use crate::tlb::Stale;
use gct_model::Blocks;
use std::fmt::Write;

/// Maximum number of recorded bytes of a control's parameters. The lists of channels are the
/// longest that tests check.
pub const PARAMS_MAX: usize = 600;

/// Receives the events, in order.
pub trait Recorder: Send + Sync {
    /// Records an event at `now_ns`.
    fn record(&self, now_ns: u64, event: &Event<'_>);
}

/// Discards every event.
pub struct Discard;

impl Recorder for Discard {
    fn record(&self, _now_ns: u64, _event: &Event<'_>) {}
}

/// A request of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// GSP has started, without any earlier state.
    Boot,
    /// A remote call of another kind than those below.
    Rpc {
        /// NV_VGPU_MSG_FUNCTION_*.
        function: u32,
        /// The status that answered it.
        status: u32,
    },
    /// A control call.
    Control {
        /// The object it was sent to.
        object: ObjectKey,
        /// The object's class, if known.
        class: Option<u32>,
        /// NV*_CTRL_CMD_*.
        command: u32,
        /// The status that answered it.
        status: u32,
        /// The parameters as sent.
        params: &'a [u8],
    },
    /// An allocation.
    Alloc {
        /// The new object.
        object: ObjectKey,
        /// The parent's handle.
        parent: u32,
        /// The object's class.
        class: u32,
        /// The status that answered it.
        status: u32,
        /// The parameters as sent.
        params: &'a [u8],
    },
    /// A duplication: another name for an object.
    Duplicate {
        /// The new name.
        object: ObjectKey,
        /// The old one.
        source: ObjectKey,
    },
    /// The freeing of an object and its descendants.
    Free {
        /// The object.
        object: ObjectKey,
        /// The object's class, if it was known.
        class: Option<u32>,
    },
    /// A doorbell.
    Doorbell {
        /// The channel.
        channel: ObjectKey,
    },
    /// A replayable fault.
    Fault {
        /// The channel.
        channel: ObjectKey,
        /// The address.
        va: u64,
        /// Whether the access is a write.
        write: bool,
    },
    /// Reports of replayable faults that the driver has taken from the buffer.
    Batch(Batch),
    /// A replay of all stalled accesses.
    Replay,
    /// A cancel of stalled accesses.
    Cancel {
        /// Their address.
        va: u64,
    },
    /// An access that a stale translation would have allowed: an invalidation is missing.
    Stale(Stale),
    /// A compute launch that has ended.
    Launch {
        /// The channel.
        channel: ObjectKey,
        /// When it began, in model time. The event's time is its end.
        began_ns: u64,
        /// The address of its program.
        program: u64,
        /// Its grid, in blocks or clusters.
        grid: [u32; 3],
        /// The blocks that ran.
        blocks: &'a [Blocks],
        /// Its place among launches that wait, 0 first (`QMD_GROUP_ID`).
        group: u32,
        /// The disabled TPCs, one bit each.
        mask: &'a [u32],
    },
}

impl Event<'_> {
    /// Formats the event as one line of JSON, without a newline.
    pub fn to_json(&self, now_ns: u64) -> String {
        let mut line = format!("{{\"ns\":{now_ns}");
        match *self {
            Self::Boot => text(&mut line, "kind", "boot"),
            Self::Rpc { function, status } => {
                text(&mut line, "kind", "rpc");
                name(&mut line, abi::rpc_name(function), function);
                number(&mut line, "status", status);
            }
            Self::Control {
                object,
                class,
                command,
                status,
                params,
            } => {
                text(&mut line, "kind", "control");
                name(&mut line, abi::control_name(command), command);
                place(&mut line, object, class);
                number(&mut line, "status", status);
                text(&mut line, "params", &hex(params));
            }
            Self::Alloc {
                object,
                parent,
                class,
                status,
                params,
            } => {
                text(&mut line, "kind", "alloc");
                name(&mut line, abi::class_name(class), class);
                place(&mut line, object, Some(class));
                number(&mut line, "parent", parent);
                number(&mut line, "status", status);
                text(&mut line, "params", &hex(params));
            }
            Self::Duplicate { object, source } => {
                text(&mut line, "kind", "duplicate");
                place(&mut line, object, None);
                number(&mut line, "source_client", source.client);
                number(&mut line, "source_object", source.handle);
            }
            Self::Free { object, class } => {
                text(&mut line, "kind", "free");
                place(&mut line, object, class);
            }
            Self::Doorbell { channel } => {
                text(&mut line, "kind", "doorbell");
                place(&mut line, channel, None);
            }
            Self::Fault { channel, va, write } => {
                text(&mut line, "kind", "fault");
                place(&mut line, channel, None);
                let _ = write!(line, ",\"va\":{va},\"write\":{write}");
            }
            Self::Batch(Batch { faults, channels }) => {
                text(&mut line, "kind", "batch");
                number(&mut line, "faults", faults);
                number(&mut line, "channels", channels);
            }
            Self::Replay => text(&mut line, "kind", "replay"),
            Self::Cancel { va } => {
                text(&mut line, "kind", "cancel");
                let _ = write!(line, ",\"va\":{va}");
            }
            Self::Stale(Stale { root, va, write }) => {
                text(&mut line, "kind", "stale");
                let _ = write!(
                    line,
                    ",\"root\":{},\"va\":{va},\"write\":{write}",
                    root.offset
                );
            }
            Self::Launch {
                channel,
                began_ns,
                program,
                grid,
                blocks,
                group,
                mask,
            } => {
                text(&mut line, "kind", "launch");
                place(&mut line, channel, None);
                let _ = write!(line, ",\"began\":{began_ns},\"program\":{program}");
                let _ = write!(line, ",\"grid\":{grid:?}");
                let boxes: Vec<String> = blocks.iter().map(ToString::to_string).collect();
                let _ = write!(line, ",\"blocks\":{boxes:?}");
                let _ = write!(line, ",\"group\":{group}");
                let mask: Vec<u8> = mask.iter().flat_map(|word| word.to_le_bytes()).collect();
                text(&mut line, "mask", &hex(&mask));
            }
        }
        line.push('}');
        line
    }
}

// Every string is a hexadecimal number or a name of letters, digits and underscores. Nothing needs
// escaping. Writing to a String cannot fail.

fn text(line: &mut String, key: &str, value: &str) {
    let _ = write!(line, ",\"{key}\":\"{value}\"");
}

fn number(line: &mut String, key: &str, value: u32) {
    let _ = write!(line, ",\"{key}\":{value}");
}

/// Appends the name, or the number if the name is not known.
fn name(line: &mut String, known: Option<&str>, value: u32) {
    match known {
        Some(known) => text(line, "name", known),
        None => text(line, "name", &format!("{value:#x}")),
    }
}

fn place(line: &mut String, object: ObjectKey, class: Option<u32>) {
    number(line, "client", object.client);
    number(line, "object", object.handle);
    if let Some(class) = class {
        match abi::class_name(class) {
            Some(known) => text(line, "class", known),
            None => text(line, "class", &format!("{class:#x}")),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take(PARAMS_MAX)
        .fold(String::new(), |mut line, byte| {
            let _ = write!(line, "{byte:02x}");
            line
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_is_one_line_of_json() {
        let event = Event::Control {
            object: ObjectKey {
                client: 1,
                handle: 0x30,
            },
            class: Some(0xfff1),
            command: 0xffff_fff2,
            status: 0,
            params: &[0xd2, 4, 0],
        };
        assert_eq!(
            event.to_json(5),
            "{\"ns\":5,\"kind\":\"control\",\"name\":\"0xfffffff2\",\"client\":1,\"object\":48,\
             \"class\":\"0xfff1\",\"status\":0,\"params\":\"d20400\"}"
        );
    }

    #[test]
    fn an_rpc_has_its_name() {
        let event = Event::Rpc {
            function: abi::NV_VGPU_MSG_FUNCTION_UPDATE_BAR_PDE,
            status: 0,
        };
        assert_eq!(
            event.to_json(0),
            "{\"ns\":0,\"kind\":\"rpc\",\"name\":\"UPDATE_BAR_PDE\",\"status\":0}"
        );
    }
}
