// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Parses and prints recorded submissions in the `.pbcap` format.
//!
//! A capture has one line for each GPFIFO entry, in the order of submission:
//!
//! ```text
//! gp ch=<n> class=<hex> tsg_engine=<n> token=<hex> gpu_va=<hex> words=<n> : <w0> <w1> ...
//! ```
//!
//! `token` is the work-submit token of the channel. `gpu_va` is the GPU virtual address of the
//! segment, and w0.. are its 32-bit words in hexadecimal.

use std::fmt;

/// Most words of a GPFIFO entry. Its length field has 21 bits.
const WORDS_MAX: usize = (1 << 21) - 1;

/// A submitted pushbuffer segment: one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The channel's number in the order of creation.
    pub channel: u32,
    /// The class of the channel.
    pub class: u16,
    /// The engine of its channel group.
    pub tsg_engine: u32,
    /// The token that rings its doorbell.
    pub token: u32,
    /// The address of the segment.
    pub gpu_va: u64,
    /// The words of the segment.
    pub words: Vec<u32>,
}

/// An invalid line of a capture.
#[derive(Debug, thiserror::Error)]
#[error("Line {line} of the capture {problem}.")]
pub struct BadCapture {
    /// The number of the line, from 1.
    pub line: usize,
    /// The problem.
    pub problem: Problem,
}

/// A problem of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The line does not start with `gp`.
    NotAnEntry,
    /// A field is missing or is not a number in its range.
    Field(&'static str),
    /// A word is not a hexadecimal number of 32 bits.
    Word(usize),
    /// The number of words is not what the line says.
    Count {
        /// The number that the line says.
        said: usize,
        /// The number of words.
        found: usize,
    },
    /// The line has more words than a GPFIFO entry can have.
    Long,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnEntry => f.write_str("does not start with \"gp\""),
            Self::Field(name) => write!(f, "has no proper field {name}="),
            Self::Word(at) => write!(f, "has a word {at} that is not 32-bit hexadecimal"),
            Self::Count { said, found } => write!(f, "says {said} words but has {found}"),
            Self::Long => f.write_str("has more words than a GPFIFO entry can have"),
        }
    }
}

/// Parses a capture. Empty lines are allowed.
///
/// # Errors
///
/// [`BadCapture`] for the first invalid line.
pub fn parse(text: &str) -> Result<Vec<Record>, BadCapture> {
    let lines = text.lines().enumerate();
    lines
        .filter(|(_, text)| !text.trim().is_empty())
        .map(|(at, text)| {
            record(text).map_err(|problem| BadCapture {
                line: at + 1,
                problem,
            })
        })
        .collect()
}

fn record(line: &str) -> Result<Record, Problem> {
    let (head, words) = line.split_once(" :").ok_or(Problem::Field("words"))?;
    let mut fields = head.split_ascii_whitespace();
    if fields.next() != Some("gp") {
        return Err(Problem::NotAnEntry);
    }
    let fields: Vec<&str> = fields.collect();
    let number = |name: &'static str, radix| {
        fields
            .iter()
            .filter_map(|field| field.split_once('='))
            .find(|(key, _)| *key == name)
            .and_then(|(_, value)| digits(value, radix))
            .ok_or(Problem::Field(name))
    };
    let small = |name, radix| {
        number(name, radix).and_then(|n| u32::try_from(n).map_err(|_| Problem::Field(name)))
    };
    let said = usize::try_from(number("words", 10)?).map_err(|_| Problem::Long)?;
    if said > WORDS_MAX {
        return Err(Problem::Long);
    }
    let words = words
        .split_ascii_whitespace()
        .enumerate()
        .map(|(at, word)| {
            let word = digits(word, 16).and_then(|word| u32::try_from(word).ok());
            word.ok_or(Problem::Word(at))
        })
        .collect::<Result<Vec<u32>, Problem>>()?;
    if words.len() != said {
        return Err(Problem::Count {
            said,
            found: words.len(),
        });
    }
    Ok(Record {
        channel: small("ch", 10)?,
        class: u16::try_from(small("class", 16)?).map_err(|_| Problem::Field("class"))?,
        tsg_engine: small("tsg_engine", 10)?,
        token: small("token", 16)?,
        gpu_va: number("gpu_va", 16)?,
        words,
    })
}

/// Parses a number without a sign.
fn digits(text: &str, radix: u32) -> Option<u64> {
    // `from_str_radix` accepts a sign.
    let value = u64::from_str_radix(text, radix).ok()?;
    (!text.starts_with('+')).then_some(value)
}

/// Prints a line of the format, without its newline.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "gp ch={} class={:x} tsg_engine={} token={:x} gpu_va={:x} words={} :",
            self.channel,
            self.class,
            self.tsg_engine,
            self.token,
            self.gpu_va,
            self.words.len()
        )?;
        self.words
            .iter()
            .try_for_each(|word| write!(f, " {word:08x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "gp ch=12 class=c86f tsg_engine=0 token=30016 gpu_va=20300005c words=2 : 20048100 00007f69";

    #[test]
    fn a_capture_prints_as_it_was_parsed() {
        let records = parse(&format!("{LINE}\n\n{LINE}\n")).unwrap();
        assert_eq!(records.len(), 2);
        assert_eq!(records[0].to_string(), LINE);
        assert_eq!(
            (records[1].class, records[1].gpu_va),
            (0xc86f, 0x2_0300_005c)
        );
    }

    #[test]
    fn a_problem_names_its_line() {
        let wrong = |from: &str, to: &str| {
            let bad = parse(&format!("{LINE}\n{}\n", LINE.replace(from, to))).unwrap_err();
            assert_eq!(bad.line, 2);
            bad.problem
        };
        assert_eq!(wrong("gp ", "gq "), Problem::NotAnEntry);
        assert_eq!(wrong("ch=12", "ch=x"), Problem::Field("ch"));
        assert_eq!(wrong("class=c86f", "class=1c86f"), Problem::Field("class"));
        assert_eq!(wrong("token=30016 ", ""), Problem::Field("token"));
        assert_eq!(
            wrong("words=2", "words=3"),
            Problem::Count { said: 3, found: 2 }
        );
        assert_eq!(wrong("00007f69", "100007f69"), Problem::Word(1));
        assert_eq!(wrong("words=2", "words=2097152"), Problem::Long);
        assert_eq!(wrong(" :", ""), Problem::Field("words"));
    }
}
