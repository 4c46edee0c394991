// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks the inline-to-memory uploads of one segment.

use crate::submit::launch::Nature;
use crate::submit::limits::{QMD_VA_END, QMD_WORDS_MAX, UPLOADS};
use crate::submit::qmd::v04_00::V04_00;
use crate::submit::qmd::{Family, Version};
use crate::submit::reason::Reason;
use crate::units::{Sat, Va};
use core::num::Wrapping;

/// The smallest QMD in bytes.
const QMD_BYTES_MIN: u32 = 256;

/// The largest QMD in bytes.
const QMD_BYTES_MAX: u32 = 4 * QMD_WORDS_MAX as u32;

/// Position of data that was not seen in one piece; segments are shorter.
const NOWHERE: u32 = u32::MAX >> 1;

/// Marks the position of an upload in which a PCAS named a QMD.
const USED: u32 = 1 << 31;

/// One upload of known extent. It is small because each launch has five of them.
#[derive(Clone, Copy, Debug)]
struct Upload {
    /// Its destination.
    va: Va,
    /// Its length.
    bytes: u32,
    /// Position of its data, once all of it was seen in one piece; [`NOWHERE`] before. Also
    /// [`USED`].
    at: u32,
}

/// An upload that may be a stored QMD.
pub(super) struct StoredQmd {
    /// Its address.
    pub(super) va: u64,
    /// The position of its first word.
    pub(super) at: u32,
    /// Its size in words.
    pub(super) words: usize,
}

/// The frequent answers for a QMD that a PCAS names.
pub(super) enum Plain {
    /// It has version 4.0, its words begin here, and this is its nature. They are an upload of
    /// their own that no earlier PCAS named and no later upload touches.
    At(u32, Nature),
    /// No upload touches it.
    NotHere,
}

/// A ring of the last uploads.
#[derive(Clone, Debug)]
pub(super) struct Uploads {
    ring: [Upload; UPLOADS],
    /// Uploads since the segment began, or since one of unknown extent.
    added: Wrapping<usize>,
    /// Uploads of a QMD's size that no PCAS has named yet; an upper bound.
    unnamed: Wrapping<usize>,
    /// Data words of the last upload that were seen while it was open.
    seen: Sat<u32>,
    /// Whether the last upload may still wait for data. An earlier segment may have begun it.
    open: bool,
    /// Whether an upload of this segment had an unknown extent.
    blurred: bool,
    /// The upload that the last one replaced in the ring, if no PCAS has named it and it has a
    /// QMD's size.
    evicted: Option<Upload>,
}

/// Limit of the counted data words: an upload has fewer than 2^32 bytes.
const SEEN_MAX: Sat<u32> = Sat(1 << 30);

/// Returns whether `words` words are all the data of an upload.
#[inline(always)]
pub(super) const fn is_whole(words: u32, bytes: u32) -> bool {
    // CAST: widening, `From` is not `const`.
    (words as u64) << 2 >= bytes as u64
}

/// Returns whether this is the size of a QMD: 256 or 384.
#[inline(always)]
const fn is_qmd_size(bytes: u32) -> bool {
    bytes & !128 == QMD_BYTES_MIN
}

const _: () = assert!(is_qmd_size(QMD_BYTES_MIN) && is_qmd_size(QMD_BYTES_MAX));

impl Uploads {
    pub(super) const fn new() -> Self {
        let empty = Upload {
            va: Va(0),
            bytes: 0,
            at: NOWHERE,
        };
        Self {
            ring: [empty; UPLOADS],
            added: Wrapping(0),
            unnamed: Wrapping(0),
            seen: Sat(0),
            open: false,
            blurred: false,
            evicted: None,
        }
    }

