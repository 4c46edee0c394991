// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists the metrics: name, type, unit, and the file each comes from.
//!
//! The page `gctgroup-docs/exporter.md`, the dashboard and the alert rules are checked against it.

use gct_core::iface::File;

/// What the samples of a metric describe. It determines the prefix of the name, and labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The tree, or the exporter.
    Tree,
    /// A GPU.
    Gpu,
    /// A group.
    Group,
    /// A group on a GPU, and with other names a process on a GPU.
    Pool,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gauge,
    Counter,
    Info,
}

impl Kind {
    /// Returns the word of OpenMetrics.
    #[cfg(test)]
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Info => "info",
        }
    }

    /// Returns what OpenMetrics appends to the name of a sample.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Gauge => "",
            Self::Counter => "_total",
            Self::Info => "_info",
        }
    }
}

/// How the content of a file becomes samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// The file's value. No sample for `max`, `default`, `off` and `none`.
    Value,
    /// 1 if the file says this word, else 0.
    Is(&'static str),
    /// The number of TPCs in a list; `all` is those of the GPU.
    Tpcs,
    /// The value of a key, in the metric's unit.
    Key(&'static str),
    /// The values of these keys, which a label names.
    Keys(&'static str, &'static [&'static str]),
    /// The values of the keys that begin with a prefix. A label names the rest of the key.
    Prefix(&'static str, &'static str),
    /// 1 for each word, which a label names.
    Words(&'static str),
}

/// Metrics that the exporter makes from several files, or of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    Up,
    Tree,
    Gpu,
    Group,
    LeftOut,
    ReadErrors,
    ReadTime,
    Evicted,
    Kubelet,
    Others,
    Escapes,
    Build,
}

/// Where the samples of a metric come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file of the tree.
    File(File, From),
    /// The exporter.
    Own(Own, &'static [&'static str]),
}

/// A metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) scope: Scope,
    /// The name without the scope's prefix, the unit and the suffix of its type.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// A base unit of OpenMetrics, or empty.
    pub(crate) unit: &'static str,
    pub(crate) source: Source,
    pub(crate) help: &'static str,
}

/// The owner of a pool, which is a part of the name: sums over both would count twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerKind {
    Group,
    Process,
}

impl OwnerKind {
    /// Returns the label that names an owner of this kind.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Process => "pid",
        }
    }
}

/// A metric under one of its names.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub(crate) metric: &'static Metric,
    /// The owner, for a metric of a pool.
    pub(crate) owner: Option<OwnerKind>,
}

impl Family {
    /// Returns the name without unit and suffix.
    pub(crate) fn base(&self) -> String {
        let prefix = match (self.metric.scope, self.owner) {
            (Scope::Tree, _) => "",
            (Scope::Gpu, _) => "gpu_",
            (Scope::Pool, Some(OwnerKind::Process)) => "process_",
            (Scope::Group | Scope::Pool, _) => "group_",
        };
        // The identity of a GPU or a group has no name but its scope's.
        let name = format!("gctgroup_{prefix}{}", self.metric.name);
        name.trim_end_matches('_').to_owned()
    }

    /// Returns the name of the samples.
    pub(crate) fn sample_name(&self) -> String {
        let unit = match self.metric.unit {
            "" => String::new(),
            unit => format!("_{unit}"),
        };
        format!("{}{unit}{}", self.base(), self.metric.kind.suffix())
    }

    /// Returns the names of the labels.
    #[cfg(test)]
    pub(crate) fn labels(&self) -> Vec<&'static str> {
        let mut labels = match self.metric.scope {
            Scope::Tree => vec![],
            Scope::Gpu => vec!["gpu"],
            Scope::Group => vec!["group"],
            Scope::Pool => vec!["gpu", self.owner.map_or("group", OwnerKind::label)],
        };
        match self.metric.source {
            Source::Own(_, more) => labels.extend(more),
            Source::File(_, From::Keys(label, _) | From::Prefix(_, label) | From::Words(label)) => {
                labels.push(label);
            }
            Source::File(..) => {}
        }
        labels
    }
}

/// Returns every metric under each of its names, in the order of the table.
pub(crate) fn families() -> Vec<Family> {
    let owners = |metric: &Metric| match metric.scope {
        Scope::Pool => vec![Some(OwnerKind::Group), Some(OwnerKind::Process)],
        _ => vec![None],
    };
    let named = |metric| {
        owners(metric)
            .into_iter()
            .map(move |owner| Family { metric, owner })
    };
    all().flat_map(named).collect()
}

const fn own(
    scope: Scope,
    name: &'static str,
    kind: Kind,
    own: Own,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    let source = Source::Own(own, labels);
    Metric {
        scope,
        name,
        kind,
        unit: "",
        source,
        help,
    }
}

const fn of(
    scope: Scope,
    (name, unit): (&'static str, &'static str),
    kind: Kind,
    file: File,
    from: From,
    help: &'static str,
) -> Metric {
    Metric {
        scope,
        name,
        kind,
        unit,
        source: Source::File(file, from),
        help,
    }
}

const fn gauge(
    name: (&'static str, &'static str),
    file: File,
    from: From,
    help: &'static str,
) -> Metric {
    of(Scope::Pool, name, Kind::Gauge, file, from, help)
}

const fn counter(name: &'static str, file: File, from: From, help: &'static str) -> Metric {
    of(Scope::Pool, (name, ""), Kind::Counter, file, from, help)
}

/// Returns every metric.
pub(crate) fn all() -> impl Iterator<Item = &'static Metric> {
    let named = METRICS.iter().chain(clock::CLOCK).chain(rules::RULES);
    named.chain(launches::LAUNCHES.iter())
}

mod clock;
mod launches;
mod rules;
mod table;
use table::METRICS;

#[cfg(test)]
mod tests;
