// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Collects samples and prints them as OpenMetrics text.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{text, DescriptorEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::metrics::{families, Family, Kind, Metric, Own, OwnerKind, Source};

/// The labels of a sample.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// The value of a sample. Counters and bytes keep all their digits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Whole(u64),
    Real(f64),
}

/// The samples of one read of the tree, by metric.
#[derive(Clone, Debug)]
pub(crate) struct Samples(Vec<(Family, Vec<(Labels, Number)>)>);

impl Samples {
    /// Creates an empty collection.
    pub(crate) fn new() -> Self {
        let with_samples = |family| (family, Vec::new());
        Self(families().into_iter().map(with_samples).collect())
    }

    /// Adds a sample of a metric, which belongs to a pool's owner or to nobody.
    pub(crate) fn push(
        &mut self,
        metric: &'static Metric,
        owner: Option<OwnerKind>,
        labels: Labels,
        number: Number,
    ) {
        let is_it = |family: &Family| std::ptr::eq(family.metric, metric) && family.owner == owner;
        let found = self.0.iter_mut().find(|(family, _)| is_it(family));
        if let Some((_, samples)) = found {
            samples.push((labels, number));
        }
    }

    /// Adds a sample of a metric that no single file has.
    pub(crate) fn push_own(&mut self, own: Own, labels: Labels, number: Number) {
        let is_it = |family: &Family| matches!(family.metric.source, Source::Own(o, _) if o == own);
        let found = self.0.iter_mut().find(|(family, _)| is_it(family));
        if let Some((_, samples)) = found {
            samples.push((labels, number));
        }
    }

    /// Removes every sample.
    pub(crate) fn clear(&mut self) {
        self.0.iter_mut().for_each(|(_, samples)| samples.clear());
    }

    /// Returns each metric that has samples, with them.
    pub(crate) fn families(&self) -> impl Iterator<Item = (&Family, &[(Labels, Number)])> {
        let with_samples = self.0.iter().filter(|(_, samples)| !samples.is_empty());
        with_samples.map(|(family, samples)| (family, samples.as_slice()))
    }

    /// Returns the text of OpenMetrics.
    pub(crate) fn render(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        text::encode(&mut page, &registry)?;
        Ok(page)
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (family, samples) in self.families() {
            family_text(&mut encoder, family, samples)?;
        }
        Ok(())
    }
}

fn family_text(
    encoder: &mut DescriptorEncoder<'_>,
    family: &Family,
    samples: &[(Labels, Number)],
) -> fmt::Result {
    let unit = match family.metric.unit {
        "" => None,
        unit => Some(Unit::Other(unit.to_owned())),
    };
    let kind = match family.metric.kind {
        Kind::Gauge => MetricType::Gauge,
        Kind::Counter => MetricType::Counter,
        Kind::Info => MetricType::Info,
    };
    let base = family.base();
    let help = family.metric.help;
    let mut metric = encoder.encode_descriptor(&base, help, unit.as_ref(), kind)?;
    for (labels, number) in samples {
        match (family.metric.kind, number) {
            (Kind::Info, _) => metric.encode_info(labels)?,
            (Kind::Counter, Number::Whole(number)) => metric
                .encode_family(labels)?
                .encode_counter::<Labels, _, u64>(number, None)?,
            (Kind::Counter, Number::Real(number)) => metric
                .encode_family(labels)?
                .encode_counter::<Labels, _, f64>(number, None)?,
            (Kind::Gauge, Number::Whole(number)) => {
                metric.encode_family(labels)?.encode_gauge(number)?;
            }
            (Kind::Gauge, Number::Real(number)) => {
                metric.encode_family(labels)?.encode_gauge(number)?;
            }
        }
    }
    Ok(())
}
