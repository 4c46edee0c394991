// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts test results in KTAP (Documentation/dev-tools/ktap.rst).
//!
//! Only leaves count: a parent repeats the results of its subtests. Two kinds of parents count as a
//! failure: one that failed although none of its subtests did, and one that announced more subtests
//! than it reported.

/// Numbers of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Tests that passed.
    pub(crate) passed: u32,
    /// Tests that failed, were announced but did not run, or bailed out.
    pub(crate) failed: u32,
    /// Tests that cannot run here.
    pub(crate) skipped: u32,
}

/// The results at one indentation, since the parent's last result.
#[derive(Debug)]
struct Level {
    indent: usize,
    planned: Option<u32>,
    results: u32,
    failed: bool,
}

/// Parses lines and counts results.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    counts: Counts,
    levels: Vec<Level>,
}

/// Summary of the subtests of a result.
struct Subtests {
    failed: bool,
}

impl Parser {
    /// Parses one line of output. Lines that are not KTAP are ignored.
    pub(crate) fn line(&mut self, line: &str) {
        let text = line.trim_start_matches(' ');
        let indent = line.len() - text.len();
        if text.starts_with("KTAP version ") || text.starts_with("TAP version ") {
            self.close_from(indent);
            self.open(indent);
        } else if let Some(count) = text.strip_prefix("1..") {
            let count = count.split(' ').next().unwrap_or_default();
            if let Ok(planned) = count.parse() {
                self.open(indent).planned = Some(planned);
            }
        } else if let Some(result) = text.strip_prefix("ok ") {
            self.result(indent, true, result);
        } else if let Some(result) = text.strip_prefix("not ok ") {
            self.result(indent, false, result);
        } else if text.starts_with("Bail out!") {
            self.counts.failed += 1;
        }
    }

    /// Ends the input. Announced tests without a result have failed.
    pub(crate) fn finish(mut self) -> Counts {
        self.close_from(0);
        self.counts
    }

    fn result(&mut self, indent: usize, ok: bool, rest: &str) {
        // "ok 1 - name" and "ok 1 name" are results; anything else is a sentence.
        if !rest.starts_with(|c: char| c.is_ascii_digit()) {
            return;
        }
        let skipped = rest
            .split_once(" # ")
            .is_some_and(|(_, directive)| directive.to_ascii_uppercase().starts_with("SKIP"));
        let subtests = self.close_from(indent + 1);
        match subtests {
            Some(subtests) if ok || subtests.failed => {}
            _ if skipped => self.counts.skipped += 1,
            _ if ok => self.counts.passed += 1,
            _ => self.counts.failed += 1,
        }
        let level = self.open(indent);
        level.results += 1;
        level.failed |= !ok;
    }

    /// Returns the level at this indentation. Creates it if it is deeper than the innermost level.
    fn open(&mut self, indent: usize) -> &mut Level {
        if self.levels.last().is_none_or(|level| level.indent < indent) {
            self.levels.push(Level {
                indent,
                planned: None,
                results: 0,
                failed: false,
            });
        }
        let innermost = self.levels.len() - 1;
        &mut self.levels[innermost]
    }

    /// Closes all levels at this indentation or deeper.
    fn close_from(&mut self, indent: usize) -> Option<Subtests> {
        let mut subtests = None;
        while self
            .levels
            .last()
            .is_some_and(|level| level.indent >= indent)
        {
            let Some(level) = self.levels.pop() else {
                break;
            };
            let missing = level.planned.unwrap_or(0).saturating_sub(level.results);
            self.counts.failed += missing;
            let failed = level.failed || missing > 0;
            let before = subtests.is_some_and(|s: Subtests| s.failed);
            subtests = Some(Subtests {
                failed: failed || before,
            });
        }
        subtests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> Counts {
        let mut parser = Parser::default();
        text.lines().for_each(|line| parser.line(line));
        parser.finish()
    }

    fn counts(passed: u32, failed: u32, skipped: u32) -> Counts {
        Counts {
            passed,
            failed,
            skipped,
        }
    }

    #[test]
    fn flat_results_are_counted() {
        let text = "KTAP version 1\n1..4\nok 1 a\nnot ok 2 - b\nok 3 c # SKIP no GPU\nok 4 d\n";
        assert_eq!(count(text), counts(2, 1, 1));
    }

    #[test]
    fn parents_are_not_counted_again() {
        let text =
            "KTAP version 1\n1..2\n    KTAP version 1\n    1..2\n    ok 1 a\n    not ok 2 b\n\
                    not ok 1 suite\n    KTAP version 1\n    1..1\n    ok 1 c\nok 2 other\n";
        assert_eq!(count(text), counts(2, 1, 0));
    }

    #[test]
    fn parent_that_fails_alone_is_a_failure() {
        let text = "1..1\n    1..1\n    ok 1 a\nnot ok 1 suite\n";
        assert_eq!(count(text), counts(1, 1, 0));
    }

    #[test]
    fn results_that_never_came_are_failures() {
        assert_eq!(count("KTAP version 1\n1..3\nok 1 a\n"), counts(1, 2, 0));
        let nested = "1..1\n    1..2\n    ok 1 a\nnot ok 1 suite\n";
        assert_eq!(count(nested), counts(1, 1, 0));
    }

    #[test]
    fn programs_may_follow_each_other() {
        let text = "KTAP version 1\n1..1\nok 1 a\nKTAP version 1\n1..2\nok 1 b\n";
        assert_eq!(count(text), counts(2, 1, 0));
    }

    #[test]
    fn bailing_out_is_a_failure() {
        assert_eq!(count("1..0\nBail out! no device\n"), counts(0, 1, 0));
    }

    #[test]
    fn other_output_is_ignored() {
        assert_eq!(
            count("ok then\nnot ok, really\n# ok 1 comment\n"),
            counts(0, 0, 0)
        );
    }
}
