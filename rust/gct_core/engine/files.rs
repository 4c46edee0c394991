// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads and writes the files of the tree.

use super::needs_controls;
use crate::error::Error;
use crate::features::{Feature, FeatureSet};
use crate::gpu::{Backend, Uuid};
use crate::gpu_time::Hold;
use crate::ids::{GpuId, Owner, Scope};
use crate::iface::files::{self, Entry, Mode};
use crate::iface::value::Value;
use crate::iface::{parse, show, File};
use crate::launches::{EffectiveTpcs, Launches, COUNTS};
use crate::policy::slo::Verdict;
use crate::records::{Asks, Gpu, GpuClock, Pool, WorkerCost};
use crate::rmapi::allow::Rule;
use crate::state::State;
use crate::submit::reason::Reason;
use crate::topology::Topology;
use crate::units::Ns;
use core::fmt::{self, Write};

impl State<'_> {
    /// Writes a file. `text` is the whole of one write.
    ///
    /// For `control` and `group.procs` see [`parse::command`] and [`parse::pid`]: their writers
    /// need more than the state.
    ///
    /// # Errors
    ///
    /// In this order: [`Error::Access`] when this function does not write the file;
    /// [`Error::Syntax`] and [`Error::Range`] of the file's format; [`Error::Gone`];
    /// [`Error::Unsupported`] when the GPU's backend cannot enforce it; [`Error::Busy`] for a
    /// memory limit that is lowered below what is charged; [`Error::Exists`] for a cgroup of
    /// another group.
    pub fn write(&mut self, file: File, scope: Scope, text: &[u8]) -> Result<(), Error> {
        let entry = files::entry(file);
        if Some(entry.place) != scope.place() || entry.mode != Mode::ReadWrite {
            return Err(Error::Access);
        }
        match scope {
            Scope::Group(group) if file == File::GroupCgroup => {
                let path = parse::cgroup(text)?;
                self.set_cgroup(group, path)
            }
            Scope::Gpu(gpu) if file == File::GpuWorkerCpus => {
                let cpus = parse::cpus(text)?;
                let gpu = self.gpus.get_mut(&gpu).ok_or(Error::Gone)?;
                entry.check_feature(gpu.features)?;
                gpu.worker_cpus = cpus;
                Ok(())
            }
            Scope::Pool(owner, gpu) => self.write_setting(file, owner, gpu, text),
            _ => Err(Error::Access),
        }
    }

    fn write_setting(
        &mut self,
        file: File,
        owner: Owner,
        gpu: GpuId,
        text: &[u8],
    ) -> Result<(), Error> {
        let value = self.check_write(file, owner, gpu, text)?;
        let pool = self.pools.get_mut(&(owner, gpu)).ok_or(Error::Gone)?;
        if file == File::GmemPeak {
            pool.usage.reset_peak();
            return Ok(());
        }
        if matches!(file, File::TpcQuota | File::TpcMask) {
            return self.set_reserving(file, owner, gpu, value);
        }
        pool.settings.set(file, value)?;
        if file == File::SloP99 {
            if pool.settings.slo_p99.is_none() {
                pool.goal = Verdict::default();
            }
            self.press();
        }
        if needs_controls(file) {
            self.mark_owner(owner, Some(gpu));
        }
        if file == File::ComputeMax {
            self.pauses_rewritten(owner, gpu);
        }
        Ok(())
    }

    /// Parses a write to a file of a pool, and checks that it is possible.
    pub(super) fn check_write(
        &self,
        file: File,
        owner: Owner,
        gpu: GpuId,
        text: &[u8],
    ) -> Result<Value, Error> {
        let entry = files::entry(file);
        if entry.place != files::Place::Pool || entry.mode != Mode::ReadWrite {
            return Err(Error::Access);
        }
        let value = parse::value(entry.format, text)?;
        let (features, topology) = self.gpu_can(gpu)?;
        check_tpcs(&value, &topology)?;
        let pool = self.pools.get(&(owner, gpu)).ok_or(Error::Gone)?;
        if !pool.is_shown(owner) {
            return Err(Error::Gone);
        }
        entry.check_feature(features)?;
        if lowers_below_use(pool, file, &value) {
            return Err(Error::Busy);
        }
        Ok(value)
    }

    /// Shows a file.
    ///
    /// For `group.procs` see [`State::show_procs`].
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] for a fact that the driver has not reported; [`Error::Unsupported`] for a
    /// limit that nothing enforces and a value that nothing measures; [`Error::Access`] when this
    /// function does not show the file; [`Error::Gone`]; [`Error::NoSpace`] when `out` is full.
    pub fn show(&self, file: File, scope: Scope, out: &mut dyn Write) -> Result<(), Error> {
        let entry = files::entry(file);
        if Some(entry.place) != scope.place() || entry.mode == Mode::Write {
            return Err(Error::Access);
        }
        match scope {
            Scope::Root if file == File::Version => written(show::version(out)),
            Scope::Root if file == File::Events => written(self.show_events(out)),
            Scope::Gpu(gpu) => {
                let gpu = self.gpus.get(&gpu).ok_or(Error::Gone)?;
                entry.check_feature(gpu.features)?;
                show_fact(gpu, file, out)
            }
            Scope::Group(group) if file == File::GroupCgroup => {
                let group = self.groups.get(&group).ok_or(Error::Gone)?;
                let path = (!group.cgroup.is_empty()).then_some(&group.cgroup);
                written(show::cgroup(path, out))
            }
            Scope::Pool(owner, gpu) => {
                let (features, _) = self.gpu_can(gpu)?;
                let pool = self.pools.get(&(owner, gpu)).ok_or(Error::Gone)?;
                show_pool(pool, features, entry, out)?;
                if file == File::SloStat {
                    let pressed = self.pressed(owner, gpu).into();
                    return written(show::stat_line("pressed", pressed, out));
                }
                if file != File::ComputeStat {
                    return Ok(());
                }
                if features.has(Feature::ChannelStrict) {
                    let permissive = self.is_permissive(owner, gpu).into();
                    written(show::stat_line("permissive", permissive, out))?;
                }
                if features.has(Feature::Timeslice) {
                    self.show_slices(owner, gpu, out)?;
                }
                match pool.unbound {
                    Some(count) => written(show::stat_line("unbound", u64::from(count), out)),
                    None => Ok(()),
                }
            }
            _ => Err(Error::Access),
        }
    }

    fn show_events(&self, out: &mut dyn Write) -> fmt::Result {
        let failures = &*self.failures;
        for (key, value) in [
            ("limit", failures.limit.0),
            ("memory", failures.memory.0),
            ("decode", failures.decode.0),
            ("members", failures.members.0),
            ("client", failures.client.0),
            ("gpu", failures.gpu.0),
            ("charge", failures.charge.0),
            ("control", failures.control.0),
            ("forbidden", failures.forbidden.0),
        ] {
            show::stat_line(key, value, out)?;
        }
        match failures.daemon {
            Some(daemon) => {
                show::stat_line("unanswered", daemon.unanswered, out)?;
                show::stat_line("version", daemon.version, out)
            }
            None => Ok(()),
        }
    }
}

