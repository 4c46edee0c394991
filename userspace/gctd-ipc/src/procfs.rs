// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads what /proc says of a process. A process names itself, in any bytes.

use std::fs;
use std::path::Path;

/// Most ancestors of a process that are searched for a member of a group. Shells do not nest
/// deeper.
pub const ANCESTORS_MAX: usize = 64;

/// Field of a parent's pid in a `stat` file, as in proc(5).
pub const PARENT: usize = 4;
/// Field of the start time, in clock ticks since boot.
pub const START: usize = 22;
/// The field before those that can be found: the name, in brackets, and with any byte in it.
const NAME: usize = 2;

/// Returns a field behind the name in a `stat` file. Fields count from 1.
#[must_use]
pub fn stat_field(stat: &[u8], field: usize) -> Option<&str> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_ascii_whitespace()
        .nth(field.checked_sub(NAME + 1)?)
}

/// Returns the name of the program of a process, given its directory; empty if it is gone or not
/// visible here. What could steer a terminal is replaced.
#[must_use]
pub fn program(process: &Path) -> String {
    let name = fs::read(process.join("comm")).unwrap_or_default();
    clean(&String::from_utf8_lossy(&name))
}

fn clean(name: &str) -> String {
    name.trim_end().replace(is_steering, "?")
}

/// Returns whether a character moves what others look like: controls, and those of Unicode that
/// have no width or turn the direction (category Cf, as far as text has them).
fn is_steering(c: char) -> bool {
    let is_format = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    c.is_control() || is_format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_field() {
        let stat = b"30 (a\xff) 7) S 4 30 30 0 -1 0 0 0 0 0 0 0 0 0 0 0 0 0 871 0";
        assert_eq!(stat_field(stat, PARENT), Some("4"));
        assert_eq!(stat_field(stat, START), Some("871"));
        assert_eq!(stat_field(stat, NAME), None);
        assert_eq!(stat_field(stat, 99), None);
        assert_eq!(stat_field(b"30 a S 4", PARENT), None);
    }

    #[test]
    fn a_process_cannot_steer_the_terminal_by_its_name() {
        assert_eq!(clean("a\x1b[2Jb\u{9b}c\n"), "a?[2Jb?c");
        assert_eq!(clean("\u{202e}niart\u{200b}\u{e9}"), "?niart?\u{e9}");
    }
}
