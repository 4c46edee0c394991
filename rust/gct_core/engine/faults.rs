// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts errors of a GPU for their owner.

use crate::faults::Report;
use crate::ids::{GpuId, Owner, ProcKey};
use crate::state::State;

impl State<'_> {
    /// Counts an error that ended work of a process on a GPU, for the process and its group. `xid`
    /// is 0 where it is unknown.
    pub fn faulted(&mut self, proc: ProcKey, gpu: GpuId, xid: u32) {
        self.faulted_often(proc, gpu, 1, xid);
    }

    /// Counts errors that a process reported. `xid` is that of the last.
    pub fn faulted_often(&mut self, proc: ProcKey, gpu: GpuId, times: u64, xid: u32) {
        let group = self.group_of(proc).map(Owner::Group);
        for owner in [Some(Owner::Proc(proc)), group].into_iter().flatten() {
            if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
                pool.faults.add(times, xid);
            }
        }
    }

    /// Counts an error that the driver's log reported, if its GPU is known: for its process, or for
    /// everybody on the GPU. O(GPUs), or O(owners) for the first error of a kind that ends the work
    /// of all.
    pub fn fault_reported(&mut self, report: &Report) {
        let is_meant = |gpu: &crate::records::Gpu| report.is_of(gpu.facts.pci);
        let found = self.gpus.iter().find(|(_, gpu)| is_meant(gpu));
        let Some(gpu) = found.map(|(id, _)| *id) else {
            return;
        };
        if report.is_of_all() {
            self.gpu_lost(gpu, report.xid);
            return;
        }
        // Only the youngest process with a pid is alive. The channels of others are about to be
        // freed.
        if let Some(pid) = self.pids.get(&report.pid) {
            let proc = ProcKey {
                tgid: report.pid,
                start_time_ns: pid.youngest_ns,
            };
            self.faulted(proc, gpu, report.xid);
        }
    }

    /// Counts an error that ended everybody's work on a GPU. The driver may repeat it; it counts
    /// once.
    fn gpu_lost(&mut self, gpu: GpuId, xid: u32) {
        match self.gpus.get_mut(&gpu) {
            Some(record) if record.lost_xid != xid => record.lost_xid = xid,
            _ => return,
        }
        for at in 0..self.pools.len() {
            let key = self.pools.key_at(at).filter(|(_, on)| *on == gpu);
            if let Some(pool) = key.and_then(|key| self.pools.get_mut(&key)) {
                pool.faults.add(1, xid);
            }
        }
    }
}
