// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures how long the requests of a process take.
//!
//! ```text
//! request     from the round that first sees a launch of it, published or held back,
//!             to the round that sees its last end
//! the next    begins with the first launch after a pause of GAP
//! ```
//!
//! What a program does before its first launch and after its last end is no part of it. Requests
//! that a program queues, so that no pause is between them, count as one.

use crate::policy::tpc::SWITCHES;
use crate::units::Ns;

/// The shortest pause between two requests: as long as others wait behind the last work of an
/// earlier rank by turns. A shorter one is part of a request, such as the time in which the host
/// prepares the next launch.
pub const GAP: Ns = SWITCHES;

/// The request of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// When it began.
    since: Option<Ns>,
    /// When its last work had ended.
    idle: Option<Ns>,
}

impl Request {
    /// Records whether the process has work. Returns the duration of a request that is over.
    pub fn see(&mut self, busy: bool, now: Ns) -> Option<Ns> {
        let (since, idle) = (self.since, self.idle);
        let over = since.zip(idle).filter(|(_, idle)| now - *idle >= GAP);
        if over.is_some() {
            *self = Self::default();
        }
        if busy {
            self.since = self.since.or(Some(now));
            self.idle = None;
        } else if self.since.is_some() {
            self.idle = self.idle.or(Some(now));
        }
        over.map(|(since, idle)| idle - since)
    }

    /// Returns when the request began that has work now.
    pub fn open(&self) -> Option<Ns> {
        self.since.filter(|_| self.idle.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_pause_is_part_of_a_request_and_a_long_one_ends_it() {
        let mut request = Request::default();
        let gap = GAP.get();
        let at = |ns: u64| Ns(1_000_000_000 + ns);
        assert_eq!(request.see(false, at(0)), None);
        assert_eq!(request.see(true, at(10)), None);
        assert_eq!(request.open(), Some(at(10)));
        assert_eq!(request.see(true, at(100)), None);
        assert_eq!(request.see(false, at(200)), None);
        assert_eq!(request.open(), None);
        assert_eq!(request.see(false, at(200 + gap - 1)), None);
        assert_eq!(request.see(true, at(200 + gap - 1)), None, "it goes on");
        assert_eq!(request.see(false, at(1_000 + gap)), None);
        assert_eq!(request.see(false, at(1_500 + gap)), None);
        let next = at(1_000 + 2 * gap);
        assert_eq!(request.see(true, next), Some(Ns(990 + gap)));
        assert_eq!(request.open(), Some(next));
    }
}
