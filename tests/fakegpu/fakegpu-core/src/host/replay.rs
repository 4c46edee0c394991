// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes the memory operations of the host (MEM_OP_A to MEM_OP_D) that invalidate TLBs. Some of
//! them replay or cancel faults.

use crate::bits::Bits;
use crate::faults::{Kinds, Target};
use crate::host::execute::Work;
use crate::memory::PhysicalAddress;
use crate::tlb::Invalidation;

/// Fields of NVC86F_MEM_OP_*, by the method that they lie in.
mod a {
    use super::Bits;
    /// The size of a targeted invalidation: so many times doubled, a page of 4 KiB.
    pub(super) const SIZE: Bits = Bits::new(5, 0);
    pub(super) const ENGINE: Bits = Bits::new(8, 0);
    pub(super) const TARGET_LOW: Bits = Bits::new(31, 12);
}
mod c {
    use super::Bits;
    pub(super) const ALL_ROOTS: Bits = Bits::new(0, 0);
    pub(super) const GPC_DISABLED: Bits = Bits::new(1, 1);
    pub(super) const REPLAY: Bits = Bits::new(4, 2);
    pub(super) const ACCESS_TYPE: Bits = Bits::new(9, 7);
    pub(super) const ROOT_APERTURE: Bits = Bits::new(11, 10);
    pub(super) const ROOT_LOW: Bits = Bits::new(31, 12);
}
mod d {
    use super::Bits;
    pub(super) const ROOT_HIGH: Bits = Bits::new(26, 0);
    pub(super) const OPERATION: Bits = Bits::new(31, 27);
}

/// OPERATION_MMU_TLB_INVALIDATE and .._TARGETED.
const INVALIDATE: [u64; 2] = [9, 10];
const TARGETED: u64 = INVALIDATE[1];
/// TLB_INVALIDATE_REPLAY_NONE.
const NO_REPLAY: u64 = 0;
/// TLB_INVALIDATE_REPLAY_START and .._START_ACK_ALL.
const START: u64 = 1;
const START_ACK_ALL: u64 = 2;
/// TLB_INVALIDATE_REPLAY_CANCEL_VA_GLOBAL.
const CANCEL_VA: u64 = 5;
/// TLB_INVALIDATE_ACCESS_TYPE_VIRT_READ, .._WRITE, .._WRITE_AND_ATOMIC.
const READ: u64 = 0;
const WRITE: u64 = 1;
const WRITE_AND_ATOMIC: u64 = 6;

/// The data of MEM_OP_A to MEM_OP_C.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryOperation {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
}

impl MemoryOperation {
    /// Executes the operation that the data of MEM_OP_D completes.
    pub(super) fn execute(self, work: &mut Work<'_>, data: u64) {
        let invalidates = INVALIDATE.contains(&d::OPERATION.of(data));
        if !invalidates || c::GPC_DISABLED.of(self.c) == 1 {
            return;
        }
        match c::REPLAY.of(self.c) {
            NO_REPLAY => work.memory.tlb().invalidate(&self.invalidation(data)),
            START | START_ACK_ALL => work.replay(),
            CANCEL_VA => work.cancel(&self.target(data)),
            _ => {}
        }
    }

    fn root(self, data: u64) -> PhysicalAddress {
        let root = c::ROOT_LOW.put(0, c::ROOT_LOW.of(self.c)) | d::ROOT_HIGH.of(data) << 32;
        match c::ROOT_APERTURE.of(self.c) {
            0 => PhysicalAddress::video(root),
            _ => PhysicalAddress::system(root),
        }
    }

    fn va(self) -> u64 {
        a::TARGET_LOW.put(0, a::TARGET_LOW.of(self.a)) | self.b << 32
    }

    /// Decodes an invalidation. The hardware aligns its target to its size.
    fn invalidation(self, data: u64) -> Invalidation {
        let bytes = 0x1000u64.checked_shl(crate::bits::low_u32(a::SIZE.of(self.a)));
        let range = bytes
            .filter(|bytes| *bytes != 0 && d::OPERATION.of(data) == TARGETED)
            .map(|bytes| (self.va() & !(bytes - 1), bytes));
        Invalidation {
            root: (c::ALL_ROOTS.of(self.c) == 0).then(|| self.root(data)),
            range,
        }
    }

