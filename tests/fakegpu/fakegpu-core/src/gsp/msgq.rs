// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Implements the two message queues between the driver and GSP.
//!
//! Both lie in one region of guest memory, which begins with a list of its pages. Each queue is a
//! header and a ring of page-sized elements; the other side updates a few words of the header. A
//! record fills one to sixteen elements. The driver may overwrite any of it at any time. Lengths
//! and indices are therefore read once and checked, and so is every access.

use crate::abi;
use crate::bits::{high_u32, low_u32};
use crate::gsp::boot::BootError;
use crate::memory::{PhysicalAddress, PhysicalMemory};
use crate::sparse::OutOfRange;

/// Bytes of a page and of a ring element.
const PAGE: u64 = 4096;
/// Maximum number of pages of the shared memory; the driver uses 129.
const PAGES_MAX: u64 = 4096;
/// Maximum number of elements of a record.
const RECORD_ELEMENTS_MAX: u32 =
    abi::GSP_MSG_QUEUE_ELEMENT_SIZE_MAX / abi::GSP_MSG_QUEUE_ELEMENT_SIZE_MIN;
/// Size of a queue as the driver allocates it by default.
const QUEUE_BYTES: u64 = 0x4_0000;
/// Offset of a queue's entries, where its reader also keeps its index.
const ENTRIES_OFFSET: u64 = PAGE;
const READER_OFFSET: u64 = 0x20;
/// "I keep my read index in your block."
const FLAG_SWAP_RX: u64 = 1;

/// Bytes before the RPC header of a record.
const ELEMENT_HEADER: usize = abi::GSP_MSG_QUEUE_ELEMENT::rpc.offset();
/// Bytes before the payload of a record.
const PAYLOAD_OFFSET: usize = ELEMENT_HEADER + abi::rpc_message_header_v::SIZE;
/// Maximum payload of one record in bytes.
pub const PAYLOAD_MAX: usize = abi::GSP_MSG_QUEUE_ELEMENT_SIZE_MAX as usize - PAYLOAD_OFFSET;

/// The location of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLocation {
    /// Guest address of the shared memory, which begins with its page list.
    pub shared: u64,
    /// Pages of the shared memory.
    pub pages: u64,
    /// Offset of the driver's queue.
    pub command: u64,
    /// Offset of GSP's queue.
    pub status: u64,
}

/// One remote call or response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// NV_VGPU_MSG_FUNCTION_* or NV_VGPU_MSG_EVENT_*.
    pub function: u32,
    /// The sender's sequence number.
    pub sequence: u32,
    /// Status of a response.
    pub result: u32,
    /// Length of the payload according to the sender.
    pub length: usize,
    /// The payload and the rest of the record's elements. An allocation's parameters lie beyond
    /// `length`.
    pub payload: Vec<u8>,
}

/// The queues of a running GSP.
#[derive(Debug)]
pub struct Queues {
    pages: Vec<u64>,
    command: u64,
    status: u64,
    command_count: u32,
    command_read: u32,
    status_write: u32,
    sequence: u32,
}

impl Queues {
    /// Reads the page list and initialises GSP's queue. This tells the driver that GSP runs.
    ///
    /// # Errors
    /// [`BootError`] if the memory is missing or malformed.
    pub fn open(memory: &mut PhysicalMemory, location: QueueLocation) -> Result<Self, BootError> {
        if location.pages == 0 || location.pages > PAGES_MAX {
            return Err(BootError::Queues);
        }
        let pages = page_list(memory, location.shared, location.pages)?;
        let mut queues = Self {
            pages,
            command: location.command,
            status: location.status,
            command_count: 0,
            command_read: 0,
            status_write: 0,
            sequence: 0,
        };
        queues.command_count = queues.read_header(memory, abi::msgqTxHeader::msgCount)?;
        if queues.command_count == 0 || u64::from(queues.command_count) > PAGES_MAX {
            return Err(BootError::Queues);
        }
        queues.write_status_header(memory)?;
        Ok(queues)
    }

