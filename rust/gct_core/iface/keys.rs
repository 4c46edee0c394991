// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists the keys of the files of `KEY VALUE` lines.

use super::files::File;
use crate::features::Feature;
use crate::launches::COUNTS;

/// A key of a file of `KEY VALUE` lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The file.
    pub file: File,
    /// The key.
    pub key: &'static str,
    /// What counts it. Without that the line is absent.
    pub source: Source,
    /// Says in one sentence what the value counts.
    pub doc: &'static str,
}

/// What counts the value of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The core, on every GPU.
    Core,
    /// A backend with this feature.
    Feature(Feature),
    /// A daemon whose processes enforce limits themselves, and answer
    /// ([`State::set_unbound`](crate::state::State::set_unbound)).
    Answers,
    /// A daemon that answers processes
    /// ([`State::set_daemon_events`](crate::state::State::set_daemon_events)).
    Daemon,
    /// A daemon that divides memory by `gmem.low`
    /// ([`State::balance`](crate::state::State::balance)).
    Looks,
}

const fn key(file: File, key: &'static str, feature: Option<Feature>, doc: &'static str) -> Row {
    let source = match feature {
        Some(feature) => Source::Feature(feature),
        None => Source::Core,
    };
    Row::Key(Key {
        file,
        key,
        source,
        doc,
    })
}

/// A row of the table.
enum Row {
    /// A key.
    Key(Key),
    /// Those of a file's counters of launches ([`COUNTS`]).
    Counts(File),
}

/// Returns every key, in the order of the lines. A key without a source is neither in the table nor
/// in the file.
pub fn all() -> impl Iterator<Item = Key> {
    KEYS.iter().flat_map(|row| {
        let (key, file) = match row {
            Row::Key(key) => (Some(*key), None),
            Row::Counts(file) => (None, Some(*file)),
        };
        let counts = COUNTS.iter().filter(move |count| Some(count.file) == file);
        key.into_iter().chain(counts.map(|count| Key {
            file: count.file,
            key: count.key,
            source: Source::Feature(count.feature),
            doc: count.doc,
        }))
    })
}

