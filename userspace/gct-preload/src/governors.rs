// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the governors of this process, one for each GPU that it uses. Limits, neighbours and
//! learnt kernel durations belong to one GPU.

use crate::governor::{self, Governor, Workspace};
use crate::limits::{self, LaunchLimits};
use crate::neighbours::GpuPeers;
use crate::optional;
use crate::stats::STATS;
use core::fmt::Write;
use core::sync::atomic::Ordering;
use gct_core::lane::governor::Peers as _;
use gct_core::launches::Launches;
use gct_core::mask::TpcMask;
use gct_core::submit::reason::Reason;
use gct_core::units::Ns;

/// The governors, one per GPU.
pub(crate) struct Governors {
    /// Each with the N of `/dev/nvidiaN`.
    list: Vec<(u32, Governor)>,
    /// The limits for a GPU without a daemon; `None` before the environment is read.
    limits: Option<LaunchLimits>,
    /// The buffers, once a governor was prepared.
    work: Option<Workspace>,
}

impl core::fmt::Debug for Governors {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("Governors");
        fields.field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Governors {
    /// Creates an empty set.
    pub(crate) const fn new() -> Self {
        Self {
            list: Vec::new(),
            limits: None,
            work: None,
        }
    }

    /// Returns the governor of a GPU. The first call allocates, so a signal handler must not make
    /// it.
    pub(crate) fn prepare(&mut self, gpu: u32) -> &mut Governor {
        let at = self.list.iter().position(|(of, _)| *of == gpu);
        let at = at.unwrap_or_else(|| {
            let mut limits = *self.limits.get_or_insert_with(limits::from_environment);
            let mut gpu_tpcs = None;
            if limits.any() {
                let tpcs = limits::topology(gpu);
                let there = limits.tpcs.is_none_or(|list| !list.and(tpcs.existing()).is_empty());
                if tpcs.is_known() && there {
                    gpu_tpcs = Some(tpcs);
                } else {
                    optional::cannot(&format!(
                        "GPU {gpu} has no TPC of GCTGROUP_TPC_MASK, or its TPCs are not known (GCTGROUP_TPCS)"
                    ));
                    limits = LaunchLimits::NONE;
                }
            }
            let mut governor = governor::new(limits);
            if let Some(tpcs) = gpu_tpcs {
                governor.set_gpu(tpcs);
            }
            self.work.get_or_insert_with(governor::workspace);
            self.list.push((gpu, governor));
            self.list.len() - 1
        });
        &mut self.list[at].1
    }

    /// Returns whether the environment, or the program itself, limits launches.
    pub(crate) fn are_limited_alone(&mut self) -> bool {
        self.limits
            .get_or_insert_with(limits::from_environment)
            .any()
    }

    /// Returns the governor of a GPU, if it was prepared.
    pub(crate) fn of(&mut self, gpu: u32) -> Option<&mut Governor> {
        let of = |entry: &&mut (u32, Governor)| entry.0 == gpu;
        self.list.iter_mut().find(of).map(|(_, governor)| governor)
    }

    /// Returns the governor of a GPU and the buffers, if it was prepared.
    pub(crate) fn with_work(&mut self, gpu: u32) -> Option<(&mut Governor, &mut Workspace)> {
        let of = |entry: &&mut (u32, Governor)| entry.0 == gpu;
        let (_, governor) = self.list.iter_mut().find(of)?;
        Some((governor, self.work.as_mut()?))
    }

    /// Returns the TPCs that the limits allow on a GPU, or on any GPU if `gpu` is unknown. Returns
    /// `None` if there is no mask or nothing can be masked.
    pub(crate) fn allowed_on(&mut self, gpu: Option<u32>) -> Option<TpcMask> {
        if let Some(governor) = gpu.and_then(|gpu| self.of(gpu)) {
            let masked = governor.limits().tpcs.is_some() && governor.gpu().is_known();
            return masked.then(|| governor.limits().allowed(governor.gpu()));
        }
        let limits = self.limits.get_or_insert_with(limits::from_environment);
        limits.tpcs?;
        let tpcs = gpu.map_or_else(limits::listed, limits::topology);
        tpcs.is_known().then(|| limits.allowed(&tpcs))
    }

    /// Returns all governors with their GPUs.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Governor)> {
        self.list.iter_mut().map(|(gpu, governor)| (*gpu, governor))
    }

