// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes the copy engine's methods (class HOPPER_DMA_COPY_A): copies, fills, and the semaphores
//! that end them.

mod remap;

use crate::bits::Bits;
use crate::copies::{Begun, Direction};
use crate::gmmu::{translate, AddressSpace, Fault};
use crate::host::execute::Work;
use crate::host::methods::Method;
use crate::host::semaphore::{Reduction, Semaphore, Width};
use crate::memory::{Location, PhysicalAddress, PhysicalMemory};
use remap::{Remap, SCRUB_COMPONENTS};
use std::collections::BTreeMap;

/// The class of the copy engine.
pub const HOPPER_DMA_COPY_A: u32 = 0xc8b5;

/// NVC8B5_* methods.
mod nvc8b5 {
    pub(super) const SET_SEMAPHORE_A: u16 = 0x240;
    pub(super) const SET_SEMAPHORE_B: u16 = 0x244;
    pub(super) const SET_SEMAPHORE_PAYLOAD: u16 = 0x248;
    pub(super) const SET_SEMAPHORE_PAYLOAD_UPPER: u16 = 0x24c;
    pub(super) const SET_SRC_PHYS_MODE: u16 = 0x260;
    pub(super) const SET_DST_PHYS_MODE: u16 = 0x264;
    pub(super) const LAUNCH_DMA: u16 = 0x300;
    pub(super) const OFFSET_IN_UPPER: u16 = 0x400;
    pub(super) const OFFSET_IN_LOWER: u16 = 0x404;
    pub(super) const OFFSET_OUT_UPPER: u16 = 0x408;
    pub(super) const OFFSET_OUT_LOWER: u16 = 0x40c;
    pub(super) const PITCH_IN: u16 = 0x410;
    pub(super) const PITCH_OUT: u16 = 0x414;
    pub(super) const LINE_LENGTH_IN: u16 = 0x418;
    pub(super) const LINE_COUNT: u16 = 0x41c;
    pub(super) const SET_REMAP_CONST_A: u16 = 0x700;
    pub(super) const SET_REMAP_CONST_B: u16 = 0x704;
    pub(super) const SET_REMAP_COMPONENTS: u16 = 0x708;
}

/// Fields of LAUNCH_DMA.
mod launch {
    use super::Bits;
    pub(super) const DATA_TRANSFER_TYPE: Bits = Bits::new(1, 0);
    pub(super) const SEMAPHORE_TYPE: Bits = Bits::new(4, 3);
    pub(super) const SEMAPHORE_WITH_TIMESTAMP: u64 = 2;
    pub(super) const INTERRUPT_TYPE: Bits = Bits::new(6, 5);
    pub(super) const MULTI_LINE_ENABLE: Bits = Bits::new(9, 9);
    pub(super) const REMAP_ENABLE: Bits = Bits::new(10, 10);
    pub(super) const SRC_PHYSICAL: Bits = Bits::new(12, 12);
    pub(super) const DST_PHYSICAL: Bits = Bits::new(13, 13);
    pub(super) const SEMAPHORE_REDUCTION: Bits = Bits::new(17, 14);
    pub(super) const SEMAPHORE_REDUCTION_UNSIGNED: Bits = Bits::new(18, 18);
    pub(super) const SEMAPHORE_REDUCTION_ENABLE: Bits = Bits::new(19, 19);
    pub(super) const MEMORY_SCRUB_ENABLE: Bits = Bits::new(23, 23);
    pub(super) const SEMAPHORE_PAYLOAD_TWO_WORDS: Bits = Bits::new(27, 27);
}

/// Bytes of one element of a scrub: both constants. A scrub's length is in bytes.
const SCRUB_BYTES: u64 = 8;
/// The target memory in SET_SRC_PHYS_MODE and SET_DST_PHYS_MODE.
const PHYS_MODE_TARGET: Bits = Bits::new(1, 0);
/// Mask of the upper bits of a virtual address.
const ADDRESS_UPPER: u32 = 0x1ff_ffff;
/// Bytes copied at a time.
const CHUNK_BYTES: u64 = 64 << 10;

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Virtual(u64),
    Physical(PhysicalAddress),
}

