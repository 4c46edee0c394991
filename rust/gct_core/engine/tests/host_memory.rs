// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that host memory of evictions is charged until it is freed, and bounded by `hmem.limit`.

use super::*;
use crate::engine::HostCharge;

const MIB: u64 = 1 << 20;

struct Host {
    world: World,
    file: FileId,
    group: GroupId,
    ticket: Ticket,
}

impl Host {
    /// Adds a member of a group with managed memory. Both have limits.
    fn new(own: &str, of_group: &str) -> Self {
        let mut world = World::new(FeatureSet::all());
        let (group, file) = world.web();
        let gpu = world.gpu;
        let add = |store: &mut Store| store.state().charge_managed(file, gpu, Bytes(2 * MIB));
        let ticket = world.store.retry(add).unwrap();
        let mut host = Self {
            world,
            file,
            group,
            ticket,
        };
        for (owner, limit) in host.owners().into_iter().zip([own, of_group]) {
            assert_eq!(host.limit(owner, limit), Ok(()));
        }
        host
    }

    fn owners(&self) -> [Owner; 2] {
        [Owner::Proc(APP), Owner::Group(self.group)]
    }

    fn limit(&mut self, owner: Owner, limit: &str) -> Result<(), Error> {
        let pool = self.world.pool(owner);
        self.world.write(File::HmemLimit, pool, limit)
    }

    fn charge(&mut self, bytes: u64, for_owner: bool) -> Option<HostCharge> {
        let (file, ticket) = (self.file, self.ticket);
        let charge = |store: &mut Store| {
            let mut state = store.state();
            state.charge_host(file, ticket, Bytes(bytes), for_owner)
        };
        let charge = self.world.store.retry(charge).unwrap();
        self.world.store.check();
        charge
    }

    fn free(&mut self, charge: HostCharge, bytes: u64) {
        self.world.store.state().uncharge_host(charge, Bytes(bytes));
        self.world.store.check();
    }

    /// Checks what both owners are charged for.
    fn holds(&mut self, bytes: u64) {
        for owner in self.owners() {
            let pool = self.world.pool(owner);
            let shown = self.world.read(File::HmemCurrent, pool);
            assert_eq!(shown, Ok(format!("{bytes}\n")));
        }
    }
}

#[test]
fn the_last_byte_fits_and_one_more_does_not() {
    for (own, of_group) in [("2M", "max"), ("max", "2M"), ("2M", "2M")] {
        let mut host = Host::new(own, of_group);
        assert_eq!(host.charge(2 * MIB + 1, true), None);
        assert_eq!(host.charge(u64::MAX, true), None);
        let first = host.charge(MIB, true).unwrap();
        let second = host.charge(MIB, true).unwrap();
        host.holds(2 * MIB);
        assert_eq!(host.charge(1, true), None);
        // Somebody else needs the GPU's memory, who does not pay for this limit.
        let forced = host.charge(MIB, false).unwrap();
        host.holds(3 * MIB);
        assert_eq!(host.charge(1, true), None);
        for charge in [first, second, forced] {
            host.free(charge, MIB);
        }
        host.holds(0);
        assert!(host.charge(2 * MIB, true).is_some());
    }
}

#[test]
fn nothing_fits_into_a_limit_of_zero() {
    let mut host = Host::new("0", "max");
    assert_eq!(host.charge(1, true), None);
    host.holds(0);
    let owner = Owner::Proc(APP);
    assert_eq!(host.limit(owner, "4096"), Ok(()));
    assert!(host.charge(4096, true).is_some());
    assert_eq!(host.limit(owner, "4095"), Err(Error::Busy));
    assert_eq!(host.limit(owner, "max"), Ok(()));
    assert_eq!(host.limit(owner, "0"), Err(Error::Busy));
    assert_eq!(host.limit(owner, "4096"), Ok(()));
}

/// A limit that is exceeded, because the GPU was full, may be raised and not be lowered.
#[test]
fn a_limit_below_what_is_charged_may_be_raised() {
    let mut host = Host::new("4096", "max");
    host.charge(3 * 4096, false).unwrap();
    let owner = Owner::Proc(APP);
    assert_eq!(host.limit(owner, "8192"), Ok(()));
    assert_eq!(host.limit(owner, "8191"), Err(Error::Busy));
}