    /// Forgets all uploads, for the next segment.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.added = Wrapping(0);
        self.unnamed = Wrapping(0);
        self.blurred = false;
        self.evicted = None;
    }

    /// Returns whether the last upload may still wait for data. Another one would end it.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Returns whether one of the uploads could be a stored QMD.
    #[inline]
    pub(super) fn may_store(&self) -> bool {
        self.unnamed != Wrapping(0)
    }

    /// Begins an upload. Its extent `bytes` is `None` where it is unknown; it may overwrite all
    /// earlier ones.
    pub(super) fn begin(&mut self, va: u64, bytes: Option<u32>) {
        match bytes {
            Some(bytes) => {
                self.add(va, bytes, NOWHERE);
                self.seen = Sat(0);
                self.open = bytes != 0;
            }
            None => {
                self.clear();
                self.blurred = true;
                self.open = true;
            }
        }
    }

    /// Adds a whole upload, whose data is at `data`.
    #[inline(always)]
    pub(super) fn add_whole(&mut self, va: u64, bytes: u32, data: u32) {
        self.add(va, bytes, data);
        self.open = false;
    }

    #[inline(always)]
    fn add(&mut self, va: u64, bytes: u32, at: u32) {
        if let Some(slot) = self.ring.get_mut(self.added.0 % UPLOADS) {
            // What is there in the first round is of an earlier segment.
            if slot.is_unused_qmd() && self.added.0 >= UPLOADS {
                self.evicted = Some(*slot);
            }
            *slot = Upload {
                va: Va(va),
                bytes,
                at,
            };
        }
        self.added += 1;
        if is_qmd_size(bytes) {
            self.unnamed += 1;
        }
    }

    /// Adds data to the last upload, unless it is complete.
    pub(super) fn data(&mut self, at: u32, count: u32) {
        let is_first = self.seen == Sat(0);
        if let Some(upload) = self.open_upload() {
            if is_first && is_whole(count, upload.bytes) {
                upload.at = at | upload.at & USED;
            }
        }
        self.fill(count);
    }

    /// Adds data whose words are not here, as a macro makes them.
    pub(super) fn fill(&mut self, count: u32) {
        if let Some(bytes) = self.open_upload().map(|upload| upload.bytes) {
            self.seen = (self.seen + Sat(count)).min(SEEN_MAX);
            self.open = !is_whole(self.seen.0, bytes);
        }
    }

    /// Returns the last upload if it is known and not complete.
    fn open_upload(&mut self) -> Option<&mut Upload> {
        let last = (self.added - Wrapping(1)).0 % UPLOADS;
        let waits = self.added != Wrapping(0) && self.open;
        self.ring.get_mut(last).filter(|_| waits)
    }

    /// Finds the QMD at `va` in the frequent cases; `None` where only [`find`](Self::find) can
    /// tell.
    #[inline(always)]
    pub(super) fn find_plain(&mut self, va: u64, words: &[u32], family: Family) -> Option<Plain> {
        let va = Va(va);
        let oldest = Wrapping((Sat(self.added.0) - Sat(UPLOADS)).0);
        let mut index = self.added;
        while index > oldest {
            index -= 1;
            let upload = self.ring.get_mut(index.0 % UPLOADS)?;
            let behind = upload.va - va;
            if behind == 0 {
                let at = upload.at;
                if upload.bytes != QMD_BYTES_MAX || at >= NOWHERE {
                    return None;
                }
                let qmd = Version::v04_00_at(words, at, family)?;
                upload.at |= USED;
                self.unnamed -= 1;
                return Some(Plain::At(at, Nature::read::<V04_00>(qmd)));
            }
            if behind < u64::from(QMD_BYTES_MAX) || va - upload.va < u64::from(upload.bytes) {
                return None;
            }
        }
        (!self.blurred).then_some(Plain::NotHere)
    }

    /// Returns the position of the data of the last upload of one word to `va`.
    pub(super) fn word_at(&self, va: u64) -> Option<u32> {
        let mut index = self.added;
        for _ in 0..self.added.0.min(UPLOADS) {
            index -= 1;
            let upload = self.ring.get(index.0 % UPLOADS)?;
            if upload.va == Va(va) && upload.bytes == 4 && upload.at < NOWHERE {
                return Some(upload.at);
            }
        }
        None
    }

    /// Finds the position of the QMD at `va`, and its version.
    pub(super) fn find(
        &mut self,
        va: u64,
        words: &[u32],
        family: Family,
    ) -> Result<(u32, Version), Reason> {
        let va = Va(va);
        let mut index = self.added;
        let mut tail_patched = false;
        for _ in 0..self.added.0.min(UPLOADS) {
            index -= 1;
            let Some(upload) = self.ring.get_mut(index.0 % UPLOADS) else {
                break;
            };
            let offset = va - upload.va;
            if offset < u64::from(upload.bytes) {
                if upload.is_unused_qmd() {
                    self.unnamed -= 1;
                }
                // CAST: less than `bytes`.
                let (at, version) = upload.qmd_at(offset as u32, words, family)?;
                if tail_patched && version.words() == QMD_WORDS_MAX {
                    return Err(Reason::Patched);
                }
                return Ok((at, version));
            }
            // It begins behind the QMD's first byte, or ends before it.
            let behind = upload.va - va;
            if behind < u64::from(QMD_BYTES_MAX) && upload.bytes != 0 {
                if behind < u64::from(QMD_BYTES_MIN) {
                    return Err(Reason::Patched);
                }
                tail_patched = true;
            }
        }
        Err(if self.blurred {
            Reason::Fragmented
        } else {
            Reason::NotHere
        })
    }

    /// Returns the uploads that may be stored QMDs and that no PCAS named, newest first.
    pub(super) fn unused_qmds(&self) -> impl Iterator<Item = StoredQmd> + '_ {
        let last = self.added - Wrapping(1);
        (0..self.added.0.min(UPLOADS)).filter_map(move |age| {
            let upload = self.ring.get((last - Wrapping(age)).0 % UPLOADS)?;
            upload.stored_qmd()
        })
    }

    /// Returns whether the last upload replaced one that may be a stored QMD.
    #[inline(always)]
    pub(super) fn has_evicted(&self) -> bool {
        self.evicted.is_some()
    }

    /// Returns the stored QMD that the last upload replaced in the ring, once. Returns `None` if a
    /// later upload has overwritten it.
    pub(super) fn take_evicted(&mut self) -> Option<StoredQmd> {
        let evicted = self.evicted.take()?;
        let is_overwritten = self.ring.iter().any(|upload| upload.va == evicted.va);
        evicted.stored_qmd().filter(|_| !is_overwritten)
    }
}

