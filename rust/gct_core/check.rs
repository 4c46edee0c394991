// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks what must hold after every event.
//!
//! The tests call [`invariants`] after each step of random event sequences. A debug build may call
//! it at any time. It recounts everything from the objects upward, in quadratic time.

use crate::account::{Amount, Usage};
use crate::dirs::DirPath;
use crate::ids::{GpuId, GroupId, Owner, ProcKey, Scope};
use crate::members::Members;
use crate::objects::{List, Object, ObjectKey, NO_FILE};
use crate::plan::Run;
use crate::records::{PathHash, Proc, Share};
use crate::rmapi::Class;
use crate::round::Divisor;
use crate::state::State;
use crate::table::count;
use crate::units::Sat;

/// The first invariant that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An entry of a table cannot be found, or a count is wrong.
    Table,
    /// Links between objects are not mutual.
    Objects,
    /// A directory that must change is not queued, or counts its children wrongly.
    Dirs,
    /// A GPU's index is not its rank by PCI address.
    GpuIndex,
    /// Two groups share a name or a cgroup path.
    GroupUnique,
    /// A process has no open file, or a wrong count of them.
    Files,
    /// A process is in another group than its pid or its cgroup says.
    Membership,
    /// A pool lacks its owner or its GPU, or a group lacks a pool.
    Pools,
    /// Usage is not the sum of the charges of objects.
    Usage,
    /// A directory is wanted that should not exist, or the other way round.
    Wanted,
    /// A process is a member of a group that does not exist.
    Members,
    /// A subject is in the wrong list, or stopped channels are counted wrongly.
    Plan,
    /// A share is not the sum over its owner's processes.
    Shares,
    /// A divisor has a wrong count, or the list of a group's processes is wrong.
    Rounds,
}

/// Checks all invariants.
///
/// # Errors
///
/// The first [`Violation`].
pub fn invariants(state: &State<'_>, members: &Members<'_>) -> Result<(), Violation> {
    let checks: [(bool, Violation); 14] = [
        (tables_are_sound(state, members), Violation::Table),
        (state.objects.is_sound(), Violation::Objects),
        (state.dirs.is_sound(), Violation::Dirs),
        (gpus_are_in_order(state), Violation::GpuIndex),
        (groups_are_unique(state), Violation::GroupUnique),
        (files_are_counted(state), Violation::Files),
        (procs_are_placed(state), Violation::Membership),
        (nodes_have_both_ends(state), Violation::Pools),
        (usage_adds_up(state), Violation::Usage),
        (directories_are_wanted(state), Violation::Wanted),
        (members_have_groups(state, members), Violation::Members),
        (plan_is_sound(state), Violation::Plan),
        (shares_add_up(state), Violation::Shares),
        (rounds_add_up(state), Violation::Rounds),
    ];
    match checks.iter().find(|(holds, _)| !holds) {
        Some((_, violation)) => Err(*violation),
        None => Ok(()),
    }
}

fn tables_are_sound(state: &State<'_>, members: &Members<'_>) -> bool {
    state.gpus.is_sound()
        && state.groups.is_sound()
        && state.paths.is_sound()
        && state.procs.is_sound()
        && state.pids.is_sound()
        && state.pools.is_sound()
        && state.files.is_sound()
        && members.is_sound()
}

fn gpus_are_in_order(state: &State<'_>) -> bool {
    state.gpus.iter().all(|(_, gpu)| {
        let lower = |other: &crate::records::Gpu| other.facts.pci < gpu.facts.pci;
        let below = state.gpus.iter().filter(|(_, other)| lower(other));
        count(below) == usize::from(gpu.index.0)
    })
}

