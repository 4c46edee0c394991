// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Parses and prints the content of a file.

use std::fmt;

use gct_core::error::Error as CoreError;
use gct_core::iface::parse::{self, PidArg};
use gct_core::iface::value::Format;
use gct_core::iface::{show, Value};

/// The typed content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// One value.
    Value(Value),
    /// Free text.
    Line(String),
    /// Words, one per line.
    Words(Vec<String>),
    /// `KEY VALUE` lines, in the file's order.
    Stat(Vec<(String, u64)>),
    /// Processes; 0 for a process outside this pid namespace.
    Pids(Vec<u32>),
    /// A cgroup path; `None` for `none`.
    Cgroup(Option<String>),
    /// A list of processors; `None` for `all`.
    CpuList(Option<String>),
}

impl Content {
    /// Parses the text of a file.
    ///
    /// # Errors
    ///
    /// [`CoreError::Access`] for a write-only file, and those of [`gct_core::iface::parse`].
    pub fn parse(format: Format, text: &[u8]) -> Result<Self, CoreError> {
        let utf8 = || std::str::from_utf8(text).map_err(|_| CoreError::Syntax);
        let lines = || utf8().map(|text| text.lines().map(str::to_owned));
        Ok(match format {
            Format::Line => Self::Line(utf8()?.trim_end_matches('\n').to_owned()),
            Format::Words => Self::Words(lines()?.collect()),
            Format::Stat => Self::Stat(
                utf8()?
                    .lines()
                    .map(|line| parse::stat_line(line.as_bytes()))
                    .map(|pair| pair.map(|(key, value)| (key.to_owned(), value)))
                    .collect::<Result<_, _>>()?,
            ),
            Format::Pids => Self::Pids(
                utf8()?
                    .lines()
                    .map(|line| match parse::pid(line.as_bytes())? {
                        PidArg::Own => Ok(0),
                        PidArg::Pid(pid) => Ok(pid),
                    })
                    .collect::<Result<_, CoreError>>()?,
            ),
            Format::Cgroup => {
                Self::Cgroup(parse::cgroup(text)?.map(|path| path.as_str().to_owned()))
            }
            Format::CpuList => {
                let list = parse::cpus(text)?;
                Self::CpuList((!list.is_empty()).then(|| list.as_str().to_owned()))
            }
            Format::Command => return Err(CoreError::Access),
            _ => Self::Value(parse::value(format, text)?),
        })
    }
}

/// Prints the text of the file without its last newline.
impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        match self {
            Self::Value(value) => show::value(value, &mut text)?,
            Self::Line(line) => text.push_str(line),
            Self::Words(words) => text = words.join("\n"),
            Self::Stat(lines) => {
                for (key, value) in lines {
                    show::stat_line(key, *value, &mut text)?;
                }
            }
            Self::Pids(pids) => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                text = pids.join("\n");
            }
            Self::Cgroup(path) => text.push_str(path.as_deref().unwrap_or("none")),
            Self::CpuList(list) => text.push_str(list.as_deref().unwrap_or("all")),
        }
        f.write_str(text.trim_end_matches('\n'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(format: Format, text: &str) -> Content {
        let content = Content::parse(format, text.as_bytes()).unwrap();
        assert_eq!(content.to_string(), text.trim_end_matches('\n'));
        content
    }

    #[test]
    fn every_format_prints_as_it_was_parsed() {
        same(Format::BytesOrMax, "max\n");
        same(Format::TpcList, "0-31,40\n");
        same(Format::Bandwidth, "20000 100000\n");
        same(Format::Cgroup, "/kubepods/x\n");
        same(Format::Cgroup, "none\n");
        same(Format::Line, "NVIDIA H200\n");
        assert_eq!(same(Format::Pids, "12\n0\n"), Content::Pids(vec![12, 0]));
        assert_eq!(same(Format::Pids, ""), Content::Pids(vec![]));
        let stat = same(Format::Stat, "usage_usec 5\nfrozen 0\n");
        assert!(matches!(&stat, Content::Stat(lines) if lines[0] == ("usage_usec".into(), 5)));
        let bytes = Content::parse(Format::Bytes, b"4K").unwrap();
        assert_eq!(bytes.to_string(), "4096");
    }

    #[test]
    fn invalid_texts_are_refused() {
        for (format, text) in [
            (Format::Stat, "usage_usec\n"),
            (Format::Pids, "12 13\n"),
            (Format::Weight, "10001"),
            (Format::Command, "create x"),
            (Format::Line, "\u{fffd}"),
        ] {
            let text = match format {
                Format::Line => &[0xff, 0xfe][..],
                _ => text.as_bytes(),
            };
            assert!(Content::parse(format, text).is_err(), "{format:?}");
        }
    }
}