    fn target(self, data: u64) -> Target {
        Target {
            root: self.root(data),
            va: self.va(),
            engine: crate::bits::low_u32(a::ENGINE.of(self.a)),
            kinds: match c::ACCESS_TYPE.of(self.c) {
                READ => Kinds::Reads,
                WRITE | WRITE_AND_ATOMIC => Kinds::Writes,
                _ => Kinds::All,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{Place, State};
    use crate::gsp::objects::ObjectKey;
    use crate::testing::Bench;

    const PAGE: u64 = 0x1_0002_3000;

    /// Returns the operation of nvidia-uvm's `replay_faults`, or of its `cancel_faults_va`.
    fn operation(bench: &Bench, replay: u64) -> (MemoryOperation, u64) {
        let root = bench.space.root.offset;
        let operation = MemoryOperation {
            a: PAGE & 0xffff_f000 | 384,
            b: PAGE >> 32,
            c: root & 0xffff_f000 | 7 << 7 | replay << 2,
        };
        (operation, 10 << 27 | root >> 32)
    }

    #[test]
    fn an_invalidation_replays_or_cancels() {
        let mut bench = Bench::new();
        bench.replayable.register(vec![PhysicalAddress::system(0)]);
        let place = Place {
            channel: ObjectKey {
                client: 1,
                handle: 2,
            },
            instance: PhysicalAddress::video(0),
            subcontext: 0,
            space: bench.space,
            replayable: true,
        };
        // Mapped, so that a replay lets it go on.
        let access = bench.work().stall(&place, PAGE, false).unwrap();
        for (replay, state) in [
            (0, State::Stalled),
            (3, State::Stalled),
            (START, State::Replayed),
        ] {
            let (operation, data) = operation(&bench, replay);
            operation.execute(&mut bench.work(), data);
            assert_eq!(bench.replayable.state(access), state);
        }
        let access = bench.work().stall(&place, PAGE, true).unwrap();
        let (operation, data) = operation(&bench, CANCEL_VA);
        let without_gpc = MemoryOperation {
            c: operation.c | 2,
            ..operation
        };
        without_gpc.execute(&mut bench.work(), data);
        // MEMBAR.
        operation.execute(&mut bench.work(), 5 << 27);
        assert_eq!(bench.replayable.state(access), State::Stalled);
        operation.execute(&mut bench.work(), data);
        assert_eq!(bench.replayable.state(access), State::Cancelled);
    }

    /// The operations of nvidia-uvm's `tlb_invalidate_all` and `tlb_invalidate_va`.
    #[test]
    fn an_invalidation_names_addresses() {
        let root = PhysicalAddress::system(0x12_3456_7000);
        let c = 0x3456_7000 | 2 << 10;
        let (all, targeted) = (9 << 27 | 0x12, 10 << 27 | 0x12);
        let decode = |a, c, d| MemoryOperation { a, b: 0x1, c }.invalidation(d);
        let of_root = |range| Invalidation {
            root: Some(root),
            range,
        };
        assert_eq!(decode(0, c, all), of_root(None));
        // The target is aligned to the size.
        assert_eq!(
            decode(0x2345_6000 | 2 << 6 | 9, c, targeted),
            of_root(Some((0x1_2340_0000, 0x20_0000)))
        );
        assert_eq!(
            decode(0x2345_6000, c, targeted),
            of_root(Some((0x1_2345_6000, 0x1000)))
        );
        assert_eq!(decode(0x2345_6000 | 52, c, targeted), of_root(None));
        assert_eq!(decode(0, c | 1, all).root, None);
    }

    #[test]
    fn invalidations_reach_the_tlb() {
        for (replay, operation, disabled, expected) in [
            (0, 9, 0, false),
            (0, 10, 0, false),
            (0, 5, 0, true),
            (0, 9, 1, true),
            (START, 9, 0, true),
        ] {
            let mut bench = Bench::new();
            let va = bench.va(0);
            bench.space.read_u32(&bench.memory, va).unwrap();
            let root = bench.space.root.offset;
            let entry = bench.space.root.plus(0x3000 + 8 * (va >> 29));
            bench.memory.write_u64(entry, 0).unwrap();
            bench.space.read_u32(&bench.memory, va).unwrap_err();
            let invalidate = MemoryOperation {
                a: va & 0xffff_f000,
                b: va >> 32,
                c: root & 0xffff_f000 | replay << 2 | disabled << 1,
            };
            invalidate.execute(&mut bench.work(), operation << 27 | root >> 32);
            assert_eq!(
                bench.memory.tlb().suspects(),
                expected,
                "{replay} {operation} {disabled}"
            );
        }
    }
}
