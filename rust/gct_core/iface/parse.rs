// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Parses text into values.
//!
//! Each function takes the bytes of one whole write, as `echo`, `echo -n` and `printf` send them.
//! Blanks and newlines around the value are allowed; anything else beside the value is an error. A
//! function returns a complete value in its range, or an error.

use super::value::{Bandwidth, CgroupPath, CpuList, Format, Name, Value};
use crate::error::Error;
use crate::limits;
use crate::mask::TpcMask;
use crate::text::number;
use crate::units::{Bytes, Percent, Priority, Tpcs, Us, Weight};

/// A command written to `control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Makes a group.
    Create(Name),
    /// Removes a group.
    Remove(Name),
}

/// A process that joins a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidArg {
    /// The writer.
    Own,
    /// The process with this pid.
    Pid(u32),
}

/// The parsed line of `version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Major, minor and patch number.
    pub release: [u32; 3],
    /// Version of the tree's form.
    pub abi: u32,
}

/// Parses the value of a file of the given form.
///
/// # Errors
///
/// [`Error::Syntax`] if the text does not have the form, [`Error::Range`] if the value is out of
/// range, [`Error::Access`] if files of this form hold no single value.
pub fn value(format: Format, text: &[u8]) -> Result<Value, Error> {
    let text = strip(text)?;
    Ok(match format {
        Format::Bytes => Value::Bytes(bytes(text)?),
        Format::BytesOrMax => Value::BytesOrMax(or_word(text, b"max", bytes)?),
        Format::Timeslice => Value::Timeslice(or_word(text, b"default", timeslice)?),
        Format::Priority => Value::Priority(Priority(small(text, 0, limits::PRIORITY_MAX)?)),
        Format::Weight => {
            let weight = in_range(number(text)?, limits::WEIGHT_MIN, limits::WEIGHT_MAX)?;
            Value::Weight(Weight(u16::try_from(weight).map_err(|_| Error::Range)?))
        }
        Format::Bandwidth => Value::Bandwidth(or_word(text, b"max", bandwidth)?),
        Format::Switch => Value::Switch(switch(text)?),
        Format::SwitchOrDefault => Value::SwitchOrDefault(or_word(text, b"default", switch)?),
        Format::TpcsOrNone => Value::TpcsOrNone(or_word(text, b"none", tpcs)?),
        Format::TpcList => Value::TpcList(or_word(text, b"all", TpcMask::parse)?),
        Format::UsOrOff => Value::UsOrOff(or_word(text, b"off", atom)?),
        Format::UsOrMax => Value::UsOrMax(or_word(text, b"max", goal)?),
        Format::Percent => Value::Percent(Percent(small(text, 0, limits::SLIP_PERCENT_MAX)?)),
        Format::Line
        | Format::Words
        | Format::Stat
        | Format::Pids
        | Format::Command
        | Format::CpuList
        | Format::Cgroup => return Err(Error::Access),
    })
}

/// Parses `create NAME` or `remove NAME`.
///
/// # Errors
///
/// [`Error::Syntax`].
pub fn command(text: &[u8]) -> Result<Command, Error> {
    let (verb, rest) = two_words(strip(text)?)?;
    match verb {
        b"create" => Ok(Command::Create(name(rest)?)),
        b"remove" => Ok(Command::Remove(name(rest)?)),
        _ => Err(Error::Syntax),
    }
}

/// Names at the root of the tree, which no group may have.
pub const RESERVED: [&str; 4] = ["gpus", "control", "version", "events"];

/// Parses a group's name: a letter or underscore, then up to 63 letters, digits, `.`, `_` and `-`.
///
/// # Errors
///
/// [`Error::Syntax`], also for a reserved name.
pub fn name(text: &[u8]) -> Result<Name, Error> {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let inner = |byte: u8| letter(byte) || byte.is_ascii_digit() || byte == b'.' || byte == b'-';
    let text = core::str::from_utf8(text).map_err(|_| Error::Syntax)?;
    let formed = text.bytes().next().is_some_and(letter) && text.bytes().all(inner);
    if !formed || RESERVED.contains(&text) {
        return Err(Error::Syntax);
    }
    Name::new(text).ok_or(Error::Syntax)
}

