// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Adds a process with its first open file, and removes it with its last.

use crate::error::Error;
use crate::ids::{ProcKey, UserId};
use crate::iface::CgroupPath;
use crate::objects::List;
use crate::plan::ProcLinks;
use crate::records::{Pid, Proc, Share, User};
use crate::state::State;
use crate::units::Sat;

impl State<'_> {
    /// Checks that there is room for one more process.
    pub(super) fn reserve_proc(&self) -> Result<(), Error> {
        self.procs.reserve(1)?;
        self.users.reserve(1)?;
        self.pids.reserve(1)
    }

    /// Adds a process, unless it is known. The caller has used [`State::reserve_proc`], and
    /// reserved objects for [`List::OF_PROC`].
    pub(super) fn proc_enter(&mut self, key: ProcKey, user: UserId) -> Result<(), Error> {
        if self.procs.contains(&key) {
            return Ok(());
        }
        let proc = Proc {
            cgroup: CgroupPath::EMPTY,
            by_pid: None,
            group: None,
            user,
            files: Sat(0),
            objects: Sat(0),
            replaced: self.take_pid(key)?,
            visible: Sat(0),
            space: self.sequence.next(),
            in_flight: None,
            has_waiter: false,
            queued: None,
            group_links: ProcLinks::ALONE,
        };
        for list in List::OF_PROC {
            self.objects.add_list(proc.space, list)?;
        }
        self.procs.insert(key, proc)?;
        if !self.users.contains(&user) {
            self.users.insert(user, User::default())?;
        }
        if let Some(user) = self.users.get_mut(&user) {
            user.procs += 1;
        }
        self.change_share(None, user, &Share::of_proc(Sat(0), Sat(0)), true);
        Ok(())
    }

    /// Removes a process without open files. One with a control in flight stays until that has
    /// completed.
    pub(super) fn proc_leave(&mut self, key: ProcKey) {
        let idle = |proc: &&Proc| proc.files.0 == 0 && proc.in_flight.is_none();
        let Some(space) = self.procs.get(&key).filter(idle).map(|proc| proc.space) else {
            return;
        };
        for list in List::OF_PROC {
            self.objects.remove_list(space, list);
        }
        self.dequeue_proc(key);
        self.unlink_from_group(key, self.group_of(key));
        let Some(proc) = self.procs.remove(&key) else {
            return;
        };
        let share = Share::of_proc(proc.files, proc.objects);
        self.change_share(proc.group, proc.user, &share, false);
        if let Some(user) = self.users.get_mut(&proc.user) {
            user.procs -= 1;
            if user.procs.0 == 0 {
                self.users.remove(&proc.user);
            }
        }
        let Some(pid) = self.pids.get_mut(&key.tgid) else {
            return;
        };
        pid.procs -= 1;
        if pid.procs.0 == 0 {
            self.pids.remove(&key.tgid);
        }
    }

    /// Counts a process for its pid. Only the youngest process with a pid is alive: the older one's
    /// directories go. Returns whether a younger one is known. O(GPUs).
    fn take_pid(&mut self, key: ProcKey) -> Result<bool, Error> {
        let Some(pid) = self.pids.get_mut(&key.tgid) else {
            let pid = Pid {
                youngest_ns: key.start_time_ns,
                procs: Sat(1),
            };
            return self.pids.insert(key.tgid, pid).map(|_| false);
        };
        pid.procs += 1;
        if pid.youngest_ns > key.start_time_ns {
            return Ok(true);
        }
        let older = ProcKey {
            start_time_ns: core::mem::replace(&mut pid.youngest_ns, key.start_time_ns),
            ..key
        };
        if let Some(proc) = self.procs.get_mut(&older) {
            proc.replaced = true;
        }
        for at in 0..self.gpus.len() {
            if let Some(gpu) = self.gpus.key_at(at) {
                self.sync_dirs(older, gpu);
            }
        }
        Ok(false)
    }
}
