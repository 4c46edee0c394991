// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Carries out the limits that need controls: `compute.timeslice` and `compute.freeze`. The driver
//! lets every program send these controls for its own objects.
//!
//! The daemon publishes this process's part of a time slice. Its channel groups share that part
//! ([`gct_core::round`]). [`gct_core::slice`] decides which control sets a time slice, and
//! [`Halts`] sends those of a freeze. A control takes some hundred microseconds, so no launch waits
//! for one: the thread that makes a channel group sends it, or the thread that maintains the
//! daemon's connection.

use crate::halts::{Device, Halts};
use crate::rm::{self, Send};
use gct_core::rmapi::control::{is_gone, Status, NOT_SUPPORTED};
use gct_core::rmapi::{Call, Handle};
use gct_core::round::{Divisor, Round};
use gct_core::slice::Slice;
use gct_core::units::Us;
use gctd_ipc::page;
use gctd_ipc::tenant::{Gpu, Link};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// A channel group of this process.
#[derive(Debug)]
struct Group {
    client: Handle,
    parent: Handle,
    object: Handle,
    /// The descriptor on which the program allocated it. If it is another file's by now, the
    /// resource manager does not know the client there.
    fd: i32,
    /// The GPU; `None` until a daemon has said which it is.
    gpu: Option<Arc<Gpu>>,
    slice: Slice,
    round: Round,
}

/// The channel groups of this process that share its time slice.
#[derive(Debug)]
struct Sharing {
    minor: u32,
    round: Round,
    divisor: Divisor,
}

/// Returns the part of a time slice that each channel group of a round gets.
fn part(sharing: &[Sharing], minor: u32, round: Round, share: Us) -> Us {
    let of = |sharing: &&Sharing| (sharing.minor, sharing.round) == (minor, round);
    let divisor = sharing.iter().find(of).map(|sharing| sharing.divisor);
    divisor.unwrap_or_default().part(share)
}

/// The channel groups of this process, on all GPUs.
#[derive(Debug)]
pub(crate) struct Slices {
    groups: Vec<Group>,
    sharing: Vec<Sharing>,
    /// Channels in channel groups of other processes, as client, parent and handle. An MPS client's
    /// are in the server's groups. This process cannot set their time slices, and stopping them
    /// would stop other processes.
    foreign: Vec<[Handle; 3]>,
    /// Whether there was one.
    shares_group: Arc<AtomicBool>,
    halts: Halts,
    /// The generation of limits that was carried out, by the N of `/dev/nvidiaN`.
    taken: Vec<(u32, u64)>,
    send: Send,
}

impl Group {
    fn is(&self, client: Handle, object: Handle) -> bool {
        self.client == client && self.object == object
    }

    fn minor(&self) -> Option<u32> {
        self.gpu.as_ref().map(|gpu| gpu.minor)
    }

    /// Sends the controls that bring the group to `limit`. Returns the resource manager's refusal
    /// as an error.
    fn settle(&mut self, limit: Option<Us>, send: Send) -> Result<(), Status> {
        while let Some(update) = self.slice.update(limit) {
            let mut control = update.control(self.client, self.object);
            let outcome = send(self.fd, &mut control);
            if outcome.is_ok() {
                self.slice = self.slice.after(update, control.timeslice());
            }
            update.verify(&control, outcome)?;
        }
        Ok(())
    }
}

/// The limits in force on a GPU.
#[derive(Clone, Copy, Debug)]
struct Limits {
    generation: u64,
    timeslice: Option<Us>,
    frozen: bool,
    /// Whether somebody waits for what a channel in another process's group refuses.
    need_own_groups: bool,
}

impl Limits {
    /// Reads the limits. Generation 0 means that there are none yet.
    fn on(gpu: &Gpu) -> Self {
        let (generation, limits) = gpu.page.limits().unwrap_or((0, page::Limits::NONE));
        let slice = Us(u64::from(limits.timeslice_us));
        Self {
            generation,
            timeslice: Some(slice).filter(|slice| *slice > Us(0)),
            frozen: limits.launches.frozen,
            need_own_groups: limits.controlled() != (0, false),
        }
    }
}