impl Upload {
    /// Returns the stored QMD that this may be: it has a QMD's size, lies where a QMD may lie, and
    /// no PCAS named it.
    fn stored_qmd(&self) -> Option<StoredQmd> {
        let va = self.va.get();
        let placed = va & 0xff == 0 && va < QMD_VA_END;
        (placed && self.is_unused_qmd()).then_some(StoredQmd {
            va,
            at: self.at,
            // CAST: one of the two sizes.
            words: (self.bytes >> 2) as usize,
        })
    }

    /// Returns whether the upload has a QMD's size, all of its data is here in one piece, and no
    /// PCAS named it.
    #[inline]
    fn is_unused_qmd(&self) -> bool {
        // A position that is marked as used is above.
        is_qmd_size(self.bytes) && self.at < NOWHERE
    }

    /// Returns the position of the QMD that begins `offset` bytes into this upload, and its
    /// version.
    fn qmd_at(
        &mut self,
        offset: u32,
        words: &[u32],
        family: Family,
    ) -> Result<(u32, Version), Reason> {
        let at = self.at & !USED;
        self.at |= USED;
        if at == NOWHERE || offset & 3 != 0 {
            return Err(Reason::Fragmented);
        }
        let left = (Sat(self.bytes) - Sat(offset)).0;
        if left < QMD_BYTES_MIN {
            return Err(Reason::Patched);
        }
        let at = (Wrapping(at) + Wrapping(offset >> 2)).0;
        // CAST: widening on every machine that has GPUs.
        let (first, length) = (at as usize, (left >> 2) as usize);
        // All of the data is here, or it would have no position.
        let Some(here) = words.get(first..first + length) else {
            return Err(Reason::Fragmented);
        };
        Ok((at, Version::of(here, family)?))
    }
}
