// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays the glue in tests: storage starts empty and grows on demand.

use crate::check::invariants;
use crate::error::{Error, Need};
use crate::host::Host;
use crate::ids::FileId;
use crate::members::Members;
use crate::rmapi;
use crate::state::State;
use crate::table::{Link, Paged, Slot};
use crate::units::Ns;
use std::vec;
use std::vec::Vec;

/// A table's storage in pages of some size.
#[derive(Debug)]
pub(crate) struct Slots<K, V> {
    page: usize,
    slots: Vec<Slot<K, V>>,
    first: Vec<Link>,
}

impl<K, V> Slots<K, V> {
    pub(crate) fn new(page: usize, pages: usize) -> Self {
        let mut slots = Self {
            page,
            slots: Vec::new(),
            first: Vec::new(),
        };
        (0..pages).for_each(|_| slots.push());
        slots
    }

    /// Adds a page.
    pub(crate) fn push(&mut self) {
        let len = self.slots.len() + self.page;
        self.slots.resize_with(len, Slot::default);
        self.first.resize(len, Link::NONE);
    }

    /// Removes the last page.
    pub(crate) fn pop(&mut self) {
        let len = self.slots.len() - self.page;
        self.slots.truncate(len);
        self.first.truncate(len);
    }
}

impl<K, V> Paged<K, V> for Slots<K, V> {
    fn page(&self) -> usize {
        self.page
    }

    fn capacity(&self) -> usize {
        self.slots.len()
    }

    fn slot(&self, at: usize) -> Option<&Slot<K, V>> {
        self.slots.get(at)
    }

    fn slot_mut(&mut self, at: usize) -> Option<&mut Slot<K, V>> {
        self.slots.get_mut(at)
    }

    fn first(&self, bucket: usize) -> Link {
        self.first.get(bucket).copied().unwrap_or_default()
    }

    fn set_first(&mut self, bucket: usize, link: Link) {
        self.first[bucket] = link;
    }
}

/// Returns the pauses between random (Poisson) events, `mean_ns` on average; the same in each run.
#[allow(clippy::float_arithmetic, reason = "a random process in a test")]
pub(crate) fn random_pauses(mean_ns: f64) -> impl Iterator<Item = Ns> {
    let mut state = 1u64;
    core::iter::repeat_with(move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        // CAST: 32 random bits.
        let part = f64::from((state >> 32) as u32) / 4_294_967_296.0;
        // CAST: far from 2^63.
        Ns((-(1.0 - part).ln() * mean_ns) as u64)
    })
}

/// The storage that the glue keeps.
pub(crate) struct Store(Host);

impl Store {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Host::new([seed; 2]))
    }

    pub(crate) fn state(&mut self) -> State<'_> {
        self.0.state()
    }

    pub(crate) fn members(&mut self) -> Members<'_> {
        self.0.members()
    }

    /// Runs one whole ioctl of the driver.
    pub(crate) fn ioctl(&mut self, file: FileId, escape: u32, bytes: &[u8], hint: Option<u64>) {
        let call = rmapi::decode(escape, bytes).unwrap().unwrap();
        let ticket = self
            .retry(|store| store.state().call_enter(file, &call))
            .unwrap();
        self.retry(|store| store.state().call_leave(file, &call, ticket, hint))
            .unwrap();
    }

    /// Skips the checks of [`Store::retry`], which take long for large states.
    pub(crate) fn grow(&mut self, need: Need) {
        self.0.grow(need).unwrap();
    }

    pub(crate) fn check(&mut self) {
        let (state, members) = self.0.parts();
        assert_eq!(invariants(&state, &members), Ok(()));
    }

    /// Runs an operation as the glue does: adds a page and retries. A failed run changes nothing.
    pub(crate) fn retry<T>(
        &mut self,
        mut f: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for _ in 0..10_000 {
            match f(self) {
                Err(Error::NeedSlots(need)) => {
                    // The check takes more than quadratic time.
                    if need.piece < 2 {
                        self.check();
                    }
                    self.0.grow(need).unwrap();
                }
                other => {
                    self.0.shrink();
                    return other;
                }
            }
        }
        panic!("storage never suffices");
    }
}

/// Returns how many random cases a test runs: `gate`, or ten times as many for `make test-long`.
pub(crate) fn cases(gate: u32) -> u32 {
    match std::env::var_os("GCT_LONG").is_some_and(|long| !long.is_empty()) {
        true => 10 * gate,
        false => gate,
    }
}

/// Returns a structure of `size` bytes with some 32-bit words set.
pub(crate) fn words(size: usize, words: &[(usize, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for (offset, word) in words {
        let word = u32::try_from(*word).unwrap();
        bytes[*offset..*offset + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
