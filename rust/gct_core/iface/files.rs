// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists all files of the tree.
//!
//! The table generates debugfs entries, `gctctl`'s completion, the tables in `interface.md`, the
//! conformance test and the fuzzing dictionary. A file that is not in the table does not exist.

use super::value::Format;
use crate::error::Error;
use crate::features::{Feature, FeatureSet};

/// The directories that have a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The root of the tree.
    Root,
    /// `gpus/<n>/`.
    Gpu,
    /// `<name>/`.
    Group,
    /// `<name>/<n>/` and `<pid>/<n>/`.
    Pool,
}

impl Place {
    /// Returns the name that the documentation uses.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Gpu => "gpu",
            Self::Group => "group",
            Self::Pool => "pool",
        }
    }
}

/// Whether a file is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Read only.
    Read,
    /// Written only.
    Write,
    /// Both; a value that was read can be written back.
    ReadWrite,
}

impl Mode {
    /// Returns the permission bits: everybody may read, root may write.
    pub const fn bits(self) -> u16 {
        match self {
            Self::Read => 0o444,
            Self::Write => 0o200,
            Self::ReadWrite => 0o644,
        }
    }

    /// Returns the name that the documentation uses.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "r",
            Self::Write => "w",
            Self::ReadWrite => "rw",
        }
    }
}

/// A file of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its identity.
    pub file: File,
    /// Its name.
    pub name: &'static str,
    /// The directories that have it.
    pub place: Place,
    /// Whether it is read or written.
    pub mode: Mode,
    /// Its form.
    pub format: Format,
    /// Its value before the first write; empty if it cannot be set.
    pub default: &'static str,
    /// Its range as text; empty if it has none.
    pub range: &'static str,
    /// Unit of the number; empty if it has none.
    pub unit: &'static str,
    /// The feature without which the file can be neither read nor written.
    pub feature: Option<Feature>,
    /// Errors beside [`Error::Syntax`], [`Error::Range`] and [`Error::Gone`].
    pub errors: &'static [Error],
    /// Says in one sentence what it is.
    pub doc: &'static str,
}

impl Entry {
    /// Checks that a GPU with these features has the file.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`].
    pub fn check_feature(&self, features: FeatureSet) -> Result<(), Error> {
        match self.feature {
            Some(feature) if !features.has(feature) => Err(Error::Unsupported),
            _ => Ok(()),
        }
    }
}

macro_rules! files {
    ($($file:ident: $place:ident $name:literal $mode:ident $format:ident {
        $(default: $default:literal,)?
        $(range: $range:literal,)?
        $(unit: $unit:literal,)?
        $(feature: $feature:ident,)?
        $(errors: [$($error:ident),*],)?
        doc: $doc:literal,
    })*) => {
        /// The name of a file of the tree.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum File {
            $(#[doc = $doc] $file,)*
        }

        /// Every file, in the order of the documentation.
        pub const FILES: &[Entry] = &[$(*entry(File::$file)),*];

        /// Returns the entry of a file.
        pub const fn entry(file: File) -> &'static Entry {
            match file {
                $(File::$file => &Entry {
                    file: File::$file,
                    name: $name,
                    place: Place::$place,
                    mode: Mode::$mode,
                    format: Format::$format,
                    default: concat!($($default)?),
                    range: concat!($($range)?),
                    unit: concat!($($unit)?),
                    feature: files!(@feature $($feature)?),
                    errors: &[$($(Error::$error),*)?],
                    doc: $doc,
                },)*
            }
        }
    };
    (@feature) => { None };
    (@feature $feature:ident) => { Some(Feature::$feature) };
}