/// Parses one pid; 0 is the writer.
///
/// # Errors
///
/// [`Error::Syntax`]; [`Error::NoProcess`] for a number that cannot be a pid.
pub fn pid(text: &[u8]) -> Result<PidArg, Error> {
    match number(strip(text)?) {
        Ok(0) => Ok(PidArg::Own),
        Ok(pid) => u32::try_from(pid)
            .ok()
            .filter(|pid| i32::try_from(*pid).is_ok())
            .map(PidArg::Pid)
            .ok_or(Error::NoProcess),
        Err(Error::Range) => Err(Error::NoProcess),
        Err(error) => Err(error),
    }
}

/// Parses the path of `group.cgroup`; `None` is `none`.
///
/// A path is absolute and of printable ASCII. It has no blanks, no empty, `.` or `..` components
/// and no slash at its end; `/` alone matches every process. It need not exist.
///
/// # Errors
///
/// [`Error::Syntax`] for the form, [`Error::Range`] if it is too long.
pub fn cgroup(text: &[u8]) -> Result<Option<CgroupPath>, Error> {
    or_word(strip(text)?, b"none", |text| {
        if !text.iter().all(u8::is_ascii_graphic) {
            return Err(Error::Syntax);
        }
        let below_root = text.strip_prefix(b"/").ok_or(Error::Syntax)?;
        let bad = |part: &[u8]| part.is_empty() || part == b"." || part == b"..";
        if !below_root.is_empty() && below_root.split(|byte| *byte == b'/').any(bad) {
            return Err(Error::Syntax);
        }
        if text.len() > limits::CGROUP_LEN_MAX {
            return Err(Error::Range);
        }
        Ok(CgroupPath::from_untrusted(text))
    })
}

/// Parses a list of processors, such as `0-3,8`; empty is `all`. Whether they exist is for the
/// caller to find out.
///
/// # Errors
///
/// [`Error::Syntax`] for the form, [`Error::Range`] if it is too long or has a number above
/// [`CPU_MAX`](limits::CPU_MAX).
pub fn cpus(text: &[u8]) -> Result<CpuList, Error> {
    let list = or_word(strip(text)?, b"all", |text| {
        for range in text.split(|byte| *byte == b',') {
            cpu_range(range)?;
        }
        if text.len() > limits::CPU_LIST_LEN_MAX {
            return Err(Error::Range);
        }
        Ok(CpuList::from_untrusted(text))
    })?;
    Ok(list.unwrap_or(CpuList::EMPTY))
}

/// Checks `N` or `N-M` in a list of processors.
fn cpu_range(text: &[u8]) -> Result<(), Error> {
    let cpu = |text| in_range(number(text)?, 0, limits::CPU_MAX);
    let mut ends = text.split(|byte| *byte == b'-');
    let first = cpu(ends.next().unwrap_or_default())?;
    let last = ends.next().map_or(Ok(first), cpu)?;
    match first <= last && ends.next().is_none() {
        true => Ok(()),
        false => Err(Error::Syntax),
    }
}

/// Parses the line of `version`.
///
/// # Errors
///
/// [`Error::Syntax`].
pub fn version(text: &[u8]) -> Result<Version, Error> {
    let (product, rest) = two_words(strip(text)?)?;
    let (release, rest) = two_words(rest)?;
    let (abi_word, abi) = two_words(rest)?;
    if product != b"gctgroup" || abi_word != b"abi" {
        return Err(Error::Syntax);
    }
    let part = |text: &[u8]| u32::try_from(number(text)?).map_err(|_| Error::Syntax);
    let mut parts = release.splitn(3, |byte| *byte == b'.');
    let mut next = || part(parts.next().ok_or(Error::Syntax)?);
    Ok(Version {
        release: [next()?, next()?, next()?],
        abi: part(abi)?,
    })
}

/// Parses one `KEY VALUE` line, with or without its newline. A key may have parts, as
/// `passed.old-form`.
///
/// # Errors
///
/// [`Error::Syntax`] for the form, [`Error::Range`] for a value beyond 64 bits.
pub fn stat_line(line: &[u8]) -> Result<(&str, u64), Error> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let (key, value) = two_words(line)?;
    let formed = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-');
    if !key.iter().all(formed) {
        return Err(Error::Syntax);
    }
    let key = core::str::from_utf8(key).map_err(|_| Error::Syntax)?;
    Ok((key, number(value)?))
}

