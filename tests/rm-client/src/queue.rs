// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocates channels with a ring, and submits work to them.

use crate::abi::Handle;
use crate::client::Error;
use crate::gpu::Memory;
use crate::numbers as n;
use crate::session::{Engine, Session};
use crate::sys::Mapping;
use std::io;
use std::sync::atomic::{fence, AtomicU32, Ordering};

impl Session {
    /// Allocates and maps memory for a ring. Returns its address.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn ring_memory(&self) -> Result<u64, Error> {
        let memory = self.gpu().alloc_memory(Memory::Host, Queue::BYTES)?;
        self.map_on_gpu(memory, Queue::BYTES)
    }

    /// Allocates a channel with a ring, ready for submissions. Work starts once the group is
    /// scheduled.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn queue(&self, group: Handle, engine: Engine) -> Result<Queue, Error> {
        self.queue_in(group, 0, engine)
    }

    /// The same, for a channel of a context share. A compute channel gets its engine's object.
    pub(crate) fn queue_in(
        &self,
        group: Handle,
        share: Handle,
        engine: Engine,
    ) -> Result<Queue, Error> {
        let memory = self.gpu().alloc_memory(self.rings, Queue::BYTES)?;
        let address = self.map_on_gpu(memory, Queue::BYTES)?;
        let (channel, number) = self.channel_at(group, share, engine, address)?;
        if engine == Engine::Compute {
            // UVM needs the context that comes with it.
            self.gpu().client().alloc_bare(channel, n::COMPUTE)?;
        }
        let token = self.work_token(channel, engine)?;
        if let Some(uvm) = &self.uvm {
            uvm.register_channel(self.gpu(), channel)?;
        }
        let userd_bytes = bytes(u64::from(Self::CHANNELS_MAX * Self::USERD_BYTES))?;
        Ok(Queue {
            channel,
            token,
            address,
            memory: self
                .gpu()
                .map_memory(self.rings, memory, bytes(Queue::BYTES)?)?,
            name: memory,
            userd: self
                .gpu()
                .map_memory(Memory::Device, self.userd, userd_bytes)?,
            positions: bytes(u64::from(number * Self::USERD_BYTES))?,
            doorbell: self.gpu().doorbell(false)?,
            put: 0,
        })
    }
}

/// Converts a length for this process.
fn bytes(bytes: u64) -> Result<usize, Error> {
    let too_long = |_| Error::System(io::Error::from(io::ErrorKind::InvalidInput));
    usize::try_from(bytes).map_err(too_long)
}

/// A channel with its ring. This process is the only producer.
#[derive(Debug)]
pub struct Queue {
    channel: Handle,
    token: u32,
    address: u64,
    /// The ring, then the pushes, then semaphores.
    pub(crate) memory: Mapping,
    userd: Mapping,
    /// Handle of `memory`.
    name: Handle,
    /// Offset of this channel's positions in `userd`.
    positions: usize,
    doorbell: Mapping,
    put: u32,
}

impl Queue {
    /// Size of the memory with ring, pushes and semaphores.
    const BYTES: u64 = 0x1_0000;
    /// Offset of the pushes, and size of each.
    pub(crate) const PUSHES: u32 = 0x1000;
    const PUSH_BYTES: u32 = 0x40;
    /// An address of the GPU that no test maps.
    const UNMAPPED: u64 = 0x7f_dead_0000;
    /// Another one, for which the software GPU reports Xid 79 of no channel.
    const LOST_AT: u64 = 0x79_0000_0000;
    /// Offset of the semaphores.
    const SEMAPHORES: u32 = 0xf000;

    /// Returns the channel.
    pub fn channel(&self) -> Handle {
        self.channel
    }

    /// Returns the memory object with the ring.
    pub fn memory(&self) -> Handle {
        self.name
    }

    /// Submits the release of one of 64 semaphores, with a payload.
    pub fn submit_release(&mut self, semaphore: u32, payload: u32) {
        self.submit_release_at(
            self.address + u64::from(Self::semaphore_at(semaphore)),
            payload,
        );
    }

    /// Submits the release of a semaphore at an unmapped address: the channel faults.
    pub fn submit_fault(&mut self) {
        self.submit_release_at(Self::UNMAPPED, 1);
    }

    /// Submits a release for which the software GPU reports its own loss.
    pub fn submit_loss(&mut self) {
        self.submit_release_at(Self::LOST_AT, 1);
    }

    /// Submits the release of a semaphore at any address.
    pub fn submit_release_at(&mut self, address: u64, payload: u32) {
        self.submit(&release(address, payload));
    }

    /// Submits the release of a semaphore. The push lies at the start of other memory, which is
    /// mapped at `address` for the GPU.
    pub fn submit_release_in(
        &mut self,
        memory: &Mapping,
        address: u64,
        semaphore: u32,
        payload: u32,
    ) {
        let semaphore = self.address + u64::from(Self::semaphore_at(semaphore));
        let words = release(semaphore, payload);
        for (at, word) in (0..).step_by(4).zip(words) {
            memory.u32(at).store(word, Ordering::Relaxed);
        }
        // CAST: a push has a few words.
        self.submit_segment(address, words.len() as u32);
    }

