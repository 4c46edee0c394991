// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Launches programs that touch memory, the one kind that the software GPU executes.

use crate::abi::Handle;
use crate::client::Error;
use crate::gpu::{Gpu, Memory};
use crate::grid::Grid;
use crate::launcher::Launcher;
use crate::queue::Queue;
use crate::session::{Engine, Session};
use crate::sys::Mapping;
use std::sync::atomic::Ordering;

/// Accesses to 64-bit words, one after the other. Those of a program run side by side.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The address of the first word.
    pub va: u64,
    /// The bytes from which words are taken, and the distance between two.
    pub bytes: u64,
    /// The distance between two words.
    pub stride: u64,
    /// Stores this value plus the offset of the word. Otherwise words are added up.
    pub store: Option<u64>,
}

/// A compute channel in an address space whose faults UVM serves, with memory for programs.
#[derive(Debug)]
pub struct Toucher {
    session: Session,
    group: Handle,
    launcher: Launcher,
    memory: Mapping,
    started: u32,
}

impl Toucher {
    /// Where the memory for programs lies. A program's address has 32 bits.
    const BASE: u32 = 0x1000_0000;
    const BYTES: u64 = 0x2000;
    /// Offsets in it: descriptor, number of ended launches, sums, program.
    const ENDED: u32 = 0x800;
    const SUMS: u32 = 0x900;
    const PROGRAM: u32 = 0x1000;
    /// Maximum number of accesses of a program.
    const ACCESSES_MAX: usize = 64;

    /// Allocates the address space and the channel.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn new(gpu: Gpu) -> Result<Self, Error> {
        let session = Session::with_faults(gpu)?;
        let memory = session.gpu().alloc_memory(Memory::Host, Self::BYTES)?;
        session.map_on_gpu_at(memory, Self::BASE.into(), Self::BYTES)?;
        // CAST: two pages.
        let bytes = Self::BYTES as usize;
        let memory = session.gpu().map_memory(Memory::Host, memory, bytes)?;
        let (group, launcher) = Self::channel(&session)?;
        Ok(Self {
            session,
            group,
            launcher,
            memory,
            started: 0,
        })
    }

    /// Allocates a channel group with a channel.
    fn channel(session: &Session) -> Result<(Handle, Launcher), Error> {
        let group = session.group(Engine::Compute)?;
        let share = session.context_share(group)?;
        let mut launcher = session.launcher(group, share)?;
        session.schedule_queue(launcher.queue())?;
        Ok((group, launcher))
    }

    /// Replaces the channel, which a fault has ended.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn renew(&mut self) -> Result<(), Error> {
        self.session.gpu().client().free(self.group)?;
        (self.group, self.launcher) = Self::channel(&self.session)?;
        self.memory
            .u32(Self::ENDED as usize)
            .store(0, Ordering::Relaxed);
        self.started = 0;
        Ok(())
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the channel's queue.
    pub fn queue(&mut self) -> &mut Queue {
        self.launcher.queue()
    }

    /// Launches a program. The one before must have ended.
    pub fn start(&mut self, accesses: &[Access]) {
        assert!(accesses.len() <= Self::ACCESSES_MAX, "too many");
        let count = accesses.len() as u64;
        let words = accesses.iter().zip(0..).flat_map(|(access, index)| {
            let sum = u64::from(Self::BASE + Self::SUMS + 8 * index);
            let stores = u64::from(access.store.is_some());
            let value = access.store.unwrap_or(sum);
            [access.va, access.bytes, access.stride, stores, value]
        });
        let program = [u64::from_le_bytes(*b"GCTTOUCH"), count]
            .into_iter()
            .chain(words);
        for (at, word) in (Self::PROGRAM..).step_by(8).zip(program) {
            // CAST: an offset in two pages.
            self.memory.u64(at as usize).store(word, Ordering::Relaxed);
        }
        self.started += 1;
        let release = (u64::from(Self::BASE + Self::ENDED), self.started);
        let grid = Grid {
            descriptor: Self::BASE.into(),
            program: Self::BASE + Self::PROGRAM,
            size: [1, 1, 1],
            disabled: 0,
            release: Some(release),
        };
        self.launcher.submit(&grid.words());
    }

    /// Returns whether all programs that were started have ended.
    pub fn has_ended(&self) -> bool {
        let ended = self.memory.u32(Self::ENDED as usize);
        ended.load(Ordering::Acquire) == self.started
    }

    /// Returns the sum of the words that an access of the last program has read.
    pub fn sum(&self, access: usize) -> u64 {
        let at = Self::SUMS as usize + 8 * access;
        self.memory.u64(at).load(Ordering::Relaxed)
    }
}
