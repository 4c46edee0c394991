// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Types of the values that files hold.

use crate::limits;
use crate::mask::TpcMask;
use crate::text::Text;
use crate::units::{Bytes, Percent, Priority, Tpcs, Us, Weight};

/// A group's name.
pub type Name = Text<{ limits::NAME_LEN_MAX }>;

/// An absolute cgroup-v2 path of a group or a process. It holds one byte more than a group's path
/// may have, so a longer path of a process, cut to fit, never equals a group's.
pub type CgroupPath = Text<{ limits::CGROUP_LEN_MAX + 1 }>;

/// A list of processors as it was written; empty for all of them.
pub type CpuList = Text<{ limits::CPU_LIST_LEN_MAX }>;

/// A duty cycle: at most `quota` of GPU time in each `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// GPU time per period.
    pub quota: Us,
    /// Length of a period.
    pub period: Us,
}

/// The form of a file, which determines the type of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Free text on one line.
    Line,
    /// Words, one per line.
    Words,
    /// `KEY VALUE` lines.
    Stat,
    /// pids, one per line; one pid when written, 0 for the writer.
    Pids,
    /// `create NAME` or `remove NAME`.
    Command,
    /// An absolute cgroup path, or `none`.
    Cgroup,
    /// A list of processors, or `all`.
    CpuList,
    /// Bytes, with an optional suffix K, M or G.
    Bytes,
    /// Bytes as above, or `max`.
    BytesOrMax,
    /// Microseconds, with an optional suffix us, ms or s, or `default`.
    Timeslice,
    /// A number, 0 first.
    Priority,
    /// A number.
    Weight,
    /// `QUOTA PERIOD` in microseconds as above, or `max`.
    Bandwidth,
    /// 0 or 1.
    Switch,
    /// 0, 1 or `default`.
    SwitchOrDefault,
    /// A number of TPCs, or `none`.
    TpcsOrNone,
    /// A list of TPCs, or `all`.
    TpcList,
    /// Microseconds as above, or `off`.
    UsOrOff,
    /// Microseconds as above, or `max`.
    UsOrMax,
    /// Percent, without a sign.
    Percent,
}

impl Format {
    /// Forms of files that hold one [`Value`].
    pub const VALUES: [Self; 13] = [
        Self::Bytes,
        Self::BytesOrMax,
        Self::Timeslice,
        Self::Priority,
        Self::Weight,
        Self::Bandwidth,
        Self::Switch,
        Self::SwitchOrDefault,
        Self::TpcsOrNone,
        Self::TpcList,
        Self::UsOrOff,
        Self::UsOrMax,
        Self::Percent,
    ];
}

/// The value of a file that holds one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// [`Format::Bytes`].
    Bytes(Bytes),
    /// [`Format::BytesOrMax`]; `None` is `max`.
    BytesOrMax(Option<Bytes>),
    /// [`Format::Timeslice`]; `None` is the driver's default.
    Timeslice(Option<Us>),
    /// [`Format::Priority`].
    Priority(Priority),
    /// [`Format::Weight`].
    Weight(Weight),
    /// [`Format::Bandwidth`]; `None` is `max`.
    Bandwidth(Option<Bandwidth>),
    /// [`Format::Switch`].
    Switch(bool),
    /// [`Format::SwitchOrDefault`]; `None` is `default`.
    SwitchOrDefault(Option<bool>),
    /// [`Format::TpcsOrNone`]; `None` is `none`.
    TpcsOrNone(Option<Tpcs>),
    /// [`Format::TpcList`]; `None` is `all`.
    TpcList(Option<TpcMask>),
    /// [`Format::UsOrOff`]; `None` is `off`.
    UsOrOff(Option<Us>),
    /// [`Format::UsOrMax`]; `None` is `max`.
    UsOrMax(Option<Us>),
    /// [`Format::Percent`].
    Percent(Percent),
}
