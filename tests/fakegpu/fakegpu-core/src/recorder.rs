// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the driver asked the device to do, by name, for tests to assert on.

use crate::abi;
use crate::gsp::objects::ObjectKey;
use gct_model::Blocks;
use std::fmt::Write;

/// Bytes of a control's parameters that are recorded: those of the lists of
/// channels are the longest that tests look at.
pub const PARAMS_MAX: usize = 600;

/// Takes the events, in order.
pub trait Recorder: Send + Sync {
    /// One event happened at `now_ns`.
    fn record(&self, now_ns: u64, event: &Event<'_>);
}

/// Forgets everything.
pub struct Discard;

impl Recorder for Discard {
    fn record(&self, _now_ns: u64, _event: &Event<'_>) {}
}

/// Something the driver did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// GSP was started, and forgot what was before.
    Boot,
    /// A remote call that is none of those below.
    Rpc {
        /// NV_VGPU_MSG_FUNCTION_*.
        function: u32,
        /// How it was answered.
        status: u32,
    },
    /// A control call.
    Control {
        /// On what.
        object: ObjectKey,
        /// Of which class, if it is known.
        class: Option<u32>,
        /// NV*_CTRL_CMD_*.
        command: u32,
        /// How it was answered.
        status: u32,
        /// The parameters as they came.
        params: &'a [u8],
    },
    /// An allocation.
    Alloc {
        /// The new object.
        object: ObjectKey,
        /// Below what.
        parent: u32,
        /// Of which class.
        class: u32,
        /// How it was answered.
        status: u32,
    },
    /// Another name for an object.
    Duplicate {
        /// The new name.
        object: ObjectKey,
        /// The old one.
        source: ObjectKey,
    },
    /// An object was freed, and all below it.
    Free {
        /// Which.
        object: ObjectKey,
        /// Of which class it was, if it was known.
        class: Option<u32>,
    },
    /// A doorbell was rung.
    Doorbell {
        /// For which channel.
        channel: ObjectKey,
    },
    /// A compute launch has run.
    Launch {
        /// On which channel.
        channel: ObjectKey,
        /// Its grid, in blocks or clusters.
        grid: [u32; 3],
        /// Which of them ran.
        blocks: &'a [Blocks],
        /// Texture processing clusters it was kept off, one bit each.
        mask: &'a [u32],
    },
}

impl Event<'_> {
    /// The event as one line of JSON, without the line's end.
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
            } => {
                text(&mut line, "kind", "alloc");
                name(&mut line, abi::class_name(class), class);
                place(&mut line, object, Some(class));
                number(&mut line, "parent", parent);
                number(&mut line, "status", status);
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
            Self::Launch {
                channel,
                grid,
                blocks,
                mask,
            } => {
                text(&mut line, "kind", "launch");
                place(&mut line, channel, None);
                let _ = write!(line, ",\"grid\":{grid:?}");
                let boxes: Vec<String> = blocks.iter().map(ToString::to_string).collect();
                let _ = write!(line, ",\"blocks\":{boxes:?}");
                let mask: Vec<u8> = mask.iter().flat_map(|word| word.to_le_bytes()).collect();
                text(&mut line, "mask", &hex(&mask));
            }
        }
        line.push('}');
        line
    }
}

// Every string is a name of letters, digits and underscores, or hexadecimal:
// nothing needs escaping. Writing to a String cannot fail.

fn text(line: &mut String, key: &str, value: &str) {
    let _ = write!(line, ",\"{key}\":\"{value}\"");
}

fn number(line: &mut String, key: &str, value: u32) {
    let _ = write!(line, ",\"{key}\":{value}");
}

/// The name, or the number where the name is not known.
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