impl Place {
    fn plus(self, bytes: u64) -> Self {
        match self {
            Self::Virtual(va) => Self::Virtual(va.saturating_add(bytes)),
            Self::Physical(address) => Self::Physical(address.plus(bytes)),
        }
    }

    /// Returns in which memory it is.
    fn location(self, memory: &PhysicalMemory, space: AddressSpace) -> Result<Location, Fault> {
        match self {
            Self::Virtual(va) => Ok(translate(memory, space.root, va)?.address.location),
            Self::Physical(address) => Ok(address.location),
        }
    }

    fn read(
        self,
        memory: &PhysicalMemory,
        space: AddressSpace,
        data: &mut [u8],
    ) -> Result<(), Fault> {
        match self {
            Self::Virtual(va) => space.read(memory, va, data),
            Self::Physical(address) => memory
                .read(address, data)
                .map_err(|_| Fault { va: address.offset }),
        }
    }

    fn write(
        self,
        memory: &mut PhysicalMemory,
        space: AddressSpace,
        data: &[u8],
    ) -> Result<(), Fault> {
        match self {
            Self::Virtual(va) => space.write(memory, va, data),
            Self::Physical(address) => memory
                .write(address, data)
                .map_err(|_| Fault { va: address.offset }),
        }
    }

    /// Clears up to `len` bytes at once. Returns how many; 0 if the fast path does not apply.
    fn clear(
        self,
        memory: &mut PhysicalMemory,
        space: AddressSpace,
        len: u64,
    ) -> Result<u64, Fault> {
        let (address, run) = match self {
            Self::Physical(address) => (address, len),
            Self::Virtual(va) => {
                let found = space.translate(memory, va, true)?;
                found.check_writable(va)?;
                (found.address, found.bytes.min(len))
            }
        };
        if address.location == Location::System {
            return Ok(0);
        }
        memory
            .zero_video(address.offset, run)
            .map_err(|_| Fault { va: address.offset })?;
        Ok(run)
    }
}

/// A copy in progress.
#[derive(Clone, Copy, Debug)]
struct Copy {
    source: Place,
    destination: Place,
    // Pitches, lines and elements are 32-bit numbers, so their products fit 64 bits.
    pitch_in: u64,
    pitch_out: u64,
    /// Elements of a line; bytes without remapping.
    elements: u64,
    lines: u64,
    remap: Option<Remap>,
    line: u64,
    element: u64,
    launch: u64,
    /// Since it moves bytes: its direction, and when it may end.
    begun: Option<(Begun, u64)>,
}

/// How much of a copy was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// All of it, or there is none.
    All,
    /// What the turn's budget allows.
    Some,
    /// All of it, but the time that it takes is not over.
    Held,
}

/// The copy engine's state of one channel.
#[derive(Clone, Debug, Default)]
pub struct CopyEngine {
    registers: BTreeMap<u16, u32>,
    copy: Option<Copy>,
}

impl CopyEngine {
    /// Executes a method. A launch only starts a copy; [`advance`](Self::advance) performs it.
    pub fn execute(&mut self, method: Method) {
        self.registers.insert(method.method, method.data);
        if method.method == nvc8b5::LAUNCH_DMA {
            self.copy = Some(self.launch(u64::from(method.data)));
        }
    }

    /// Continues the copy in progress, within the turn's budget.
    ///
    /// # Errors
    /// [`Fault`] if an address is not mapped; the copy is aborted.
    pub fn advance(&mut self, work: &mut Work<'_>, space: AddressSpace) -> Result<Moved, Fault> {
        let Some(mut copy) = self.copy.take() else {
            return Ok(Moved::All);
        };
        let moved = copy.advance(work, space);
        if moved != Ok(Moved::All) && moved.is_ok() {
            self.copy = Some(copy);
            return moved;
        }
        if let Some((operation, _)) = copy.begun {
            work.count_copy(operation, copy.bytes());
        }
        moved?;
        self.finish(work, space, copy.launch)?;
        Ok(Moved::All)
    }

    fn register(&self, method: u16) -> u32 {
        self.registers.get(&method).copied().unwrap_or(0)
    }