/// Returns whether a write lowers a memory limit below what is charged. The caller has evicted what
/// can be evicted. A limit may be below the charge, as after a process joined a group; it may then
/// be raised.
fn lowers_below_use(pool: &Pool, file: File, value: &Value) -> bool {
    let Value::BytesOrMax(Some(limit)) = *value else {
        return false;
    };
    let (old, now) = (&pool.settings, pool.usage.now());
    let (old, used) = match file {
        File::GmemLimit => (old.gmem_limit, now.all_memory()),
        File::HmemLimit => (old.hmem_limit, now.host),
        _ => return false,
    };
    old.is_none_or(|old| limit < old) && limit < used
}

/// Checks that a mask names at least one TPC of the GPU, and that a quota does not exceed them. A
/// mask may name TPCs that the GPU lacks, so one text serves GPUs with different floorsweeping.
fn check_tpcs(value: &Value, topology: &Topology) -> Result<(), Error> {
    let existing = topology.existing();
    let fits = match value {
        Value::TpcList(Some(mask)) => !mask.and(existing).is_empty(),
        Value::TpcsOrNone(Some(tpcs)) => u32::from(tpcs.get()) <= existing.count(),
        _ => true,
    };
    if fits || !topology.is_known() {
        Ok(())
    } else {
        Err(Error::Range)
    }
}