fn blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n')
}

/// Removes the blanks and newlines around a value.
fn strip(mut text: &[u8]) -> Result<&[u8], Error> {
    if text.len() > limits::WRITE_LEN_MAX {
        return Err(Error::Syntax);
    }
    while let [first, rest @ ..] = text {
        if !blank(first) {
            break;
        }
        text = rest;
    }
    while let [rest @ .., last] = text {
        if !blank(last) {
            return Ok(text);
        }
        text = rest;
    }
    Err(Error::Syntax)
}

/// Splits at the first run of spaces and tabs.
fn two_words(text: &[u8]) -> Result<(&[u8], &[u8]), Error> {
    let gap = |byte: &u8| matches!(byte, b' ' | b'\t');
    let at = text.iter().position(gap).ok_or(Error::Syntax)?;
    let (first, rest) = text.split_at_checked(at).ok_or(Error::Syntax)?;
    let next = rest.iter().position(|byte| !gap(byte));
    let rest = next
        .and_then(|next| rest.get(next..))
        .ok_or(Error::Syntax)?;
    if first.is_empty() {
        return Err(Error::Syntax);
    }
    Ok((first, rest))
}

/// Parses `word` as `None`, and anything else with `read`.
fn or_word<T>(
    text: &[u8],
    word: &[u8],
    read: impl FnOnce(&[u8]) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    if text == word {
        Ok(None)
    } else {
        read(text).map(Some)
    }
}

fn in_range(number: u64, min: u64, max: u64) -> Result<u64, Error> {
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(Error::Range)
    }
}

fn switch(text: &[u8]) -> Result<bool, Error> {
    Ok(small(text, 0, 1)? == 1)
}

fn small(text: &[u8], min: u64, max: u64) -> Result<u8, Error> {
    u8::try_from(in_range(number(text)?, min, max)?).map_err(|_| Error::Range)
}

/// Parses a number with an optional suffix, which multiplies it.
fn scaled(text: &[u8], suffixes: &[(&[u8], u64)]) -> Result<u64, Error> {
    for (suffix, factor) in suffixes {
        if let Some(digits) = text.strip_suffix(*suffix) {
            return number(digits)?.checked_mul(*factor).ok_or(Error::Range);
        }
    }
    number(text)
}

fn bytes(text: &[u8]) -> Result<Bytes, Error> {
    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;
    const G: u64 = 1 << 30;
    let suffixes: [(&[u8], u64); 6] = [
        (b"K", K),
        (b"k", K),
        (b"M", M),
        (b"m", M),
        (b"G", G),
        (b"g", G),
    ];
    scaled(text, &suffixes).map(Bytes)
}

fn duration(text: &[u8], min: u64, max: u64) -> Result<Us, Error> {
    let suffixes: [(&[u8], u64); 3] = [(b"us", 1), (b"ms", 1_000), (b"s", 1_000_000)];
    in_range(scaled(text, &suffixes)?, min, max).map(Us)
}

/// Refuses a bare number under 20: the writer may mean milliseconds, as GVM's Table 2 does.
fn timeslice(text: &[u8]) -> Result<Us, Error> {
    duration(text, limits::TIMESLICE_US_MIN, limits::TIMESLICE_US_MAX)
}

fn atom(text: &[u8]) -> Result<Us, Error> {
    duration(text, limits::ATOM_US_MIN, limits::ATOM_US_MAX)
}

fn goal(text: &[u8]) -> Result<Us, Error> {
    duration(text, limits::GOAL_US_MIN, limits::GOAL_US_MAX)
}

fn tpcs(text: &[u8]) -> Result<Tpcs, Error> {
    u16::try_from(number(text)?)
        .ok()
        .filter(|tpcs| usize::from(*tpcs) <= limits::TPCS_MAX)
        .map(Tpcs)
        .ok_or(Error::Range)
}

fn bandwidth(text: &[u8]) -> Result<Bandwidth, Error> {
    let (quota, period) = two_words(text)?;
    let quota = duration(quota, 0, u64::MAX)?;
    let period = duration(period, limits::PERIOD_US_MIN, limits::PERIOD_US_MAX)?;
    in_range(quota.get(), limits::QUOTA_US_MIN, period.get())?;
    Ok(Bandwidth { quota, period })
}

#[cfg(test)]
mod tests;
