// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whose greetings in another version are logged.
//!
//! A client states what it likes, as often as it likes. So what counts is what the kernel says of
//! it: its user and its cgroup ([`Account`]). In each [`EVERY`]
//!
//! ```text
//! one line     for a user in a cgroup
//! OF_CGROUP    lines for a cgroup, where its root can be any user
//! ALL / 2^n    lines, or OF_CGROUP, for a cgroup of depth n and all below, where it can make more
//! ALL          lines
//! one line     that says that there are more
//! ```

use crate::budget::Account;
use crate::cgroups::around;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The time for which somebody who was logged is not logged again.
const EVERY: Duration = Duration::from_secs(3600);

const OF_CGROUP: usize = 4;
const ALL: usize = 64;
/// The depth at which a cgroup and all below have no more lines than a cgroup alone.
const DEEPEST: usize = (ALL / OF_CGROUP).ilog2() as usize;

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
        if self.named.len() < ALL && self.has_room(&client.cgroup) {
            self.named.insert(who, now);
            return Line::Name;
        }
        if self.more.as_ref().is_some_and(is_recent) {
            return Line::None;
        }
        self.more = Some(now);
        Line::More
    }

    /// Returns whether a cgroup may have another line, and each that it lies in.
    fn has_room(&self, cgroup: &[u8]) -> bool {
        let lines = |is_counted: &dyn Fn(&[u8]) -> bool| {
            let cgroups = self.named.keys().map(|(_, cgroup)| &cgroup[..]);
            cgroups.filter(|cgroup| is_counted(cgroup)).count()
        };
        // What holds there holds further below, however deep a cgroup is.
        let mut around = around(cgroup).zip(1..=DEEPEST);
        let within = |above| lines(&|other| is_within(other, above));
        cgroup.is_empty()
            || lines(&|other| other == cgroup) < OF_CGROUP
                && around.all(|(above, depth)| within(above) < ALL >> depth)
    }
}

/// Returns whether a cgroup is another, or lies in it.
fn is_within(cgroup: &[u8], above: &[u8]) -> bool {
    let rest = cgroup.strip_prefix(above);
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
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
    fn a_cgroup_hides_nobody_by_those_that_it_makes() {
        let mut strangers = Strangers::default();
        let now = Instant::now();
        let mut greets = |cgroup: &str| strangers.greets(&account(0, cgroup), now) == Line::Name;
        let below = |cgroup: &'static str| (0..100).map(move |n| format!("{cgroup}/{n}"));
        let of_pod = below("/kubepods/pod1/main").filter(|cgroup| greets(cgroup));
        assert_eq!(of_pod.count(), ALL >> 3);
        assert!(greets("/kubepods/pod1/other"));
        assert!(greets("/kubepods/pod10/main"));
        let deep = below("/system/a/b/c/d/e").filter(|cgroup| greets(cgroup));
        assert_eq!(deep.count(), OF_CGROUP);
        // Whatever one tree of cgroups does, others have half of the lines.
        assert_eq!(
            below("/mine").filter(|cgroup| greets(cgroup)).count(),
            ALL >> 1
        );
        assert!(greets("/system/a/z"));
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