    /// Keeps launches to `list` on all GPUs; `None` removes the mask. Returns false if a GPU has
    /// none of these TPCs, or its TPCs are unknown.
    pub(crate) fn restrict(&mut self, list: Option<&TpcMask>) -> bool {
        for (gpu, governor) in &mut self.list {
            if !governor.gpu().is_known() {
                governor.set_gpu(limits::topology(*gpu));
            }
            let there = |list: &TpcMask| !list.and(governor.gpu().existing()).is_empty();
            if !list.is_none_or(there) {
                return false;
            }
        }
        let limits = self.limits.get_or_insert_with(limits::from_environment);
        limits.tpcs = list.copied();
        for (_, governor) in &mut self.list {
            governor.restrict(list);
        }
        true
    }

    /// Returns whether the end of work matters as soon as it comes: it is released in pieces, or
    /// its time is measured for `slip.tpc` or `slip.power`.
    pub(crate) fn paces(&self) -> bool {
        let measures = |it: &Governor| it.sizes() || it.measures_clock();
        self.list
            .iter()
            .any(|(_, governor)| governor.target() > Ns(0) || measures(governor))
    }

    /// Returns whether ends are tracked that nobody awaits, on any GPU.
    pub(crate) fn is_unawaited(&self) -> bool {
        let unawaited = |it: &Governor| it.peers().is_some() && !it.awaits_ends();
        self.list.iter().any(|(_, governor)| unawaited(governor))
    }

    /// Returns whether somebody else may use a GPU with a daemon.
    pub(crate) fn have_company(&self) -> bool {
        let has_company = |it: &Governor| it.peers().is_some_and(|peers| !peers.is_alone());
        self.list.iter().any(|(_, governor)| has_company(governor))
    }

    /// Connects the governor of a GPU to the daemon's pages.
    pub(crate) fn set_peers(&mut self, gpu: u32, peers: GpuPeers) {
        self.prepare(gpu).set_peers(Some(peers));
    }

    /// Reports a fault on a GPU to the daemon.
    pub(crate) fn fault(&mut self, gpu: u32, xid: u32) {
        if let Some(peers) = self.of(gpu).and_then(|governor| governor.peers()) {
            peers.gpu().page.fault(xid);
        }
    }

    /// Reports the counters to the daemon.
    pub(crate) fn report(&self) {
        let all = self.list.iter();
        let unreadable = all.map(|(_, governor)| governor.counters().kept(Reason::Unreadable));
        STATS.unreadable.store(unreadable.sum(), Ordering::Relaxed);
        for (_, governor) in &self.list {
            governor::report(governor);
        }
    }

    /// Returns the core's counters over all GPUs as `KEY VALUE` lines, with a line for each reason
    /// why launches were passed unchanged.
    pub(crate) fn text(&self) -> String {
        let (mut all, mut replays, mut cut) = (Launches::ZERO, 0, 0);
        for (_, governor) in &self.list {
            let counters = governor.counters();
            all = all.plus(&counters.shown());
            replays += counters.replays;
            cut += counters.cut;
        }
        let mut text = format!(
            "launches {}\nreplays {replays}\nrewritten {}\nsplit {}\natoms {}\ncopies_cut {cut}\ncrowded {}\nnarrowed {}\nstalled {}\npassed {}\n",
            all.launches,
            all.rewritten,
            all.split,
            all.atoms,
            all.crowded,
            all.narrowed,
            all.stalled,
            all.passed_total()
        );
        for (reason, count) in Reason::ALL.iter().zip(all.passed) {
            if count > 0 {
                // Writing to a `String` cannot fail.
                let _ = writeln!(text, "passed.{} {count}", reason.name());
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_core::topology::Topology;

    #[test]
    fn each_gpu_has_its_own_and_a_restriction_holds_on_all() {
        let mut governors = Governors::new();
        let tpcs = Topology::apart(TpcMask::parse(b"0-9").unwrap());
        for gpu in [0, 3] {
            governors.prepare(gpu).set_gpu(tpcs);
        }
        assert!(governors.restrict(TpcMask::parse(b"0-3,10").ok().as_ref()));
        assert!(!governors.restrict(TpcMask::parse(b"10-127").ok().as_ref()));
        assert!(governors.of(1).is_none());
        let masks: Vec<_> = governors
            .iter_mut()
            .map(|(gpu, governor)| (gpu, governor.allowed()))
            .collect();
        let kept = TpcMask::parse(b"0-3").unwrap();
        assert_eq!(masks, [(0, kept), (3, kept)]);
        assert!(governors.text().starts_with("launches 0\nreplays 0\n"));
    }
}
