// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::chip::ChipDescription;
use crate::gmmu::AddressSpace;
use crate::gpu::Gpu;
use crate::mmio::Mmio;
use crate::platform::Platform;
use crate::regs::*;
use crate::testing::{Bench, Lines, World};
use proptest::prelude::*;
use std::sync::Arc;

const ROOT: PhysicalAddress = PhysicalAddress::video(0x1000);
const SMALL: u64 = 0x1000;
const LARGE: u64 = 0x20_0000;
const VA: u64 = 7 * LARGE;

/// Returns what a walk gives for `VA + inside`, on a page of `bytes` at `offset`.
fn page(offset: u64, inside: u64, bytes: u64, writable: bool) -> Translation {
    Translation {
        address: PhysicalAddress::video(offset + inside),
        kind: 6,
        writable,
        bytes: bytes - inside % bytes,
        page_bytes: bytes,
    }
}

/// Returns the accesses that turn out to be stale.
fn found(mut tlb: Tlb) -> Vec<Stale> {
    for looked_ns in (1..=1 + GRACE_NS).step_by(LOOK_NS as usize) {
        assert_eq!(tlb.stale(looked_ns), []);
    }
    tlb.stale(2 + GRACE_NS)
}

#[test]
fn a_pause_of_the_host_is_no_delay_of_the_driver() {
    let mut tlb = Tlb::default();
    tlb.access(ROOT, VA, false, Some(&page(0, 0, LARGE, true)));
    tlb.access(ROOT, VA, false, None);
    assert_eq!(tlb.stale(1), []);
    assert_eq!(tlb.stale(60 * GRACE_NS), []);
    tlb.invalidate(&all());
    assert_eq!(found(tlb), []);
}

fn stale(inside: u64, write: bool) -> Stale {
    Stale {
        root: ROOT,
        va: VA + inside,
        write,
    }
}

fn all() -> Invalidation {
    Invalidation {
        root: Some(ROOT),
        range: None,
    }
}

#[test]
fn a_page_that_moves_or_goes_needs_an_invalidation() {
    for now in [None, Some(page(0x50_0000, 0x3008, LARGE, true))] {
        for invalidated in [false, true] {
            let mut tlb = Tlb::default();
            tlb.access(ROOT, VA, false, Some(&page(0, 0, LARGE, true)));
            if invalidated {
                tlb.invalidate(&all());
            }
            tlb.access(ROOT, VA + 0x3008, true, now.as_ref());
            let expected = (!invalidated).then(|| stale(0x3008, true));
            assert_eq!(found(tlb), Vec::from_iter(expected));
        }
    }
}

#[test]
fn an_invalidation_soon_after_is_in_time() {
    let mut tlb = Tlb::default();
    tlb.access(ROOT, VA, false, Some(&page(0, 0, LARGE, true)));
    tlb.access(ROOT, VA, false, None);
    assert_eq!(tlb.stale(1), []);
    assert!(tlb.suspects());
    tlb.invalidate(&Invalidation {
        root: Some(ROOT),
        range: Some((VA + SMALL, SMALL)),
    });
    assert!(!tlb.suspects());
    assert_eq!(found(tlb), []);
}

#[test]
fn invalidations_elsewhere_do_not_count() {
    for elsewhere in [
        Invalidation {
            root: Some(PhysicalAddress::system(0x1000)),
            range: None,
        },
        Invalidation {
            root: Some(ROOT),
            range: Some((VA - SMALL, SMALL)),
        },
        Invalidation {
            root: None,
            range: Some((VA + SMALL, SMALL)),
        },
    ] {
        let mut tlb = Tlb::default();
        tlb.access(ROOT, VA, false, Some(&page(0, 0, SMALL, true)));
        tlb.invalidate(&elsewhere);
        tlb.access(ROOT, VA, false, None);
        tlb.invalidate(&elsewhere);
        assert_eq!(found(tlb), [stale(0, false)]);
    }
}

/// A page that may only be written to from now on misses; one that may no longer be is stale
/// for writes alone.
#[test]
fn permissions() {
    for (before, write, now, expected) in [
        (false, true, true, false),
        (false, true, false, false),
        (true, false, false, false),
        (true, true, false, true),
    ] {
        let mut tlb = Tlb::default();
        tlb.access(ROOT, VA, false, Some(&page(0, 0, SMALL, before)));
        tlb.access(ROOT, VA, write, Some(&page(0, 0, SMALL, now)));
        assert_eq!(!found(tlb).is_empty(), expected, "{before} {write} {now}");
    }
}