fn show_fact(gpu: &Gpu, file: File, out: &mut dyn Write) -> Result<(), Error> {
    let facts = &gpu.facts;
    let name = (!facts.name.is_empty()).then_some(facts.name.as_str());
    written(match file {
        File::GpuUuid => writeln!(out, "{}", Uuid(facts.uuid.ok_or(Error::Unknown)?)),
        File::GpuPci => writeln!(out, "{}", facts.pci),
        File::GpuPciId => writeln!(out, "{}", facts.ids),
        File::GpuMinor => writeln!(out, "{}", facts.minor),
        File::GpuName => writeln!(out, "{}", name.ok_or(Error::Unknown)?),
        File::GpuArchitecture => {
            writeln!(out, "{}", facts.architecture().ok_or(Error::Unknown)?)
        }
        File::GpuTpcs if facts.topology.is_known() => {
            writeln!(out, "{}", facts.topology.existing().count())
        }
        File::GpuTpcsList if facts.topology.is_known() => {
            show::value(&Value::TpcList(Some(*facts.topology.existing())), out)
        }
        File::GpuTpcs | File::GpuTpcsList => return Err(Error::Unknown),
        File::GpuMemoryTotal => {
            writeln!(out, "{}", facts.memory_total.ok_or(Error::Unknown)?.get())
        }
        File::GpuMode => writeln!(out, "{}", facts.backend.word()),
        File::GpuHealth => match (facts.backend, gpu.lost_xid) {
            (Backend::User, _) => return Err(Error::Unknown),
            (_, 0) => out.write_str("ok\n"),
            (_, xid) => writeln!(out, "xid {xid}"),
        },
        File::GpuFeatures => gpu.features.show(out),
        File::GpuWorkerCpus => show::cpus(&gpu.worker_cpus, out),
        File::GpuWorkerStat => {
            let WorkerCost { ran, sleeps } = gpu.worker_cost;
            show::stat_line("cpu_usec", ran.get() / 1_000, out)
                .and_then(|()| show::stat_line("sleeps", sleeps, out))
        }
        File::GpuClockStat => show_clock(&gpu.clock, out),
        _ => return Err(Error::Access),
    })
}

fn show_pool(
    pool: &Pool,
    features: FeatureSet,
    entry: &Entry,
    out: &mut dyn Write,
) -> Result<(), Error> {
    // A limit that is not enforced must not look as if it were in force.
    entry.check_feature(features)?;
    if let Some(value) = pool.settings.get(entry.file) {
        return written(show::value(&value, out));
    }
    let now = pool.usage.now();
    written(match entry.file {
        File::GmemCurrent => show::value(&Value::Bytes(now.all_memory()), out),
        File::GmemPeak => show::value(&Value::Bytes(pool.usage.peak()), out),
        File::HmemCurrent => show::value(&Value::Bytes(now.host), out),
        File::GmemStat if features.has(Feature::GmemCharge) => {
            show::stat_line("pinned", now.memory.get(), out)
                .and_then(|()| match features.has(Feature::GmemUvm) {
                    true => show::stat_line("uvm", (now.managed - now.tables).get(), out).and_then(
                        |()| match features.has(Feature::GmemTables) {
                            true => show::stat_line("page_tables", now.tables.get(), out),
                            false => Ok(()),
                        },
                    ),
                    false => Ok(()),
                })
                .and_then(|()| match pool.allowed {
                    Some(allowed) => show::stat_line("allowed", allowed.get(), out),
                    None => Ok(()),
                })
        }
        File::GmemEvents if features.has(Feature::GmemLimit) => {
            show::stat_line("limit", pool.refusals, out).and_then(|()| {
                match features.has(Feature::GmemEvict) {
                    true => show::stat_line("evicted", pool.evictions.0, out)
                        .and_then(|()| show::stat_line("ahead", pool.ahead.0, out))
                        .and_then(|()| show::stat_line("pressure", pool.taken.0, out)),
                    false => Ok(()),
                }
            })
        }
        File::ComputeStat => show::stat_line("channel_groups", now.channel_groups.into(), out)
            .and_then(|()| show::stat_line("channels", now.channels.into(), out))
            .and_then(|()| show::stat_line("shared_channels", now.shared_channels.into(), out))
            .and_then(|()| match features.has(Feature::ChannelOwned) {
                true => show_owned(pool, out),
                false => Ok(()),
            })
            .and_then(|()| show_counts(entry.file, &pool.launches, features, out))
            .and_then(|()| match features.has(Feature::TpcMask) {
                true => show_passed(&pool.launches, out),
                false => Ok(()),
            })
            .and_then(|()| match features.has(Feature::SlipPower) {
                true => show_asks(&pool.asks, out),
                false => Ok(()),
            })
            .and_then(|()| match features.has(Feature::Usage) {
                true => show_time(pool, out),
                false => Ok(()),
            }),
        File::SloStat => show_goal(&pool.goal, out),
        File::ComputeEvents => show_compute_events(pool, features, out),
        File::TpcReserved if pool.reserved.is_empty() => out.write_str("none\n"),
        File::TpcReserved => show::value(&Value::TpcList(Some(pool.reserved)), out),
        File::TpcEffective => {
            let mask = match pool.effective {
                EffectiveTpcs::Unknown => return Err(Error::Unknown),
                EffectiveTpcs::All => None,
                EffectiveTpcs::Mask(mask) => Some(mask),
            };
            show::value(&Value::TpcList(mask), out)
        }
        // This backend counts nothing here, so there is no line.
        File::GmemStat | File::GmemEvents => Ok(()),
        // A backend that announces another file's feature adds its value here.
        _ => return Err(Error::Unsupported),
    })
}

