// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Follows an ioctl of the resource manager on its way through the driver.
//!
//! ```text
//! decode -> session: a free -> daemon: admission -> driver
//!        -> daemon: outcome -> memory that the limits show -> session: objects, mappings, tokens
//! ```

use crate::devices::device_node;
use crate::governors::Governors;
use crate::rm::{Ioctl, Object};
use crate::session::Session;
use crate::sys::keep_errno;
use crate::{daemon, fault, looks, startup, worker};
use core::ffi::c_int;
use gct_core::rmapi::{Action, Call};
use gctd_ipc::tenant::Verdict;

/// Runs an ioctl of the resource manager. The call that it decodes to goes all the way; behind the
/// driver it has what that wrote back.
pub(crate) fn follow(fd: c_int, ioctl: &Ioctl, pass_on: impl FnOnce() -> c_int) -> c_int {
    if startup::is_due() && keep_errno(|| device_node(fd)).is_some() {
        keep_errno(startup::look);
    }
    let call = ioctl.call();
    let verdict = call.and_then(|call| keep_errno(|| enter(ioctl, &call)));
    if verdict == Some(Verdict::Refused) {
        ioctl.refuse();
        return 0;
    }
    let ret = pass_on();
    keep_errno(|| {
        let done = call.map(|call| ioctl.returned(call, ret));
        if let (Some(done), Some(verdict)) = (&done, verdict) {
            daemon::after(fd, ioctl, done, verdict, ret);
        }
        let carried_out = (ret == 0).then_some(ioctl);
        if let (Some(ioctl), None) = (carried_out, call) {
            ioctl.show_memory(daemon::memory_view);
        }
        if let Some(effect) = carried_out.and_then(|ioctl| ioctl.effect(done.as_ref())) {
            learn(|session, _| session.learn(effect, looks::serves));
        }
    });
    ret
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
        worker::watch_forks();
        fault::install(worker::on_fault);
    }
    worker::attend(&mut shared);
}
