// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Follows an ioctl of the resource manager on its way through the driver.
//!
//! ```text
//! decode -> session: a free -> daemon: admission -> driver
//!        -> daemon: outcome -> memory that the limits show -> session: objects, mappings, tokens
//! ```

use crate::daemon::Decisions;
use crate::devices::device_node;
use crate::driver::allocations;
use crate::governors::Governors;
use crate::rm::{Effect, Ioctl, Object};
use crate::session::Session;
use crate::sys::keep_errno;
use crate::{daemon, ending, fault, forks, looks, optional, startup, worker};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gct_core::rmapi::{self, Action, Call, Lookup};
use gctd_ipc::environment::variable;
use gctd_ipc::paths::GROUP_VARIABLE;
use gctd_ipc::tenant::Verdict;

/// Runs an ioctl of the resource manager. The call that it decodes to goes all the way; behind the
/// driver it has what that wrote back.
pub(crate) fn follow(fd: c_int, ioctl: &Ioctl, pass_on: impl FnOnce() -> c_int) -> c_int {
    if startup::is_due() && keep_errno(|| device_node(fd)).is_some() {
        keep_errno(startup::look);
    }
    let call = ioctl.call();
    let verdict = call.and_then(|call| keep_errno(|| enter(ioctl, &call)));
    if let (Some(call), Some(Verdict::Refused)) = (&call, verdict) {
        ioctl.refuse();
        refused(ioctl, call);
        return 0;
    }
    let ret = pass_on();
    keep_errno(|| {
        let done = call.map(|call| ioctl.returned(call, ret));
        if let Some(done) = done.filter(|done| done.status == rmapi::NO_MEMORY) {
            refused(ioctl, &done);
        }
        if let (Some(done), Some(verdict)) = (&done, verdict) {
            daemon::after(fd, ioctl, done, verdict, ret);
        }
        let carried_out = (ret == 0).then_some(ioctl);
        if let (Some(ioctl), None) = (carried_out, call) {
            ioctl.show_memory(daemon::memory_view);
        }
        if let Some(effect) = carried_out.and_then(|ioctl| ioctl.effect(done.as_ref())) {
            follow_effect(effect);
        }
    });
    ret
}

/// Returns whether no channel on a GPU, or without a known one, has been left alone before.
fn is_first_on(gpu: Option<u32>) -> bool {
    static LEFT: AtomicU64 = AtomicU64::new(0);
    let bit = 1 << gpu.unwrap_or(u32::MAX).min(63);
    LEFT.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

/// Stops the program at its first channel if `gctctl run` has started it in a group and the daemon
/// knows it in none.
fn check_group(decisions: &Decisions) {
    static CHECKED: AtomicBool = AtomicBool::new(false);
    if decisions.are_unknown() || CHECKED.swap(true, Ordering::Relaxed) || !decisions.is_stray() {
        return;
    }
    if let Some(group) = variable(GROUP_VARIABLE).filter(|group| !group.is_empty()) {
        optional::cannot(&format!(
            "gctctl run started this program for group {}, but its parent, or one further up, has \
             ended, and gctd knows it in no group",
            group.display()
        ));
    }
}

/// Records what an ioctl means for channels and their mappings. Stops the program if the first
/// channel of a GPU that cannot be managed is made under a limit on launches. Who has one from
/// before the limit gains nothing by another, and no limit ends a program that runs.
fn follow_effect(effect: Effect) {
    if !effect.is_channel() {
        return learn(|session, _| _ = session.learn(effect, |_| None, || false));
    }
    looks::report_at_exit();
    ending::install();
    let decisions = daemon::decisions();
    check_group(&decisions);
    let mut left = None;
    let mut is_bound = false;
    learn(|session, governors| {
        let is_limited = governors.are_limited_alone();
        let rule = |gpu| match is_limited {
            true => None,
            false => decisions.native_on(gpu),
        };
        left = session.learn(effect, rule, looks::serves);
        left = left.filter(|(reason, _)| !reason.is_native());
        is_bound = left.is_some_and(|(_, gpu)| is_limited || decisions.bind_launches_on(gpu));
    });
    // The first one is recorded, whether a limit binds there or not.
    if let Some((reason, _)) = left.filter(|(_, gpu)| is_first_on(*gpu) && is_bound) {
        optional::cannot(&format!(
            "a channel cannot be managed ({}), so limits on launches do not bind it",
            reason.name()
        ));
    }
}

/// Records the device memory of an allocation that a limit or the driver has refused.
fn refused(ioctl: &Ioctl, call: &Call) {
    let bytes = match (call.action, call.lookup()) {
        (
            Action::Alloc {
                bytes: Some(bytes), ..
            },
            _,
        ) => Some(bytes),
        (_, Some(Lookup::Bytes(hint))) => ioctl.word(hint),
        _ => None,
    };
    if let Some(bytes) = bytes.filter(|_| call.allocates_memory()) {
        allocations::refused(bytes);
    }
}

/// Reports a call to the session and the daemon before it runs. Returns the daemon's verdict.
fn enter(ioctl: &Ioctl, call: &Call) -> Option<Verdict> {
    if call.action == Action::Free {
        let object = Object {
            client: call.client,
            handle: call.object,
        };
        learn(|session, governors| session.freed(object, governors));
    }
    daemon::before(ioctl, call)
}

/// Changes the session, and manages what is new in it.
fn learn(change: impl FnOnce(&mut Session, &mut Governors)) {
    let Some(mut shared) = worker::lock() else {
        return;
    };
    let worker::Shared {
        session, governors, ..
    } = &mut *shared;
    change(session, governors);
    if session.managed() {
        for gpu in session.gpus() {
            governors.prepare(gpu);
        }
        forks::manage();
        fault::install(worker::on_fault);
    }
    worker::attend(&mut shared);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::allocations;
    use gct_core::rmapi::{escape, nv};

    /// Runs an allocation of memory of 5 MiB, to which the driver answers with a status. Returns
    /// the bytes that count as refused.
    fn allocate(class: u32, status: u32) -> Option<u64> {
        let mut params = [0u8; 256];
        params[nv::memory::LENGTH..][..8].copy_from_slice(&(5u64 << 20).to_le_bytes());
        let at = params.as_ptr() as u64;
        // CAST: the halves of an address.
        let (low, high) = (at as u32, (at >> 32) as u32);
        let mut nvos64 = [0xc1d0_0019, 1, 2, class, low, high, 0, 0, 0, 0, 0, 0];
        let request = 0xc030_4600 | u64::from(escape::ALLOC);
        let structure = nvos64.as_mut_ptr();
        // SAFETY: both structures live on this stack, and the closure below alone writes there.
        let ioctl = unsafe { Ioctl::new(request, structure as u64) }.unwrap();
        allocations::take_refused();
        let ret = follow(-1, &ioctl, || {
            // SAFETY: the status is inside the structure.
            unsafe { structure.add(10).write(status) };
            0
        });
        assert_eq!(ret, 0);
        allocations::take_refused()
    }

    #[test]
    fn memory_that_the_driver_refuses_is_known() {
        let (memory, subdevice) = (nv::NV01_MEMORY_LOCAL_USER, nv::NV20_SUBDEVICE_0);
        assert_eq!(allocate(memory, rmapi::NO_MEMORY), Some(5 << 20));
        assert_eq!(allocate(memory, nv::NV_OK), None);
        assert_eq!(allocate(memory, rmapi::INVALID_ARGUMENT), None);
        assert_eq!(allocate(subdevice, rmapi::NO_MEMORY), None);
    }
}