const KEYS: &[Row] = &[
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
        "Failures to follow something for lack of memory.",
    ),
    key(
        File::Events,
        "decode",
        None,
        "Ioctls with an unexpected structure.",
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
        "Channel groups, channels and allocations whose GPU is unknown, and devices on another GPU than their client said.",
    ),
    key(
        File::Events,
        "charge",
        None,
        "Charges that exceeded 64 bits, or were missing when they were uncharged.",
    ),
    key(
        File::Events,
        "control",
        None,
        "Controls that the resource manager refused outside of a write: a limit does not bind a new object.",
    ),
    key(
        File::Events,
        "forbidden",
        None,
        "Controls and classes that a rule refused to a governed process (controls.md).",
    ),
    Row::Key(Key {
        file: File::Events,
        key: "unanswered",
        source: Source::Daemon,
        doc: "Requests of processes for shared memory that the daemon could not answer for want of something. They ask again.",
    }),
    Row::Key(Key {
        file: File::Events,
        key: "version",
        source: Source::Daemon,
        doc: "Greetings of programs that speak no version of the protocol that the daemon speaks. They have no limits, or do not start. They ask again.",
    }),
    key(
        File::GmemStat,
        "pinned",
        Some(Feature::GmemCharge),
        "Bytes that the resource manager allocated, with the fixed charges for channels and other objects.",
    ),
    key(
        File::GmemStat,
        "uvm",
        Some(Feature::GmemUvm),
        "Bytes of managed memory: of its roots of 2 MiB on the GPU; in the user-space mode all that programs ask for as such, resident or not, and of pageable memory what is on the GPU.",
    ),
    key(
        File::GmemStat,
        "page_tables",
        Some(Feature::GmemTables),
        "Bytes of page tables in device memory, for managed memory and for what is mapped beside it: of their roots of 2 MiB.",
    ),
    Row::Key(Key {
        file: File::GmemStat,
        key: "allowed",
        source: Source::Looks,
        doc: "The most that the owner may have now, between `gmem.low` and `gmem.limit`; absent where nothing gives way once a second.",
    }),
    key(
        File::GmemEvents,
        "limit",
        Some(Feature::GmemLimit),
        "Allocations that were refused because of `gmem.limit`.",
    ),
    key(
        File::GmemEvents,
        "evicted",
        Some(Feature::GmemEvict),
        "Roots of 2 MiB of managed memory that were evicted to the host because of `gmem.limit`.",
    ),
    key(
        File::GmemEvents,
        "ahead",
        Some(Feature::GmemEvict),
        "Those of `evicted` that were evicted before others of the owner's pages needed the room.",
    ),
    key(
        File::GmemEvents,
        "pressure",
        Some(Feature::GmemEvict),
        "Roots of 2 MiB of managed memory within `gmem.limit` that were chosen for eviction because the GPU was full and everybody else was within a limit, too.",
    ),
    key(
        File::GpuWorkerStat,
        "cpu_usec",
        Some(Feature::ChannelOwned),
        "Microseconds that the thread has run since it started; 0 while no channel is owned.",
    ),
    key(
        File::GpuWorkerStat,
        "sleeps",
        Some(Feature::ChannelOwned),
        "Times that it has gone to sleep since then.",
    ),
    key(
        File::GpuClockStat,
        "mhz",
        Some(Feature::SlipPower),
        "The highest clock that the GPU may have now.",
    ),
    key(
        File::GpuClockStat,
        "highest_mhz",
        Some(Feature::SlipPower),
        "The highest one that it has.",
    ),
    key(
        File::GpuClockStat,
        "changes",
        Some(Feature::SlipPower),
        "Changes of the clock.",
    ),
    key(
        File::GpuClockStat,
        "errors",
        Some(Feature::SlipPower),
        "Those that the driver has refused. The GPU had its highest clock again, and the next one is tried five minutes later.",
    ),
    key(
        File::ComputeStat,
        "channel_groups",
        None,
        "Channel groups (TSGs) that exist, including those that the driver makes for a channel without one.",
    ),
    key(File::ComputeStat, "channels", None, "Channels that exist."),
    key(
        File::ComputeStat,
        "shared_channels",
        None,
        "Those of them in channel groups that other processes made, as clients of MPS have: work there runs beside that of the group's other channels. Channel groups take turns.",
    ),
    key(
        File::ComputeStat,
        "owned",
        Some(Feature::ChannelOwned),
        "Channels that were allocated with a ring of the driver's.",
    ),
    key(
        File::ComputeStat,
        "unowned",
        Some(Feature::ChannelOwned),
        "Channels that were allocated with their tenant's ring under `channel.owned` or a limit: the driver did not know where the ring lies.",
    ),
    key(
        File::ComputeStat,
        "native",
        Some(Feature::ChannelOwned),
        "Channels that exist and have their tenant's ring, for example those from before a limit. Of the limits on launches `compute.max` alone binds those that are not `cooperative`.",
    ),
    key(
        File::ComputeStat,
        "cooperative",
        Some(Feature::ChannelOwned),
        "Those of them that the driver has come between since: limits on launches bind them, unless their tenant goes round its own mappings.",
    ),
    key(
        File::ComputeStat,
        "unseen",
        Some(Feature::ChannelOwned),
        "Channels that exist, and whose registers nobody saw: a channel with its tenant's ring was in their channel group, or their process ran what the driver could not read, a macro, or what makes addresses relative. Limits on launches may not bind them.",
    ),
    key(
        File::ComputeStat,
        "forbidden",
        Some(Feature::ChannelOwned),
        "Controls and classes that a rule refused to the owner's processes; each rule that did has a line `forbidden.RULE` (controls.md).",
    ),
    Row::Counts(File::ComputeStat),
    key(
        File::ComputeStat,
        "passed",
        Some(Feature::TpcMask),
        "Launches and orders that were passed unchanged; each reason that occurred has a line `passed.REASON`.",
    ),
    key(
        File::ComputeStat,
        "clock_mhz",
        Some(Feature::SlipPower),
        "The lowest clock that the owner asks for, while anyone has a `slip.power`; 0 if it has had no work lately. Of a group's processes, the highest.",
    ),
    key(
        File::ComputeStat,
        "clock_sensitivity",
        Some(Feature::SlipPower),
        "How much of its work depends on the clock, in thousandths. What was not measured counts as if it all did; 0 if there was too little work.",
    ),
    key(
        File::ComputeStat,
        "usage_usec",
        Some(Feature::Usage),
        "Microseconds with work in flight, divided among the processes with work on the same TPCs.",
    ),
    key(
        File::ComputeStat,
        "usage_tpc_usec",
        Some(Feature::Usage),
        "The same, times the part of the GPU's TPCs that was granted.",
    ),
    key(
        File::ComputeStat,
        "pending",
        Some(Feature::Usage),
        "Launches and atoms in flight, and submissions that are held back, now.",
    ),
    key(
        File::ComputeStat,
        "waited_usec",
        Some(Feature::Usage),
        "Microseconds with work that was held back for any reason.",
    ),
    key(
        File::ComputeStat,
        "held_usec",
        Some(Feature::Usage),
        "Sum over the reasons; each one that occurred has a line `held_usec.REASON`: `freeze`, `tpcs`, `atoms`, `graph`, `weight`, `max`.",
    ),
    key(
        File::ComputeStat,
        "permissive",
        Some(Feature::ChannelStrict),
        "1 while limits on launches are in force that the owner's processes can evade: `channel.strict` is 0, or they have `native` channels beside limits other than `compute.max`, or `unseen` ones. Else 0.",
    ),
    key(
        File::ComputeStat,
        "slice",
        Some(Feature::Timeslice),
        "Shortest time slice of a channel group in microseconds while `compute.timeslice` is in force or the owner yields to shorter requests, else 0.",
    ),
    key(
        File::ComputeStat,
        "round",
        Some(Feature::Timeslice),
        "Microseconds that all channel groups have together in one round while `compute.timeslice` is in force or the owner yields to shorter requests, else 0.",
    ),
    Row::Key(Key {
        file: File::ComputeStat,
        key: "unbound",
        source: Source::Answers,
        doc: "Processes of the owner that its time slice or freeze does not bind: they have not answered yet, or the resource manager refused them.",
    }),
    Row::Key(Key {
        file: File::ComputeStat,
        key: "unmanaged",
        source: Source::Answers,
        doc: "Channels of the owner's living processes that the library has not managed, on any GPU: limits on launches do not bind them. Each reason that occurred has a line `unmanaged.REASON` (user-mode.md).",
    }),
    Row::Key(Key {
        file: File::ComputeStat,
        key: "ungoverned",
        source: Source::Answers,
        doc: "The same while some owner has a limit on launches on the GPU, else 0: these channels use the GPU beside that limit.",
    }),
    Row::Counts(File::ComputeEvents),
    key(
        File::ComputeEvents,
        "faults",
        Some(Feature::Faults),
        "Errors of the GPU that ended a channel of the owner, and those that ended the work of everybody on the GPU.",
    ),
    key(
        File::ComputeEvents,
        "last_xid",
        Some(Feature::Faults),
        "NVIDIA's number (Xid) of the last such error; 0 if there was none, or if it is unknown.",
    ),
    key(
        File::SloStat,
        "requests",
        Some(Feature::SloP99),
        "Requests that have ended since the goal was set.",
    ),
    key(
        File::SloStat,
        "p99_usec",
        Some(Feature::SloP99),
        "Time within which 99% of the last window's requests ended, rounded up by an eighth at most; 0 before the first.",
    ),
    key(
        File::SloStat,
        "met",
        Some(Feature::SloP99),
        "1 if that window kept the goal, else 0.",
    ),
    key(
        File::SloStat,
        "cannot",
        Some(Feature::SloP99),
        "1 if no level keeps the goal, else 0.",
    ),
    key(
        File::SloStat,
        "level",
        Some(Feature::SloP99),
        "How hard others are pressed for it: 0 not at all, 1 they are best effort, 2 to 4 they also have three, two and one quarters of their TPCs.",
    ),
    key(
        File::SloStat,
        "level_usec",
        Some(Feature::SloP99),
        "Microseconds for which they have been.",
    ),
    key(
        File::SloStat,
        "pressed",
        Some(Feature::SloP99),
        "How hard the owner is pressed for goals of others, as `level`.",
    ),
];
