// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts the errors by which a GPU ended an owner's work, and reads them from the driver's log.
//!
//! The resource manager names each error by a number, the Xid, and writes one line:
//!
//! ```text
//! NVRM: Xid (PCI:0000:01:00): 31, pid=4711, name=python, Ch 00000008, ...
//! ```
//!
//! The pid is that of the process that made the channel, in the initial pid namespace. A tenant
//! chooses its own name, so nothing behind the pid is read. An error without a channel has
//! `pid='<unknown>'`, or neither pid nor name: 580 leaves both out.
//!
//! Some errors end the work of everybody on the GPU: [`Report::is_of_all`].

use crate::gpu::PciAddress;
use crate::rmapi::channel::PREEMPTIVE_REMOVAL;

/// Errors after which a GPU needs a reset or is gone, whoever's channel the driver names: an
/// uncorrectable ECC error (48, 95), a halted controller (62), a GPU that fell off the bus (79), a
/// firmware that does not answer or failed (119, 120).
const FATAL: [u32; 6] = [48, 62, 79, 95, 119, 120];

/// Errors that ended work of an owner on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Their number.
    pub count: u64,
    /// The Xid of the last one; 0 if the backend does not know it.
    pub last_xid: u32,
}

impl Faults {
    /// Adds errors; `xid` is that of the last one, or 0 if it is unknown.
    pub(crate) fn add(&mut self, times: u64, xid: u32) {
        self.count = self.count.saturating_add(times);
        if times != 0 && xid != 0 {
            self.last_xid = xid;
        }
    }
}

/// One line of the driver's log about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// PCI domain of the GPU.
    pub domain: u32,
    /// Its bus.
    pub bus: u8,
    /// Its device on the bus.
    pub slot: u8,
    /// Number of the error.
    pub xid: u32,
    /// The process whose channel it ended; 0 if the driver names none.
    pub pid: u32,
}

/// The place of each field in a word. A field that does not fit makes no word.
const PID_BITS: u32 = 22;
const XID_BITS: u32 = 10;
const SLOT_BITS: u32 = 5;
const BUS_BITS: u32 = 8;
const DOMAIN_BITS: u32 = 19;

impl Report {
    /// Parses a line of the log. Returns `None` for every other line, and for a channel that RM
    /// stops because its owner goes.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let rest = line.strip_prefix(b"NVRM: Xid (PCI:")?;
        let (domain, rest) = number(rest, 16)?;
        let (bus, rest) = number(rest.strip_prefix(b":")?, 16)?;
        let (slot, rest) = number(rest.strip_prefix(b":")?, 16)?;
        // A divided GPU names its instance behind the address.
        let end = rest.iter().position(|byte| *byte == b')')?;
        let (xid, rest) = number(rest.get(end..)?.strip_prefix(b"): ")?, 10)?;
        let rest = rest.strip_prefix(b", ")?;
        let pid = match rest.strip_prefix(b"pid=") {
            Some(rest) => {
                let (pid, rest) = match rest.strip_prefix(b"'<unknown>'") {
                    Some(rest) => (0, rest),
                    None => number(rest, 10)?,
                };
                rest.strip_prefix(b",")?;
                pid
            }
            None => 0,
        };
        (xid != PREEMPTIVE_REMOVAL).then_some(Self {
            domain,
            bus: u8::try_from(bus).ok()?,
            slot: u8::try_from(slot).ok()?,
            xid,
            pid,
        })
    }

    /// Packs the report into a word that is not 0, for a context that cannot take a lock.
    /// Returns `None` if a field does not fit.
    pub fn to_word(self) -> Option<u64> {
        let mut word = 0;
        for (value, bits) in [
            (self.domain, DOMAIN_BITS),
            (u32::from(self.bus), BUS_BITS),
            (u32::from(self.slot), SLOT_BITS),
            (self.xid, XID_BITS),
            (self.pid, PID_BITS),
        ] {
            if value.checked_shr(bits) != Some(0) {
                return None;
            }
            word = push(word, value, bits);
        }
        (self.xid != 0).then_some(word)
    }

    /// Unpacks a word of [`to_word`](Self::to_word). Every word is some report.
    pub fn from_word(word: u64) -> Self {
        let (word, pid) = pop(word, PID_BITS);
        let (word, xid) = pop(word, XID_BITS);
        let (word, slot) = pop(word, SLOT_BITS);
        let (word, bus) = pop(word, BUS_BITS);
        let (_, domain) = pop(word, DOMAIN_BITS);
        // CAST: `pop` masks the fields to so many bits.
        Self {
            domain,
            bus: bus as u8,
            slot: slot as u8,
            xid,
            pid,
        }
    }

    /// Returns whether the error ended the work of everybody on its GPU.
    pub fn is_of_all(&self) -> bool {
        FATAL.contains(&self.xid)
    }

    /// Returns whether the error is of the GPU at an address. Xids name no function.
    pub fn is_of(&self, pci: PciAddress) -> bool {
        (self.domain, self.bus, self.slot) == (pci.domain, pci.bus, pci.slot)
    }
}