fn show_owned(pool: &Pool, out: &mut dyn Write) -> fmt::Result {
    show::stat_line("owned", pool.owned.0, out)?;
    show::stat_line("unowned", pool.unowned.0, out)?;
    let now = pool.usage.now();
    show::stat_line("native", now.native_channels.into(), out)?;
    show::stat_line("cooperative", now.shadowed_channels.into(), out)?;
    show::stat_line("unseen", now.unseen_channels.into(), out)?;
    show_forbidden(&pool.forbidden, out)
}

/// Shows what rules refused. Each rule has a line once it refused something.
fn show_forbidden(forbidden: &[u64; Rule::COUNT], out: &mut dyn Write) -> fmt::Result {
    let total = forbidden
        .iter()
        .fold(0, |sum: u64, more| sum.saturating_add(*more));
    show::stat_line("forbidden", total, out)?;
    for (rule, count) in Rule::ALL.iter().zip(forbidden) {
        if *count > 0 {
            writeln!(out, "forbidden.{} {count}", rule.name())?;
        }
    }
    Ok(())
}

/// Shows the clock of a GPU.
fn show_clock(clock: &GpuClock, out: &mut dyn Write) -> fmt::Result {
    show::stat_line("mhz", clock.now.get().into(), out)?;
    show::stat_line("highest_mhz", clock.highest.get().into(), out)?;
    show::stat_line("changes", clock.changes, out)?;
    show::stat_line("errors", clock.errors, out)
}

/// Shows what an owner asks of the clock.
fn show_asks(asks: &Asks, out: &mut dyn Write) -> fmt::Result {
    show::stat_line("clock_mhz", asks.clock.get().into(), out)?;
    show::stat_line("clock_sensitivity", asks.sensitivity, out)
}

/// Shows what is done for a goal.
fn show_goal(goal: &Verdict, out: &mut dyn Write) -> fmt::Result {
    for (key, value) in [
        ("requests", goal.requests),
        ("p99_usec", goal.p99.get()),
        ("met", u64::from(goal.met)),
        ("cannot", u64::from(goal.cannot)),
        ("level", u64::from(goal.level)),
        ("level_usec", goal.age.get() / 1_000),
    ] {
        show::stat_line(key, value, out)?;
    }
    Ok(())
}

/// Shows errors of an owner's work, as far as the backend learns of them.
fn show_compute_events(pool: &Pool, features: FeatureSet, out: &mut dyn Write) -> fmt::Result {
    show_counts(File::ComputeEvents, &pool.launches, features, out)?;
    if features.has(Feature::Faults) {
        show::stat_line("faults", pool.faults.count, out)?;
        show::stat_line("last_xid", u64::from(pool.faults.last_xid), out)?;
    }
    Ok(())
}

/// Shows the time of an owner. Each reason why work was held back has a line once it occurred.
fn show_time(pool: &Pool, out: &mut dyn Write) -> fmt::Result {
    let us = |time: Ns| time.get() / 1_000;
    let held = pool.time.held;
    let sum = held.iter().fold(Ns(0), |sum, time| sum + *time);
    for (key, value) in [
        ("usage_usec", us(pool.time.used)),
        ("usage_tpc_usec", us(pool.time.weighted)),
        ("pending", pool.pending),
        ("waited_usec", us(pool.time.waited)),
        ("held_usec", us(sum)),
    ] {
        show::stat_line(key, value, out)?;
    }
    for (hold, time) in Hold::ALL.iter().zip(held) {
        if time > Ns(0) {
            writeln!(out, "held_usec.{} {}", hold.name(), us(time))?;
        }
    }
    Ok(())
}

/// Shows the counters of launches that a file has.
fn show_counts(
    file: File,
    launches: &Launches,
    features: FeatureSet,
    out: &mut dyn Write,
) -> fmt::Result {
    for count in COUNTS {
        if count.file == file && features.has(count.feature) {
            show::stat_line(count.key, (count.get)(launches) / count.divisor, out)?;
        }
    }
    Ok(())
}

/// Shows what was passed. Each reason has a line once it occurred.
fn show_passed(launches: &Launches, out: &mut dyn Write) -> fmt::Result {
    show::stat_line("passed", launches.passed_total(), out)?;
    for (reason, count) in Reason::ALL.iter().zip(launches.passed) {
        if count > 0 {
            writeln!(out, "passed.{} {count}", reason.name())?;
        }
    }
    Ok(())
}

fn written(result: fmt::Result) -> Result<(), Error> {
    result.map_err(|fmt::Error| Error::NoSpace)
}
