// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The metrics of what rules refuse.

use gct_core::iface::File;

use super::{counter, of, From, Kind, Metric, Scope};

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
];
