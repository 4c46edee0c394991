// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints values as text. Every line ends with a newline. The text of a writable file can be
//! written back to it.

use super::value::{Bandwidth, CgroupPath, CpuList, Value};
use super::{ABI, VERSION};
use crate::units::Us;
use core::fmt::{self, Write};

/// Writes a value as its file shows it.
pub fn value(value: &Value, out: &mut dyn Write) -> fmt::Result {
    match value {
        Value::Bytes(bytes) => writeln!(out, "{}", bytes.get()),
        Value::BytesOrMax(limit) => number_or(out, limit.map(|bytes| bytes.get()), "max"),
        Value::Timeslice(slice) => number_or(out, slice.map(Us::get), "default"),
        Value::Priority(priority) => writeln!(out, "{}", priority.get()),
        Value::Weight(weight) => writeln!(out, "{}", weight.get()),
        Value::Bandwidth(None) => out.write_str("max\n"),
        Value::Bandwidth(Some(Bandwidth { quota, period })) => {
            writeln!(out, "{} {}", quota.get(), period.get())
        }
        Value::Switch(on) => writeln!(out, "{}", u8::from(*on)),
        Value::SwitchOrDefault(on) => number_or(out, on.map(u64::from), "default"),
        Value::TpcsOrNone(tpcs) => number_or(out, tpcs.map(|tpcs| u64::from(tpcs.get())), "none"),
        Value::TpcList(None) => out.write_str("all\n"),
        Value::TpcList(Some(mask)) => {
            mask.show(out)?;
            out.write_str("\n")
        }
        Value::UsOrOff(us) => number_or(out, us.map(Us::get), "off"),
        Value::UsOrMax(us) => number_or(out, us.map(Us::get), "max"),
        Value::Percent(percent) => writeln!(out, "{}", percent.get()),
    }
}

fn number_or(out: &mut dyn Write, number: Option<u64>, word: &str) -> fmt::Result {
    match number {
        Some(number) => writeln!(out, "{number}"),
        None => writeln!(out, "{word}"),
    }
}

/// Writes the line of `version`.
pub fn version(out: &mut dyn Write) -> fmt::Result {
    let [major, minor, patch] = VERSION;
    writeln!(out, "gctgroup {major}.{minor}.{patch} abi {ABI}")
}

/// Writes the line of `group.cgroup`.
pub fn cgroup(path: Option<&CgroupPath>, out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "{}", path.map_or("none", CgroupPath::as_str))
}

/// Writes the line of `worker.cpus`.
pub fn cpus(list: &CpuList, out: &mut dyn Write) -> fmt::Result {
    writeln!(
        out,
        "{}",
        if list.is_empty() {
            "all"
        } else {
            list.as_str()
        }
    )
}

/// Writes one `KEY VALUE` line.
pub fn stat_line(key: &str, value: u64, out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "{key} {value}")
}