fn groups_are_unique(state: &State<'_>) -> bool {
    let found = |(id, group): (&GroupId, &crate::records::Group)| {
        let members = state
            .procs
            .iter()
            .filter(|(_, proc)| proc.group == Some(*id));
        let path = group.cgroup.as_bytes();
        u32::try_from(count(members)) == Ok(group.share.procs.0)
            && (path.is_empty() || state.paths.get(&PathHash::of(path)) == Some(id))
    };
    let with_path = state
        .groups
        .iter()
        .filter(|(_, group)| !group.cgroup.is_empty());
    count(with_path) == state.paths.len()
        && state.groups.iter().all(found)
        && state.groups.iter().all(|(id, group)| {
            state.groups.iter().all(|(other_id, other)| {
                id == other_id
                    || (group.name != other.name
                        && (group.cgroup.is_empty() || group.cgroup != other.cgroup))
            })
        })
}

fn files_are_counted(state: &State<'_>) -> bool {
    let of = |key: ProcKey| state.files.iter().filter(move |(_, file)| file.proc == key);
    let procs = |(key, proc): (&ProcKey, &crate::records::Proc)| {
        (proc.files.0 > 0 || proc.in_flight.is_some())
            && u32::try_from(count(of(*key))) == Ok(proc.files.0)
    };
    state.procs.iter().all(procs)
        && state
            .files
            .iter()
            .all(|(_, file)| state.procs.contains(&file.proc))
        && state
            .objects
            .iter()
            .all(|(_, object)| object.file == NO_FILE || state.files.contains(&object.file))
}

fn procs_are_placed(state: &State<'_>) -> bool {
    state.procs.iter().all(|(_, proc)| {
        let by_cgroup = state.group_of_cgroup(&proc.cgroup);
        let exists = |group: GroupId| state.groups.contains(&group);
        proc.group == proc.by_pid.or(by_cgroup) && proc.group.is_none_or(exists)
    }) && state.procs.iter().all(|(key, proc)| {
        let younger =
            |other: &ProcKey| other.tgid == key.tgid && other.start_time_ns > key.start_time_ns;
        proc.replaced || !state.procs.iter().any(|(other, _)| younger(other))
    }) && pids_are_counted(state)
}

fn pids_are_counted(state: &State<'_>) -> bool {
    let of = |tgid: u32| state.procs.iter().filter(move |(key, _)| key.tgid == tgid);
    let known = |(tgid, pid): (&u32, &crate::records::Pid)| {
        u32::try_from(count(of(*tgid))) == Ok(pid.procs.0)
            && of(*tgid).all(|(key, _)| key.start_time_ns <= pid.youngest_ns)
    };
    state.pids.iter().all(known)
        && state
            .procs
            .iter()
            .all(|(key, _)| state.pids.contains(&key.tgid))
}

fn nodes_have_both_ends(state: &State<'_>) -> bool {
    let of_groups = state.groups.iter().all(|(group, _)| {
        let pool = |gpu: &GpuId| state.pools.contains(&(Owner::Group(*group), *gpu));
        state.gpus.iter().all(|(gpu, _)| pool(gpu))
    });
    of_groups
        && state.pools.iter().all(|((owner, gpu), pool)| {
            let has_owner = match owner {
                Owner::Group(group) => state.groups.contains(group),
                Owner::Proc(proc) => {
                    state.procs.contains(proc) && *pool.usage.now() != Amount::ZERO
                }
            };
            has_owner && state.gpus.contains(gpu)
        })
}

fn usage_adds_up(state: &State<'_>) -> bool {
    state.pools.iter().all(|((owner, gpu), pool)| {
        let belongs = |proc: ProcKey| match owner {
            Owner::Proc(key) => proc == *key,
            Owner::Group(group) => {
                state.procs.get(&proc).and_then(|proc| proc.group) == Some(*group)
            }
        };
        let mut sum = Amount::ZERO;
        for (_, object) in state.objects.iter() {
            let proc = state.files.get(&object.file).map(|file| file.proc);
            if object.gpu == Some(*gpu) && !object.charge_deferred && proc.is_some_and(belongs) {
                sum = add(&sum, &object.charged);
            }
        }
        sum == *pool.usage.now() && pool.usage.peak() >= sum.all_memory()
    })
}

