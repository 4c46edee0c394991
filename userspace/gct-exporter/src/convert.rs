// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Converts contents of files to samples in base units.

use std::collections::BTreeSet;
use std::time::Duration;

use gct_client::Content;
use gct_core::iface::value::Bandwidth;
use gct_core::iface::Value;
use gct_core::mask::TpcMask;

use crate::metrics::From;
use crate::samples::Number;

/// A number with the value of its own label, if it has one.
pub(crate) type Labelled = (Option<(&'static str, String)>, Number);

/// Returns the samples of a file, or `None` if it is not of the form that the metric expects.
pub(crate) fn samples(
    content: &Content,
    from: From,
    unit: &str,
    tpcs: Option<u64>,
) -> Option<Vec<Labelled>> {
    let plain = |number: Option<Number>| number.map(|number| (None, number)).into_iter().collect();
    match (from, content) {
        (From::Value, _) => value(content).map(plain),
        (From::Is(word), Content::Line(line)) => {
            Some(plain(Some(Number::Whole((line == word).into()))))
        }
        (From::Tpcs, _) => count(content, tpcs).map(|n| plain(n.map(Number::Whole))),
        (From::Key(key), Content::Stat(lines)) => Some(plain(find(lines, key, unit))),
        (From::Keys(label, keys), Content::Stat(lines)) => {
            let of = |key: &&'static str| {
                let number = find(lines, key, unit)?;
                Some((Some((label, (*key).to_owned())), number))
            };
            Some(keys.iter().filter_map(of).collect())
        }
        (From::Prefix(prefix, label), Content::Stat(lines)) => {
            // A second line of the same key would be a second sample of the same series.
            let rest = |(key, _): &(String, u64)| key.strip_prefix(prefix).map(str::to_owned);
            let keys: BTreeSet<String> = lines.iter().filter_map(rest).collect();
            let of = |key: String| {
                let number = find(lines, &format!("{prefix}{key}"), unit)?;
                Some((Some((label, key)), number))
            };
            Some(keys.into_iter().filter_map(of).collect())
        }
        (From::Words(label), Content::Words(words)) => {
            let words: BTreeSet<&String> = words.iter().collect();
            let of = |word: &String| (Some((label, word.clone())), Number::Whole(1));
            Some(words.into_iter().map(of).collect())
        }
        _ => None,
    }
}

/// Returns the value of a key, in microseconds where the unit is seconds.
fn find(lines: &[(String, u64)], key: &str, unit: &str) -> Option<Number> {
    let (_, number) = lines.iter().find(|(name, _)| name == key)?;
    Some(match unit {
        "seconds" => seconds(*number),
        _ => Number::Whole(*number),
    })
}

/// Returns the number of a file of one value; the inner `None` for `max` and the like.
fn value(content: &Content) -> Option<Option<Number>> {
    let whole = |number: u64| Some(Number::Whole(number));
    let value = match content {
        Content::Line(line) => return line.parse().ok().map(whole),
        Content::Pids(pids) => return Some(whole(u64::try_from(pids.len()).ok()?)),
        Content::Value(value) => value,
        _ => return None,
    };
    Some(match value {
        Value::Bytes(bytes) => whole(bytes.get()),
        Value::BytesOrMax(bytes) => bytes.map(|bytes| Number::Whole(bytes.get())),
        Value::Timeslice(us) | Value::UsOrOff(us) | Value::UsOrMax(us) => {
            us.map(|us| seconds(us.get()))
        }
        Value::Priority(priority) => whole(priority.get().into()),
        Value::Weight(weight) => whole(weight.get().into()),
        Value::Bandwidth(max) => max.map(duty_cycle),
        Value::Switch(on) => whole((*on).into()),
        Value::SwitchOrDefault(on) => on.map(|on| Number::Whole(on.into())),
        Value::TpcsOrNone(tpcs) => tpcs.map(|tpcs| Number::Whole(tpcs.get().into())),
        Value::Percent(percent) => Some(ratio(percent.get().into(), 100)),
        Value::TpcList(_) => return None,
    })
}

/// Returns how many TPCs a list names: none for `none`, those of the GPU for `all`.
fn count(content: &Content, all: Option<u64>) -> Option<Option<u64>> {
    let mask = |mask: &TpcMask| Some(u64::from(mask.count()));
    match content {
        Content::Value(Value::TpcList(list)) => Some(list.as_ref().map_or(all, mask)),
        Content::Line(line) if line == "none" => Some(Some(0)),
        Content::Line(line) if line == "all" => Some(all),
        Content::Line(line) => TpcMask::parse(line.as_bytes()).ok().map(|list| mask(&list)),
        _ => None,
    }
}

fn seconds(us: u64) -> Number {
    Number::Real(Duration::from_micros(us).as_secs_f64())
}

fn duty_cycle(max: Bandwidth) -> Number {
    ratio(max.quota.get(), max.period.get())
}

fn ratio(part: u64, whole: u64) -> Number {
    let [part, whole] = [part, whole].map(Duration::from_micros);
    Number::Real(part.div_duration_f64(whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_core::iface::value::Format;

    fn of(format: Format, text: &str, from: From, unit: &str) -> Option<Vec<Labelled>> {
        let content = Content::parse(format, text.as_bytes()).unwrap();
        samples(&content, from, unit, Some(66))
    }

    #[track_caller]
    fn is(format: Format, text: &str, from: From, number: Option<Number>) {
        let wanted: Vec<Labelled> = number.map(|number| (None, number)).into_iter().collect();
        assert_eq!(of(format, text, from, ""), Some(wanted), "{text}");
    }

    #[test]
    fn values_have_base_units_and_what_is_no_limit_has_no_sample() {
        use Number::{Real, Whole};
        is(Format::Bytes, "4096", From::Value, Some(Whole(4096)));
        is(Format::BytesOrMax, "1G", From::Value, Some(Whole(1 << 30)));
        is(Format::BytesOrMax, "max", From::Value, None);
        is(Format::Timeslice, "2ms", From::Value, Some(Real(0.002)));
        is(Format::Timeslice, "default", From::Value, None);
        is(Format::UsOrOff, "50", From::Value, Some(Real(0.00005)));
        is(Format::UsOrOff, "off", From::Value, None);
        is(
            Format::Bandwidth,
            "20000 100000",
            From::Value,
            Some(Real(0.2)),
        );
        is(Format::Bandwidth, "max", From::Value, None);
        is(Format::Percent, "5", From::Value, Some(Real(0.05)));
        is(Format::Switch, "1", From::Value, Some(Whole(1)));
        is(Format::SwitchOrDefault, "0", From::Value, Some(Whole(0)));
        is(Format::SwitchOrDefault, "default", From::Value, None);
        is(Format::TpcsOrNone, "0", From::Value, Some(Whole(0)));
        is(Format::TpcsOrNone, "none", From::Value, None);
        is(Format::Pids, "7\n8\n", From::Value, Some(Whole(2)));
        is(Format::Line, "66", From::Value, Some(Whole(66)));
        is(Format::TpcList, "0-3,9", From::Tpcs, Some(Whole(5)));
        is(Format::TpcList, "all", From::Tpcs, Some(Whole(66)));
        is(Format::Line, "none", From::Tpcs, Some(Whole(0)));
        is(Format::Line, "2-3", From::Tpcs, Some(Whole(2)));
        is(
            Format::Stat,
            "slice 50\n",
            From::Key("slice"),
            Some(Whole(50)),
        );
        is(Format::Stat, "slice 50\n", From::Key("round"), None);
    }

    #[test]
    fn each_series_occurs_once() {
        let label = |text: &str| Some(("reason", text.to_owned()));
        let text = "passed 9\npassed.b 2\npassed.a 1\npassed.b 3\n";
        let found = of(Format::Stat, text, From::Prefix("passed.", "reason"), "");
        let wanted = [
            (label("a"), Number::Whole(1)),
            (label("b"), Number::Whole(2)),
        ];
        assert_eq!(found, Some(wanted.to_vec()));
        let words = of(Format::Words, "x\nx\n", From::Words("reason"), "");
        assert_eq!(words, Some(vec![(label("x"), Number::Whole(1))]));
        let both = of(
            Format::Stat,
            "x 2000\nz 1\n",
            From::Keys("reason", &["x", "y"]),
            "seconds",
        );
        assert_eq!(both, Some(vec![(label("x"), Number::Real(0.002))]));
    }

    #[test]
    fn other_forms_are_reported() {
        assert_eq!(of(Format::Line, "many", From::Value, ""), None);
        assert_eq!(of(Format::Line, "4-2", From::Tpcs, ""), None);
        assert_eq!(of(Format::Words, "x", From::Key("x"), ""), None);
        assert_eq!(of(Format::Stat, "x 1", From::Words("x"), ""), None);
    }
}
