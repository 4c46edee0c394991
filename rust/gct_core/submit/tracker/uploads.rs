// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The inline-to-memory uploads of one segment.

use crate::submit::limits::{QMD_VA_END, QMD_WORDS_MAX, UPLOADS};
use crate::submit::qmd::{Family, Version};
use crate::submit::stats::Reason;

/// The smallest QMD in bytes.
const QMD_BYTES_MIN: u32 = 256;

/// The largest QMD in bytes.
const QMD_BYTES_MAX: u32 = 4 * QMD_WORDS_MAX as u32;

/// The position of data that was not seen in one piece; segments are shorter.
const NOWHERE: u32 = u32::MAX >> 1;

/// Marks the position of an upload in which a PCAS named a QMD.
const USED: u32 = 1 << 31;

/// One upload whose extent is known. It is small because five of them belong to each launch.
#[derive(Clone, Copy, Debug)]
struct Upload {
    /// Where it goes.
    va: u64,
    /// How many bytes.
    bytes: u32,
    /// Where its data is, once all of it was seen in one piece; [`NOWHERE`] before. And [`USED`].
    at: u32,
}

/// What nearly always is true of a QMD that a PCAS names.
pub(super) enum Plain {
    /// It has version 4.0, its words begin here, and they are an upload of their own that no PCAS named before and no
    /// later upload touches.
    At(u32),
    /// No upload touches it.
    NotHere,
}

/// A ring of the last uploads.
#[derive(Clone, Debug)]
pub(super) struct Uploads {
    ring: [Upload; UPLOADS],
    /// How many were added since the segment began, or since one whose extent cannot be told.
    added: usize,
    /// How many of them have a QMD's size and were named by no PCAS yet; may be too many, not too few.
    unnamed: usize,
    /// How many data words of the last one have been seen while it was open.
    seen: u32,
    /// Whether the last one, which an earlier segment may have begun, still waits for data as far as is known.
    open: bool,
    /// Whether an upload of this segment went nobody knows where.
    blurred: bool,
}

/// Data words are counted up to here: an upload has fewer than 2^32 bytes.
const SEEN_MAX: u32 = 1 << 30;

/// Whether so many words are all the data of an upload.
#[inline(always)]
pub(super) const fn is_whole(words: u32, bytes: u32) -> bool {
    // CAST: widening, `From` is not `const`.
    (words as u64) << 2 >= bytes as u64
}

/// Whether this is the size of a QMD: 256 or 384.
#[inline(always)]
const fn is_qmd_size(bytes: u32) -> bool {
    bytes & !128 == QMD_BYTES_MIN
}

const _: () = assert!(is_qmd_size(QMD_BYTES_MIN) && is_qmd_size(QMD_BYTES_MAX));

impl Uploads {
    pub(super) const fn new() -> Self {
        let empty = Upload {
            va: 0,
            bytes: 0,
            at: NOWHERE,
        };
        Self {
            ring: [empty; UPLOADS],
            added: 0,
            unnamed: 0,
            seen: 0,
            open: false,
            blurred: false,
        }
    }

