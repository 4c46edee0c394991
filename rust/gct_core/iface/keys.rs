// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The keys of the files of `KEY VALUE` lines.

use super::files::File;
use crate::features::Feature;

/// A key of a file of `KEY VALUE` lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The file.
    pub file: File,
    /// The key.
    pub key: &'static str,
    /// What the GPU's backend must be able to do, or the line is not there.
    pub feature: Option<Feature>,
    /// What its value counts, in one sentence.
    pub doc: &'static str,
}

const fn key(file: File, key: &'static str, feature: Option<Feature>, doc: &'static str) -> Key {
    Key {
        file,
        key,
        feature,
        doc,
    }
}

/// Every key. One that nothing feeds is not in the table and not in the file.
pub const KEYS: &[Key] = &[
    key(
        File::Events,
        "limit",
        None,
        "Objects, files and processes beyond a maximum.",
    ),
    key(
        File::Events,
        "memory",
        None,
        "Times that there was no memory to follow something.",
    ),
    key(
        File::Events,
        "decode",
        None,
        "Ioctls whose structure was not as expected.",
    ),
    key(
        File::Events,
        "members",
        None,
        "Forked children that could not join their parent's group.",
    ),
    key(
        File::Events,
        "client",
        None,
        "Objects of a client that was never seen.",
    ),
    key(
        File::Events,
        "gpu",
        None,
        "Channel groups, channels and allocations on a GPU that could not be told, and devices that were on another than their client said.",
    ),
    key(
        File::Events,
        "charge",
        None,
        "Charges that did not fit 64 bits, or were not there to be taken back.",
    ),
    key(
        File::Events,
        "control",
        None,
        "Controls that the resource manager refused when nobody was writing: a limit that does not bind something new.",
    ),
    key(
        File::GmemStat,
        "pinned",
        Some(Feature::GmemCharge),
        "Bytes that the resource manager allocated.",
    ),
    key(
        File::GmemStat,
        "uvm",
        Some(Feature::GmemLimit),
        "Bytes of managed memory, wherever its pages are.",
    ),
    key(
        File::GmemEvents,
        "limit",
        Some(Feature::GmemLimit),
        "Allocations that were refused because of `gmem.limit`.",
    ),
    key(
        File::ComputeStat,
        "channel_groups",
        None,
        "Channel groups (TSGs) that exist, those included that the driver makes for a channel without one.",
    ),
    key(File::ComputeStat, "channels", None, "Channels that exist."),
    key(
        File::ComputeStat,
        "launches",
        Some(Feature::TpcMask),
        "Launches that were found.",
    ),
    key(
        File::ComputeStat,
        "rewritten",
        Some(Feature::TpcMask),
        "Launches whose mask was written.",
    ),
    key(
        File::ComputeStat,
        "split",
        Some(Feature::TpcMask),
        "Launches that were split.",
    ),
    key(
        File::ComputeStat,
        "atoms",
        Some(Feature::TpcMask),
        "Atoms that they became.",
    ),
    key(
        File::ComputeStat,
        "passed",
        Some(Feature::TpcMask),
        "Launches and orders that went as the tenant wrote them; a line `passed.REASON` for each reason that occurred.",
    ),
    key(
        File::ComputeStat,
        "slice",
        Some(Feature::Timeslice),
        "Shortest time slice of a channel group in microseconds while `compute.timeslice` is in force, else 0.",
    ),
    key(
        File::ComputeStat,
        "round",
        Some(Feature::Timeslice),
        "Microseconds that all channel groups have together in one round while `compute.timeslice` is in force, else 0.",
    ),
    key(
        File::ComputeEvents,
        "narrowed",
        Some(Feature::TpcMask),
        "Launches whose blocks the GPU could hold all at the same time, and the TPCs that they were given could not.",
    ),
    key(
        File::ComputeEvents,
        "stalled",
        Some(Feature::TpcMask),
        "Times that nothing of a channel ended for 5 s, nor for four times as long as was foreseen, while a limit was in force.",
    ),
    key(
        File::ComputeEvents,
        "faults",
        Some(Feature::Faults),
        "Errors of the GPU that ended a channel of the owner.",
    ),
    key(
        File::ComputeEvents,
        "last_xid",
        Some(Feature::Faults),
        "NVIDIA's number (Xid) of the last of them; 0 while there was none, or where it is not known.",
    ),
];
