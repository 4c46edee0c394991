// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The metrics of what rules refuse, of what a daemon could not do, and of what no limit binds.

use gct_core::iface::File;

use super::{counter, gauge, of, own, From, Kind, Metric, Own, Scope};

/// A static, as [`METRICS`](super::METRICS) is.
pub(crate) static RULES: &[Metric] = &[
    of(
        Scope::Tree,
        ("forbidden_calls", ""),
        Kind::Counter,
        File::Events,
        From::Key("forbidden"),
        "Controls and classes that a rule refused to a governed process.",
    ),
    of(
        Scope::Tree,
        ("unanswered_requests", ""),
        Kind::Counter,
        File::Events,
        From::Key("unanswered"),
        "Requests of processes for shared memory that gctd could not answer; they ask again.",
    ),
    of(
        Scope::Tree,
        ("version_mismatches", ""),
        Kind::Counter,
        File::Events,
        From::Key("version"),
        "Greetings of programs that speak no version of the protocol that gctd speaks.",
    ),
    counter(
        "calls_forbidden",
        File::ComputeStat,
        From::Key("forbidden"),
        "Controls and classes that a rule refused.",
    ),
    counter(
        "calls_forbidden_rule",
        File::ComputeStat,
        From::Prefix("forbidden.", "rule"),
        "Controls and classes that a rule refused, by rule; absent until it does.",
    ),
    gauge(
        ("compute_unmanaged_channels", ""),
        File::ComputeStat,
        From::Key("unmanaged"),
        "Channels of living processes that limits on launches do not bind, in the user-space mode.",
    ),
    gauge(
        ("compute_unmanaged_channels_reason", ""),
        File::ComputeStat,
        From::Prefix("unmanaged.", "reason"),
        "The same by reason; absent until it occurs.",
    ),
    gauge(
        ("compute_ungoverned_channels", ""),
        File::ComputeStat,
        From::Key("ungoverned"),
        "The same while some owner has a limit on launches on the GPU, else 0.",
    ),
    own(
        Scope::Gpu,
        "processes_unknown",
        Kind::Gauge,
        Own::Others,
        &[],
        "Processes that have the GPU open and that gctd does not know; with --proc, in the user-space mode.",
    ),
    own(
        Scope::Group,
        "processes_unknown",
        Kind::Gauge,
        Own::Escapes,
        &["gpu"],
        "The same in a group's cgroup, or of members by pid and their descendants, while the group has a limit on the GPU; absent until there is one.",
    ),
];
