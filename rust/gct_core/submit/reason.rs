// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the reasons for which something is left alone.

/// Declares [`Reason`] with its names, so that no reason lacks one.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a segment, a launch or a part of an order passed through as the tenant wrote it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of [`Launches::passed`].
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the name in statistics and in `gctctl`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

reasons! {
    /// A method header of the forms before Fermi, or one that changes the subdevice mask.
    OldForm = "old-form",
    /// A method header with a reserved operation.
    BadHeader = "bad-header",
    /// A segment longer than a GPFIFO entry can name.
    SegmentTooLong = "segment-too-long",
    /// A segment in the GPU's memory that would take too long to read.
    SegmentTooSlow = "segment-too-slow",
    /// A PCAS names a QMD that was not uploaded in this segment and that is in no graph memory.
    NotHere = "qmd-not-here",
    /// The QMD's words are not contiguous in the segment, or lie in two segments.
    Fragmented = "qmd-fragmented",
    /// A later upload overwrote part of the QMD.
    Patched = "qmd-patched",
    /// The QMD's version is unknown, or not one of this GPU's.
    Version = "qmd-version",
    /// The QMD could have two versions.
    Ambiguous = "qmd-ambiguous",
    /// The QMD's address is relative to a virtualization base, or those of later ones become so, on
    /// all channels of the group.
    Virtualized = "qmd-virtualized",
    /// A macro was called. The methods that it generates cannot be seen.
    Macro = "macro",
    /// A macro was called while an upload waited for its data. CUDA fills memory this way and
    /// launches nothing by it, but the methods of a macro cannot be seen.
    MacroFill = "macro-fill",
    /// The segment has more launches than the caller's table.
    TableFull = "table-full",
    /// No PCAS_A was seen, so the address of the PCAS is unknown.
    NoAddress = "no-address",
    /// A circular queue, not a grid.
    Queue = "queue",
    /// A QMD without a grid: nothing to mask or split.
    Null = "null",
    /// A QMD type that is not documented.
    Kind = "kind",
    /// A cooperative launch is never split.
    Cooperative = "cooperative",
    /// Blocks that must be resident together do not fit on the remaining TPCs, so the launch is not
    /// masked.
    TooWide = "too-wide",
    /// The launch waits for a latch: it starts as a dependent, and dependents ignore RESUME.
    WaitsOnLatch = "waits-on-latch",
    /// Another QMD or a second PCAS schedules the launch: dependents ignore RESUME.
    RequiresPcas = "requires-pcas",
    /// The launch waits for its dependence counter.
    Dependences = "dependence-counter",
    /// The stored QMD runs again later, and would then be a join without atoms.
    SelfCopy = "self-copy",
    /// The blocks run one after another.
    Sequential = "sequential",
    /// The tenant set RESUME itself.
    Resumed = "resumed",
    /// The blocks come from a launch queue that atoms would share.
    LaunchQueue = "launch-queue",
    /// The grid has at most one unit, so there is nothing to cut.
    OneUnit = "one-unit",
    /// Splitting was not measured on hardware of this QMD version.
    NotMeasured = "not-measured",
    /// An inline QMD is scheduled by its last word and cannot become a join.
    Inline = "inline-qmd",
    /// The PCAS action is not one of the copying ones that were measured.
    Action = "pcas-action",
    /// Another PCAS of the segment names the same QMD.
    Shared = "qmd-shared",
    /// The tenant's I2M registers are unknown, so they could not be restored behind the atoms.
    Registers = "i2m-registers",
    /// The mask disables TPCs that this QMD version cannot name.
    MaskTooNarrow = "mask-too-narrow",
    /// The mask leaves no TPC.
    MaskEmpty = "mask-empty",
    /// A graph replay: its nodes cannot be split, as no dependent can.
    Replay = "graph-replay",
    /// The graph memory is full.
    MemoryFull = "graph-memory-full",
    /// The segment's words cannot be read.
    Unreadable = "unreadable",
    /// The launch uses all releases of its QMD, so nothing would tell that its slot is free.
    Releases = "releases",
    /// The QMD has sub-tasks and no mask (version 5.1).
    SubTasks = "sub-tasks",
}
