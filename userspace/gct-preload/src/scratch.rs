// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Provides GPU-readable memory for segments and QMDs that replace the tenant's.
//!
//! libcuda maps its rings and USERDs from one allocation of 2 MiB and uses only its beginning: 12
//! KiB for each channel. The upper half serves as scratch, at the same virtual address for CPU and
//! GPU. It is divided into frames. A launch takes a frame, and the frame is free again when that
//! launch and the rest of its segment have ended. Their own releases show this. A release that
//! never comes keeps one frame.

use crate::in_flight::Fence;

/// The alignment of a QMD, and so of a frame.
const QMD_ALIGN: u64 = 256;

/// The fences of a frame in use: the launch that it was taken for, and the rest of its segment.
#[derive(Clone, Copy, Debug)]
struct Busy {
    launch: Fence,
    rest: Option<Fence>,
}

/// A frame, at its addresses for the GPU and for the CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    index: usize,
    /// The GPU's address, a multiple of 256.
    pub(crate) gpu_va: u64,
    /// The address in this process.
    pub(crate) real: usize,
    bytes: usize,
}

/// The upper half of one ring allocation.
#[derive(Debug)]
pub(crate) struct Scratch {
    gpu_va: u64,
    real: usize,
    frame_bytes: usize,
    frames: Vec<Option<Busy>>,
    next: usize,
}

impl Scratch {
    /// Divides `[gpu_va, gpu_va + len)`, which is mapped at `real`, into frames of `frame_bytes`.
    /// Returns `None` if not even one fits.
    pub(crate) fn new(gpu_va: u64, real: usize, len: usize, frame_bytes: usize) -> Option<Self> {
        // CAST: widening.
        let frame_bytes = frame_bytes.next_multiple_of(QMD_ALIGN as usize);
        let count = len.checked_div(frame_bytes)?;
        (count > 0 && gpu_va % QMD_ALIGN == 0).then(|| Self {
            gpu_va,
            real,
            frame_bytes,
            frames: vec![None; count],
            next: 0,
        })
    }

    /// Returns the next free frame. A user that never ends keeps its frame and no other.
    pub(crate) fn frame(&mut self) -> Option<Frame> {
        let count = self.frames.len();
        let mut places = (0..count).map(|place| (self.next + place) % count);
        let index = places.find(|index| self.is_free(*index))?;
        let offset = index * self.frame_bytes;
        Some(Frame {
            index,
            // CAST: widening.
            gpu_va: self.gpu_va + offset as u64,
            real: self.real + offset,
            bytes: self.frame_bytes,
        })
    }

    fn is_free(&self, index: usize) -> bool {
        let Some(Some(busy)) = self.frames.get(index) else {
            return true;
        };
        let fences = [Some(busy.launch), busy.rest];
        // SAFETY: `hold` got words that stay mapped until `forget` is called for them.
        fences
            .iter()
            .flatten()
            .all(|fence| unsafe { fence.is_reached() })
    }

    /// Takes a frame until the fence `launch` is reached, and `rest` if there is one. Returns false
    /// if `launch` is reached already, because then it cannot show the end.
    ///
    /// # Safety
    ///
    /// The words must stay mapped until [`forget`](Self::forget) is called for them.
    pub(crate) unsafe fn hold(
        &mut self,
        frame: &Frame,
        launch: Fence,
        rest: Option<Fence>,
    ) -> bool {
        // SAFETY: mapped by contract.
        if unsafe { launch.is_reached() } {
            return false;
        }
        if let Some(slot) = self.frames.get_mut(frame.index) {
            *slot = Some(Busy { launch, rest });
        }
        self.next = (frame.index + 1) % self.frames.len();
        true
    }

    /// Frees the frames whose fences lie in `[addr, addr + len)`, which is being unmapped: their
    /// channels are gone.
    pub(crate) fn forget(&mut self, addr: usize, len: usize) {
        for slot in &mut self.frames {
            let fences = slot.map(|busy| [Some(busy.launch), busy.rest]);
            let gone = |fence: &Fence| fence.at().wrapping_sub(addr) < len;
            if fences.iter().flatten().flatten().any(gone) {
                *slot = None;
            }
        }
    }
}