/// A page that is split stays where it is.
#[test]
fn parts_of_a_page_are_that_page() {
    let mut tlb = Tlb::default();
    tlb.access(ROOT, VA, true, Some(&page(0, 0, LARGE, true)));
    for inside in (0..LARGE).step_by(0x10008) {
        tlb.access(ROOT, VA + inside, true, Some(&page(0, inside, SMALL, true)));
    }
    assert_eq!(found(tlb), []);
}

proptest! {
    /// Whatever happens, kept pages do not overlap.
    #[test]
    fn no_pages_overlap(accesses in prop::collection::vec((0u64..64, any::<bool>(), any::<bool>(), 0u64..4), 0..200)) {
        let mut tlb = Tlb::default();
        for (at, large, write, offset) in accesses {
            let inside = at * (LARGE / 16);
            let bytes = if large { LARGE } else { SMALL };
            let walked = page(offset * 64 * LARGE, inside, bytes, true);
            tlb.access(ROOT, VA + inside, write, Some(&walked));
            let ends = tlb.pages.values().map(Page::end);
            let begins = tlb.pages.values().skip(1).map(|page| page.va);
            prop_assert!(ends.zip(begins).all(|(end, begin)| end <= begin));
        }
    }
}

/// A GPU with the tables of [`Bench`], on which one page was read and then unmapped.
struct Forgetful {
    gpu: Gpu,
    world: Arc<World>,
    lines: Arc<Lines>,
    space: AddressSpace,
    va: u64,
}

impl Forgetful {
    fn new() -> Self {
        let bench = Bench::new();
        let (world, lines) = (World::new(), Arc::new(Lines::default()));
        let platform = Platform {
            recorder: lines.clone(),
            ..world.platform()
        };
        let mut gpu = Gpu::new(ChipDescription::gh100(), 0, platform);
        let (space, va) = (bench.space, bench.va(0x5008));
        gpu.memory = bench.memory;
        space.read_u32(&gpu.memory, va).unwrap();
        // The entry that maps it, in the last of the tables.
        let entry = space.root.plus(0x3000 + 8 * (va >> 29));
        gpu.memory.write_u64(entry, 0).unwrap();
        Self {
            gpu,
            world,
            lines,
            space,
            va,
        }
    }

    /// Reads the page once more, lets `invalidate` run, and returns what is recorded in the end.
    fn recorded(mut self, invalidate: impl FnOnce(&mut Gpu, PhysicalAddress)) -> Vec<String> {
        assert!(self.space.read_u32(&self.gpu.memory, self.va).is_err());
        assert!(self.gpu.has_work());
        self.gpu.step();
        invalidate(&mut self.gpu, self.space.root);
        for _ in 0..2 * GRACE_NS / LOOK_NS {
            self.world.pass(LOOK_NS);
            self.gpu.step();
        }
        assert!(!self.gpu.has_work());
        assert_eq!(self.gpu.stale_accesses(), self.lines.all().len() as u64);
        self.lines.all()
    }
}

#[test]
fn a_forgotten_invalidation_is_an_error_in_the_recorder() {
    let machine = Forgetful::new();
    let (root, va) = (machine.space.root.offset, machine.va);
    let expected =
        format!("{{\"ns\":0,\"kind\":\"stale\",\"root\":{root},\"va\":{va},\"write\":false}}");
    assert_eq!(machine.recorded(|_, _| {}), [expected]);
}

#[test]
fn registers_invalidate_a_page_directory_or_all() {
    let start = |gpu: &mut Gpu, root: u64, all: u32| {
        for (register, value) in [
            (
                NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE_PDB::OFFSET,
                (root >> 12) << 4,
            ),
            (
                NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE_UPPER_PDB::OFFSET,
                root >> 40,
            ),
        ] {
            gpu.write32(register, crate::bits::low_u32(value));
        }
        gpu.write32(
            NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE::OFFSET,
            1 << 31 | all << 1 | 1,
        );
    };
    for (beyond, all, expected) in [(0, 0, 0), (0x1000, 0, 1), (0x1000, 1, 0), (1 << 40, 0, 1)] {
        let recorded = Forgetful::new().recorded(|gpu, root| start(gpu, root.offset + beyond, all));
        assert_eq!(recorded.len(), expected, "{beyond:#x} {all}");
    }
}

#[test]
fn an_address_space_that_goes_takes_its_translations_along() {
    let space = crate::gsp::objects::ObjectKey {
        client: 1,
        handle: 2,
    };
    let recorded = Forgetful::new().recorded(|gpu, root| {
        gpu.host.set_page_directory(space, root);
        gpu.host.unset_page_directory(space);
    });
    assert_eq!(recorded, [""; 0]);
}