fn push(word: u64, value: u32, bits: u32) -> u64 {
    word.wrapping_shl(bits) | u64::from(value)
}

fn pop(word: u64, bits: u32) -> (u64, u32) {
    let mask = 1u32.wrapping_shl(bits).wrapping_sub(1);
    // CAST: the field is in the low half.
    (word.wrapping_shr(bits), word as u32 & mask)
}

/// Splits a number off the front of `text`. Returns `None` if there is no digit, or too many.
fn number(text: &[u8], radix: u32) -> Option<(u32, &[u8])> {
    let digit = |byte: &u8| char::from(*byte).to_digit(radix);
    let digits = text.iter().map_while(digit);
    let mut value = 0u32;
    let mut count = 0usize;
    for digit in digits {
        value = value.checked_mul(radix)?.checked_add(digit)?;
        count = count.saturating_add(1);
    }
    (count > 0).then_some((value, text.get(count..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As printed on an H100 by 580.159.04, the process's name aside.
    const LINE: &[u8] = b"NVRM: Xid (PCI:0000:00:06): 31, pid=542, name=probe, channel 0x0000000b";

    const REPORT: Report = Report {
        domain: 0,
        bus: 0,
        slot: 6,
        xid: 31,
        pid: 542,
    };

    #[test]
    fn a_line_says_gpu_error_and_process() {
        assert_eq!(Report::parse(LINE), Some(REPORT));
        let divided = b"NVRM: Xid (PCI:0001:a3:1f GPU-I:02 GPU-CI:00): 43, pid=4194303, name=x,";
        let divided = Report::parse(divided).unwrap();
        assert_eq!((divided.domain, divided.bus, divided.slot), (1, 0xa3, 0x1f));
        assert_eq!((divided.xid, divided.pid), (43, 4_194_303));
    }

    #[test]
    fn an_error_without_a_channel_has_no_process() {
        let line =
            b"NVRM: Xid (PCI:0000:00:06): 79, pid='<unknown>', name=<unknown>, GPU has fallen off";
        let report = Report::parse(line).unwrap();
        assert_eq!((report.xid, report.pid), (79, 0));
        let newer = b"NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off the bus.";
        assert_eq!(Report::parse(newer), Some(report));
        assert!(report.is_of_all() && !REPORT.is_of_all());
        assert_eq!(Report::from_word(report.to_word().unwrap()), report);
    }

    #[test]
    fn other_lines_say_nothing() {
        for line in [
            "NVRM: GPU at PCI:0000:01:00: GPU-66616b65-2d67-6831-3030-2d6770752d00",
            "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>'",
            "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>, name=x,",
            "NVRM: Xid (PCI:0000:01:00): 45, pid=5, name=x, Ch 00000008",
            "NVRM: Xid (PCI:0000:01:00): 31",
            "NVRM: Xid (PCI:0000:01:00): , pid=5, ",
            "NVRM: Xid (PCI:0000:01:00): 31, pid=99999999999, ",
            " NVRM: Xid (PCI:0000:01:00): 31, pid=5, ",
            "",
        ] {
            assert_eq!(Report::parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn a_name_that_looks_like_a_pid_is_a_name() {
        let line = b"NVRM: Xid (PCI:0000:00:06): 31, pid=542, name=, pid=1, name=init, Ch 1";
        assert_eq!(Report::parse(line), Some(REPORT));
    }

    #[test]
    fn what_no_machine_has_makes_no_word() {
        for report in [
            Report { xid: 0, ..REPORT },
            Report {
                xid: 1024,
                ..REPORT
            },
            Report {
                pid: 1 << 22,
                ..REPORT
            },
            Report { slot: 32, ..REPORT },
            Report {
                domain: 1 << 19,
                ..REPORT
            },
        ] {
            assert_eq!(report.to_word(), None, "{report:?}");
        }
    }

    proptest! {
        #[test]
        fn a_word_is_its_report(
            domain in 0u32..1 << 19, bus: u8, slot in 0u8..32, xid in 1u32..1024, pid in 0u32..1 << 22,
        ) {
            let report = Report { domain, bus, slot, xid, pid };
            let word = report.to_word().unwrap();
            prop_assert_ne!(word, 0);
            prop_assert_eq!(Report::from_word(word), report);
        }

        #[test]
        fn any_text_is_read_without_harm(line in prop::collection::vec(any::<u8>(), 0..80), cut in 0usize..80) {
            let _ = Report::parse(&line);
            let mut line = LINE.get(..cut.min(LINE.len())).unwrap().to_vec();
            line.extend([b'9'; 12]);
            let _ = Report::parse(&line);
        }
    }
}
