// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks the channels that are left alone because something about them is not understood.
//!
//! Nothing of such a channel is shadowed, and its client has its real doorbells. One exception: a
//! managed channel may have caused the page of its USERD to be shadowed. Then GP_PUT and GP_GET are
//! copied.

use crate::channel::{GP_GET, GP_PUT};
use crate::rm::Object;
use crate::shadow::{device_write_barrier, touches, Shadow};
use core::sync::atomic::{AtomicU32, Ordering};

/// A channel whose USERD is in a shadow and whose ring is not.
#[derive(Debug)]
struct Forwarded {
    object: Object,
    userd: usize,
    token: Option<u32>,
}

/// The channels that are left alone.
#[derive(Debug, Default)]
pub(crate) struct Alone {
    clients: Vec<u32>,
    forwarded: Vec<Forwarded>,
}

impl Alone {
    /// Creates an empty set.
    pub(crate) const fn new() -> Self {
        Self {
            clients: Vec::new(),
            forwarded: Vec::new(),
        }
    }

    /// Records that a client has such a channel and rings its real doorbells from now on.
    pub(crate) fn client(&mut self, client: u32) {
        if !self.rings_by(client) {
            self.clients.push(client);
        }
    }

    /// Returns whether a client rings its real doorbells.
    pub(crate) fn rings_by(&self, client: u32) -> bool {
        self.clients.contains(&client)
    }

    /// Adds a channel whose USERD is in a shadow.
    pub(crate) fn forward(&mut self, object: Object, userd: usize) {
        self.forwarded.push(Forwarded {
            object,
            userd,
            token: None,
        });
    }

    /// Returns whether the worker must poll for a channel of this set: no doorbell announces its
    /// work.
    pub(crate) fn forwards(&self) -> bool {
        !self.forwarded.is_empty()
    }

    /// Learns the work-submit token of a channel.
    pub(crate) fn set_token(&mut self, object: Object, token: u32) {
        for channel in self.forwarded.iter_mut().filter(|c| c.object == object) {
            channel.token = Some(token);
        }
    }

    /// Removes the channels and clients that no longer exist.
    pub(crate) fn retain(&mut self, kept: impl Fn(Object) -> bool) {
        self.forwarded.retain(|c| kept(c.object));
        self.clients.retain(|client| {
            kept(Object {
                client: *client,
                handle: *client,
            })
        });
    }

    /// Forgets what was in `[addr, addr + len)`, which is no longer mapped.
    pub(crate) fn unmapped(&mut self, addr: usize, len: usize) {
        self.forwarded
            .retain(|c| !touches((c.userd, GP_PUT + 4), addr, len));
    }

    /// Copies GP_GET and GP_PUT of the channels whose USERD is in `shadow`. Rings `doorbell` for
    /// new work, because the program may have rung before the copy.
    pub(crate) fn publish(&self, shadow: &Shadow, doorbell: &AtomicU32) {
        for channel in &self.forwarded {
            let words = [GP_GET, GP_PUT].map(|at| shadow.word(channel.userd + at));
            let [Some(get), Some(put)] = words else {
                continue;
            };
            get.tenant
                .store(get.real.load(Ordering::Relaxed), Ordering::Release);
            let new = put.tenant.load(Ordering::Acquire);
            if put.real.load(Ordering::Relaxed) != new {
                device_write_barrier();
                put.real.store(new, Ordering::Relaxed);
                device_write_barrier();
                if let Some(token) = channel.token {
                    doorbell.store(token, Ordering::Relaxed);
                }
            }
        }
    }
}
