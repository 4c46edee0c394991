// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that what an export keeps stays charged, also where it gets no name or its handle is given
//! to another object.

use super::*;
use crate::engine::Imported;
use crate::rmapi::{Class, Shared};

const NAMES: core::ops::Range<u64> = 1000..999 + limits::ALIASES_MAX as u64;

const IMPORTED: Imported = Imported {
    class: Class::DeviceMemory,
    bytes: 4096,
};

fn shared(index: u32, object: u64) -> Shared {
    Shared {
        index,
        object: u32::try_from(object).unwrap(),
        parent: 20,
    }
}

impl World {
    /// Adds as many names of the memory as it may have.
    fn add_all_names(&mut self, file: FileId) {
        for name in NAMES {
            let fields = [
                (0, CLIENT),
                (4, DEVICE),
                (8, name),
                (12, CLIENT),
                (16, MEMORY),
            ];
            let call = words(28, &fields);
            self.store.ioctl(file, escape::DUP_OBJECT, &call, None);
        }
    }

    fn free_all_names(&mut self, file: FileId) {
        for name in NAMES {
            self.free(file, name, 0);
        }
        self.free(file, MEMORY, 0);
        self.store.check();
    }

    /// Exports an object as the glue does. RM has found file `into`, or one that is not tracked.
    fn export(&mut self, file: FileId, shared: &Shared, into: Option<FileId>) {
        let call = rmapi::decode(escape::CONTROL, &export_control());
        let call = call.unwrap().unwrap();
        let enter = |store: &mut Store| store.state().call_enter(file, &call);
        let ticket = self.store.retry(enter).unwrap();
        let named = match into {
            Some(into) => {
                let export = |store: &mut Store| store.state().exported(file, 10, shared, into);
                self.store.retry(export)
            }
            None => Err(Error::Gone),
        };
        if named.is_err() {
            let mut state = self.store.state();
            // The room is reserved.
            assert_eq!(state.exported_unnamed(file, 10, shared, into), Ok(()));
        }
        self.store.state().share_ends(file, ticket);
        self.store.check();
        let state = self.store.state();
        assert_eq!(
            (*state.reserved_objects, *state.reserving_files),
            (Sat(0), Sat(0))
        );
    }

    fn close(&mut self, file: FileId) {
        self.store.state().file_close(file);
        self.store.check();
    }

    /// Returns the memory that a process is charged for.
    fn memory_of(&mut self, proc: ProcKey) -> u64 {
        let gpu = self.gpu;
        self.store
            .state()
            .memory_charged((Owner::Proc(proc), gpu))
            .get()
    }
}

fn export_control() -> Vec<u8> {
    words(
        32,
        &[
            (0, CLIENT),
            (4, CLIENT),
            (8, 0x3d05),
            (16, 0x1000),
            (24, 24),
        ],
    )
}

#[test]
fn an_export_beyond_the_names_is_charged_until_its_file_is_closed() {
    let (mut world, own, theirs) = world_with_memory();
    let into = world.open(APP, "");
    world.add_all_names(own);
    world.export(own, &shared(0, MEMORY), Some(into));
    world.free_all_names(own);
    assert_eq!(world.memory_of(APP), 4096);
    // It is charged to whoever imports it.
    let import = |store: &mut Store| {
        let mut state = store.state();
        state.imported(theirs, 11, &shared(0, 80), Some(into), &IMPORTED)
    };
    world.store.retry(import).unwrap();
    assert_eq!(world.memory_of(NEIGHBOUR), 8192 + 4096);
    world.close(into);
    assert_eq!(world.memory_of(APP), 0);
    assert_eq!(world.memory_of(NEIGHBOUR), 8192 + 4096);
}

#[test]
fn exports_beyond_the_share_of_a_process_are_charged() {
    let (mut world, own, _) = world_with_memory();
    let into = world.open(APP, "");
    world.export(own, &shared(0, MEMORY), Some(into));
    world.alloc(own, DEVICE, 51, 0x40, Some(1 << 20));
    // As if the process had used up its share since the ioctl began.
    let call = rmapi::decode(escape::CONTROL, &export_control());
    let call = call.unwrap().unwrap();
    let enter = |store: &mut Store| store.state().call_enter(own, &call);
    let ticket = world.store.retry(enter).unwrap();
    let most = Sat(u32::try_from(limits::OBJECTS_OF_PROC_MAX).unwrap());
    let mut state = world.store.state();
    let before = state.procs.get(&APP).unwrap().objects;
    state.procs.get_mut(&APP).unwrap().objects = most;
    let outcome = state.exported(own, 10, &shared(0, 51), into);
    assert_eq!(outcome, Err(Error::NoSpace));
    assert_eq!(
        state.exported_unnamed(own, 10, &shared(0, 51), Some(into)),
        Ok(())
    );
    let now = state.procs.get(&APP).unwrap().objects;
    state.procs.get_mut(&APP).unwrap().objects = before + now - most;
    state.share_ends(own, ticket);
    world.store.check();
    // RM has replaced the first by the second.
    world.free(own, MEMORY, 0);
    assert_eq!(world.memory_of(APP), 2 << 20);
    world.free(own, 51, 0);
    assert_eq!(world.memory_of(APP), 1 << 20);
    world.close(into);
    assert_eq!(world.memory_of(APP), 0);
}