impl Frame {
    /// Returns the frame's size in words.
    pub(crate) fn words(&self) -> usize {
        self.bytes / 4
    }

    /// Writes `words` at `offset` bytes into the frame. Returns false if they do not fit.
    pub(crate) fn write(&self, offset: usize, words: &[u32]) -> bool {
        let end = words
            .len()
            .checked_mul(4)
            .and_then(|n| n.checked_add(offset));
        if offset % 4 != 0 || end.is_none_or(|end| end > self.bytes) {
            return false;
        }
        for (i, word) in words.iter().enumerate() {
            // SAFETY: inside the frame, as checked above; device memory takes whole words.
            unsafe {
                (self.real as *mut u32)
                    .byte_add(offset + i * 4)
                    .write_volatile(*word)
            };
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_frame_is_free_again_when_its_launch_has_released() {
        let mut room = [0u32; 256];
        let (release, rest) = (AtomicU32::new(1), AtomicU32::new(0));
        let at_least = |word: &AtomicU32, number| Fence::AtLeast {
            at: word.as_ptr() as usize,
            number,
        };
        let mut scratch = Scratch::new(0x1000, room.as_mut_ptr() as usize, 1024, 500).unwrap();
        for expected in [0x1000, 0x1200] {
            let frame = scratch.frame().unwrap();
            assert_eq!(frame.gpu_va, expected);
            let fences = (at_least(&release, 10), Some(at_least(&rest, 3)));
            // SAFETY: both words outlive the scratch.
            assert!(unsafe { scratch.hold(&frame, fences.0, fences.1) });
        }
        assert!(scratch.frame().is_none());
        release.store(11, Ordering::Release);
        assert!(scratch.frame().is_none(), "the rest has not run");
        rest.store(3, Ordering::Release);
        let frame = scratch.frame().unwrap();
        assert_eq!(frame.gpu_va, 0x1000);
        // SAFETY: as above.
        let held = unsafe { scratch.hold(&frame, at_least(&release, 10), None) };
        assert!(!held, "already released");
        assert!(frame.write(508, &[7]) && !frame.write(508, &[7, 8]) && !frame.write(2, &[1]));
        assert_eq!(room[127], 7);
    }

    #[test]
    fn a_launch_that_never_ends_keeps_one_frame() {
        let mut room = [0u32; 256];
        let (never, release) = (AtomicU32::new(0), AtomicU32::new(0));
        let at_least = |word: &AtomicU32, number| Fence::AtLeast {
            at: word.as_ptr() as usize,
            number,
        };
        let mut scratch = Scratch::new(0x1000, room.as_mut_ptr() as usize, 1024, 256).unwrap();
        let frame = scratch.frame().unwrap();
        // SAFETY: both words outlive the scratch.
        assert!(unsafe { scratch.hold(&frame, at_least(&never, 1), None) });
        for number in 1..20 {
            let frame = scratch.frame().unwrap();
            assert_ne!(frame.gpu_va, 0x1000);
            // SAFETY: as above.
            assert!(unsafe { scratch.hold(&frame, at_least(&release, number), None) });
            release.store(number, Ordering::Release);
        }
    }

    #[test]
    fn a_word_that_goes_frees_its_frame() {
        let mut room = [0u32; 64];
        let release = AtomicU32::new(1);
        let at = release.as_ptr() as usize;
        let mut scratch = Scratch::new(0x1000, room.as_mut_ptr() as usize, 256, 256).unwrap();
        let frame = scratch.frame().unwrap();
        // SAFETY: the word outlives the scratch.
        assert!(unsafe { scratch.hold(&frame, Fence::AtLeast { at, number: 9 }, None) });
        scratch.forget(at + 4, 64);
        assert!(scratch.frame().is_none());
        scratch.forget(at - 4, 8);
        assert!(scratch.frame().is_some());
    }

    #[test]
    fn too_little_room_is_none_at_all() {
        assert!(Scratch::new(0, 0, 100, 200).is_none());
        assert!(Scratch::new(128, 0, 4096, 256).is_none());
    }
}