    fn launch(&self, data: u64) -> Copy {
        let scrub = launch::MEMORY_SCRUB_ENABLE.of(data) == 1;
        let remap = if scrub {
            Some(SCRUB_COMPONENTS)
        } else {
            (launch::REMAP_ENABLE.of(data) == 1)
                .then(|| u64::from(self.register(nvc8b5::SET_REMAP_COMPONENTS)))
        };
        let remap = remap.map(|components| Remap {
            components,
            constants: [
                self.register(nvc8b5::SET_REMAP_CONST_A),
                self.register(nvc8b5::SET_REMAP_CONST_B),
            ],
        });
        let lines = match (
            launch::DATA_TRANSFER_TYPE.of(data),
            launch::MULTI_LINE_ENABLE.of(data),
        ) {
            (0, _) => 0,
            (_, 0) => 1,
            _ => u64::from(self.register(nvc8b5::LINE_COUNT)),
        };
        let length = u64::from(self.register(nvc8b5::LINE_LENGTH_IN));
        let elements = if scrub { length / SCRUB_BYTES } else { length };
        Copy {
            source: self.place(
                launch::SRC_PHYSICAL.of(data) == 1,
                nvc8b5::SET_SRC_PHYS_MODE,
                (nvc8b5::OFFSET_IN_UPPER, nvc8b5::OFFSET_IN_LOWER),
            ),
            destination: self.place(
                launch::DST_PHYSICAL.of(data) == 1,
                nvc8b5::SET_DST_PHYS_MODE,
                (nvc8b5::OFFSET_OUT_UPPER, nvc8b5::OFFSET_OUT_LOWER),
            ),
            pitch_in: u64::from(self.register(nvc8b5::PITCH_IN)),
            pitch_out: u64::from(self.register(nvc8b5::PITCH_OUT)),
            elements,
            // Lines of length 0 count as no lines.
            lines: if elements == 0 { 0 } else { lines },
            remap,
            line: 0,
            element: 0,
            launch: data,
            begun: None,
        }
    }

    fn place(&self, physical: bool, mode: u16, (upper, lower): (u16, u16)) -> Place {
        let address = self.address(upper, lower);
        if !physical {
            return Place::Virtual(address);
        }
        Place::Physical(match PHYS_MODE_TARGET.of(u64::from(self.register(mode))) {
            0 => PhysicalAddress::video(address),
            1 | 2 => PhysicalAddress::system(address),
            // Peer memory does not exist here, and no memory lies at this address.
            _ => PhysicalAddress::system(u64::MAX),
        })
    }

    fn address(&self, upper: u16, lower: u16) -> u64 {
        u64::from(self.register(upper) & ADDRESS_UPPER) << 32 | u64::from(self.register(lower))
    }

    /// Releases the semaphore and raises the interrupt at the end of a copy.
    fn finish(&self, work: &mut Work<'_>, space: AddressSpace, data: u64) -> Result<(), Fault> {
        let kind = launch::SEMAPHORE_TYPE.of(data);
        if kind != 0 {
            let two_words = launch::SEMAPHORE_PAYLOAD_TWO_WORDS.of(data) == 1;
            let width = if two_words {
                Width::Bits64
            } else {
                Width::Bits32
            };
            let semaphore = Semaphore {
                space,
                va: self.address(nvc8b5::SET_SEMAPHORE_A, nvc8b5::SET_SEMAPHORE_B),
                width,
            };
            let upper = u64::from(self.register(nvc8b5::SET_SEMAPHORE_PAYLOAD_UPPER));
            let payload = upper << 32 | u64::from(self.register(nvc8b5::SET_SEMAPHORE_PAYLOAD));
            let reduction = (launch::SEMAPHORE_REDUCTION_ENABLE.of(data) == 1).then(|| Reduction {
                operation: launch::SEMAPHORE_REDUCTION.of(data),
                signed: launch::SEMAPHORE_REDUCTION_UNSIGNED.of(data) == 0,
            });
            let timestamp_ns =
                (kind == launch::SEMAPHORE_WITH_TIMESTAMP).then(|| work.clock.now_ns());
            semaphore.release(work.memory, payload, reduction, timestamp_ns)?;
        }
        if launch::INTERRUPT_TYPE.of(data) != 0 {
            work.non_stall_interrupt();
        }
        Ok(())
    }
}