#[test]
fn an_export_into_an_untracked_file_is_charged_to_the_exporter() {
    let (mut world, own, _) = world_with_memory();
    world.alloc(own, DEVICE, 51, 0x40, Some(1 << 20));
    for object in [MEMORY, 51] {
        world.export(own, &shared(0, object), None);
        world.free(own, object, 0);
    }
    // What has no memory, or no handle, is charged nothing.
    world.export(own, &shared(0, TSG), None);
    world.export(own, &shared(0, 0), None);
    assert_eq!(world.memory_of(APP), 4096 + (1 << 20));
    world.close(own);
    assert_eq!(world.memory_of(APP), 0);
}

#[test]
fn an_import_beyond_the_names_is_charged() {
    let (mut world, own, theirs) = world_with_memory();
    let into = world.open(APP, "");
    world.export(own, &shared(0, MEMORY), Some(into));
    for name in NAMES.start..NAMES.end - 1 {
        let fields = [
            (0, CLIENT),
            (4, DEVICE),
            (8, name),
            (12, CLIENT),
            (16, MEMORY),
        ];
        let call = words(28, &fields);
        world.store.ioctl(own, escape::DUP_OBJECT, &call, None);
    }
    let import = |store: &mut Store| {
        let mut state = store.state();
        state.imported(theirs, 11, &shared(0, 80), Some(into), &IMPORTED)
    };
    assert_eq!(world.store.retry(import), Ok(()));
    world.store.check();
    assert_eq!(world.memory_of(NEIGHBOUR), 8192 + 4096);
    world.store.state().file_close(own);
    world.close(into);
    assert_eq!(
        (world.memory_of(APP), world.memory_of(NEIGHBOUR)),
        (0, 8192 + 4096)
    );
}

/// Runs the driver's export of memory to a dma-buf: it tells the size of the part that is exported,
/// and then that of the memory.
fn keep(world: &mut World, source: &Shared, buffer: FileId, [part, all]: [u64; 2]) -> bool {
    let kept = |store: &mut Store| store.state().kept(10, source, buffer, 1, part);
    assert_eq!(world.store.retry(kept), Ok(()));
    world.store.check();
    let mut state = world.store.state();
    let lacks = state.lacks_bytes(source, buffer);
    if lacks {
        state.kept_bytes(source, buffer, Bytes(all));
        assert!(!state.lacks_bytes(source, buffer));
    }
    world.store.check();
    lacks
}

#[test]
fn memory_of_a_dma_buf_beyond_the_names_is_charged_for_itself() {
    let (mut world, own, _) = world_with_memory();
    let buffer = world.open(APP, "");
    world.add_all_names(own);
    assert!(keep(&mut world, &shared(0, MEMORY), buffer, [1024, 4096]));
    assert_eq!(world.memory_of(APP), 8192);
    world.free_all_names(own);
    assert_eq!(world.memory_of(APP), 4096);
    world.close(buffer);
    assert_eq!(world.memory_of(APP), 0);
}

/// Checks that nothing changes if another object gets the handle after the driver has dup'ed its
/// memory, and before it tells the size.
#[test]
fn a_handle_that_is_given_away_names_nothing_of_a_dma_buf() {
    let (mut world, own, _) = world_with_memory();
    let buffer = world.open(APP, "");
    let source = shared(0, MEMORY);
    // While the free is under way. RM has not run it yet, and the dup succeeds.
    let free = words(16, &[(0, CLIENT), (8, MEMORY)]);
    let call = rmapi::decode(escape::FREE, &free).unwrap().unwrap();
    let ticket = world.store.state().call_enter(own, &call).unwrap();
    let kept = |store: &mut Store| store.state().kept(10, &source, buffer, 1, 1024);
    assert_eq!(world.store.retry(kept), Ok(()));
    let outcome = world.store.state().call_leave(own, &call, ticket, None);
    assert_eq!(outcome, Ok(()));
    world.alloc(own, DEVICE, MEMORY, 0x40, Some(512));
    assert_eq!(world.memory_of(APP), 1024 + 512);
    world.store.state().kept_bytes(&source, buffer, Bytes(4096));
    world.store.check();
    assert_eq!(world.memory_of(APP), 4096 + 512);
    // The size is told once, and only of what lacks it.
    world.store.state().kept_bytes(&source, buffer, Bytes(1));
    assert!(!keep(&mut world, &shared(1, MEMORY), buffer, [1, 1]));
    assert_eq!(world.memory_of(APP), 4096 + 512);
    world.free(own, MEMORY, 0);
    assert_eq!(world.memory_of(APP), 4096 + 512);
    world.close(buffer);
    assert_eq!(world.memory_of(APP), 0);
}

/// Checks that the size that RM reports counts, also if it is less than the part that is exported.
#[test]
fn the_size_of_a_dma_bufs_memory_is_what_rm_reports() {
    let (mut world, _, _) = world_with_memory();
    let buffer = world.open(APP, "");
    let before = world.memory_of(APP);
    for (part, all) in [(4096, 1024), (4096, 4096), (4096, 8192)] {
        assert!(keep(&mut world, &shared(7, 999), buffer, [part, all]));
        assert_eq!(world.memory_of(APP), before + all);
    }
}
