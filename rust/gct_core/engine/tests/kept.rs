// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests memory that lives on without a tenant's handle.

use super::*;
use crate::engine::{Kept, OF_CHANNEL};

const SPACE: ProcKey = ProcKey {
    tgid: 600,
    start_time_ns: 2,
};

impl World {
    fn bytes_of(&mut self, proc: ProcKey) -> String {
        let pool = self.pool(Owner::Proc(proc));
        let text = self.read(File::GmemCurrent, pool);
        text.map_or("gone".into(), |text| text.trim().into())
    }

    fn keep(&mut self, into: FileId) -> Result<Option<Kept>, Error> {
        let [client, memory] = [CLIENT, MEMORY].map(|handle| u32::try_from(handle).unwrap());
        let kept = self
            .store
            .retry(|store| store.state().keep(into, client, memory));
        self.store.check();
        kept
    }

    fn let_go(&mut self, into: FileId, kept: Kept) {
        self.store.state().let_go(into, kept);
        self.store.check();
    }

    /// Allocates a channel that keeps `MEMORY`, or fails to.
    fn channel_with(&mut self, file: FileId, channel: u64, status: u64) {
        let fields = |status| {
            words(
                32,
                &[
                    (0, CLIENT),
                    (4, TSG),
                    (8, channel),
                    (12, 0xc86f),
                    (28, status),
                ],
            )
        };
        let call = |status| rmapi::decode(escape::ALLOC, &fields(status));
        let enter = call(0).unwrap().unwrap();
        let memory = [0, u32::try_from(MEMORY).unwrap(), 0, 0];
        let client = enter.client;
        let ticket = self
            .store
            .retry(|store| store.state().call_enter(file, &enter))
            .unwrap();
        let names = self
            .store
            .retry(|store| store.state().keep_for_channel(file, client, memory))
            .unwrap();
        assert_eq!(names.into_iter().flatten().count(), 1);
        let ticket = ticket.with_keeps(names);
        let leave = call(status).unwrap().unwrap();
        self.store
            .retry(|store| store.state().call_leave(file, &leave, ticket, None))
            .unwrap();
        self.store.check();
    }
}

#[test]
fn memory_is_charged_until_its_last_keeper_lets_go() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::GmemCharge));
    let file = world.open(APP, "");
    world.cuda(file);
    let into = world.open(APP, "");
    let first = world.keep(into).unwrap().unwrap();
    // One name for all keepers of a file.
    assert_eq!(world.keep(into), Ok(Some(first)));
    assert_eq!(world.bytes_of(APP), "4096");
    world.free(file, MEMORY, 0);
    assert_eq!(world.bytes_of(APP), "4096");
    world.let_go(into, first);
    assert_eq!(world.bytes_of(APP), "4096");
    world.let_go(into, first);
    assert_eq!(world.bytes_of(APP), "0");
    // Nobody has it any more.
    world.let_go(into, first);
    assert_eq!(world.keep(into), Ok(None));
}

#[test]
fn memory_is_charged_until_the_file_of_its_keeper_is_closed() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::GmemCharge));
    let file = world.open(APP, "");
    world.cuda(file);
    let into = world.open(APP, "");
    let kept = world.keep(into).unwrap().unwrap();
    world.free(file, MEMORY, 0);
    world.store.state().file_close(into);
    world.store.check();
    assert_eq!(world.bytes_of(APP), "0");
    world.let_go(into, kept);
    // A new name is another one.
    world.alloc(file, DEVICE, MEMORY, 0x40, Some(4096));
    let into = world.open(APP, "");
    let one = world.keep(into).unwrap().unwrap();
    world.free(file, MEMORY, 0);
    world.alloc(file, DEVICE, MEMORY, 0x40, Some(8192));
    let other = world.keep(into).unwrap().unwrap();
    assert_ne!(one, other);
    assert_eq!(world.bytes_of(APP), "12288");
}

#[test]
fn who_keeps_the_memory_of_another_is_charged_after_it() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::GmemCharge));
    let file = world.open(APP, "");
    world.cuda(file);
    let space = world.open(SPACE, "");
    // A directory to look at.
    world.alloc(space, 0, CLIENT + 1, 0x41, None);
    let kept = world.keep(space).unwrap().unwrap();
    assert_eq!(world.bytes_of(APP), "4096");
    world.free(file, MEMORY, 0);
    assert_eq!(world.bytes_of(APP), "0");
    let pool = &world.store.state().pools;
    let charged = pool.get(&(Owner::Proc(SPACE), world.gpu)).unwrap();
    assert_eq!(charged.usage.now().memory, Bytes(4096));
    world.let_go(space, kept);
    let pools = world.store.state();
    assert!(pools.pools.get(&(Owner::Proc(SPACE), world.gpu)).is_none());
}

#[test]
fn a_channel_keeps_its_memory_until_it_goes() {
    for top in [CHANNEL + 1, TSG, CLIENT] {
        let mut world = World::new(FeatureSet::NONE.with(Feature::GmemCharge));
        let file = world.open(APP, "");
        world.cuda(file);
        // Another directory, which outlives the client.
        let other = world.open(APP, "");
        let fields = |parent, object, class| {
            let client = if class == 0x41 { 0 } else { 11 };
            words(
                32,
                &[(0, client), (4, parent), (8, object), (12, class), (16, 1)],
            )
        };
        for (parent, object, class) in [(0, 11, 0x41), (11, 21, 0x80), (21, 31, 0xa06c)] {
            let call = fields(parent, object, class);
            world.store.ioctl(other, escape::ALLOC, &call, Some(1));
        }
        world.channel_with(file, CHANNEL + 1, 0x1f);
        world.channel_with(file, CHANNEL + 2, 0x1f);
        world.channel_with(file, CHANNEL + 1, 0);
        world.free(file, MEMORY, 0);
        assert_eq!(world.bytes_of(APP), "4096", "{top}");
        world.free(file, top, 0x1f);
        assert_eq!(world.bytes_of(APP), "4096", "{top}");
        world.free(file, top, 0);
        world.store.check();
        assert_eq!(world.bytes_of(APP), "0", "{top}");
    }
}

#[test]
fn a_channel_that_was_not_made_keeps_nothing() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::GmemCharge));
    let file = world.open(APP, "");
    world.cuda(file);
    world.channel_with(file, CHANNEL + 1, 0x1f);
    world.free(file, MEMORY, 0);
    assert_eq!(world.bytes_of(APP), "0");
    assert_eq!(OF_CHANNEL, 4);
}
