// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the ioctls that made each living object, to replay them to a new daemon.

use crate::message::Ioctl;
use gct_core::rmapi::{Action, Call, Class, Handle};
use std::collections::BTreeMap;

/// Most objects in the log. Further ones are not replayed.
const OBJECTS_MAX: usize = 65_536;

/// An RM client and its device.
pub(super) type Device = (Handle, Handle);

/// An object and the ioctl that made it.
#[derive(Debug)]
struct Made {
    client: Handle,
    parent: Handle,
    object: Handle,
    /// Bytes of device memory.
    memory: u64,
    ioctl: Ioctl,
}

/// The living objects in the order of their allocation.
#[derive(Debug, Default)]
pub(super) struct ReplayLog(Vec<Made>);

impl ReplayLog {
    /// Records a call that succeeded.
    pub(super) fn record(&mut self, call: &Call, ioctl: Ioctl) {
        if call.action == Action::Free {
            self.remove(call.client, call.object);
        } else if self.0.len() < OBJECTS_MAX {
            // The allocation of an RM client names no client. The new object is its own.
            let client = match call.client {
                0 => call.object,
                client => client,
            };
            self.0.push(Made {
                client,
                parent: call.parent,
                object: call.object,
                memory: memory(call, &ioctl).unwrap_or(0),
                ioctl,
            });
        }
    }

    /// Removes an object with its descendants.
    fn remove(&mut self, client: Handle, object: Handle) {
        if client == object {
            self.0.retain(|made| made.client != client);
            return;
        }
        let mut doomed = vec![object];
        let mut next = 0;
        while let Some(&parent) = doomed.get(next) {
            next += 1;
            let below = |m: &&Made| m.client == client && m.parent == parent && m.object != parent;
            doomed.extend(self.0.iter().filter(below).map(|made| made.object));
        }
        self.0
            .retain(|made| made.client != client || !doomed.contains(&made.object));
    }

    /// Returns the ioctls that made the living objects.
    pub(super) fn living(&self) -> Vec<Ioctl> {
        self.0.iter().map(|made| made.ioctl.clone()).collect()
    }

    /// Returns the memory of each device that the process has.
    pub(super) fn memory(&self) -> BTreeMap<Device, u64> {
        let mut sums = BTreeMap::new();
        for made in self.0.iter().filter(|made| made.memory > 0) {
            let sum: &mut u64 = sums.entry((made.client, made.parent)).or_default();
            *sum = sum.saturating_add(made.memory);
        }
        sums
    }

    /// Returns the memory of one device that the process has.
    pub(super) fn memory_of(&self, device: Device) -> u64 {
        let there = self.0.iter().filter(|m| (m.client, m.parent) == device);
        there.fold(0, |sum, made| sum.saturating_add(made.memory))
    }
}

/// Returns the bytes of device memory that a call allocates; `None` if it allocates none, or they
/// are unknown.
pub(super) fn memory(call: &Call, ioctl: &Ioctl) -> Option<u64> {
    match call.action {
        Action::Alloc {
            class: Class::DeviceMemory,
            bytes,
            ..
        } => bytes.or(ioctl.hint),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(client: Handle, parent: Handle, object: Handle) -> Call {
        Call {
            client,
            parent,
            object,
            status: 0,
            action: Action::Alloc {
                class: Class::DeviceMemory,
                bytes: None,
                params: 0,
            },
        }
    }

    fn ioctl(escape: u32) -> Ioctl {
        Ioctl {
            escape,
            bytes: vec![],
            hint: None,
        }
    }

    #[test]
    fn a_free_removes_the_descendants() {
        let mut log = ReplayLog::default();
        for (number, call) in [
            made(0, 0, 1),
            made(1, 1, 10),
            made(1, 10, 11),
            made(1, 11, 12),
            made(0, 0, 2),
            made(2, 2, 10),
        ]
        .iter()
        .enumerate()
        {
            log.record(call, ioctl(u32::try_from(number).unwrap()));
        }
        let mut free = |client, object| {
            let call = Call {
                action: Action::Free,
                ..made(client, 0, object)
            };
            log.record(&call, ioctl(0));
            let living = log.living().iter().map(|i| i.escape).collect::<Vec<_>>();
            living
        };
        assert_eq!(free(1, 11), [0, 1, 4, 5]);
        assert_eq!(free(1, 1), [4, 5]);
        assert_eq!(free(2, 2), [0; 0]);
    }
}
