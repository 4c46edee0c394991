// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The inline-to-memory uploads of one segment.

use crate::submit::limits::{QMD_VA_END, QMD_WORDS_MAX, UPLOADS};
use crate::submit::qmd::{Family, Version};
use crate::submit::stats::Reason;

/// The smallest QMD in bytes.
const QMD_BYTES_MIN: u64 = 256;

/// The largest QMD in bytes.
const QMD_BYTES_MAX: u64 = 4 * QMD_WORDS_MAX as u64;

/// The position of data that was not seen in one piece.
const NOWHERE: u32 = u32::MAX;

/// One upload.
#[derive(Clone, Copy, Debug)]
struct Upload {
    /// Where it goes.
    va: u64,
    /// How many bytes; all of the address space where it cannot be told.
    bytes: u64,
    /// Where its data is, once all of it was seen in one piece; [`NOWHERE`] before.
    at: u32,
    /// How many data words have been seen.
    seen: u32,
    /// Whether a PCAS named a QMD in it.
    used: bool,
}

/// A ring of the last uploads.
#[derive(Clone, Debug)]
pub(super) struct Uploads {
    ring: [Upload; UPLOADS],
    /// How many were added since the segment began.
    added: usize,
    /// Whether an upload that an earlier segment began still waits for data.
    carried: bool,
    /// How many of them have a QMD's size and were named by no PCAS yet; may be too many, not too few.
    qmd_sized: usize,
}

/// Whether this is the size of a QMD.
#[inline]
const fn is_qmd_size(bytes: u64) -> bool {
    bytes == QMD_BYTES_MIN || bytes == QMD_BYTES_MAX
}

impl Uploads {
    pub(super) const fn new() -> Self {
        let empty = Upload {
            va: 0,
            bytes: 0,
            at: NOWHERE,
            seen: 0,
            used: false,
        };
        Self {
            ring: [empty; UPLOADS],
            added: 0,
            carried: false,
            qmd_sized: 0,
        }
    }

    /// Forgets all, for the next segment.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.carried = self.is_open();
        self.added = 0;
        self.qmd_sized = 0;
    }

    /// Whether the last one still waits for data, as far as is known. Another one now would put an end to it.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        let last = self.ring.get(self.added.wrapping_sub(1) % UPLOADS);
        match last {
            Some(last) if self.added != 0 => u64::from(last.seen) << 2 < last.bytes,
            _ => self.carried,
        }
    }

    /// Whether one of them could be a QMD that nothing has scheduled.
    #[inline]
    pub(super) fn may_store(&self) -> bool {
        self.qmd_sized != 0
    }

    /// An upload begins. `bytes` is `None` where its extent cannot be told; `data` is where its data is and how many words,
    /// where that is known already.
    #[inline(always)]
    pub(super) fn begin(&mut self, va: u64, bytes: Option<u32>, data: Option<(u32, u32)>) {
        let (va, bytes) = match bytes {
            Some(bytes) => (va, u64::from(bytes)),
            None => (0, u64::MAX),
        };
        let (at, seen) = match data {
            Some((at, seen)) if u64::from(seen) << 2 >= bytes => (at, seen),
            Some((_, seen)) => (NOWHERE, seen),
            None => (NOWHERE, 0),
        };
        if let Some(slot) = self.ring.get_mut(self.added % UPLOADS) {
            *slot = Upload {
                va,
                bytes,
                at,
                seen,
                used: false,
            };
        }
        self.added = self.added.wrapping_add(1);
        self.qmd_sized = self.qmd_sized.wrapping_add(usize::from(is_qmd_size(bytes)));
    }

    /// Data of the last upload arrives.
    pub(super) fn data(&mut self, at: u32, count: u32) {
        let last = self.added.wrapping_sub(1) % UPLOADS;
        if let (Some(upload), true) = (self.ring.get_mut(last), self.added != 0) {
            if upload.seen == 0 && u64::from(count) << 2 >= upload.bytes {
                upload.at = at;
            }
            upload.seen = upload.seen.saturating_add(count);
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
            if offset < upload.bytes {
                if !upload.used && is_qmd_size(upload.bytes) {
                    self.qmd_sized = self.qmd_sized.wrapping_sub(1);
                }
                upload.used = true;
                let (at, version) = upload.qmd_at(offset, words, family)?;
                if tail_patched && version.words() == QMD_WORDS_MAX {
                    return Err(Reason::Patched);
                }
                return Ok((at, version));
            }
            // It begins behind the QMD's first byte, or ends before it.
            let behind = upload.va.wrapping_sub(va);
            if behind < QMD_BYTES_MAX && upload.bytes != 0 {
                if behind < QMD_BYTES_MIN {
                    return Err(Reason::Patched);
                }
                tail_patched = true;
            }
        }
        Err(Reason::NotHere)
    }

    /// Address, position and size in words of the uploads that have exactly a QMD's size, go to where a QMD may lie, and
    /// were named by no PCAS, newest first.
    pub(super) fn unused_qmds(&self) -> impl Iterator<Item = (u64, u32, usize)> + '_ {
        let last = self.added.wrapping_sub(1);
        (0..self.added.min(UPLOADS)).filter_map(move |age| {
            let upload = self.ring.get(last.wrapping_sub(age) % UPLOADS)?;
            let placed = upload.va & 0xff == 0 && upload.va < QMD_VA_END && upload.at != NOWHERE;
            let unused = is_qmd_size(upload.bytes) && !upload.used;
            // CAST: one of the two sizes.
            (placed && unused).then_some((upload.va, upload.at, (upload.bytes >> 2) as usize))
        })
    }
}

impl Upload {
    /// Where the QMD that begins `offset` bytes into this upload is in the segment, and its version.
    #[inline(always)]
    fn qmd_at(&self, offset: u64, words: &[u32], family: Family) -> Result<(u32, Version), Reason> {
        if self.at == NOWHERE || offset & 3 != 0 {
            return Err(Reason::Fragmented);
        }
        let left = self.bytes.wrapping_sub(offset);
        if left < QMD_BYTES_MIN {
            return Err(Reason::Patched);
        }
        // CAST: data that is here is shorter than a segment.
        let at = self.at.wrapping_add((offset >> 2) as u32);
        let here = usize::try_from(at)
            .ok()
            .and_then(|at| words.get(at..))
            .unwrap_or(&[]);
        let left = usize::try_from(left >> 2)
            .unwrap_or(usize::MAX)
            .min(here.len());
        let version = Version::of(here.get(..left).unwrap_or(&[]), family)?;
        Ok((at, version))
    }
}
