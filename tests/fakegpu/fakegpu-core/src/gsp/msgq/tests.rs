// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fills the queues as the driver does.

use super::*;
use crate::testing::World;
use proptest::prelude::*;

const SHARED: u64 = 0x10_0000;
const LOCATION: QueueLocation = QueueLocation {
    shared: SHARED,
    pages: 129,
    command: 0x1000,
    status: 0x4_1000,
};

/// Returns shared memory as the driver prepares it, in consecutive pages.
pub(super) fn memory() -> PhysicalMemory {
    let mut memory = PhysicalMemory::new(0, World::new());
    for page in 0..129 {
        memory
            .write_u64(
                PhysicalAddress::system(SHARED + 8 * page),
                SHARED + PAGE * page,
            )
            .unwrap();
    }
    set_header(&mut memory, abi::msgqTxHeader::msgCount, 63);
    memory
}

fn set_header(memory: &mut PhysicalMemory, field: abi::Field, value: u32) {
    memory
        .write_u32(
            PhysicalAddress::system(SHARED + 0x1000 + field.offset() as u64),
            value,
        )
        .unwrap();
}

fn submit(memory: &mut PhysicalMemory, slot: u64, bytes: &[u8]) {
    memory
        .write(
            PhysicalAddress::system(SHARED + 0x2000 + PAGE * slot),
            bytes,
        )
        .unwrap();
    set_header(
        memory,
        abi::msgqTxHeader::writePtr,
        slot as u32 + (bytes.len() / 4096) as u32,
    );
}

#[test]
fn a_record_survives_the_ring() {
    let mut memory = memory();
    let mut queues = Queues::open(&mut memory, LOCATION).unwrap();
    assert_eq!(queues.receive(&mut memory), Ok(None));
    let payload: Vec<u8> = (0..6000u32).map(|byte| byte as u8).collect();
    let record = Record {
        function: 76,
        sequence: 9,
        result: 0,
        length: 6000,
        payload: payload.clone(),
    };
    submit(&mut memory, 0, &queues.build(&record));
    let received = queues.receive(&mut memory).unwrap().unwrap();
    assert_eq!(
        (received.function, received.sequence, received.length),
        (76, 9, 6000)
    );
    assert_eq!(received.payload[..6000], payload[..]);
    assert_eq!(
        memory.read_u32(PhysicalAddress::system(SHARED + 0x4_1020)),
        Ok(2)
    );
}

#[test]
fn sent_records_sum_to_zero_and_advance() {
    let mut memory = memory();
    let mut queues = Queues::open(&mut memory, LOCATION).unwrap();
    let record = Record {
        function: 0x1001,
        sequence: 0,
        result: 0,
        length: 5,
        payload: vec![1, 2, 3, 4, 5],
    };
    queues.send(&mut memory, &record).unwrap();
    queues.send(&mut memory, &record).unwrap();
    let mut sent = vec![0; 4096];
    memory
        .read(PhysicalAddress::system(SHARED + 0x4_3000), &mut sent)
        .unwrap();
    assert_eq!(checksum(&sent[..(0x30 + 0x25usize).next_multiple_of(8)]), 0);
    assert_eq!(abi::get(&sent, abi::GSP_MSG_QUEUE_ELEMENT::seqNum), Ok(1));
    assert_eq!(
        memory.read_u32(PhysicalAddress::system(SHARED + 0x4_1010)),
        Ok(2)
    );
}

proptest! {
    /// Checks that parsing never leaves the ring, whatever it contains.
    #[test]
    fn any_ring(count in any::<u32>(), write in any::<u32>(), elements in prop::collection::vec(any::<u32>(), 24)) {
        let mut memory = memory();
        set_header(&mut memory, abi::msgqTxHeader::msgCount, count);
        let bytes: Vec<u8> = elements.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.write(PhysicalAddress::system(SHARED + 0x2000), &bytes).unwrap();
        if let Ok(mut queues) = Queues::open(&mut memory, LOCATION) {
            set_header(&mut memory, abi::msgqTxHeader::writePtr, write);
            for _ in 0..4 {
                let _ = queues.receive(&mut memory);
            }
        }
    }

    /// Checks that opening never panics, whatever the location says.
    #[test]
    fn any_location(shared in any::<u64>(), pages in 0u64..6000, command in any::<u64>(), status in any::<u64>()) {
        let mut memory = memory();
        let location = QueueLocation { shared: shared >> 40, pages, command: command >> 44, status: status >> 44 };
        let _ = Queues::open(&mut memory, location);
    }
}