files! {
    Version: Root "version" Read Line {
        doc: "Release of gctgroup and version of this tree's form: `gctgroup <semver> abi <n>`.",
    }
    Control: Root "control" Write Command {
        errors: [Exists, NotFound, Busy, NoSpace],
        doc: "Makes and removes named groups: `create NAME`, `remove NAME`.",
    }
    Events: Root "events" Read Stat {
        doc: "Counts of objects and events that gctgroup could not track. The stock driver handled them.",
    }
    GpuUuid: Gpu "uuid" Read Line {
        errors: [Unknown],
        doc: "UUID, known once the driver has initialised the GPU for the first time.",
    }
    GpuPci: Gpu "pci" Read Line {
        doc: "PCI address: `domain:bus:device.function`, hexadecimal.",
    }
    GpuPciId: Gpu "pci.id" Read Line {
        doc: "PCI identity: `vendor:device subvendor:subdevice`, hexadecimal.",
    }
    GpuMinor: Gpu "minor" Read Line {
        doc: "The N of `/dev/nvidiaN`.",
    }
    GpuName: Gpu "name" Read Line {
        errors: [Unknown],
        doc: "Marketing name.",
    }
    GpuArchitecture: Gpu "architecture" Read Line {
        errors: [Unknown],
        doc: "Architecture, such as `hopper`.",
    }
    GpuTpcs: Gpu "tpcs" Read Line {
        errors: [Unknown],
        doc: "Number of TPCs that exist.",
    }
    GpuTpcsList: Gpu "tpcs.list" Read TpcList {
        errors: [Unknown],
        doc: "Numbers of the TPCs that exist, as in `tpc.mask`. The numbers have holes.",
    }
    GpuMemoryTotal: Gpu "memory.total" Read Line {
        unit: "bytes",
        errors: [Unknown],
        doc: "Device memory.",
    }
    GpuMode: Gpu "mode" Read Line {
        doc: "Backend of this GPU: `kernel`, `user` or `simulator`.",
    }
    GpuHealth: Gpu "health" Read Line {
        errors: [Unknown],
        doc: "`ok`, or `xid N` since the driver reported an error that the GPU does not survive without a reset (Xid 48, 62, 79, 95, 119 or 120). The user-space mode does not know.",
    }
    GpuFeatures: Gpu "features" Read Words {
        doc: "Files that are enforced or measured on this GPU, one name per line. A limit that is not listed returns EOPNOTSUPP.",
    }
    GpuWorkerCpus: Gpu "worker.cpus" ReadWrite CpuList {
        default: "all",
        range: "0..=8191, at most 127 bytes",
        feature: ChannelOwned,
        errors: [Unsupported],
        doc: "Processors on which the GPU's thread for owned channels may run. ERANGE if the machine cannot have such a processor, or none of them is online.",
    }
    GpuWorkerStat: Gpu "worker.stat" Read Stat {
        feature: ChannelOwned,
        errors: [Unsupported],
        doc: "What that thread costs.",
    }
    GpuClockStat: Gpu "clock.stat" Read Stat {
        feature: SlipPower,
        errors: [Unsupported],
        doc: "The clock that `slip.power` has lowered.",
    }
    GroupProcs: Group "group.procs" ReadWrite Pids {
        range: "0..=2147483647",
        errors: [NoProcess, NoSpace],
        doc: "Members, one pid per line. Writing a pid (0: the writer) moves that process, and its later children follow it.",
    }
    GroupCgroup: Group "group.cgroup" ReadWrite Cgroup {
        default: "none",
        range: "at most 511 bytes",
        errors: [Exists],
        doc: "An absolute cgroup-v2 path, or `none`. Processes in this cgroup or below it are members, unless `group.procs` or a longer path of another group applies to them.",
    }
    GmemLimit: Pool "gmem.limit" ReadWrite BytesOrMax {
        default: "max",
        unit: "bytes",
        feature: GmemLimit,
        errors: [Unsupported, Busy],
        doc: "Upper bound of gmem.current. Where pages can be evicted, the owner's own pages are, never a neighbour's. Otherwise an allocation beyond the limit fails as out of memory. Lowering it below memory that cannot be evicted fails, and the old limit stays.",
    }
    GmemLow: Pool "gmem.low" ReadWrite BytesOrMax {
        default: "max",
        unit: "bytes",
        feature: GmemLow,
        errors: [Unsupported],
        doc: "Device memory that the owner keeps when others need memory. What it has beyond that, up to gmem.limit, gives way to them if it can be evicted. `max`: all within gmem.limit is kept.",
    }
    GmemCurrent: Pool "gmem.current" Read Bytes {
        unit: "bytes",
        feature: GmemCharge,
        errors: [Unsupported],
        doc: "Device memory charged now: allocations of the owner's processes from the resource manager, until nothing keeps them, fixed charges for its other objects, and managed memory.",
    }
    GmemPeak: Pool "gmem.peak" ReadWrite Bytes {
        default: "0",
        unit: "bytes",
        feature: GmemCharge,
        errors: [Unsupported],
        doc: "Peak of gmem.current since the last write. Writing any number resets it to gmem.current.",
    }
    GmemStat: Pool "gmem.stat" Read Stat {
        doc: "Device memory by kind.",
    }
    GmemEvents: Pool "gmem.events" Read Stat {
        doc: "Counts of events caused by memory limits.",
    }
    GmemPageable: Pool "gmem.pageable" ReadWrite Switch {
        default: "0",
        range: "0..=1",
        feature: GmemPageable,
        errors: [Unsupported],
        doc: "1: device memory that the owner's processes allocate from now on while they have a gmem.limit can move to the host. What exceeds gmem.limit is there, up to hmem.limit. 0: it is refused. Memory that exists stays as it is.",
    }
    HmemLimit: Pool "hmem.limit" ReadWrite BytesOrMax {
        default: "max",
        unit: "bytes",
        feature: HmemLimit,
        errors: [Unsupported, Busy],
        doc: "Upper bound of hmem.current. An eviction because of gmem.limit that needs more host memory fails, and what it was for is out of memory. Lowering it below hmem.current fails, and the old limit stays.",
    }
    HmemCurrent: Pool "hmem.current" Read Bytes {
        unit: "bytes",
        feature: HmemCharge,
        errors: [Unsupported],
        doc: "Host memory that evictions have taken and that is not freed yet. The driver keeps it for as long as the range of managed memory lives, also for pages that are on the GPU again.",
    }
    ComputeTimeslice: Pool "compute.timeslice" ReadWrite Timeslice {
        default: "default",
        range: "20..=1000000",
        unit: "us",
        feature: Timeslice,
        errors: [Unsupported, Refused],
        doc: "GPU time per round of all the owner's channel groups together; `default` is the driver's own. The unit is us, because 50 us matter on an H200; GVM's Table 2 uses ms. `2ms` is accepted. A number below 20 is refused, because it probably means ms.",
    }
    ComputePriority: Pool "compute.priority" ReadWrite Priority {
        default: "8",
        range: "0..=15",
        feature: Priority,
        errors: [Unsupported],
        doc: "Priority on TPCs that are not reserved, 0 first: an owner with work runs before owners of a later priority, whose launches become atoms.",
    }
    ComputeWeight: Pool "compute.weight" ReadWrite Weight {
        default: "100",
        range: "1..=10000",
        feature: Weight,
        errors: [Unsupported],
        doc: "Share among owners of equal priority (credit-based weighted fairness).",
    }
    ComputeMax: Pool "compute.max" ReadWrite Bandwidth {
        default: "max",
        range: "quota 20..=period, period 1000..=1000000",
        unit: "us",
        feature: Bandwidth,
        errors: [Unsupported],
        doc: "Duty cycle, like cpu.max: at most QUOTA of GPU time in each PERIOD. An owner with channels from before the limit pauses: it may run for QUOTA of each PERIOD, whether it has work or not.",
    }
    ComputeFreeze: Pool "compute.freeze" ReadWrite Switch {
        default: "0",
        range: "0..=1",
        feature: Freeze,
        errors: [Unsupported, Refused],
        doc: "1 stops running kernels, also persistent ones, and starts none; 0 resumes them. Memory stays in place.",
    }
    ComputeStat: Pool "compute.stat" Read Stat {
        doc: "The owner's channels and launches.",
    }
    ComputeEvents: Pool "compute.events" Read Stat {
        doc: "Counts of events caused by compute limits.",
    }
    ChannelOwned: Pool "channel.owned" ReadWrite Switch {
        default: "0",
        range: "0..=1",
        feature: ChannelOwned,
        errors: [Unsupported],
        doc: "1: channels that are allocated from now on have a ring and USERD of the driver's, which no tenant can write; what the tenant submits is copied there. 0: they have the tenant's, unless a limit on launches binds them. Channels that exist stay as they are.",
    }
    ChannelStrict: Pool "channel.strict" ReadWrite SwitchOrDefault {
        default: "default",
        range: "0..=1",
        feature: ChannelStrict,
        errors: [Unsupported],
        doc: "1: a channel of the driver's that submits what limits on launches cannot bind is stopped, and its error notifier says so. 0: such work passes and is counted. `default`: 1 for processes with limits on launches, and without channels from before them.",
    }
    TpcQuota: Pool "tpc.quota" ReadWrite TpcsOrNone {
        default: "none",
        range: "0..=256",
        unit: "TPCs",
        feature: TpcQuota,
        errors: [Unsupported, NoSpace],
        doc: "TPCs guaranteed whenever the owner has work. `none`: no guarantee, but an equal share of the TPCs that are not reserved. 0: best effort, which yields to every owner with work.",
    }
    TpcReserved: Pool "tpc.reserved" Read Line {
        feature: TpcQuota,
        errors: [Unsupported],
        doc: "TPCs reserved for `tpc.quota` now, such as `0-31,40`, or `none`.",
    }
    TpcMask: Pool "tpc.mask" ReadWrite TpcList {
        default: "all",
        range: "0..=255",
        feature: TpcMask,
        errors: [Unsupported, NoSpace],
        doc: "The only TPCs on which the owner's work runs, such as `0-31,40`. At least one must exist.",
    }
    TpcEffective: Pool "tpc.effective" Read TpcList {
        feature: TpcMask,
        errors: [Unsupported, Unknown],
        doc: "TPCs granted to the last launch.",
    }
    TpcSteal: Pool "tpc.steal" ReadWrite Switch {
        default: "1",
        range: "0..=1",
        feature: TpcSteal,
        errors: [Unsupported],
        doc: "1 allows the owner to use TPCs reserved for others while they are idle.",
    }
    AtomDuration: Pool "atom.duration" ReadWrite UsOrOff {
        default: "off",
        range: "5..=1000000",
        unit: "us",
        feature: AtomDuration,
        errors: [Unsupported],
        doc: "Launches that are predicted to run longer are split into atoms. 100us is a good choice if others wait for the TPCs. While it is `off`, who yields to an earlier `compute.priority` has atoms of 50us.",
    }
    SlipTpc: Pool "slip.tpc" ReadWrite Percent {
        default: "0",
        range: "0..=100",
        unit: "percent",
        feature: SlipTpc,
        errors: [Unsupported],
        doc: "Slowdown that is tolerated so that launches have fewer TPCs: each kernel gets as few as keep it within so many percent. 0: all that it is granted.",
    }
    SlipPower: Pool "slip.power" ReadWrite Percent {
        default: "0",
        range: "0..=100",
        unit: "percent",
        feature: SlipPower,
        errors: [Unsupported],
        doc: "Slowdown that a process tolerates for a lower clock. The GPU has the highest clock that anyone with work asks for; who has no slip asks for the highest. 0: no slip.",
    }
    SloP99: Pool "slo.p99" ReadWrite UsOrMax {
        default: "max",
        range: "100..=10000000",
        unit: "us",
        feature: SloP99,
        errors: [Unsupported],
        doc: "Time within which 99% of the owner's requests are to end. Others are pressed step by step until they do, and get everything back when they do with room. `max`: no goal.",
    }
    SloStat: Pool "slo.stat" Read Stat {
        feature: SloP99,
        errors: [Unsupported],
        doc: "Whether `slo.p99` is kept, and what is done for it.",
    }
}