/// Returns whether each divisor counts the charged channel groups, or the processes that have some.
fn rounds_add_up(state: &State<'_>) -> bool {
    let counted = |divisor: &Divisor, count: usize| {
        u32::try_from(count) == Ok(divisor.count()) && divisor.is_sound()
    };
    let of_proc = |key: ProcKey, gpu: GpuId, usage: &Usage| {
        let in_round = |at: usize| {
            let groups = state.objects.iter().filter(|(_, object)| {
                let file = state.files.get(&object.file);
                let own = file.is_some_and(|file| file.proc == key) && object.gpu == Some(gpu);
                let charged = &object.charged;
                own && !object.charge_deferred
                    && charged.channel_groups > 0
                    && charged.round.index() == at
            });
            count(groups)
        };
        let mut rounds = usage.rounds().iter().enumerate();
        rounds.all(|(at, divisor)| counted(divisor, in_round(at))) && counted(usage.sharers(), 0)
    };
    let of_group = |id: GroupId, gpu: GpuId, usage: &Usage| {
        let shares = |(key, proc): &(&ProcKey, &Proc)| {
            let pool = state.pools.get(&(Owner::Proc(**key), gpu));
            proc.group == Some(id) && pool.is_some_and(|pool| pool.usage.now().channel_groups > 0)
        };
        let sharers = state.procs.iter().filter(shares);
        counted(usage.sharers(), count(sharers))
            && usage.rounds().iter().all(|divisor| counted(divisor, 0))
    };
    state.group_procs_are_sound()
        && state.pools.iter().all(|((owner, gpu), pool)| match owner {
            Owner::Proc(key) => of_proc(*key, *gpu, &pool.usage),
            Owner::Group(id) => of_group(*id, *gpu, &pool.usage),
        })
}

/// Adds amounts. A saturated sum differs from any usage.
fn add(a: &Amount, b: &Amount) -> Amount {
    Amount {
        channel_groups: (Sat(a.channel_groups) + Sat(b.channel_groups)).0,
        channels: (Sat(a.channels) + Sat(b.channels)).0,
        shared_channels: (Sat(a.shared_channels) + Sat(b.shared_channels)).0,
        native_channels: (Sat(a.native_channels) + Sat(b.native_channels)).0,
        shadowed_channels: (Sat(a.shadowed_channels) + Sat(b.shadowed_channels)).0,
        unseen_channels: (Sat(a.unseen_channels) + Sat(b.unseen_channels)).0,
        spaces: (Sat(a.spaces) + Sat(b.spaces)).0,
        memory: a.memory + b.memory,
        managed: a.managed + b.managed,
        tables: a.tables + b.tables,
        host: a.host + b.host,
        round: a.round,
    }
}

fn directories_are_wanted(state: &State<'_>) -> bool {
    let wants = |path, scope| state.dirs.wanted(path) == Some(scope);
    let gpus = state
        .gpus
        .iter()
        .all(|(id, gpu)| wants(DirPath::Gpu(gpu.index), Scope::Gpu(*id)));
    let groups = state
        .groups
        .iter()
        .all(|(id, _)| wants(DirPath::Group(*id), Scope::Group(*id)));
    let pools = state.pools.iter().all(|((owner, gpu), pool)| {
        let Some(index) = state.gpus.get(gpu).map(|gpu| gpu.index) else {
            return false;
        };
        let path = DirPath::of_pool(*owner, index);
        let wanted = wants(path, Scope::Pool(*owner, *gpu));
        match owner {
            Owner::Group(_) => wanted,
            Owner::Proc(proc) => {
                let alive = state.procs.get(proc).is_some_and(|proc| !proc.replaced);
                let due = alive && pool.usage.now().channel_groups > 0;
                pool.visible == due && wanted == due
            }
        }
    });
    let procs = state.procs.iter().all(|(key, proc)| {
        let mine = |(owner, _): &(Owner, GpuId)| *owner == Owner::Proc(*key);
        let visible = state
            .pools
            .iter()
            .filter(|(of, pool)| mine(of) && pool.visible);
        u32::try_from(count(visible)) == Ok(proc.visible.0)
            && (proc.visible.0 > 0 || !wants(DirPath::Proc(key.tgid), Scope::Proc(*key)))
    });
    gpus && groups && pools && procs
}

