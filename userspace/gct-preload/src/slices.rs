// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Carries out the limits that need controls, `compute.timeslice` and `compute.freeze`: the driver
//! lets every program send them for its own objects.
//!
//! The daemon says what this process has of a time slice; its channel groups share that ([`gct_core::round`]).
//! What is to be sent for a time slice is [`gct_core::slice`]'s to say, for a freeze see [`Halts`]. A control takes some hundred
//! microseconds, so none is sent on the way of a launch: whoever makes a channel group sends
//! it, or the thread that looks after the daemon.

use crate::halts::{Device, Halts};
use crate::rm;
use gct_core::rmapi::control::{is_gone, Control, Status, NOT_SUPPORTED};
use gct_core::rmapi::{Call, Handle};
use gct_core::round::{Divisor, Round};
use gct_core::slice::Slice;
use gct_core::units::Us;
use gctd_ipc::tenant::{Gpu, Link};
use std::sync::Arc;

/// `NV_ERR_INVALID_CLIENT`: what a descriptor that is no longer the driver's says, too.
const NO_CLIENT: Status = 0x23;

/// Sends a control on one of the program's descriptors.
pub(crate) type Send = fn(fd: i32, control: &mut Control) -> Result<(), Status>;

/// A channel group of this process.
#[derive(Debug)]
struct Group {
    client: Handle,
    parent: Handle,
    object: Handle,
    /// The descriptor on which it was made. Should it be another file's by now, the resource
    /// manager does not know the client there.
    fd: i32,
    /// `None` as long as no daemon has said which it is.
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

/// Returns the part of a time slice that a channel group of a round has.
fn part(sharing: &[Sharing], minor: u32, round: Round, share: Us) -> Us {
    let of = |sharing: &&Sharing| (sharing.minor, sharing.round) == (minor, round);
    let divisor = sharing.iter().find(of).map(|sharing| sharing.divisor);
    divisor.unwrap_or_default().part(share)
}

/// All channel groups of this process, on all GPUs.
#[derive(Debug)]
pub(crate) struct Slices {
    groups: Vec<Group>,
    sharing: Vec<Sharing>,
    /// Channels in channel groups that are not this process's, as those of an MPS client are in
    /// the server's: client, parent and handle. Their time slices are out of reach, and stopping
    /// them would stop others.
    foreign: Vec<[Handle; 3]>,
    halts: Halts,
    /// By the N of `/dev/nvidiaN`: which generation of limits was taken there.
    taken: Vec<(u32, u64)>,
    send: Send,
}

/// Asks the driver.
fn send(fd: i32, control: &mut Control) -> Result<(), Status> {
    match rm::send(fd, control) {
        Some(0) => Ok(()),
        Some(status) => Err(status),
        None => Err(NO_CLIENT),
    }
}

impl Group {
    fn is(&self, client: Handle, object: Handle) -> bool {
        self.client == client && self.object == object
    }

    fn minor(&self) -> Option<u32> {
        self.gpu.as_ref().map(|gpu| gpu.minor)
    }

    /// Tells the resource manager what has to be told; `Err` is its refusal.
    fn settle(&mut self, limit: Option<Us>, send: Send) -> Result<(), Status> {
        while let Some(order) = self.slice.order(limit) {
            let mut control = order.control(self.client, self.object);
            let outcome = send(self.fd, &mut control);
            if outcome.is_ok() {
                self.slice = self.slice.after(order, control.timeslice());
            }
            order.taken(&control, outcome)?;
        }
        Ok(())
    }
}

/// What binds on a GPU.
#[derive(Clone, Copy, Debug)]
struct Limits {
    generation: u64,
    timeslice: Option<Us>,
    frozen: bool,
}

impl Limits {
    /// Reads them; generation 0 if there are none yet.
    fn on(gpu: &Gpu) -> Self {
        let (generation, slice, frozen) = match gpu.page.limits() {
            Some((generation, limits)) => (generation, limits.timeslice_us, limits.frozen),
            None => (0, 0, false),
        };
        Self {
            generation,
            timeslice: (slice > 0).then(|| Us(u64::from(slice))),
            frozen,
        }
    }
}

impl Slices {
    pub(crate) const fn new() -> Self {
        Self {
            groups: Vec::new(),
            sharing: Vec::new(),
            foreign: Vec::new(),
            halts: Halts::new(),
            taken: Vec::new(),
            send,
        }
    }

    /// A channel group was made on a descriptor for an engine; before its ioctl returns it has the limit.
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

    /// A subdevice was made.
    pub(crate) fn subdevice(&mut self, call: &Call) {
        self.halts.subdevice(call);
    }

    /// A channel was made on a descriptor; in a frozen process it is stopped before its ioctl
    /// returns.
    pub(crate) fn channel(&mut self, call: &Call, fd: i32, link: &mut Link) {
        let mut groups = self.groups.iter();
        let Some(group) = groups.find(|group| group.is(call.client, call.parent)) else {
            return self.foreign.push([call.client, call.parent, call.object]);
        };
        self.halts.channel(call, group.parent, fd);
        let gpu = group.gpu.clone();
        self.stop_again(gpu.as_deref(), link);
    }

    /// The program has enabled channels of a client itself: a freeze holds again.
    pub(crate) fn enabled(&mut self, client: Handle, link: &mut Link) {
        self.halts.changed(client);
        for gpu in link.gpus().to_vec() {
            self.stop_again(Some(&gpu), link);
        }
    }

    /// Stops what is not stopped on a GPU where this process is frozen.
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

    /// The devices of this process's channel groups on a GPU.
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

    /// An object is about to be freed, and with it what is below.
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

    /// Counts the channel groups that share a time slice, and tells those whose part has changed.
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

    /// The program has set the time slice of a channel group itself: the limit holds again.
    pub(crate) fn changed(&mut self, client: Handle, object: Handle, link: &mut Link) {
        for group in &mut self.groups {
            if group.is(client, object) {
                group.slice = Slice::Own;
            }
        }
        self.settle(client, object, link);
    }

    /// Another daemon has other pages, on which nothing was taken. They are asked for by each
    /// group, so that each GPU where one is left is found.
    pub(crate) fn renew(&mut self, link: &mut Link) {
        self.taken.clear();
        for group in &mut self.groups {
            if let Some(gpu) = link.gpu_of(group.client, group.object) {
                group.gpu = Some(gpu);
            }
        }
        self.share(link);
    }

    /// Takes over the limits that are new, and tells the daemon.
    pub(crate) fn follow(&mut self, link: &mut Link) {
        for gpu in link.gpus().to_vec() {
            let limits = Limits::on(&gpu);
            let generation = limits.generation;
            let known = (gpu.minor, generation);
            if generation == 0 || self.taken.contains(&known) {
                continue;
            }
            let mut refused = None;
            if (limits.timeslice.is_some() || limits.frozen) && !self.foreign.is_empty() {
                refused = Some(NOT_SUPPORTED);
            }
            let (send, limit) = (self.send, limits.timeslice.filter(|_| refused.is_none()));
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

    /// Carries out the limit on a channel group.
    fn settle(&mut self, client: Handle, object: Handle, link: &mut Link) {
        self.settle_those(|group| group.is(client, object), link);
    }

    /// Carries out the limit on some channel groups, if the driver has not lost them.
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