/// Returns the files of a place, in the table's order.
pub fn of(place: Place) -> impl Iterator<Item = &'static Entry> {
    FILES.iter().filter(move |entry| entry.place == place)
}

/// Returns the file of that name in a place.
pub fn find(place: Place, name: &str) -> Option<&'static Entry> {
    of(place).find(|entry| entry.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iface::parse;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_in_their_place_and_no_group_can_take_them() {
        let mut seen = BTreeSet::new();
        for item in FILES {
            assert_eq!(entry(item.file), item);
            assert!(seen.insert((item.place.word(), item.name)), "{}", item.name);
            assert_eq!(find(item.place, item.name), Some(item));
            if item.place == Place::Root {
                assert!(parse::name(item.name.as_bytes()).is_err(), "{}", item.name);
            }
            assert!(item.doc.ends_with('.'), "{}", item.name);
        }
        assert_eq!(find(Place::Root, "uuid"), None);
    }

    #[test]
    fn what_can_be_written_has_a_default_and_what_cannot_has_none() {
        for item in FILES {
            let settable = item.mode == Mode::ReadWrite && item.format != Format::Pids;
            assert_eq!(!item.default.is_empty(), settable, "{}", item.name);
            let may_refuse = item.errors.contains(&Error::Unsupported);
            assert_eq!(may_refuse, item.feature.is_some(), "{}", item.name);
        }
    }
}
