// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Formats the legends above the pictures.

use crate::dominance::{ALONE, OURS};
use crate::report::Table;

/// Separator between the mechanisms of a legend.
pub(crate) const BREAK: &str = ", ";

/// Wraps the text at [`BREAK`] into lines of at most `letters` letters.
pub(crate) fn wrapped(text: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(BREAK) {
        match lines.last_mut() {
            Some(line) if line.len() + BREAK.len() + word.len() <= letters => {
                line.push_str(BREAK);
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// Assigns a letter to each mechanism with a throughput: capitals to ours.
pub(crate) fn letters(table: &Table) -> Vec<(String, char)> {
    let (mut ours, mut theirs) = ('A'..='Z', 'a'..='z');
    let names = table.rows.iter().map(|row| row.name.clone());
    names
        .filter(|name| name != ALONE)
        .filter_map(|name| {
            let letter = match name.starts_with(OURS) {
                true => ours.next(),
                false => theirs.next(),
            };
            Some((name, letter?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_legend_has_lines() {
        assert_eq!(
            wrapped("a MPS, A quota, B mask", 14),
            ["a MPS, A quota", "B mask"]
        );
        assert_eq!(wrapped("one", 2), ["one"]);
    }
}
