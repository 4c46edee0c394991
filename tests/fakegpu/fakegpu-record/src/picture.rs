// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Draws launches as text: TPCs from top to bottom, time from left to right.

use fakegpu_record::Event;
use std::fmt::Write;

/// Lines of the picture.
const LINES: usize = 6;
/// Columns of the picture.
const COLUMNS: u64 = 64;

/// A program in a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    letter: char,
    address: u64,
}

impl Program {
    /// Parses `A=5000`.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let bad = || anyhow::anyhow!("{text:?} is not LETTER=ADDRESS");
        let (letter, address) = text.split_once('=').ok_or_else(bad)?;
        let mut letters = letter.chars();
        let (Some(letter), None) = (letters.next(), letters.next()) else {
            return Err(bad());
        };
        let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
        Ok(Self { letter, address })
    }

    /// Returns whether a launch runs this program. Launches of one block are preparations.
    pub(crate) fn is(&self, launch: &Event) -> bool {
        launch.program == self.address && launch.grid != [1, 1, 1]
    }
}

/// The TPCs that exist.
#[derive(Clone, Debug)]
pub(crate) struct Tpcs(Vec<u32>);

impl Tpcs {
    /// Parses `0-31,40`.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for range in text.trim().split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            all.extend(first.parse::<u32>()?..=last.parse::<u32>()?);
        }
        Ok(Self(all))
    }
}

/// Returns whether a launch may use a TPC.
fn uses(launch: &Event, tpc: u32) -> bool {
    let words = launch.mask_words();
    let word = words.get(tpc as usize / 32).copied().unwrap_or(0);
    word >> (tpc % 32) & 1 == 0
}

/// Returns a launch as a line: its duration, its blocks, its TPCs.
pub(crate) fn line(launch: &Event, existing: &Tpcs) -> String {
    let us = launch.ns.saturating_sub(launch.began) / 1000;
    format!(
        "{us:>7} us  blocks {}  TPCs {}",
        launch.blocks.join(" "),
        tpcs(launch, existing)
    )
}

/// Returns the TPCs of a launch as ranges.
fn tpcs(launch: &Event, existing: &Tpcs) -> String {
    let mut ranges: Vec<[u32; 2]> = Vec::new();
    for tpc in existing.0.iter().copied().filter(|tpc| uses(launch, *tpc)) {
        match ranges.last_mut() {
            Some([_, last]) if *last + 1 == tpc => *last = tpc,
            _ => ranges.push([tpc, tpc]),
        }
    }
    let text = |[first, last]: &[u32; 2]| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Draws which program ran on which TPCs. A cell shows the one that had most of it.
pub(crate) fn draw(launches: &[Event], existing: &Tpcs, programs: &[Program]) -> String {
    let shown = |launch: &&Event| programs.iter().any(|program| program.is(launch));
    let all: Vec<&Event> = launches.iter().filter(shown).collect();
    let from = all.iter().map(|launch| launch.began).min().unwrap_or(0);
    let to = all.iter().map(|launch| launch.ns).max().unwrap_or(0);
    let step = ((to - from) / COLUMNS).max(1);
    let mut text = String::new();
    for tpcs in existing.0.chunks(existing.0.len().div_ceil(LINES).max(1)) {
        let (Some(first), Some(last)) = (tpcs.first(), tpcs.last()) else {
            continue;
        };
        let cell = |column: u64| {
            let start = from + column * step;
            let time = |program: &Program| -> u64 {
                let run = all.iter().filter(|launch| program.is(launch));
                let times = run.map(|launch| {
                    let both = launch
                        .ns
                        .min(start + step)
                        .saturating_sub(launch.began.max(start));
                    let used = tpcs.iter().filter(|tpc| uses(launch, **tpc)).count();
                    both * used as u64
                });
                times.sum()
            };
            let most = programs.iter().max_by_key(|program| time(program));
            most.filter(|program| time(program) > 0)
                .map_or('.', |program| program.letter)
        };
        let cells: String = (0..COLUMNS).map(cell).collect();
        // A `String` takes any text.
        let _ = writeln!(text, "TPCs {first:>2}-{last:<2} |{cells}|");
    }
    let _ = writeln!(text, "            0 {:>60} ms", (to - from) / 1_000_000);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(program: u64, began: u64, ns: u64, mask: &str) -> Event {
        Event {
            program,
            began,
            ns,
            mask: mask.into(),
            grid: [7, 1, 1],
            blocks: vec!["[0,7)x[0,1)x[0,1)".into()],
            ..Event::default()
        }
    }

    #[test]
    fn a_cell_shows_who_had_most_of_it() {
        // The first two TPCs are disabled for B, which runs in the second half.
        let all = [
            launch(0x50, 0, 640_000, "00000000"),
            launch(0x60, 640_000, 1_280_000, "03000000"),
        ];
        let programs = ["A=50", "B=0x60"].map(|text| Program::parse(text).unwrap());
        let existing = Tpcs::parse("0-3,5-12\n").unwrap();
        let picture = draw(&all, &existing, &programs);
        let lines: Vec<&str> = picture.lines().collect();
        let (half, none) = ("A".repeat(32), ".".repeat(32));
        assert_eq!(lines[0], format!("TPCs  0-1  |{half}{none}|"));
        assert_eq!(lines[1], format!("TPCs  2-3  |{half}{}|", "B".repeat(32)));
        assert_eq!((lines[2].get(..11), lines.len()), (Some("TPCs  5-6  "), 7));
        assert_eq!(draw(&[], &existing, &programs).lines().count(), 7);
    }

    #[test]
    fn a_line_has_duration_blocks_and_tpcs() {
        let existing = Tpcs::parse("0-20,22-31,64-65").unwrap();
        let shown = line(&launch(1, 1000, 9000, "fe0f0000ffffffff"), &existing);
        assert_eq!(
            shown,
            "      8 us  blocks [0,7)x[0,1)x[0,1)  TPCs 0,12-20,22-31,64-65"
        );
        assert!(Program::parse("AB=1").is_err() && Program::parse("A=x").is_err());
        assert!(Tpcs::parse("none").is_err());
    }
}