impl Copy {
    fn source_bytes(&self) -> u64 {
        self.remap.map_or(1, |remap| remap.source_bytes())
    }

    fn destination_bytes(&self) -> u64 {
        self.remap.map_or(1, |remap| remap.destination_bytes())
    }

    /// Returns the bytes of its source.
    fn bytes(&self) -> u64 {
        self.elements * self.lines * self.source_bytes()
    }

    /// Moves what the turn's budget allows.
    fn advance(&mut self, work: &mut Work<'_>, space: AddressSpace) -> Result<Moved, Fault> {
        while self.line < self.lines {
            if work.bytes == 0 {
                return Ok(Moved::Some);
            }
            self.move_chunk(work, space)?;
        }
        match self.begun {
            Some((_, end_ns)) if work.clock.now_ns() < end_ns => Ok(Moved::Held),
            _ => Ok(Moved::All),
        }
    }

    /// Counts bytes that move, and begins an operation with the first.
    fn count(&mut self, work: &mut Work<'_>, direction: Direction, bytes: u64) {
        if self.begun.is_none() {
            let time_ns = (self.bytes() >> 10) * work.chip.copy_ns_per_kib;
            let begun = work.copies.begin(direction);
            self.begun = Some((begun, work.clock.now_ns() + time_ns));
        }
        work.count_copied(direction, bytes);
    }

    /// Copies the next elements of the line.
    fn move_chunk(&mut self, work: &mut Work<'_>, space: AddressSpace) -> Result<(), Fault> {
        let left = self.elements - self.element;
        let per_element = self.source_bytes().max(self.destination_bytes());
        let source = self
            .source
            .plus(self.line * self.pitch_in)
            .plus(self.element * self.source_bytes());
        let destination = self
            .destination
            .plus(self.line * self.pitch_out)
            .plus(self.element * self.destination_bytes());
        if self.remap.is_some_and(|remap| remap.is_clear()) {
            let cleared = destination.clear(work.memory, space, left * self.destination_bytes())?;
            // A page holds a whole number of elements unless their size is a multiple of three. For
            // those sizes an element that crosses a page takes the slow path.
            if cleared >= self.destination_bytes() {
                work.bytes = work.bytes.saturating_sub(4096);
                self.step(cleared / self.destination_bytes());
                return Ok(());
            }
        }
        let count = left.min(CHUNK_BYTES / per_element);
        if self.remap.is_none_or(|remap| remap.needs_source()) {
            let (from, to) = (
                source.location(work.memory, space)?,
                destination.location(work.memory, space)?,
            );
            let bytes = count * self.source_bytes();
            self.count(work, Direction::between(from, to), bytes);
        }
        self.copy_elements(work.memory, space, source, destination, count)?;
        work.bytes = work.bytes.saturating_sub(count * per_element);
        self.step(count);
        Ok(())
    }

    fn copy_elements(
        &self,
        memory: &mut PhysicalMemory,
        space: AddressSpace,
        source: Place,
        destination: Place,
        count: u64,
    ) -> Result<(), Fault> {
        // CAST: CHUNK_BYTES bounds both.
        let mut from = vec![0; (count * self.source_bytes()) as usize];
        let Some(remap) = self.remap else {
            source.read(memory, space, &mut from)?;
            return destination.write(memory, space, &from);
        };
        let mut to = vec![0; (count * self.destination_bytes()) as usize];
        if remap.needs_source() {
            source.read(memory, space, &mut from)?;
        }
        if remap.keeps_some() {
            destination.read(memory, space, &mut to)?;
        }
        remap.apply(&from, &mut to);
        destination.write(memory, space, &to)
    }

    fn step(&mut self, elements: u64) {
        self.element += elements;
        if self.element >= self.elements {
            self.element = 0;
            self.line += 1;
        }
    }
}

#[cfg(test)]
mod tests;
