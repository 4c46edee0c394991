// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Parses OpenMetrics text, and refuses what the specification does not allow.

use std::collections::{BTreeMap, BTreeSet};

/// A page: the value of each series, by the name of the sample with its labels in sorted order.
#[derive(Debug)]
pub(crate) struct Page(BTreeMap<String, f64>);

/// What the lines `# HELP`, `# TYPE` and `# UNIT` say of a family.
#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: String,
    keywords: BTreeSet<String>,
    samples: bool,
}

impl Page {
    /// Parses a page.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let body = text.strip_suffix("# EOF\n").ok_or("no # EOF at the end")?;
        let mut families = BTreeSet::new();
        let mut family = Family::default();
        let mut page = BTreeMap::new();
        for line in body.lines() {
            let wrong = |why: &str| format!("{why}: {line}");
            if let Some(metadata) = line.strip_prefix("# ") {
                let (keyword, rest) = metadata.split_once(' ').ok_or(wrong("no name"))?;
                let (name, value) = rest.split_once(' ').ok_or(wrong("no value"))?;
                if name != family.name {
                    if !is_name(name) || !families.insert(name.to_owned()) {
                        return Err(wrong("the family's name is invalid or not in one place"));
                    }
                    family = Family {
                        name: name.to_owned(),
                        ..Family::default()
                    };
                }
                if family.samples || !family.keywords.insert(keyword.to_owned()) {
                    return Err(wrong("after samples, or twice"));
                }
                match keyword {
                    "HELP" if !value.is_empty() => {}
                    "TYPE" if ["gauge", "counter", "info"].contains(&value) => {
                        family.kind = value.to_owned();
                    }
                    "UNIT" if name.ends_with(&format!("_{value}")) => {}
                    _ => return Err(wrong("invalid metadata")),
                }
                continue;
            }
            let (series, value) = sample(line).map_err(|why| wrong(&why))?;
            let name = series.split('{').next().unwrap_or_default();
            let suffix = match family.kind.as_str() {
                "counter" => "_total",
                "info" => "_info",
                "gauge" => "",
                _ => return Err(wrong("no TYPE before")),
            };
            if name != format!("{}{suffix}", family.name) || !family.keywords.contains("HELP") {
                return Err(wrong("not of the family before it, or that has no HELP"));
            }
            let fits = match family.kind.as_str() {
                "counter" => value >= 0.0,
                "info" => value == 1.0,
                _ => value.is_finite(),
            };
            if !fits || page.insert(series, value).is_some() {
                return Err(wrong("an impossible value, or a series that occurs twice"));
            }
            family.samples = true;
        }
        Ok(Self(page))
    }

    /// Returns the value of a series, such as `name{a="1",b="2"}`.
    pub(crate) fn get(&self, series: &str) -> Option<f64> {
        self.0.get(series).copied()
    }

    /// Returns the series of a metric.
    pub(crate) fn series(&self, name: &str) -> Vec<&str> {
        let is_it = |series: &&String| series.split('{').next() == Some(name);
        self.0.keys().filter(is_it).map(String::as_str).collect()
    }
}

fn is_name(name: &str) -> bool {
    let formed = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    !name.is_empty() && name.bytes().all(formed) && !name.as_bytes()[0].is_ascii_digit()
}

/// Returns the series, with its labels in sorted order and unescaped, and the value.
fn sample(line: &str) -> Result<(String, f64), String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    if !is_name(name) {
        return Err("invalid name".to_owned());
    }
    let mut labels = BTreeMap::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        while !inside.starts_with('}') {
            let (label, value) = inside.split_once("=\"").ok_or("invalid label")?;
            let (value, after) = quoted(value).ok_or("invalid label value")?;
            if !is_name(label) || labels.insert(label, value).is_some() {
                return Err("invalid or repeated label".to_owned());
            }
            inside = match after.strip_prefix(',') {
                Some(next) if !next.starts_with('}') => next,
                None if after.starts_with('}') => after,
                _ => return Err("labels without a comma".to_owned()),
            };
        }
        rest = &inside[1..];
    }
    let value = rest.strip_prefix(' ').ok_or("no blank before the value")?;
    let value = value.parse().map_err(|_| "invalid value")?;
    let labels: Vec<String> = labels
        .iter()
        .map(|(label, value)| format!("{label}={value:?}"))
        .collect();
    let labels = match labels.is_empty() {
        true => String::new(),
        false => format!("{{{}}}", labels.join(",")),
    };
    Ok((format!("{name}{labels}"), value))
}

/// Returns the text before the closing quote, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut rest = text.char_indices();
    loop {
        match rest.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match rest.next()?.1 {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                _ => return None,
            }),
            (_, plain) => value.push(plain),
        }
    }
}

#[test]
fn the_parser_refuses_what_is_not_openmetrics() {
    const GOOD: &str = "# HELP a_x Text.\n# TYPE a_x counter\na_x_total{b=\"c\\\"\"} 1\n# EOF\n";
    assert_eq!(
        Page::parse(GOOD).unwrap().get("a_x_total{b=\"c\\\"\"}"),
        Some(1.0)
    );
    for (from, to) in [
        ("# EOF\n", ""),
        ("# EOF\n", "# EOF\n\n"),
        ("a_x_total", "a_x"),
        ("# TYPE a_x counter\n", ""),
        ("# HELP a_x Text.\n", ""),
        ("# HELP a_x Text.\n", "# HELP a_x Text.\n# HELP a_x Text.\n"),
        (
            "# HELP a_x Text.\n",
            "# HELP a_x Text.\n# UNIT a_x seconds\n",
        ),
        ("{b=", "{b=\"c\",b="),
        ("{b=", "{0b="),
        ("\\\"", "\\x"),
        ("\\\"\"}", "\\\"}"),
        (" 1", " -1"),
        (" 1", ""),
        ("# EOF\n", "a_x_total{b=\"c\\\"\"} 1\n# EOF\n"),
        ("# EOF\n", "# HELP a_y Text.\n# HELP a_x Text.\n# EOF\n"),
    ] {
        let bad = GOOD.replacen(from, to, 1);
        assert_ne!(bad, GOOD);
        assert!(Page::parse(&bad).is_err(), "{bad}");
    }
}
