// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which channels a tenant's own FIFO_DISABLE_CHANNELS may name.
//!
//! RM lets any process stop and start any other process's channels by that control: on an H100
//! (580.159.04) a process of user nobody stopped the channels of a process of root, and started
//! them again. The handles of clients and channels are easily guessed. So:
//!
//! ```text
//! governed(process) = it is in a group, or has a limit of its own
//!
//! caller or owner of a named channel is governed:
//!     both are one process, or of one group:   run the control
//!     else:                                    refuse it
//! neither is:                                  run the control, as without gctgroup
//! ```
//!
//! The control may have started frozen channels. They are stopped again before the ioctl returns.
//! It is refused where it would start channels that pause: they would run meanwhile, again and
//! again, and an owner pauses so that it has its share of time.

use crate::ids::{FileId, ProcKey};
use crate::rmapi::control::{self, Status};
use crate::rmapi::{Action, Call, Handle, Overrides, INSUFFICIENT_PERMISSIONS};
use crate::state::State;

impl State<'_> {
    /// Returns the status with which to refuse a FIFO_DISABLE_CHANNELS with these parameters.
    /// O(channels named).
    pub fn channels_refused(&self, file: FileId, params: &[u8]) -> Option<Status> {
        let caller = self.files.get(&file)?.proc;
        let enables = control::may_enable(params);
        let refused = control::named(params).any(|(client, channel)| {
            !self.may_name(caller, client) || enables && self.pauses_now(client, channel)
        });
        refused.then_some(INSUFFICIENT_PERMISSIONS)
    }

    /// Returns the status with which to refuse a control through a file that is not tracked: its
    /// effects are not tracked either.
    pub fn control_of_unknown_refused(&self, call: &Call) -> Option<Status> {
        let of_others = matches!(call.action, Action::Control(Overrides::Channels(_)));
        let matters = self.groups.len() > 0 || self.plan.stopped.0 > 0;
        (of_others && matters).then_some(INSUFFICIENT_PERMISSIONS)
    }

    /// Returns whether a channel is to be off the GPU because its owner pauses.
    fn pauses_now(&self, client: Handle, channel: Handle) -> bool {
        let key = self.key_of_source(client, channel);
        let object = key.and_then(|key| Some((key, self.objects.get(key)?)));
        object.is_some_and(|(key, object)| {
            let of = self.proc_of(object).zip(object.gpu);
            of.is_some_and(|(proc, gpu)| self.pauses(key, object, proc, gpu))
        })
    }

    fn may_name(&self, caller: ProcKey, client: Handle) -> bool {
        let owner = self.objects.file_of_any(client);
        let owner = owner.and_then(|file| Some(self.files.get(&file)?.proc));
        let Some(owner) = owner else {
            // A client of the driver, or one that is not tracked.
            return !self.is_governed(caller);
        };
        let group = self.group_of(caller);
        let together = group.is_some() && group == self.group_of(owner);
        let governed = self.is_governed(caller) || self.is_governed(owner);
        owner == caller || together || !governed
    }

    /// Returns whether the process of a file is governed, or rules hold for the file
    /// ([`is_governed_file`](State::is_governed_file)). O(GPUs).
    pub fn is_bound_tenant(&self, file: FileId) -> bool {
        let proc = self.files.get(&file).map(|file| file.proc);
        proc.is_some_and(|proc| self.is_governed(proc)) || self.is_governed_file(file)
    }

    /// Returns whether a client is known to be another file's.
    pub fn is_client_of_another(&self, file: Option<FileId>, client: Handle) -> bool {
        let owner = self.objects.file_of_any(client);
        owner.is_some() && owner != file
    }

    fn is_governed(&self, proc: ProcKey) -> bool {
        self.group_of(proc).is_some() || self.binds_proc(proc)
    }

    /// Marks the channels that a FIFO_DISABLE_CHANNELS has named, on any file, as possibly running.
    /// O(channels named).
    pub fn channels_told(&mut self, file: FileId, params: &[u8]) {
        let Some(proc) = self.files.get(&file).map(|file| file.proc) else {
            return;
        };
        if self.plan.stopped.0 == 0 || !control::may_enable(params) {
            return;
        }
        for (client, channel) in control::named(params) {
            if let Some(key) = self.key_of_source(client, channel) {
                self.may_run(key, proc);
            }
        }
    }
}