    /// Makes the entry that was submitted last another one, which releases another semaphore.
    /// Neither GP_PUT nor the doorbell is touched.
    pub fn replace_last(&mut self, semaphore: u32, payload: u32) {
        let address = self.address + u64::from(Self::semaphore_at(semaphore));
        // The push of the next submission is free.
        let entry = self.push(&release(address, payload));
        let last = (self.put + Session::ENTRIES - 1) % Session::ENTRIES;
        self.write_entry(last, entry);
    }

    /// Writes any numbers to GP_PUT and GP_GET.
    pub fn write_positions(&self, put: u32, get: u32) {
        let at = |offset: u16| self.userd.u32(self.positions + usize::from(offset));
        at(n::USERD_GP_GET).store(get, Ordering::SeqCst);
        at(n::USERD_GP_PUT).store(put, Ordering::SeqCst);
    }

    /// Writes the true GP_PUT.
    pub fn write_put(&self) {
        let put = self.positions + usize::from(n::USERD_GP_PUT);
        self.userd.u32(put).store(self.put, Ordering::SeqCst);
    }

    /// Writes any number to an entry of the ring.
    pub fn write_ring(&self, index: u32, entry: u64) {
        self.write_entry(index % Session::ENTRIES, halves(entry));
    }

    /// Reads an entry of the ring.
    pub fn read_ring(&self, index: u32) -> u64 {
        let at = index % Session::ENTRIES * 8;
        let [low, high] = [at, at + 4].map(|at| self.word(at).load(Ordering::Relaxed));
        u64::from(high) << 32 | u64::from(low)
    }

    /// Writes any number to a word behind the ring, from which submissions are read.
    pub fn write_push(&self, index: u32, word: u32) {
        let words = (Self::SEMAPHORES - Self::PUSHES) / 4;
        let at = Self::PUSHES + 4 * (index % words);
        self.word(at).store(word, Ordering::Relaxed);
    }

    /// Returns the address of the ring in the address space.
    pub fn ring_address(&self) -> u64 {
        self.address
    }

    /// Returns the payload of a semaphore.
    pub fn payload(&self, semaphore: u32) -> u32 {
        self.word(Self::semaphore_at(semaphore))
            .load(Ordering::Acquire)
    }

    /// Overwrites the payload of a semaphore.
    pub fn set_payload(&self, semaphore: u32, payload: u32) {
        self.word(Self::semaphore_at(semaphore))
            .store(payload, Ordering::Release);
    }

    pub(crate) fn semaphore_at(number: u32) -> u32 {
        Self::SEMAPHORES + (number % 64) * 16
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // CAST: 32 bits fit.
        self.memory.u32(offset as usize)
    }

    /// Writes a push and its entry, then rings the doorbell.
    fn submit(&mut self, words: &[u32; 6]) {
        let entry = self.push(words);
        self.submit_entry(entry);
    }

    /// Writes an entry for `words` words at an address, then rings the doorbell.
    pub fn submit_segment(&mut self, address: u64, words: u32) {
        self.submit_entry(entry(address, words));
    }

    fn submit_entry(&mut self, entry: [u32; 2]) {
        self.write_entry(self.put, entry);
        self.put = (self.put + 1) % Session::ENTRIES;
        // The entry must be visible before its number, and the number before the doorbell.
        fence(Ordering::SeqCst);
        self.write_put();
        self.ring();
    }

    /// Writes the push of the next submission. Returns an entry for it.
    fn push(&self, words: &[u32; 6]) -> [u32; 2] {
        let push = Self::PUSHES + self.put * Self::PUSH_BYTES;
        for (at, word) in (push..).step_by(4).zip(words) {
            self.word(at).store(*word, Ordering::Relaxed);
        }
        // CAST: a push has a few words.
        entry(self.address + u64::from(push), words.len() as u32)
    }

    fn write_entry(&self, index: u32, [low, high]: [u32; 2]) {
        self.word(index * 8).store(low, Ordering::Relaxed);
        self.word(index * 8 + 4).store(high, Ordering::Relaxed);
    }

    /// Has the queue ring by another mapping of a doorbell. Returns the former one.
    pub fn ring_by(&mut self, doorbell: Mapping) -> Mapping {
        std::mem::replace(&mut self.doorbell, doorbell)
    }

    /// Rings the doorbell.
    pub fn ring(&self) {
        self.doorbell
            .u32(n::DOORBELL.into())
            .store(self.token, Ordering::SeqCst);
    }
}

/// Returns the entry of a segment: `GP_ENTRY0_GET`, `GP_ENTRY1_GET_HI`, `GP_ENTRY1_LENGTH`.
fn entry(address: u64, words: u32) -> [u32; 2] {
    let [low, high] = halves(address);
    [low, high | words << 10]
}

/// Returns a push that releases a semaphore.
pub(crate) fn release(address: u64, payload: u32) -> [u32; 6] {
    let [low, high] = halves(address);
    let methods = methods(n::SEM_ADDR_LO, 5);
    [methods, low, high, payload, 0, n::SEM_RELEASE]
}

/// Returns the header of `count` methods from `first` on, each for the next register.
fn methods(first: u16, count: u32) -> u32 {
    /// `DMA_INCR_OPCODE_VALUE`.
    const INCREASING: u32 = 1 << 29;
    INCREASING | (count << 16) | (u32::from(first) >> 2)
}

/// Splits an address into its low and high half.
fn halves(address: u64) -> [u32; 2] {
    // CAST: each half has 32 bits.
    [address as u32, (address >> 32) as u32]
}