impl Slices {
    pub(crate) fn new() -> Self {
        Self {
            groups: Vec::new(),
            sharing: Vec::new(),
            foreign: Vec::new(),
            shares_group: Arc::default(),
            halts: Halts::new(),
            taken: Vec::new(),
            send: rm::send,
        }
    }

    /// Adds a channel group that was made for an engine, and gives it the limit before its ioctl
    /// returns.
    pub(crate) fn made(&mut self, call: &Call, engine: Option<u64>, fd: i32, link: &mut Link) {
        let gpu = link.gpu_of(call.client, call.object);
        self.groups.push(Group {
            client: call.client,
            parent: call.parent,
            object: call.object,
            fd,
            gpu,
            slice: Slice::Own,
            round: Round::of_engine(engine.unwrap_or(0)),
        });
        self.share(link);
        self.follow(link);
        self.settle(call.client, call.object, link);
    }

    /// Returns the flag that says whether this process has had a channel in another one's channel
    /// group.
    pub(crate) fn shares_group(&self) -> Arc<AtomicBool> {
        self.shares_group.clone()
    }

    /// Adds a subdevice.
    pub(crate) fn subdevice(&mut self, call: &Call) {
        self.halts.subdevice(call);
    }

    /// Adds a channel. In a frozen process it is stopped before its ioctl returns.
    pub(crate) fn channel(&mut self, call: &Call, fd: i32, link: &mut Link) {
        let mut groups = self.groups.iter();
        let Some(group) = groups.find(|group| group.is(call.client, call.parent)) else {
            self.shares_group.store(true, Ordering::Relaxed);
            return self.foreign.push([call.client, call.parent, call.object]);
        };
        self.halts.channel(call, group.parent, fd);
        let gpu = group.gpu.clone();
        self.stop_again(gpu.as_deref(), link);
    }

    /// Renews a freeze after the program has enabled channels of a client itself.
    pub(crate) fn enabled(&mut self, client: Handle, link: &mut Link) {
        self.halts.changed(client);
        for gpu in link.gpus().to_vec() {
            self.stop_again(Some(&gpu), link);
        }
    }

    /// Stops the channels that run on a GPU where this process is frozen.
    fn stop_again(&mut self, gpu: Option<&Gpu>, link: &mut Link) {
        let Some(gpu) = gpu else { return };
        let limits = Limits::on(gpu);
        if !limits.frozen || !self.foreign.is_empty() {
            return;
        }
        let devices = self.devices(gpu.minor);
        if let Err(status) = self.halts.settle(&devices, true, self.send) {
            link.ack(gpu.minor, limits.generation, Some(status));
        }
    }

