// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whose greetings in another version are logged.
//!
//! A client states what it likes, as often as it likes. So what counts is what the kernel says of
//! it: its user and its cgroup ([`Account`]). In each [`EVERY`]
//!
//! ```text
//! one line     for a user in a cgroup
//! OF_CGROUP    lines for a cgroup, where its root can be any user
//! ALL          lines
//! one line     that says that there are more
//! ```

use crate::budget::Account;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The time for which somebody who was logged is not logged again.
const EVERY: Duration = Duration::from_secs(3600);

const OF_CGROUP: usize = 4;
const ALL: usize = 64;

/// What to log of a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Who it is.
    Name,
    /// That there are more than are named.
    More,
    /// Nothing.
    None,
}

/// Who was logged, and when.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    named: HashMap<(Option<u32>, Vec<u8>), Instant>,
    more: Option<Instant>,
}

impl Strangers {
    /// Returns what to log of a client's greeting now, and takes it as logged.
    pub(super) fn greets(&mut self, client: &Account, now: Instant) -> Line {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < EVERY;
        self.named.retain(|_, at| is_recent(at));
        let who = (client.uid, client.cgroup.clone());
        if self.named.contains_key(&who) {
            return Line::None;
        }
        let same = |(_, cgroup): &&(_, Vec<u8>)| !cgroup.is_empty() && *cgroup == client.cgroup;
        if self.named.len() < ALL && self.named.keys().filter(same).count() < OF_CGROUP {
            self.named.insert(who, now);
            return Line::Name;
        }
        if self.more.as_ref().is_some_and(is_recent) {
            return Line::None;
        }
        self.more = Some(now);
        Line::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(uid: u32, cgroup: &str) -> Account {
        Account {
            uid: Some(uid),
            cgroup: cgroup.into(),
            process: None,
        }
    }

    #[test]
    fn a_client_is_named_once_an_hour_and_hides_nobody() {
        let mut strangers = Strangers::default();
        let start = Instant::now();
        let mut greets = |uid, cgroup: &str, seconds| {
            let now = start + Duration::from_secs(seconds);
            strangers.greets(&account(uid, cgroup), now)
        };
        assert_eq!(greets(0, "/a", 0), Line::Name);
        for second in 0..3600 {
            assert_eq!(greets(0, "/a", second), Line::None);
        }
        assert_eq!(greets(0, "/a", 3600), Line::Name);
        // A container whose root is many users has a few lines, and others have theirs.
        let of_cgroup: Vec<Line> = (1..1000).map(|uid| greets(uid, "/a", 3600)).collect();
        let named = of_cgroup.iter().filter(|line| **line == Line::Name).count();
        let more = of_cgroup.iter().filter(|line| **line == Line::More).count();
        assert_eq!((named, more), (OF_CGROUP - 1, 1));
        assert_eq!(greets(0, "/b", 3600), Line::Name);
        assert_eq!(greets(1000, "", 3600), Line::Name);
    }

    #[test]
    fn the_log_has_so_many_lines_an_hour_and_says_when_there_are_more() {
        let mut strangers = Strangers::default();
        let now = Instant::now();
        let lines: Vec<Line> = (0..1000)
            .map(|uid| strangers.greets(&account(uid, ""), now))
            .collect();
        assert!(lines[..ALL].iter().all(|line| *line == Line::Name));
        assert_eq!(lines[ALL], Line::More);
        assert!(lines[ALL + 1..].iter().all(|line| *line == Line::None));
        assert_eq!(strangers.named.len(), ALL);
        assert_eq!(
            strangers.greets(&account(2000, ""), now + EVERY),
            Line::Name
        );
    }
}
