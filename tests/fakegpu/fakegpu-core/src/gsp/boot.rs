// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads GSP's boot arguments: a chain of structures in guest memory.

use crate::abi::{self, Malformed};
use crate::gsp::msgq::QueueLocation;
use crate::memory::{PhysicalAddress, PhysicalMemory};
use crate::sparse::OutOfRange;
use std::fmt;

/// Maximum number of regions in the list of boot arguments.
const REGIONS_MAX: u64 = 16;

/// Why GSP does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootError {
    /// A structure lies outside guest memory.
    Memory(OutOfRange),
    /// A structure lacks a member.
    Layout(Malformed),
    /// The list of regions lacks RM's arguments.
    NoArguments,
    /// The shared memory of the queues is malformed.
    Queues,
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => error.fmt(f),
            Self::Layout(error) => error.fmt(f),
            Self::NoArguments => f.write_str("no region is called RMARGS"),
            Self::Queues => f.write_str("the message queues make no sense"),
        }
    }
}

impl std::error::Error for BootError {}

impl From<OutOfRange> for BootError {
    fn from(error: OutOfRange) -> Self {
        Self::Memory(error)
    }
}

impl From<Malformed> for BootError {
    fn from(error: Malformed) -> Self {
        Self::Layout(error)
    }
}

/// Follows the chain from GSP_FMC_BOOT_PARAMS at guest address `parameters` to the message queues.
///
/// # Errors
/// [`BootError`] if a link of the chain is invalid.
pub fn find_queues(memory: &PhysicalMemory, parameters: u64) -> Result<QueueLocation, BootError> {
    let boot = structure(memory, parameters, abi::GSP_FMC_BOOT_PARAMS::SIZE)?;
    let regions = abi::get(&boot, abi::GSP_FMC_BOOT_PARAMS::gspRmParams_bootArgsOffset)?;
    let arguments = find_region(memory, regions, "RMARGS")?;
    let arguments = structure(memory, arguments, abi::MESSAGE_QUEUE_INIT_ARGUMENTS::SIZE)?;
    Ok(QueueLocation {
        shared: abi::get(
            &arguments,
            abi::MESSAGE_QUEUE_INIT_ARGUMENTS::sharedMemPhysAddr,
        )?,
        pages: abi::get(
            &arguments,
            abi::MESSAGE_QUEUE_INIT_ARGUMENTS::pageTableEntryCount,
        )?,
        command: abi::get(
            &arguments,
            abi::MESSAGE_QUEUE_INIT_ARGUMENTS::cmdQueueOffset,
        )?,
        status: abi::get(
            &arguments,
            abi::MESSAGE_QUEUE_INIT_ARGUMENTS::statQueueOffset,
        )?,
    })
}

/// Returns the address of the region called `name` in the list at `regions`.
fn find_region(memory: &PhysicalMemory, regions: u64, name: &str) -> Result<u64, BootError> {
    let size = abi::LibosMemoryRegionInitArgument::SIZE;
    for index in 0..REGIONS_MAX {
        let region = structure(memory, regions.saturating_add(index * size as u64), size)?;
        // Eight characters as one number, the first in the highest byte.
        let id = abi::get(&region, abi::LibosMemoryRegionInitArgument::id8)?.to_be_bytes();
        if id == [0; 8] {
            break;
        }
        if id.iter().skip_while(|byte| **byte == 0).eq(name.as_bytes()) {
            return Ok(abi::get(&region, abi::LibosMemoryRegionInitArgument::pa)?);
        }
    }
    Err(BootError::NoArguments)
}

fn structure(memory: &PhysicalMemory, address: u64, size: usize) -> Result<Vec<u8>, OutOfRange> {
    let mut bytes = vec![0; size];
    memory.read(PhysicalAddress::system(address), &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    fn put(memory: &mut PhysicalMemory, address: u64, bytes: &[u8]) {
        memory
            .write(PhysicalAddress::system(address), bytes)
            .unwrap();
    }

    fn chain() -> PhysicalMemory {
        let mut memory = PhysicalMemory::new(0, World::new());
        let mut boot = vec![0; abi::GSP_FMC_BOOT_PARAMS::SIZE];
        abi::set(
            &mut boot,
            abi::GSP_FMC_BOOT_PARAMS::gspRmParams_bootArgsOffset,
            0x2000,
        )
        .unwrap();
        put(&mut memory, 0x1000, &boot);
        for (index, (name, address)) in [("LOGINIT", 0x3000), ("RMARGS", 0x4000)]
            .into_iter()
            .enumerate()
        {
            let mut region = vec![0; abi::LibosMemoryRegionInitArgument::SIZE];
            let id = name.bytes().fold(0, |id, byte| id << 8 | u64::from(byte));
            abi::set(&mut region, abi::LibosMemoryRegionInitArgument::id8, id).unwrap();
            abi::set(&mut region, abi::LibosMemoryRegionInitArgument::pa, address).unwrap();
            put(&mut memory, 0x2000 + (index * region.len()) as u64, &region);
        }
        let mut arguments = vec![0; abi::MESSAGE_QUEUE_INIT_ARGUMENTS::SIZE];
        abi::set(
            &mut arguments,
            abi::MESSAGE_QUEUE_INIT_ARGUMENTS::sharedMemPhysAddr,
            0x10_0000,
        )
        .unwrap();
        abi::set(
            &mut arguments,
            abi::MESSAGE_QUEUE_INIT_ARGUMENTS::pageTableEntryCount,
            129,
        )
        .unwrap();
        put(&mut memory, 0x4000, &arguments);
        memory
    }

    #[test]
    fn the_chain_leads_to_the_queues() {
        let found = find_queues(&chain(), 0x1000).unwrap();
        assert_eq!((found.shared, found.pages), (0x10_0000, 129));
    }

    #[test]
    fn a_broken_chain_is_an_error() {
        let mut memory = chain();
        assert!(matches!(
            find_queues(&memory, u64::MAX),
            Err(BootError::Memory(_))
        ));
        assert_eq!(find_queues(&memory, 0x8000), Err(BootError::NoArguments));
        put(&mut memory, 0x1000, &[0xff; 0x38]);
        assert!(matches!(
            find_queues(&memory, 0x1000),
            Err(BootError::Memory(_))
        ));
    }
}
