// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges objects to pools, and shows a directory for each pool with channel groups.

use crate::account::{self, Amount, Usage};
use crate::dirs::DirPath;
use crate::error::Error;
use crate::failures::Failure;
use crate::ids::{GpuId, GroupId, Owner, ProcKey, Scope};
use crate::lane::standing::Standing;
use crate::mask::TpcMask;
use crate::objects::{Object, ObjectKey};
use crate::policy::native::{self, Native};
use crate::policy::share::{DutyCycle, Level, Share};
use crate::records::Pool;
use crate::settings::Settings;
use crate::state::State;
use crate::units::{Ns, Sat, Us};

impl State<'_> {
    /// Checks that one charge finds room for a pool and its directories.
    pub(super) fn reserve_charge(&self) -> Result<(), Error> {
        self.reserve_places(1, 2)
    }

    /// Checks that there is room for new pools and directories, beside those that successors may
    /// need. A successor is charged where nothing can be refused any more.
    pub(super) fn reserve_places(&self, pools: usize, dirs: usize) -> Result<(), Error> {
        let kept = Sat(self.places_kept());
        self.pools.reserve((Sat(pools) + kept).0)?;
        self.dirs.reserve((Sat(dirs) + kept * Sat(2)).0)
    }

    /// Returns how many pools successors and running ioctls may need. Each pool has two
    /// directories.
    pub(crate) fn places_kept(&self) -> usize {
        let gpus = Sat(self.gpus.len());
        let pools = Sat(self.procs.len()) * gpus;
        let successors = Sat(self.objects.extra_aliases()).min(pools);
        // An ioctl's objects belong to one process, on some of the GPUs.
        let reserved = (*self.reserved_objects).min(*self.reserving_files * gpus);
        (successors + reserved).0
    }

    /// Charges a process and its group, all or nothing. Returns the amount charged.
    ///
    /// The caller has used [`State::reserve_charge`].
    pub(super) fn charge(&mut self, proc: ProcKey, gpu: Option<GpuId>, amount: Amount) -> Amount {
        if amount == Amount::ZERO {
            return amount;
        }
        let Some(gpu) = gpu.filter(|gpu| self.gpus.contains(gpu)) else {
            self.count(Failure::Gpu);
            return Amount::ZERO;
        };
        let before = self.divisors(proc, gpu);
        let own = (Owner::Proc(proc), gpu);
        if !self.pools.contains(&own) && self.pools.insert(own, Pool::default()).is_err() {
            self.count(Failure::Limit);
            return Amount::ZERO;
        }
        let (mut usage, mut of_group) = self.usages(proc, gpu);
        let charged = account::charge(&mut usage, of_group.as_mut(), &amount);
        self.store_usages(proc, gpu, usage, of_group);
        if !charged {
            self.count(Failure::Charge);
        }
        self.sync_dirs(proc, gpu);
        self.divided(proc, gpu, &before);
        if charged && amount.native_channels > 0 {
            self.plan.has_new_pauses |= self.effective(proc, gpu).bandwidth.is_some();
        }
        if charged {
            amount
        } else {
            Amount::ZERO
        }
    }

    /// Uncharges an object that is gone.
    pub(super) fn uncharge(&mut self, proc: ProcKey, object: &Object) {
        let Some(gpu) = object.gpu.filter(|gpu| self.gpus.contains(gpu)) else {
            // The GPU was removed, and all its charges with it.
            return;
        };
        if object.charged == Amount::ZERO || object.charge_deferred {
            return;
        }
        if object.charged.native_channels > 0 {
            // Without its last one its owner does not pause any more.
            self.plan.has_new_pauses |= self.is_paused(proc, gpu);
        }
        let before = self.divisors(proc, gpu);
        let (mut usage, mut of_group) = self.usages(proc, gpu);
        if !account::uncharge(&mut usage, of_group.as_mut(), &object.charged) {
            self.count(Failure::Charge);
        }
        self.store_usages(proc, gpu, usage, of_group);
        if object.charged.channels > 0 && object.charged.native_channels > 0 {
            self.native_gone(proc, gpu);
        }
        self.sync_dirs(proc, gpu);
        self.divided(proc, gpu, &before);
    }

    /// Uncharges a part of what an object is charged for. The object stays as it is.
    pub(super) fn uncharge_part(&mut self, proc: ProcKey, object: &Object, part: Amount) {
        let mut less = *object;
        less.charged = part;
        self.uncharge(proc, &less);
    }

    /// Charges another alias of a resource, after the charged one is gone.
    pub(super) fn inherit(&mut self, proc: ProcKey, object: &Object, successor: ObjectKey) {
        if object.charged == Amount::ZERO {
            return self.mark_if_dirty(successor);
        }
        let Some(to) = self.objects.get(successor).map(|successor| successor.file) else {
            return self.uncharge(proc, object);
        };
        // A file that is closing is not in the table any more. It belongs to `proc`.
        let to = self.files.get(&to).map_or(proc, |file| file.proc);
        let waits = self
            .objects
            .get(successor)
            .is_some_and(|successor| successor.unconfirmed);
        let stays = to == proc && !object.charge_deferred;
        if !stays {
            self.uncharge(proc, object);
        }
        if let Some(successor) = self.objects.get_mut(successor) {
            (successor.charged, successor.gpu) = (object.charged, object.gpu);
            successor.charge_deferred = !stays;
        }
        if !waits {
            self.charge_deferred(to, successor);
        }
        self.mark_if_dirty(successor);
    }

    /// Charges an alias the deferred amount, after RM has accepted the alias.
    ///
    /// `reserve_places` has kept room for every successor.
    pub(super) fn charge_deferred(&mut self, proc: ProcKey, key: ObjectKey) {
        let Some(object) = self
            .objects
            .get(key)
            .filter(|object| object.charge_deferred)
        else {
            return;
        };
        let charged = self.charge(proc, object.gpu, object.charged);
        if let Some(object) = self.objects.get_mut(key) {
            (object.charged, object.charge_deferred) = (charged, false);
        }
    }

    /// Moves the charges of a device and all below it to another GPU.
    ///
    /// The caller has used [`State::reserve_charge`].
    pub(super) fn move_to_gpu(&mut self, device: ObjectKey, gpu: GpuId) {
        let mut at = Some(device);
        for _ in 0..self.objects.len() {
            let Some(key) = at else { break };
            let Some(object) = self.objects.get(key).copied() else {
                break;
            };
            let proc = self.files.get(&object.file).map(|file| file.proc);
            if let (Some(proc), true) = (proc, object.gpu != Some(gpu)) {
                self.uncharge(proc, &object);
                let charged = self.charge(proc, Some(gpu), object.charged);
                if let Some(object) = self.objects.get_mut(key) {
                    (object.charged, object.gpu) = (charged, Some(gpu));
                }
                self.mark_if_dirty(key);
            }
            at = self.objects.after(device, key.handle);
        }
    }

    /// Moves the usage of a process from one group to another.
    pub(super) fn transfer(&mut self, proc: ProcKey, from: Option<GroupId>, to: Option<GroupId>) {
        for at in 0..self.gpus.len() {
            let Some(gpu) = self.gpus.key_at(at) else {
                continue;
            };
            let Some(pool) = self.pools.get(&(Owner::Proc(proc), gpu)) else {
                continue;
            };
            let amount = *pool.usage.now();
            self.plan.has_new_pauses |= amount.native_channels > 0;
            let (mut old, mut new) = (self.group_usage(from, gpu), self.group_usage(to, gpu));
            let before = [old, new];
            if !account::transfer(&amount, old.as_mut(), new.as_mut()) {
                self.count(Failure::Charge);
            }
            self.store_group_usage(from, gpu, old);
            self.store_group_usage(to, gpu, new);
            let by = |usage: Option<Usage>| usage.map_or(1, |usage| usage.sharers().by());
            for (group, (before, now)) in [from, to]
                .into_iter()
                .zip(before.into_iter().zip([old, new]))
            {
                if let Some(group) = group.filter(|_| by(before) != by(now)) {
                    self.shares_changed(group, gpu);
                }
            }
        }
    }

    /// Returns the limits in force for a process on a GPU: its own within its share of its group's,
    /// under the pressure of goals and of shorter requests.
    pub fn effective(&self, proc: ProcKey, gpu: GpuId) -> Settings {
        let settings = self.under_pressure(self.unpressed(Owner::Proc(proc), gpu), gpu);
        self.among_lengths(settings, proc, gpu)
    }

    /// Returns the limits that were written for an owner on a GPU, within its share of its group's.
    pub(super) fn unpressed(&self, owner: Owner, gpu: GpuId) -> Settings {
        let topology = self.gpu_topology(gpu);
        let of = |owner| self.settings_in_force(owner, gpu).on(&topology);
        let own = of(owner);
        let group = match owner {
            Owner::Proc(proc) => self.group_of(proc),
            Owner::Group(_) => None,
        };
        let Some(group) = group else {
            return own;
        };
        let mut of_group = of(Owner::Group(group));
        let usage = self.group_usage(Some(group), gpu).unwrap_or(Usage::ZERO);
        of_group.timeslice = of_group.timeslice.map(|slice| usage.sharers().part(slice));
        own.within(&of_group)
    }

    /// Returns the owner of a process's limits: its group, or the process itself.
    pub fn owner_of(&self, proc: ProcKey) -> Owner {
        self.group_of(proc).map_or(Owner::Proc(proc), Owner::Group)
    }

    /// Returns the limits of a process on a GPU that concern its neighbours.
    pub fn standing(&self, proc: ProcKey, gpu: GpuId) -> Standing {
        let (topology, settings) = (self.gpu_topology(gpu), self.launch_settings(proc, gpu));
        Standing {
            own: self.reserved_for(proc, gpu),
            alone: self.reserved(Owner::Proc(proc), gpu),
            allowed: settings.allowed(&topology),
            // An owner always lends. `tpc.steal` of the borrower decides whether it borrows.
            lends: true,
            confined: !settings.tpc_steal,
            rank: settings.rank(),
            weight: self.share(proc, gpu).weight(),
        }
    }

    /// Returns the limits in force on the time of a process on a GPU: its owner's, and its own.
    pub fn share(&self, proc: ProcKey, gpu: GpuId) -> Share {
        let of = |owner| level(&self.settings_in_force(owner, gpu));
        let own = of(Owner::Proc(proc));
        match self.group_of(proc) {
            Some(group) => Share {
                owner: of(Owner::Group(group)),
                own,
            },
            None => Share {
                owner: own,
                own: Level::default(),
            },
        }
    }

    /// Returns why the channels of a process stay native on a GPU of the user-space mode, or `None`
    /// if the library manages them. `limits_launches` is [`State::limits_launches`] of the GPU.
    pub fn native(&self, proc: ProcKey, gpu: GpuId, limits_launches: bool) -> Option<Native> {
        let features = self.gpus.get(&gpu)?.features;
        let own = self.unpressed(Owner::Proc(proc), gpu);
        native::native(features, &own, limits_launches)
    }

    /// Returns whether some owner has a limit on launches on a GPU. O(owners on GPUs).
    pub fn limits_launches(&self, gpu: GpuId) -> bool {
        let mut here = self.pools.iter().filter(|((_, on), _)| *on == gpu);
        here.any(|(_, pool)| pool.settings.needs_launches())
    }

    /// Returns the limits of one owner on a GPU as they were written, or `None` without a pool.
    pub fn settings(&self, owner: Owner, gpu: GpuId) -> Option<Settings> {
        self.pools.get(&(owner, gpu)).map(|pool| pool.settings)
    }

    fn usages(&self, proc: ProcKey, gpu: GpuId) -> (Usage, Option<Usage>) {
        let own = self.pools.get(&(Owner::Proc(proc), gpu));
        let group = self.procs.get(&proc).and_then(|proc| proc.group);
        let own = own.map_or(Usage::ZERO, |pool| pool.usage);
        (own, self.group_usage(group, gpu))
    }

    fn store_usages(&mut self, proc: ProcKey, gpu: GpuId, usage: Usage, of_group: Option<Usage>) {
        if let Some(pool) = self.pools.get_mut(&(Owner::Proc(proc), gpu)) {
            pool.usage = usage;
        }
        self.may_pause(Owner::Proc(proc), gpu);
        let group = self.procs.get(&proc).and_then(|proc| proc.group);
        self.store_group_usage(group, gpu, of_group);
    }

    fn group_usage(&self, group: Option<GroupId>, gpu: GpuId) -> Option<Usage> {
        let pool = self.pools.get(&(Owner::Group(group?), gpu))?;
        Some(pool.usage)
    }

    fn store_group_usage(&mut self, group: Option<GroupId>, gpu: GpuId, usage: Option<Usage>) {
        let (Some(group), Some(usage)) = (group, usage) else {
            return;
        };
        if let Some(pool) = self.pools.get_mut(&(Owner::Group(group), gpu)) {
            pool.usage = usage;
        }
        self.may_pause(Owner::Group(group), gpu);
    }

    /// Shows the directory of a process on a GPU while the process has channel groups there and is
    /// the youngest with its pid. Hides it otherwise and drops its settings. Removes a pool without
    /// charges.
    pub(super) fn sync_dirs(&mut self, proc: ProcKey, gpu: GpuId) {
        let key = (Owner::Proc(proc), gpu);
        let replaced = self.procs.get(&proc).is_some_and(|proc| proc.replaced);
        let Some(pool) = self.pools.get_mut(&key) else {
            return;
        };
        let now = *pool.usage.now();
        let shown = now.channel_groups > 0 && !replaced;
        let was = core::mem::replace(&mut pool.visible, shown);
        let (mut lifted, mut freed) = (false, false);
        if !pool.visible {
            // No file shows these settings any more, and none could change them.
            lifted = core::mem::take(&mut pool.settings) != Settings::DEFAULT;
            freed = core::mem::take(&mut pool.reserved) != TpcMask::EMPTY;
        }
        match (was, shown) {
            (false, true) => self.show_dirs(proc, gpu),
            (true, false) => self.hide_dirs(proc, gpu),
            _ => {}
        }
        if now == Amount::ZERO {
            self.pauses_no_more(key.0, gpu);
            self.pools.remove(&key);
        }
        if freed {
            self.reserve_quotas(gpu);
        }
        if lifted {
            // Channels in another process's channel group may be left.
            self.mark_owner(Owner::Proc(proc), Some(gpu));
        }
    }

    fn show_dirs(&mut self, proc: ProcKey, gpu: GpuId) {
        let Some(index) = self.index_of(gpu) else {
            return;
        };
        if let Some(entry) = self.procs.get_mut(&proc) {
            entry.visible += 1;
        }
        let (top, owner) = (DirPath::Proc(proc.tgid), Owner::Proc(proc));
        // INVARIANT: `reserve_charge` made room for both.
        let _ = self.dirs.want(top, Scope::Proc(proc));
        let path = DirPath::of_pool(owner, index);
        let _ = self.dirs.want(path, Scope::Pool(owner, gpu));
    }

    fn hide_dirs(&mut self, proc: ProcKey, gpu: GpuId) {
        let Some(index) = self.index_of(gpu) else {
            return;
        };
        let owner = Owner::Proc(proc);
        let path = DirPath::of_pool(owner, index);
        self.dirs.unwant(path, Scope::Pool(owner, gpu));
        let Some(entry) = self.procs.get_mut(&proc) else {
            return;
        };
        entry.visible -= 1;
        if entry.visible.0 == 0 {
            self.dirs
                .unwant(DirPath::Proc(proc.tgid), Scope::Proc(proc));
        }
    }
}

/// Returns the limits of settings on time.
fn level(settings: &Settings) -> Level {
    let ns = |time: Us| time.to_ns().unwrap_or(Ns::MAX);
    Level {
        weight: settings.weight,
        max: settings.bandwidth.map(|max| DutyCycle {
            quota: ns(max.quota),
            period: ns(max.period),
        }),
    }
}
