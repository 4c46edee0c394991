// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that page tables are a part of what is charged, and have a part of a limit only.

use super::admit::limited;
use super::*;
use crate::engine::Shortage;

#[test]
fn page_tables_have_half_of_a_limit() {
    const MIB: u64 = 1 << 20;
    for (own, of_group) in [("8M", "max"), ("max", "8M"), ("8M", "8M")] {
        let (mut world, file, group) = limited(own, of_group);
        let gpu = world.gpu;
        let add = |store: &mut Store| store.state().charge_managed(file, gpu, Bytes(0));
        let ticket = world.store.retry(add).unwrap();
        let managed = Bytes(6 * MIB);
        let grow = |store: &mut Store| store.state().recharge_managed(file, ticket, managed);
        assert_eq!(world.store.retry(grow), Ok(()));
        for (tables, admits) in [(0, true), (2, true), (4, false), (6, false), (2, true)] {
            let tables = Bytes(tables * MIB);
            let record = |store: &mut Store| store.state().record_tables(file, ticket, tables);
            assert_eq!(world.store.retry(record), Ok(()));
            world.store.check();
            assert_eq!(
                world.store.state().admits_table(file, gpu),
                admits,
                "{tables:?}"
            );
            let uvm = managed - tables;
            let expected = format!(
                "pinned 4096\nuvm {}\npage_tables {}\n",
                uvm.get(),
                tables.get()
            );
            for owner in [Owner::Proc(APP), Owner::Group(group)] {
                let pool = world.pool(owner);
                assert_eq!(world.read(File::GmemStat, pool), Ok(expected.clone()));
                let sum = format!("{}\n", managed.get() + 4096);
                assert_eq!(world.current(owner), sum, "no part is counted twice");
            }
        }
        world.store.state().close_managed(file, ticket);
        world.store.check();
        let pool = world.pool(Owner::Group(group));
        let nothing = Ok("pinned 4096\nuvm 0\npage_tables 0\n".into());
        assert_eq!(world.read(File::GmemStat, pool), nothing);
    }
    let (mut world, file, _) = limited("max", "max");
    let gpu = world.gpu;
    assert!(
        world.store.state().admits_table(file, gpu),
        "without a limit"
    );
}

/// Page tables never give way, so a page that needs their room lacks it for good.
#[test]
fn page_tables_make_no_room_for_a_page() {
    const MIB: u64 = 1 << 20;
    for (tables, expected) in [(0, Shortage::Passing), (2, Shortage::Lasting)] {
        let (mut world, file, _) = limited("3M", "max");
        let gpu = world.gpu;
        let add = |store: &mut Store| store.state().charge_managed(file, gpu, Bytes(2 * MIB));
        let ticket = world.store.retry(add).unwrap();
        let tables = Bytes(tables * MIB);
        let record = |store: &mut Store| store.state().record_tables(file, ticket, tables);
        assert_eq!(world.store.retry(record), Ok(()));
        assert_eq!(world.store.state().shortage(file, gpu, 0), expected);
    }
}
