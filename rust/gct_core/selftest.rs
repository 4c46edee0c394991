// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds test vectors that every build of the core must pass.
//!
//! The host's tests run them with cargo's build, and KUnit runs them in the kernel with Kbuild's
//! object.

use crate::error::Error;
use crate::ids::{GroupId, ProcKey};
use crate::iface::value::Format;
use crate::iface::{files, parse, show, File};
use crate::members::{Counters, GroupMembers, MemberSlot, Members};
use crate::rmapi::{self, escape, Action, Class};
use crate::tables::Pieces;
use crate::text::Text;
use crate::units::mul_div;

/// Name of the first group of vectors that failed.
pub type Failed = &'static str;

/// Runs all vectors.
///
/// # Errors
///
/// The name of the vectors that failed.
pub fn run() -> Result<(), Failed> {
    let groups: [(Failed, fn() -> bool); 6] = [
        ("values", values),
        ("refusals", refusals),
        ("file table", file_table),
        ("arithmetic", arithmetic),
        ("ioctls", ioctls),
        ("members", members),
    ];
    match groups.iter().find(|(_, holds)| !holds()) {
        Some((name, _)) => Err(name),
        None => Ok(()),
    }
}

/// Pairs of a written text and the text that the file then shows.
const VALUES: [(Format, &[u8], &str); 15] = [
    (Format::BytesOrMax, b"max\n", "max\n"),
    (Format::BytesOrMax, b" 4G ", "4294967296\n"),
    (Format::Bytes, b"0", "0\n"),
    (Format::Timeslice, b"2ms\n", "2000\n"),
    (Format::Timeslice, b"default", "default\n"),
    (Format::Priority, b"15", "15\n"),
    (Format::Weight, b"10000", "10000\n"),
    (Format::Bandwidth, b"20ms 100ms", "20000 100000\n"),
    (Format::Switch, b"1\n", "1\n"),
    (Format::SwitchOrDefault, b"default", "default\n"),
    (Format::TpcsOrNone, b"66", "66\n"),
    (Format::TpcList, b"40,0-31", "0-31,40\n"),
    (Format::TpcList, b"all", "all\n"),
    (Format::UsOrOff, b"off", "off\n"),
    (Format::Percent, b"100", "100\n"),
];

fn values() -> bool {
    VALUES.iter().all(|(format, written, shown)| {
        let mut text = Text::<64>::EMPTY;
        let printed = parse::value(*format, written)
            .is_ok_and(|value| show::value(&value, &mut text).is_ok());
        printed && text.as_str() == *shown
    })
}

/// Pairs of a written text and the error that refuses it.
const REFUSALS: [(Format, &[u8], Error); 9] = [
    (Format::BytesOrMax, b"", Error::Syntax),
    (Format::BytesOrMax, b"18446744073709551616", Error::Range),
    (Format::Timeslice, b"19", Error::Range),
    (Format::Timeslice, b"2 ms", Error::Syntax),
    (Format::Priority, b"16", Error::Range),
    (Format::Switch, b"1\0", Error::Syntax),
    (Format::Switch, b"1\n0", Error::Syntax),
    (Format::TpcList, b"256", Error::Range),
    (Format::Weight, b"\xff", Error::Syntax),
];

fn refusals() -> bool {
    REFUSALS
        .iter()
        .all(|(format, text, error)| parse::value(*format, text) == Err(*error))
}

fn file_table() -> bool {
    files::FILES.iter().all(|entry| {
        files::find(entry.place, entry.name).map(|found| found.file) == Some(entry.file)
    }) && files::entry(File::GmemLimit).default == "max"
}

fn arithmetic() -> bool {
    mul_div(u64::MAX, u64::MAX, u64::MAX) == Some(u64::MAX)
        && mul_div(1 << 63, 6, 1 << 62) == Some(12)
        && mul_div(u64::MAX, 2, 1).is_none()
        && mul_div(1, 1, 0).is_none()
}

fn ioctls() -> bool {
    let mut alloc = [0u8; 32];
    for (offset, byte) in [(0, 1), (4, 2), (8, 3), (12, 0x6c), (13, 0xa0), (28, 0x1f)] {
        if let Some(to) = alloc.get_mut(offset) {
            *to = byte;
        }
    }
    let decoded = rmapi::decode(escape::ALLOC, &alloc).is_ok_and(|call| {
        call.is_some_and(|call| {
            let group = matches!(
                call.action,
                Action::Alloc {
                    class: Class::ChannelGroup,
                    ..
                }
            );
            group && (call.client, call.parent, call.object, call.status) == (1, 2, 3, 0x1f)
        })
    });
    decoded && rmapi::decode(escape::ALLOC, &[0; 31]) == Err(Error::Syntax)
}

/// A small page that fits a kernel's stack.
struct Page([MemberSlot; 16]);

impl Pieces<MemberSlot> for Page {
    fn piece(&self, at: usize) -> &[MemberSlot] {
        self.0
            .get(..(16 * usize::from(at == 0)))
            .unwrap_or_default()
    }

    fn piece_mut(&mut self, at: usize) -> &mut [MemberSlot] {
        self.0
            .get_mut(..(16 * usize::from(at == 0)))
            .unwrap_or_default()
    }
}

fn members() -> bool {
    let mut page = Page([MemberSlot::default(); 16]);
    let mut groups = [GroupMembers::default(); 2];
    let mut counters = Counters::default();
    let mut members = Members::new(&mut page, &mut groups, &mut counters);
    let proc = |tgid| ProcKey {
        tgid,
        start_time_ns: 1,
    };
    let group = GroupId(1);
    let filled = (1..=12).all(|tgid| members.put(proc(tgid), group).is_ok());
    let full = matches!(members.put(proc(16), group), Err(Error::NeedSlots(_)));
    let emptied = (1..=12).all(|tgid| members.on_exit(proc(tgid)) == Some(group));
    filled && full && emptied && members.count(group) == 0
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_vectors_pass() {
        assert_eq!(super::run(), Ok(()));
    }
}