    /// Takes the driver's next record, if there is one.
    ///
    /// # Errors
    /// [`OutOfRange`] if the ring lies outside guest memory.
    pub fn receive(&mut self, memory: &mut PhysicalMemory) -> Result<Option<Record>, OutOfRange> {
        let write = self.read_header(memory, abi::msgqTxHeader::writePtr)?;
        if write == self.command_read || write >= self.command_count {
            return Ok(None);
        }
        let mut bytes = self.element(memory, 0)?;
        let wanted = abi::get_u32(&bytes, abi::GSP_MSG_QUEUE_ELEMENT::elemCount).unwrap_or(1);
        let count = wanted.clamp(1, RECORD_ELEMENTS_MAX.min(self.command_count));
        for index in 1..count {
            bytes.extend(self.element(memory, index)?);
        }
        self.command_read = (self.command_read + count) % self.command_count;
        // With SWAP_RX our read index of their queue lies in our block.
        let reader = self.address(self.status + READER_OFFSET)?;
        memory.write_u32(reader, self.command_read)?;
        Ok(Some(parse(bytes)))
    }

    /// Puts a response or an event into GSP's queue.
    ///
    /// # Errors
    /// [`OutOfRange`] if the ring lies outside guest memory.
    pub fn send(&mut self, memory: &mut PhysicalMemory, record: &Record) -> Result<(), OutOfRange> {
        let mut bytes = self.build(record);
        let count = status_count();
        for page in bytes.chunks_mut(PAGE as usize) {
            let slot = self.status + ENTRIES_OFFSET + u64::from(self.status_write) * PAGE;
            memory.write(self.address(slot)?, page)?;
            self.status_write = (self.status_write + 1) % count;
        }
        self.sequence = self.sequence.wrapping_add(1);
        let write = self.address(self.status + abi::msgqTxHeader::writePtr.offset() as u64)?;
        memory.write_u32(write, self.status_write)
    }

    /// Serialises `record` into whole elements, with a checksum.
    fn build(&self, record: &Record) -> Vec<u8> {
        let kept = record.payload.len().min(PAYLOAD_MAX);
        let length = abi::rpc_message_header_v::SIZE + record.length.min(kept);
        let elements = (PAYLOAD_OFFSET + kept).div_ceil(PAGE as usize);
        let mut bytes = vec![0; elements * PAGE as usize];
        bytes[PAYLOAD_OFFSET..PAYLOAD_OFFSET + kept].copy_from_slice(&record.payload[..kept]);
        let header = |field: abi::Field| field.at(ELEMENT_HEADER);
        let fields = [
            (abi::GSP_MSG_QUEUE_ELEMENT::seqNum, u64::from(self.sequence)),
            (abi::GSP_MSG_QUEUE_ELEMENT::elemCount, elements as u64),
            (
                header(abi::rpc_message_header_v::header_version),
                0x0300_0000,
            ),
            (
                header(abi::rpc_message_header_v::signature),
                u64::from(abi::NV_VGPU_MSG_SIGNATURE_VALID),
            ),
            (header(abi::rpc_message_header_v::length), length as u64),
            (
                header(abi::rpc_message_header_v::function),
                u64::from(record.function),
            ),
            (
                header(abi::rpc_message_header_v::rpc_result),
                u64::from(record.result),
            ),
            (
                header(abi::rpc_message_header_v::rpc_result_private),
                u64::from(record.result),
            ),
            (
                header(abi::rpc_message_header_v::sequence),
                u64::from(record.sequence),
            ),
        ];
        for (field, value) in fields {
            // PANIC: `bytes` is at least one page, and the headers are shorter.
            abi::set(&mut bytes, field, value).expect("headers fit a page");
        }
        let sum = checksum(&bytes[..(ELEMENT_HEADER + length).next_multiple_of(8)]);
        // PANIC: as above.
        abi::set(
            &mut bytes,
            abi::GSP_MSG_QUEUE_ELEMENT::checkSum,
            u64::from(sum),
        )
        .expect("headers fit a page");
        bytes
    }

