// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The metrics of launches. The core's table of counters names them.

use std::sync::LazyLock;

use gct_core::launches::{Count, COUNTS};

use super::{of, From, Kind, Metric, Scope};

/// A static, as [`METRICS`](super::METRICS) is.
pub(crate) static LAUNCHES: LazyLock<Vec<Metric>> = LazyLock::new(|| {
    let metric = |count: &Count| {
        let unit = if count.key.ends_with("_usec") {
            "seconds"
        } else {
            ""
        };
        let (name, from) = ((count.metric, unit), From::Key(count.key));
        of(
            Scope::Pool,
            name,
            Kind::Counter,
            count.file,
            from,
            count.doc,
        )
    };
    COUNTS.iter().map(metric).collect()
});
