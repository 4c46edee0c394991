// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds invalidations of TLBs that the driver forgets.
//!
//! A GPU may use a translation again until it is invalidated, whatever the tables say by then. This
//! one always walks the tables, so a forgotten invalidation would have no effect. Therefore it
//! remembers what a TLB may hold, and looks at each access that could have used it:
//!
//! ```text
//! access          the page that the tables gave is kept
//! invalidation    it is forgotten
//! access          suspect, if the kept page would allow it, and the tables do not, or lead
//!                 elsewhere
//! invalidation    the suspicion is forgotten: between its write to the table and its invalidation
//!                 a driver expects such accesses
//! GRACE_NS later  the translation was stale
//! ```
//!
//! One TLB stands for all. It is as large as it can be, but it keeps no two pages of different size
//! for one address. So it misses some mistakes, and reports none that is not one.

use crate::gmmu::Translation;
use crate::memory::PhysicalAddress;
use std::collections::BTreeMap;

/// How long a driver may take from its write to a table to its invalidation, on a busy host.
pub const GRACE_NS: u64 = 2_000_000_000;
/// The most that counts between two looks at suspicions. Those are some milliseconds apart, unless
/// the host pauses, and with it the driver.
pub const LOOK_NS: u64 = 100_000_000;
/// Maximum number of pages that are kept.
const PAGES_MAX: usize = 1 << 16;
/// Maximum number of suspicions. Further ones are as good as the first.
const SUSPECTS_MAX: usize = 64;

/// What an invalidation covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidation {
    /// The page directory; `None` for all.
    pub root: Option<PhysicalAddress>,
    /// The first address and the number of bytes; `None` for all.
    pub range: Option<(u64, u64)>,
}

impl Invalidation {
    fn covers(&self, root: PhysicalAddress, page: &Page) -> bool {
        self.root.is_none_or(|meant| meant == root)
            && self
                .range
                .is_none_or(|(va, bytes)| va < page.end() && page.va < va.saturating_add(bytes))
    }
}

/// An access that a stale translation would have allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The page directory.
    pub root: PhysicalAddress,
    /// The address.
    pub va: u64,
    /// Whether the access is a write.
    pub write: bool,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    va: u64,
    bytes: u64,
    address: PhysicalAddress,
    writable: bool,
}

impl Page {
    fn end(&self) -> u64 {
        self.va.saturating_add(self.bytes)
    }
}

#[derive(Clone, Copy, Debug)]
struct Suspect {
    page: Page,
    what: Stale,
    /// What had passed when it was first looked at.
    since_ns: Option<u64>,
}

/// The pages that a TLB may hold, and the accesses that may have been wrong.
#[derive(Debug, Default)]
pub struct Tlb {
    /// By page directory and address. None overlap.
    pages: BTreeMap<(PhysicalAddress, u64), Page>,
    suspects: Vec<Suspect>,
    /// When they were looked at last, and what has passed until then.
    looked_ns: u64,
    passed_ns: u64,
}

impl Tlb {
    /// Takes note of an access for which the tables have `walked`.
    pub fn access(
        &mut self,
        root: PhysicalAddress,
        va: u64,
        write: bool,
        walked: Option<&Translation>,
    ) {
        if let Some(kept) = self.page_of(root, va) {
            let is_allowed = kept.writable || !write;
            let is_right = walked.is_some_and(|now| {
                now.address == kept.address.plus(va - kept.va) && (now.writable || !write)
            });
            match (is_allowed, is_right) {
                (true, true) => return,
                (true, false) => self.suspect(kept, Stale { root, va, write }),
                // The access misses, and the page is fetched anew.
                (false, _) => {}
            }
        }
        if let Some(now) = walked {
            self.keep(root, va, now);
        }
    }

    /// Forgets what an invalidation covers.
    pub fn invalidate(&mut self, what: &Invalidation) {
        self.pages
            .retain(|(root, _), page| !what.covers(*root, page));
        self.suspects
            .retain(|suspect| !what.covers(suspect.what.root, &suspect.page));
    }

    /// Returns whether [`stale`](Self::stale) has something to wait for.
    pub fn suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Returns the suspicions that nothing has invalidated in time, each once.
    pub fn stale(&mut self, now_ns: u64) -> Vec<Stale> {
        let mut stale = Vec::new();
        let passed_ns = now_ns.saturating_sub(self.looked_ns).min(LOOK_NS);
        (self.looked_ns, self.passed_ns) = (now_ns, self.passed_ns.saturating_add(passed_ns));
        let passed_ns = self.passed_ns;
        self.suspects.retain_mut(|suspect| {
            let since_ns = *suspect.since_ns.get_or_insert(passed_ns);
            let is_over = passed_ns.saturating_sub(since_ns) > GRACE_NS;
            if is_over {
                stale.push(suspect.what);
            }
            !is_over
        });
        stale
    }

    fn page_of(&self, root: PhysicalAddress, va: u64) -> Option<Page> {
        let (_, page) = self.pages.range((root, 0)..=(root, va)).next_back()?;
        (va < page.end()).then_some(*page)
    }

    fn suspect(&mut self, page: Page, what: Stale) {
        self.pages.remove(&(what.root, page.va));
        if self.suspects.len() < SUSPECTS_MAX {
            self.suspects.push(Suspect {
                page,
                what,
                since_ns: None,
            });
        }
    }

    fn keep(&mut self, root: PhysicalAddress, va: u64, now: &Translation) {
        let inside = now.page_bytes - now.bytes;
        let page = Page {
            va: va - inside,
            bytes: now.page_bytes,
            address: PhysicalAddress {
                offset: now.address.offset - inside,
                ..now.address
            },
            writable: now.writable,
        };
        if self.pages.len() >= PAGES_MAX {
            self.pages.clear();
        }
        // Pages that overlap end after its begin: as none overlap, their ends are in order, too.
        while let Some((key, _)) = self
            .pages
            .range((root, 0)..(root, page.end()))
            .next_back()
            .filter(|(_, other)| other.end() > page.va)
        {
            let key = *key;
            self.pages.remove(&key);
        }
        self.pages.insert((root, page.va), page);
    }
}

#[cfg(test)]
mod tests;
