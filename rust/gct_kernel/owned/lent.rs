// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lends the driver's USERD to a tenant's client while a channel is allocated.
//!
//! The resource manager looks USERD up in the client of the channel. So a name in the tenant's
//! client means the driver's USERD from just before the ioctl until just after it. Nobody else uses
//! that name meanwhile:
//!
//! * It is random. What would tell it is a control of the tenant's client
//!   (`NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE`), which waits for the file's `gct_lock`.
//! * The resource manager reads all parameters of the ioctl from gctgroup's copy.
//! * Whoever names it as the source of a duplicate, of a dma-buf, or of a mapping of nvidia-uvm is
//!   refused ([`is_lent`]).
//! * The memory forbids users to map it for writing.

use super::client::Refused;
use super::kit::Kit;
use super::{refill, room_beside};
use crate::bindings;
use crate::rm;
use crate::state::Glue;
use gct_core::owned::names;
use gct_core::rmapi::Handle;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, Arc, Mutex};

/// The names that are lent now: client and handle.
#[pin_data]
pub(super) struct Names {
    #[pin]
    all: Mutex<KVVec<[Handle; 2]>>,
    /// How many there are.
    count: Atomic<usize>,
}

impl Names {
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                all <- new_mutex!(KVVec::new(), "gct::lent"),
                count: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    fn add(&self, name: [Handle; 2]) -> Result<(), Refused> {
        loop {
            let mut all = self.all.lock();
            if all.push_within_capacity(name).is_ok() {
                self.count.fetch_add(1, Relaxed);
                return Ok(());
            }
            let count = all.len();
            drop(all);
            // The tenant's memory may be at its limit. Others need not wait for it.
            let mut room = room_beside(count)?;
            refill(&mut self.all.lock(), &mut room);
        }
    }

    fn remove(&self, name: [Handle; 2]) {
        let mut all = self.all.lock();
        let at = all.iter().position(|other| *other == name);
        if at.is_some_and(|at| all.remove(at).is_ok()) {
            self.count.fetch_sub(1, Relaxed);
        }
    }
}

/// A name of the driver's USERD in a tenant's client. Dropping it frees the name.
pub(super) struct Lent {
    names: Arc<Names>,
    client: Handle,
    pub(super) name: Handle,
}

impl Lent {
    /// Lends the USERD of a kit to a client, below its device.
    pub(super) fn new(
        glue: &Glue,
        kit: &Kit,
        client: Handle,
        device: Handle,
    ) -> Result<Self, Refused> {
        // SAFETY: has no preconditions.
        let [key, number] = [(); 2].map(|()| unsafe { bindings::gct_helper_random() });
        // CAST: the low half.
        let name = names::name(key, number as u32);
        let names = glue.owned.lent.clone();
        // Before the name means anything.
        names.add([client, name])?;
        match kit.lend_userd([client, device, name]) {
            Ok(()) => Ok(Self {
                names,
                client,
                name,
            }),
            Err(refused) => {
                names.remove([client, name]);
                Err(refused)
            }
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let _ = rm::free(self.client, self.name);
        self.names.remove([self.client, self.name]);
    }
}

/// Returns whether a name in a client is lent by the driver: its tenant must not use it.
pub(crate) fn is_lent(glue: &Glue, client: Handle, object: Handle) -> bool {
    let lent = &glue.owned.lent;
    // A name that comes later is not known to anybody who asks now.
    lent.count.load(Relaxed) != 0 && lent.all.lock().contains(&[client, object])
}
