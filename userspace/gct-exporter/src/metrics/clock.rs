// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The metrics of the clock, where a backend changes it.

use gct_core::iface::File;

use super::{gauge, of, From, Kind, Metric, Scope};

/// A static, as [`METRICS`](super::METRICS) is.
pub(crate) static CLOCK: &[Metric] = &[
    of(
        Scope::Gpu,
        ("clock_limit_mhz", ""),
        Kind::Gauge,
        File::GpuClockStat,
        From::Key("mhz"),
        "The highest clock that the GPU may have now, in MHz.",
    ),
    of(
        Scope::Gpu,
        ("clock_highest_mhz", ""),
        Kind::Gauge,
        File::GpuClockStat,
        From::Key("highest_mhz"),
        "The highest clock that the GPU has, in MHz.",
    ),
    of(
        Scope::Gpu,
        ("clock_changes", ""),
        Kind::Counter,
        File::GpuClockStat,
        From::Key("changes"),
        "Changes of the clock because of slip.power.",
    ),
    of(
        Scope::Gpu,
        ("clock_errors", ""),
        Kind::Counter,
        File::GpuClockStat,
        From::Key("errors"),
        "Changes of the clock that the driver has refused.",
    ),
    gauge(
        ("clock_asked_mhz", ""),
        File::ComputeStat,
        From::Key("clock_mhz"),
        "The lowest clock that the owner asks for, in MHz; 0 without recent work or while nobody has a slip.power.",
    ),
    gauge(
        ("clock_sensitivity", ""),
        File::ComputeStat,
        From::Key("clock_sensitivity"),
        "How much of its work depends on the clock, in thousandths.",
    ),
];