    /// Forgets all, for the next segment.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.added = 0;
        self.unnamed = 0;
        self.blurred = false;
    }

    /// Whether the last one still waits for data, as far as is known. Another one now would put an end to it.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Whether one of them could be a QMD that nothing has scheduled.
    #[inline]
    pub(super) fn may_store(&self) -> bool {
        self.unnamed != 0
    }

    /// An upload begins. `bytes` is `None` where its extent cannot be told; it may go over all before it.
    pub(super) fn begin(&mut self, va: u64, bytes: Option<u32>) {
        match bytes {
            Some(bytes) => {
                self.add(va, bytes, NOWHERE);
                self.seen = 0;
                self.open = bytes != 0;
            }
            None => {
                self.clear();
                self.blurred = true;
                self.open = true;
            }
        }
    }

    /// A whole upload, whose data is at `data`.
    #[inline(always)]
    pub(super) fn add_whole(&mut self, va: u64, bytes: u32, data: u32) {
        self.add(va, bytes, data);
        self.open = false;
    }

    #[inline(always)]
    fn add(&mut self, va: u64, bytes: u32, at: u32) {
        if let Some(slot) = self.ring.get_mut(self.added % UPLOADS) {
            *slot = Upload { va, bytes, at };
        }
        self.added = self.added.wrapping_add(1);
        if is_qmd_size(bytes) {
            self.unnamed = self.unnamed.wrapping_add(1);
        }
    }

    /// Data of the last upload arrives; it takes none when it is whole.
    pub(super) fn data(&mut self, at: u32, count: u32) {
        let last = self.added.wrapping_sub(1) % UPLOADS;
        if let (Some(upload), true) = (self.ring.get_mut(last), self.added != 0 && self.open) {
            if self.seen == 0 && is_whole(count, upload.bytes) {
                upload.at = at | upload.at & USED;
            }
            self.seen = self.seen.saturating_add(count).min(SEEN_MAX);
            self.open = !is_whole(self.seen, upload.bytes);
        }
    }

    /// What nearly always is true of the QMD at `va`; `None` where only [`find`](Self::find) knows.
    #[inline(always)]
    pub(super) fn find_plain(&mut self, va: u64, words: &[u32], family: Family) -> Option<Plain> {
        let oldest = self.added.saturating_sub(UPLOADS);
        let mut index = self.added;
        while index > oldest {
            index = index.wrapping_sub(1);
            let upload = self.ring.get_mut(index % UPLOADS)?;
            let behind = upload.va.wrapping_sub(va);
            if behind == 0 {
                let is_plain = upload.bytes == QMD_BYTES_MAX
                    && upload.at < NOWHERE
                    && Version::is_v04_00_at(words, upload.at, family);
                return is_plain.then(|| {
                    let at = upload.at;
                    upload.at |= USED;
                    self.unnamed = self.unnamed.wrapping_sub(1);
                    Plain::At(at)
                });
            }
            if behind < u64::from(QMD_BYTES_MAX) || behind.wrapping_neg() < u64::from(upload.bytes)
            {
                return None;
            }
        }
        (!self.blurred).then_some(Plain::NotHere)
    }

    /// Where the words of the QMD at `va` are, and its version.
    pub(super) fn find(
        &mut self,
        va: u64,
        words: &[u32],
        family: Family,
    ) -> Result<(u32, Version), Reason> {
        let mut index = self.added;
        let mut tail_patched = false;
        for _ in 0..self.added.min(UPLOADS) {
            index = index.wrapping_sub(1);
            let Some(upload) = self.ring.get_mut(index % UPLOADS) else {
                break;
            };
            let offset = va.wrapping_sub(upload.va);
            if offset < u64::from(upload.bytes) {
                if upload.is_unused_qmd() {
                    self.unnamed = self.unnamed.wrapping_sub(1);
                }
                // CAST: less than `bytes`.
                let (at, version) = upload.qmd_at(offset as u32, words, family)?;
                if tail_patched && version.words() == QMD_WORDS_MAX {
                    return Err(Reason::Patched);
                }
                return Ok((at, version));
            }
            // It begins behind the QMD's first byte, or ends before it.
            let behind = upload.va.wrapping_sub(va);
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

    /// Address, position and size in words of the uploads that have exactly a QMD's size, go to where a QMD may lie, and
    /// were named by no PCAS, newest first.
    pub(super) fn unused_qmds(&self) -> impl Iterator<Item = (u64, u32, usize)> + '_ {
        let last = self.added.wrapping_sub(1);
        (0..self.added.min(UPLOADS)).filter_map(move |age| {
            let upload = self.ring.get(last.wrapping_sub(age) % UPLOADS)?;
            let placed = upload.va & 0xff == 0 && upload.va < QMD_VA_END;
            // CAST: one of the two sizes.
            let words = (upload.bytes >> 2) as usize;
            (placed && upload.is_unused_qmd()).then_some((upload.va, upload.at, words))
        })
    }
}

impl Upload {
    /// Whether it has exactly a QMD's size, all of its data is here in one piece, and no PCAS named it.
    #[inline]
    fn is_unused_qmd(&self) -> bool {
        // A position that is marked as used is above.
        is_qmd_size(self.bytes) && self.at < NOWHERE
    }

    /// Where the QMD that begins `offset` bytes into this upload is in the segment, and its version.
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
        let left = self.bytes.wrapping_sub(offset);
        if left < QMD_BYTES_MIN {
            return Err(Reason::Patched);
        }
        let at = at.wrapping_add(offset >> 2);
        // CAST: widening on every machine that has GPUs.
        let first = at as usize;
        // All of the data is here, or it would have no position.
        let Some(here) = words.get(first..first.wrapping_add((left >> 2) as usize)) else {
            return Err(Reason::Fragmented);
        };
        Ok((at, Version::of(here, family)?))
    }
}