fn members_have_groups(state: &State<'_>, members: &Members<'_>) -> bool {
    members
        .iter()
        .all(|(_, group)| state.groups.contains(&group))
}

/// Returns whether each subject is in the right list, and stopped channels are counted.
fn plan_is_sound(state: &State<'_>) -> bool {
    let placed = |(key, object): (&ObjectKey, &Object)| {
        let list = state.objects.list_of(*key);
        let subject = matches!(object.class, Class::Channel | Class::ChannelGroup);
        match list {
            _ if object.file == NO_FILE => list.is_some(),
            None => !(subject && object.acked.primary),
            Some(list) => subject && object.acked.primary && is_placed(state, *key, object, list),
        }
    };
    let moves = |(_, object): &(&ObjectKey, &Object)| object.acked.run != Run::Runs;
    let stopped = state.objects.iter().filter(moves);
    state.objects.iter().all(placed)
        && count(stopped) == state.plan.stopped.0
        && state.dirty_procs_are_sound()
        && state.pausing_is_sound()
}

/// Returns whether a subject is in a list of its own process, and clean only if RM has what the
/// limits want.
fn is_placed(state: &State<'_>, key: ObjectKey, object: &Object, list: List) -> bool {
    let key_of_proc = state.files.get(&object.file).map(|file| file.proc);
    let Some(proc) = key_of_proc.and_then(|proc| state.procs.get(&proc)) else {
        return false;
    };
    let stale = key_of_proc.is_some_and(|key| state.is_stale(key));
    let mut listed = state.objects.listed(proc.space, list);
    listed.any(|other| other == key)
        && match list {
            // After a refusal, `write_commit` marks what is in the wrong list.
            List::Clean => {
                object.acked.given_up
                    || stale
                    || state.write_is_refused()
                    || state.is_as_it_should_be(key, object)
            }
            List::InFlight => proc.in_flight.is_some(),
            _ => true,
        }
}

fn shares_add_up(state: &State<'_>) -> bool {
    let zero = Share::default();
    let sum = |mine: &dyn Fn(&Proc) -> bool| {
        let mut sum = zero;
        for (key, proc) in state.procs.iter().filter(|(_, proc)| mine(proc)) {
            let objects = state.objects.iter().filter(|(_, object)| {
                let file = state.files.get(&object.file);
                file.is_some_and(|file| file.proc == *key)
            });
            if u32::try_from(count(objects)) != Ok(proc.objects.0) {
                return None;
            }
            sum = sum.plus(&Share::of_proc(proc.files, proc.objects));
        }
        Some(sum)
    };
    let groups = state
        .groups
        .iter()
        .all(|(id, group)| sum(&|proc: &Proc| proc.group == Some(*id)) == Some(group.share));
    let users = state.users.iter().all(|(id, user)| {
        let all = state.procs.iter().filter(|(_, proc)| proc.user == *id);
        let own = sum(&|proc: &Proc| proc.group.is_none() && proc.user == *id);
        own == Some(user.share) && u32::try_from(count(all)) == Ok(user.procs.0) && user.procs.0 > 0
    });
    let reserved = state.files.iter().fold(Sat(0usize), |sum, (_, file)| {
        sum + Sat(usize::try_from(file.reserved.0).unwrap_or(0))
    });
    let reserving = state.files.iter().filter(|(_, file)| file.reserved.0 > 0);
    let known = |proc: &Proc| state.users.contains(&proc.user);
    groups
        && users
        && reserved == *state.reserved_objects
        && count(reserving) == state.reserving_files.0
        && state.users.is_sound()
        && state.procs.iter().all(|(_, proc)| known(proc))
}

#[cfg(test)]
mod tests;