    /// Returns the devices of this process's channel groups on a GPU.
    fn devices(&self, minor: u32) -> Vec<Device> {
        let here = self
            .groups
            .iter()
            .filter(|group| group.minor() == Some(minor));
        let mut devices: Vec<Device> = here.map(|group| (group.client, group.parent)).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// Removes an object that is about to be freed, and all objects below it.
    pub(crate) fn freed(&mut self, client: Handle, object: Handle, link: &mut Link) {
        self.halts.freed(client, object);
        self.foreign
            .retain(|channel| channel[0] != client || !channel.contains(&object));
        self.groups.retain(|group| {
            let gone = [group.object, group.parent, client].contains(&object);
            group.client != client || !gone
        });
        self.share(link);
    }

    /// Counts the channel groups that share a time slice, and updates those whose part has changed.
    fn share(&mut self, link: &mut Link) {
        for group in &self.groups {
            let Some(minor) = group.minor() else { continue };
            let of = |sharing: &Sharing| (sharing.minor, sharing.round) == (minor, group.round);
            if !self.sharing.iter().any(of) {
                self.sharing.push(Sharing {
                    minor,
                    round: group.round,
                    divisor: Divisor::ONE,
                });
            }
        }
        let mut changed = Vec::new();
        for sharing in &mut self.sharing {
            let (minor, round) = (sharing.minor, sharing.round);
            let of = |group: &&Group| group.minor() == Some(minor) && group.round == round;
            let count = self.groups.iter().filter(of).count();
            let before = sharing.divisor.by();
            sharing
                .divisor
                .recount(u32::try_from(count).unwrap_or(u32::MAX));
            if sharing.divisor.by() != before {
                changed.push((minor, round));
            }
        }
        self.sharing.retain(|sharing| sharing.divisor.count() > 0);
        let told = |group: &Group| {
            let minor = group.minor();
            minor.is_some_and(|minor| changed.contains(&(minor, group.round)))
        };
        self.settle_those(told, link);
    }

    /// Renews the limit after the program has set a channel group's time slice itself.
    pub(crate) fn changed(&mut self, client: Handle, object: Handle, link: &mut Link) {
        for group in &mut self.groups {
            if group.is(client, object) {
                group.slice = Slice::Own;
            }
        }
        self.settle(client, object, link);
    }

    /// Looks up the GPU of each group that has no page of the present daemon: the daemon is new, or
    /// could not give one before. Forgets all generations then, because pages are other ones.
    pub(crate) fn find_gpus(&mut self, link: &mut Link) {
        let mut found = false;
        for group in &mut self.groups {
            let is_of = |gpu: &Arc<Gpu>| link.gpus().iter().any(|known| Arc::ptr_eq(known, gpu));
            if group.gpu.as_ref().is_some_and(is_of) {
                continue;
            }
            if let Some(gpu) = link.gpu_of(group.client, group.object) {
                group.gpu = Some(gpu);
                found = true;
            }
        }
        if found {
            self.taken.clear();
            self.share(link);
        }
    }

    /// Carries out new limits and acknowledges them to the daemon.
    pub(crate) fn follow(&mut self, link: &mut Link) {
        for gpu in link.gpus().to_vec() {
            let limits = Limits::on(&gpu);
            let generation = limits.generation;
            let known = (gpu.minor, generation);
            if generation == 0 || self.taken.contains(&known) {
                continue;
            }
            let mut refused = None;
            if limits.need_own_groups && !self.foreign.is_empty() {
                refused = Some(NOT_SUPPORTED);
            }
            let share = limits.timeslice.filter(|_| self.foreign.is_empty());
            let (send, limit) = (self.send, share);
            let sharing = &self.sharing;
            let (devices, stop) = (self.devices(gpu.minor), limits.frozen && refused.is_none());
            self.groups.retain_mut(|group| {
                if group.minor() != Some(gpu.minor) {
                    return true;
                }
                let limit = limit.map(|share| part(sharing, gpu.minor, group.round, share));
                match group.settle(limit, send) {
                    Err(status) if is_gone(status) => return false,
                    Err(status) => refused = Some(status),
                    Ok(()) => {}
                }
                true
            });
            if let Err(status) = self.halts.settle(&devices, stop, send) {
                refused = Some(status);
            }
            self.taken.retain(|(minor, _)| *minor != gpu.minor);
            self.taken.push(known);
            link.ack(gpu.minor, generation, refused);
        }
        self.share(link);
    }

    /// Carries out the limit on one channel group.
    fn settle(&mut self, client: Handle, object: Handle, link: &mut Link) {
        self.settle_those(|group| group.is(client, object), link);
    }

    /// Carries out the limit on some channel groups. Groups that the driver has lost count as done.
    fn settle_those(&mut self, of: impl Fn(&Group) -> bool, link: &mut Link) {
        let sharing = &self.sharing;
        for group in self.groups.iter_mut().filter(|group| of(group)) {
            let Some(gpu) = &group.gpu else { continue };
            let (minor, limits) = (gpu.minor, Limits::on(gpu));
            let share = limits.timeslice.filter(|_| self.foreign.is_empty());
            let limit = share.map(|share| part(sharing, minor, group.round, share));
            let refused = group.settle(limit, self.send).err();
            if let Some(status) = refused.filter(|status| !is_gone(*status)) {
                link.ack(minor, limits.generation, Some(status));
            }
        }
    }
}

#[cfg(test)]
mod tests;
