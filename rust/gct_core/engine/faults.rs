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

    /// Counts an error that the driver's log reported, if its GPU and process are known. O(GPUs).
    pub fn fault_reported(&mut self, report: &Report) {
        let is_meant = |gpu: &crate::records::Gpu| report.is_of(gpu.facts.pci);
        let found = self.gpus.iter().find(|(_, gpu)| is_meant(gpu));
        let Some(gpu) = found.map(|(id, _)| *id) else {
            return;
        };
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
}