/// What evictions took stays charged when the account has gone, until it is freed. Then the account
/// has gone without a trace, and late reports change nothing.
#[test]
fn host_memory_outlives_its_account() {
    let mut host = Host::new("max", "max");
    let first = host.charge(MIB, true).unwrap();
    let second = host.charge(4096, true).unwrap();
    let (file, ticket) = (host.file, host.ticket);
    host.world.store.state().close_managed(file, ticket);
    host.world.store.check();
    host.holds(MIB + 4096);
    let pool = host.world.pool(Owner::Proc(APP));
    let pinned = Ok("4096\n".into());
    assert_eq!(host.world.read(File::GmemCurrent, pool), pinned);
    host.free(first, MIB);
    host.holds(4096);
    host.free(second, 4096);
    host.holds(0);
    let objects = |host: &mut Host| host.world.store.state().objects.iter().count();
    let before = objects(&mut host);
    host.free(second, 4096);
    host.free(HostCharge::NOBODY, 4096);
    host.world.store.state().close_managed(file, ticket);
    assert_eq!(host.charge(1, true), Some(HostCharge::NOBODY));
    assert_eq!(objects(&mut host), before);
    host.holds(0);
}

/// A process takes its charge to another group, whatever that one's limit.
#[test]
fn host_memory_moves_with_its_process() {
    let mut host = Host::new("max", "1M");
    let charge = host.charge(MIB, true).unwrap();
    let other = host.world.group("other");
    let [from, to] = [host.group, other].map(Scope::Group);
    let pool = host.world.pool(Owner::Group(other));
    assert_eq!(host.world.write(File::HmemLimit, pool, "4096"), Ok(()));
    assert_eq!(host.world.write(File::GroupCgroup, from, "/none"), Ok(()));
    assert_eq!(host.world.write(File::GroupCgroup, to, "/web"), Ok(()));
    host.world.store.check();
    let left = host.world.pool(Owner::Group(host.group));
    assert_eq!(host.world.read(File::HmemCurrent, left), Ok("0\n".into()));
    host.group = other;
    host.holds(MIB);
    assert_eq!(host.charge(1, true), None);
    host.free(charge, MIB);
    host.holds(0);
}

/// An account is its process's, whose files come and go. It counts for the process until its last
/// host memory is freed.
#[test]
fn an_account_outlives_the_file_that_opened_it() {
    for takes_host in [false, true] {
        let mut world = World::new(FeatureSet::all());
        let (gpu, before) = (world.gpu, world.store.state().files.len());
        let space = world.open(APP, "/web");
        let open = |store: &mut Store| store.state().open_account(space, gpu);
        let (account, ticket) = world.store.retry(open).unwrap();
        world.store.check();
        assert_eq!(world.store.state().opener(account), Some(APP));
        let grow = |store: &mut Store| {
            let mut state = store.state();
            state.try_recharge_managed(account, ticket, Bytes(2 * MIB))
        };
        let charge = |store: &mut Store| {
            let mut state = store.state();
            state.charge_host(account, ticket, Bytes(MIB), true)
        };
        assert_eq!(world.store.retry(grow), Ok(None));
        let host = takes_host.then(|| world.store.retry(charge).unwrap().unwrap());
        world.store.state().file_close(space);
        world.store.check();
        assert_eq!(world.store.retry(grow), Ok(None), "still open");
        world.store.state().close_managed(account, ticket);
        world.store.check();
        let is_open = world.store.state().opener(account).is_some();
        assert_eq!(is_open, takes_host);
        if let Some(charge) = host {
            world.store.state().uncharge_host(charge, Bytes(MIB));
            world.store.check();
        }
        assert_eq!(world.store.state().files.len(), before);
        assert!(!world.store.state().procs.contains(&APP), "nothing is left");
        let gone = world.store.state().open_account(space, gpu);
        assert_eq!(gone, Err(Error::Gone));
    }
}
