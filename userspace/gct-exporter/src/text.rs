// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints samples in Prometheus's own text format, for scrapers that do not know OpenMetrics.
//!
//! It knows neither units nor infos: an info is a gauge of 1. The names of the samples are those of
//! OpenMetrics.

use std::fmt::{self, Write};

use crate::metrics::{Family, Kind};
use crate::samples::{Labels, Number, Samples};

/// Returns the text of version 0.0.4.
pub(crate) fn render(samples: &Samples) -> Result<String, fmt::Error> {
    let mut page = String::new();
    for (family, samples) in samples.families() {
        family_text(&mut page, family, samples)?;
    }
    Ok(page)
}

fn family_text(page: &mut String, family: &Family, samples: &[(Labels, Number)]) -> fmt::Result {
    let name = family.sample_name();
    let kind = match family.metric.kind {
        Kind::Gauge | Kind::Info => "gauge",
        Kind::Counter => "counter",
    };
    let help = family.metric.help;
    writeln!(page, "# HELP {name} {}", escaped(help, false))?;
    writeln!(page, "# TYPE {name} {kind}")?;
    for (labels, number) in samples {
        page.push_str(&name);
        for (at, (label, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            write!(page, "{before}{label}=\"{}\"", escaped(value, true))?;
        }
        if !labels.is_empty() {
            page.push('}');
        }
        match number {
            _ if family.metric.kind == Kind::Info => writeln!(page, " 1")?,
            Number::Whole(number) => writeln!(page, " {number}")?,
            Number::Real(number) => writeln!(page, " {number}")?,
        }
    }
    Ok(())
}

/// Returns a text with its control characters as the format wants them.
fn escaped(text: &str, in_quotes: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    match in_quotes {
        true => text.replace('"', "\\\""),
        false => text,
    }
}
