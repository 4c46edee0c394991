// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocates compute channels, and submits segments to them.

use crate::abi::Handle;
use crate::client::Error;
use crate::gpu::Memory;
use crate::numbers as n;
use crate::queue::Queue;
use crate::session::{Engine, Session};
use crate::sys::Mapping;
use gct_core::submit::method::incr;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The subchannel of compute, as libcuda uses it.
const SUBCHANNEL: u8 = 1;

impl Session {
    /// Allocates a compute channel of a context share, ready for submissions. Work starts once the
    /// group is scheduled.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn launcher(&self, group: Handle, share: Handle) -> Result<Launcher, Error> {
        self.launcher_with(group, share, self.segment_memory()?)
    }

    /// Allocates and maps memory for segments.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn segment_memory(&self) -> Result<SegmentMemory, Error> {
        let memory = self.gpu().alloc_memory(Memory::Host, Launcher::BYTES)?;
        let address = self.map_on_gpu(memory, Launcher::BYTES)?;
        let words = self
            .gpu()
            .map_memory(Memory::Host, memory, 4 * Launcher::WORDS)?;
        Ok(SegmentMemory {
            words: Arc::new(words),
            address,
        })
    }

    /// As [`launcher`](Self::launcher), with the memory for segments.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn launcher_with(
        &self,
        group: Handle,
        share: Handle,
        memory: SegmentMemory,
    ) -> Result<Launcher, Error> {
        let mut launcher = Launcher {
            queue: self.queue_in(group, share, Engine::Compute)?,
            memory,
            next: 0,
        };
        launcher.submit(&[incr(SUBCHANNEL, 0, 1), n::COMPUTE]);
        Ok(launcher)
    }
}

/// Memory for the segments of a [`Launcher`].
#[derive(Debug)]
pub struct SegmentMemory {
    words: Arc<Mapping>,
    address: u64,
}

/// A compute channel with memory for its segments. This process is the only producer.
#[derive(Debug)]
pub struct Launcher {
    queue: Queue,
    memory: SegmentMemory,
    /// Index of the word at which the next segment begins.
    next: usize,
}

impl Launcher {
    /// Words of the memory for segments. Those of an earlier round must have been executed.
    const WORDS: usize = 1 << 18;
    const BYTES: u64 = 4 * Self::WORDS as u64;

    /// Overwrites the words of all segments, and submits nothing.
    pub fn erase(&mut self) {
        for at in 0..Self::WORDS {
            self.memory.words.u32(4 * at).store(0, Ordering::Relaxed);
        }
    }

    /// Returns the memory for segments, for threads that write to it meanwhile.
    pub fn memory(&self) -> Arc<Mapping> {
        self.memory.words.clone()
    }

    /// Puts the next segment at the start of the memory. The first segment there is that with the
    /// engine's object: if it is overwritten before it was executed, no launch runs.
    pub fn rewind(&mut self) {
        self.next = 0;
    }

    /// Returns the index of the word at which the next segment begins.
    pub fn submitted_words(&self) -> usize {
        self.next
    }

    /// Returns the queue, for other submissions to the channel.
    pub fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Returns the address of the memory for segments.
    pub fn address(&self) -> u64 {
        self.memory.address
    }

    /// Submits an entry for words at any address.
    pub fn submit_at(&mut self, address: u64, words: u32) {
        self.queue.submit_segment(address, words);
    }

    /// Submits a segment, which must fit the memory for segments.
    pub fn submit(&mut self, words: &[u32]) {
        assert!(words.len() <= Self::WORDS, "too long");
        if self.next + words.len() > Self::WORDS {
            self.next = 0;
        }
        for (at, word) in (self.next..).zip(words) {
            self.memory
                .words
                .u32(4 * at)
                .store(*word, Ordering::Relaxed);
        }
        // CAST: both fit 18 bits.
        let (offset, count) = (4 * self.next as u64, words.len() as u32);
        self.queue
            .submit_segment(self.memory.address + offset, count);
        self.next += words.len();
    }
}
