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

/// A ring of the last uploads.
#[derive(Clone, Debug)]
pub(super) struct Uploads {
    ring: [Upload; UPLOADS],
    /// How many were added since the segment began, or since one whose extent cannot be told.
    added: usize,
    /// How many of them have a QMD's size and were named by no PCAS yet; may be too many, not too few.
    qmd_sized: usize,
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
            qmd_sized: 0,
            seen: 0,
            open: false,
            blurred: false,
        }
    }

    /// Forgets all, for the next segment.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.added = 0;
        self.qmd_sized = 0;
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
        self.qmd_sized != 0
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
        self.qmd_sized = self.qmd_sized.wrapping_add(usize::from(is_qmd_size(bytes)));
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

    /// Where the words of the QMD at `va` are, and its version.
    #[inline(always)]
    pub(super) fn find(
        &mut self,
        va: u64,
        words: &[u32],
        family: Family,
    ) -> Result<(u32, Version), Reason> {
        let mut tail_patched = false;
        let mut index = self.added;
        for _ in 0..self.added.min(UPLOADS) {
            index = index.wrapping_sub(1);
            let Some(upload) = self.ring.get_mut(index % UPLOADS) else {
                break;
            };
            let offset = va.wrapping_sub(upload.va);
            if offset < u64::from(upload.bytes) {
                if upload.at & USED == 0 && is_qmd_size(upload.bytes) {
                    self.qmd_sized = self.qmd_sized.wrapping_sub(1);
                }
                upload.at |= USED;
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
        if self.blurred {
            return Err(Reason::Fragmented);
        }
        Err(Reason::NotHere)
    }

    /// Address, position and size in words of the uploads that have exactly a QMD's size, go to where a QMD may lie, and
    /// were named by no PCAS, newest first.
    pub(super) fn unused_qmds(&self) -> impl Iterator<Item = (u64, u32, usize)> + '_ {
        let last = self.added.wrapping_sub(1);
        (0..self.added.min(UPLOADS)).filter_map(move |age| {
            let upload = self.ring.get(last.wrapping_sub(age) % UPLOADS)?;
            let placed = upload.va & 0xff == 0 && upload.va < QMD_VA_END;
            // One that is used, or not here in one piece, is not below.
            let unused = is_qmd_size(upload.bytes) && upload.at < NOWHERE;
            // CAST: one of the two sizes.
            (placed && unused).then_some((upload.va, upload.at, (upload.bytes >> 2) as usize))
        })
    }
}

impl Upload {
    /// Where the QMD that begins `offset` bytes into this upload is in the segment, and its version.
    #[inline(always)]
    fn qmd_at(&self, offset: u32, words: &[u32], family: Family) -> Result<(u32, Version), Reason> {
        let at = self.at & !USED;
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
        let here = words.get(first..first.wrapping_add((left >> 2) as usize));
        let version = Version::of(here.unwrap_or(&[]), family)?;
        Ok((at, version))
    }
}