    /// Reads the element `index` places after the last one read.
    fn element(&self, memory: &PhysicalMemory, index: u32) -> Result<Vec<u8>, OutOfRange> {
        let slot = (self.command_read + index) % self.command_count;
        let mut bytes = vec![0; PAGE as usize];
        memory.read(
            self.address(self.command + ENTRIES_OFFSET + u64::from(slot) * PAGE)?,
            &mut bytes,
        )?;
        Ok(bytes)
    }

    fn read_header(&self, memory: &PhysicalMemory, field: abi::Field) -> Result<u32, OutOfRange> {
        memory.read_u32(self.address(self.command + field.offset() as u64)?)
    }

    /// Writes the header of GSP's queue. The driver waits for it.
    fn write_status_header(&self, memory: &mut PhysicalMemory) -> Result<(), OutOfRange> {
        let fields = [
            (abi::msgqTxHeader::version, 0),
            (abi::msgqTxHeader::msgSize, PAGE),
            (abi::msgqTxHeader::msgCount, u64::from(status_count())),
            (abi::msgqTxHeader::writePtr, 0),
            (abi::msgqTxHeader::flags, FLAG_SWAP_RX),
            (abi::msgqTxHeader::rxHdrOff, READER_OFFSET),
            (abi::msgqTxHeader::entryOff, ENTRIES_OFFSET),
            // The driver checks the size to see whether the header is there.
            (abi::msgqTxHeader::size, QUEUE_BYTES),
        ];
        for (field, value) in fields {
            memory.write_u32(
                self.address(self.status + field.offset() as u64)?,
                low_u32(value),
            )?;
        }
        Ok(())
    }

    /// Returns the guest address of byte `offset` of the shared memory.
    fn address(&self, offset: u64) -> Result<PhysicalAddress, OutOfRange> {
        let page = usize::try_from(offset / PAGE)
            .ok()
            .and_then(|page| self.pages.get(page));
        let page = page.ok_or(OutOfRange {
            address: offset,
            len: 1,
        })?;
        Ok(PhysicalAddress::system(page.saturating_add(offset % PAGE)))
    }
}

/// Returns the number of entries of GSP's queue.
fn status_count() -> u32 {
    low_u32((QUEUE_BYTES - ENTRIES_OFFSET) / PAGE)
}

/// Reads the page list at `shared`. Its first entries are the pages of the list itself.
fn page_list(memory: &PhysicalMemory, shared: u64, count: u64) -> Result<Vec<u64>, OutOfRange> {
    const PER_PAGE: u64 = PAGE / 8;
    let mut pages: Vec<u64> = Vec::new();
    for index in 0..count {
        let base = match index / PER_PAGE {
            0 => shared,
            page => usize::try_from(page)
                .ok()
                .and_then(|page| pages.get(page).copied())
                .ok_or(OutOfRange {
                    address: shared,
                    len: 8 * count,
                })?,
        };
        let entry = base.saturating_add(index % PER_PAGE * 8);
        pages.push(memory.read_u64(PhysicalAddress::system(entry))?);
    }
    Ok(pages)
}

/// Parses a record of whole elements.
fn parse(mut bytes: Vec<u8>) -> Record {
    let field = |field: abi::Field| abi::get_u32(&bytes, field.at(ELEMENT_HEADER)).unwrap_or(0);
    let length = usize::try_from(field(abi::rpc_message_header_v::length)).unwrap_or(usize::MAX);
    let (function, sequence) = (
        field(abi::rpc_message_header_v::function),
        field(abi::rpc_message_header_v::sequence),
    );
    let payload = bytes.split_off(PAYLOAD_OFFSET);
    let length = length
        .saturating_sub(abi::rpc_message_header_v::SIZE)
        .min(payload.len());
    Record {
        function,
        sequence,
        result: 0,
        length,
        payload,
    }
}

/// Returns the exclusive or of all 32-bit words. `bytes` has a multiple of 8 bytes.
fn checksum(bytes: &[u8]) -> u32 {
    let sum = bytes.chunks_exact(8).fold(0, |sum, chunk| {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        sum ^ u64::from_le_bytes(word)
    });
    high_u32(sum) ^ low_u32(sum)
}

#[cfg(test)]
mod tests;
