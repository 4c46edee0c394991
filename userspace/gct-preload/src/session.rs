// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks the GPU objects, mappings and channels that this process has opened.

pub(crate) mod adopt;
mod native;

use crate::alone::Alone;
use crate::channel::{Channel, DOORBELL};
use crate::ending;
use crate::governors::Governors;
use crate::memory::{Heap, Mapped, Run};
use crate::notifiers::Notifiers;
use crate::rm::{self, Effect, Made, Object};
use crate::shadow::{touches, Shadow};
use crate::stats::STATS;
use crate::sys;
use core::cell::Cell;
use core::sync::atomic::AtomicU32;
use gct_core::lane::scratch::Scratch;
use gct_core::lane::work::Round;
use gct_core::policy::native::Native;
use gct_core::rmapi::channel::{ChannelParams, Mapping as Announcement};
use gct_core::units::Ns;
use gct_core::unmanaged::Reason;
use native::Natives;

/// A mapping of RM memory in this process.
#[derive(Debug)]
struct Mapping {
    memory: Object,
    offset: u64,
    addr: usize,
    len: usize,
    /// The GPU whose memory it is, by the N of `/dev/nvidiaN`; `None` for system memory.
    gpu: Option<u32>,
}

/// An RM object that channels may live below, remembered to notice its free.
#[derive(Debug)]
struct Node {
    object: Object,
    parent: u32,
    class: u32,
}

/// A shadowed allocation of rings, and the scratch in its upper half.
struct Ring {
    shadow: Shadow,
    scratch: Option<Scratch<Heap, Run>>,
    gpu: u32,
}

impl core::fmt::Debug for Ring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("Ring");
        fields.field("shadow", &self.shadow).finish_non_exhaustive()
    }
}

/// A doorbell page that rings managed channels. It is shadowed unless its client has a channel that
/// is left alone.
#[derive(Debug)]
struct Doorbell {
    shadow: Shadow,
    client: u32,
    gpu: u32,
}

/// The GPU state of this process.
#[derive(Debug, Default)]
pub(crate) struct Session {
    nodes: Vec<Node>,
    /// Mappings that the driver announced and `mmap` has not yet made.
    announced: Vec<Announcement>,
    mappings: Vec<Mapping>,
    rings: Vec<Ring>,
    doorbells: Vec<Doorbell>,
    channels: Vec<Channel>,
    alone: Alone,
    natives: Natives,
    notifiers: Notifiers,
    /// Whether the last [`publish`](Self::publish) found new entries.
    news: bool,
    /// Whether it left work that must be watched.
    unfinished: bool,
    /// Whether [`publish`](Self::publish) left work that is in flight and watched.
    watched: bool,
    /// The index of the mapping in which the last segment was found.
    found: Cell<usize>,
}

/// The most mappings and objects that are remembered. A tenant with more keeps running, but the
/// rest is not managed.
const REMEMBERED_MAX: usize = 65_536;

impl Session {
    /// Creates an empty session.
    pub(crate) const fn new() -> Self {
        Self {
            nodes: Vec::new(),
            announced: Vec::new(),
            mappings: Vec::new(),
            rings: Vec::new(),
            doorbells: Vec::new(),
            channels: Vec::new(),
            alone: Alone::new(),
            natives: Natives::new(),
            notifiers: Notifiers::new(),
            news: false,
            unfinished: false,
            watched: false,
            found: Cell::new(0),
        }
    }

    /// Returns whether the last [`publish`](Self::publish) found new entries.
    pub(crate) fn has_news(&self) -> bool {
        self.news
    }

    /// Returns whether any channel is managed.
    pub(crate) fn managed(&self) -> bool {
        !self.channels.is_empty()
    }

    /// Records the effect of an ioctl. `rule` says why a channel on a GPU stays native, and
    /// `is_served` whether a thread publishes for managed channels. Returns why a new channel is
    /// not managed, and its GPU, if that is known.
    pub(crate) fn learn(
        &mut self,
        effect: Effect,
        rule: impl FnOnce(Option<u32>) -> Option<Native>,
        is_served: impl FnOnce() -> bool,
    ) -> Option<(Reason, Option<u32>)> {
        match effect {
            Effect::Made(made) => return self.take(made, rule, is_served),
            Effect::Announced(announcement) => self.announced(announcement),
            Effect::Token { channel, token } => self.set_token(channel, token),
        }
        None
    }

    /// Records an object that the program has made, and counts a channel that nobody may manage.
    fn take(
        &mut self,
        mut made: Made,
        rule: impl FnOnce(Option<u32>) -> Option<Native>,
        is_served: impl FnOnce() -> bool,
    ) -> Option<(Reason, Option<u32>)> {
        let Some(params) = made.channel else {
            self.made(made);
            return None;
        };
        let gpu = self
            .userd(made.object, &params)
            .and_then(|(userd, _)| userd.gpu);
        let native = self.stays_native(made.object, &params, rule);
        let unmanaged = native.or_else(|| (!is_served()).then_some(Reason::NoWorker));
        if let Some(reason) = unmanaged {
            STATS.count_unmanaged(reason);
            // Its errors are reported all the same.
            self.watch(made.object, made.parent, &params);
            made.channel = None;
        }
        let left_alone = self.made(made);
        Some((unmanaged.or(left_alone)?, gpu))
    }

    /// Records an object that the program has made. Returns why a channel is left alone.
    fn made(&mut self, made: Made) -> Option<Reason> {
        let Made {
            object,
            parent,
            class,
            channel,
        } = made;
        if self.nodes.len() < REMEMBERED_MAX {
            self.nodes.push(Node {
                object,
                parent,
                class,
            });
        }
        let params = channel?;
        self.watch(object, parent, &params);
        self.adopt(object, class, params)
    }

    /// Records that the next `mmap` of a descriptor will make a mapping.
    fn announced(&mut self, announcement: Announcement) {
        self.announced.retain(|a| a.fd != announcement.fd);
        if self.announced.len() < REMEMBERED_MAX {
            self.announced.push(announcement);
        }
    }

    /// Records the work-submit token of a channel.
    fn set_token(&mut self, channel: Object, token: u32) {
        for c in self.channels.iter_mut().filter(|c| c.object == channel) {
            c.set_token(token);
        }
        self.alone.set_token(channel, token);
    }

    /// Records an `mmap` of `fd`, which is a GPU's node or the control node.
    pub(crate) fn mapped(&mut self, fd: i32, addr: usize, len: usize, gpu: Option<u32>) {
        let Some(at) = self.announced.iter().position(|a| a.fd == fd) else {
            return;
        };
        let announcement = self.announced.swap_remove(at);
        if self.mappings.len() < REMEMBERED_MAX {
            self.mappings.push(Mapping {
                memory: memory_of(&announcement),
                offset: announcement.offset,
                addr,
                len,
                gpu,
            });
        }
    }

    /// Returns whether a known mapping touches `[addr, addr + len)`.
    pub(crate) fn knows(&self, addr: usize, len: usize) -> bool {
        let mut mappings = self.mappings.iter();
        mappings.any(|m| touches((m.addr, m.len), addr, len))
    }

    /// Returns whether the next `mmap` of a descriptor maps a doorbell page.
    pub(crate) fn announces_doorbell(&self, fd: i32) -> bool {
        let announced = self.announced.iter().find(|a| a.fd == fd);
        announced.is_some_and(|a| Self::is_usermode(&self.nodes, memory_of(a)))
    }

    fn is_usermode(nodes: &[Node], memory: Object) -> bool {
        nodes
            .iter()
            .any(|n| n.object == memory && rm::is_usermode(n.class))
    }

    /// Forgets `[addr, addr + len)`, which the tenant has unmapped.
    pub(crate) fn unmapped(&mut self, addr: usize, len: usize) {
        let kept = |m: &Mapping| !touches((m.addr, m.len), addr, len);
        self.mappings.retain(kept);
        self.alone.unmapped(addr, len);
        self.notifiers.unmapped(addr, len);
        for channel in &mut self.channels {
            channel.forget_words(addr, len);
        }
        for scratch in self.rings.iter_mut().filter_map(|r| r.scratch.as_mut()) {
            scratch.forget(|fence| fence.view.is_in(fence.index, addr, len));
        }
        while let Some(i) = self.rings.iter().position(|r| r.shadow.touches(addr, len)) {
            let ring = self.rings.swap_remove(i);
            self.channels.retain(|c| !c.lives_in(&ring.shadow));
            // SAFETY: `self` is borrowed exclusively, so no pair of words is alive.
            unsafe { ring.shadow.release() };
        }
        let touched = |d: &Doorbell| d.shadow.touches(addr, len);
        while let Some(i) = self.doorbells.iter().position(touched) {
            let doorbell = self.doorbells.swap_remove(i);
            // SAFETY: as above.
            unsafe { doorbell.shadow.release() };
        }
    }

    /// Records that an object is about to be freed: publishes the rest of every channel at or below
    /// it, and forgets these channels.
    pub(crate) fn freed(&mut self, object: Object, governors: &mut Governors) {
        self.publish(governors, sys::now_ns(), 0);
        // A client takes all its objects with it.
        let whole = object.handle == object.client;
        let mut doomed = vec![object.handle];
        let mut next = 0;
        while let Some(&parent) = doomed.get(next).filter(|_| !whole) {
            next += 1;
            let below = self.nodes.iter().filter(|n| {
                n.object.client == object.client && n.parent == parent && n.object.handle != parent
            });
            doomed.extend(below.map(|n| n.object.handle));
        }
        let gone = |o: Object| o.client == object.client && (whole || doomed.contains(&o.handle));
        self.nodes.retain(|n| !gone(n.object));
        self.channels.retain(|c| !gone(c.object));
        self.alone.retain(|o| !gone(o));
        self.natives.retain(|o| !gone(o));
        self.notifiers.retain(|o| !gone(o));
    }

    /// Watches the error notifier of a new channel, if it is mapped.
    fn watch(&mut self, channel: Object, group: u32, params: &ChannelParams) {
        let of = (channel.client, params.error_memory);
        let mut mappings = self.mappings.iter();
        let notifier = mappings.find(|m| (m.memory.client, m.memory.handle) == of && m.offset == 0);
        let gpu = self.userd(channel, params).and_then(|(userd, _)| userd.gpu);
        if let (Some(notifier), Some(gpu)) = (notifier, gpu) {
            // SAFETY: a mapping that exists, of whole pages; `unmapped` is called before it ends.
            unsafe { self.notifiers.watch(channel, group, notifier.addr, gpu) };
        }
    }

    /// Returns the new faults of this process since the last call, as GPU and Xid.
    pub(crate) fn faults(&mut self) -> Vec<(u32, u32)> {
        self.notifiers.look()
    }

    /// Returns the real register that rings a GPU. libcuda uses the doorbell that it mapped last.
    fn doorbell(doorbells: &[Doorbell], gpu: u32) -> Option<&AtomicU32> {
        let last = &doorbells.iter().rfind(|d| d.gpu == gpu)?.shadow;
        last.word(last.tenant() + DOORBELL).map(|pair| pair.real)
    }

    /// Publishes all new entries of every channel, of each at most `ahead` before they are read.
    /// Returns how many.
    pub(crate) fn publish(&mut self, governors: &mut Governors, now_ns: u64, ahead: u32) -> u32 {
        let Self {
            mappings,
            rings,
            doorbells,
            channels,
            alone,
            news,
            unfinished,
            watched,
            found,
            ..
        } = self;
        *news = false;
        for ring in rings.iter() {
            if let Some(doorbell) = Self::doorbell(doorbells, ring.gpu) {
                alone.publish(&ring.shadow, doorbell);
            }
        }
        let translate = |gpu_va, len| segment(mappings, found, gpu_va, len);
        // SAFETY: a known mapping, which `unmapped` makes the lanes forget before it ends.
        let memory = unsafe { Mapped::new(translate) };
        let mut count = 0;
        *unfinished = alone.forwards();
        *watched = false;
        for channel in channels.iter_mut() {
            let Some(ring) = rings.iter_mut().find(|r| channel.lives_in(&r.shadow)) else {
                continue;
            };
            let shadow = &ring.shadow;
            let has_news = channel.has_news(shadow);
            *news |= has_news;
            if !has_news && channel.is_quiet() {
                continue;
            }
            let doorbell = Self::doorbell(doorbells, ring.gpu);
            let governor = governors.with_work(ring.gpu);
            let mut awaits = true;
            if let (Some(doorbell), Some((governor, work))) = (doorbell, governor) {
                let mut round = Round {
                    memory: &memory,
                    scratch: ring.scratch.as_mut(),
                    copies: None,
                    slots: None,
                    turn: u32::MAX,
                    words: u32::MAX,
                    work,
                    now: Ns(now_ns),
                    ahead: Some(ahead),
                };
                count += channel.publish(shadow, governor, &mut round, doorbell);
                channel.refresh_get(shadow);
                awaits = governor.awaits_ends();
            }
            channel.settle(shadow);
            *unfinished |= channel.is_awaited(shadow, awaits) || channel.crowded(shadow);
            *watched |= channel.is_watched();
        }
        count
    }

    /// Returns whether [`publish`](Self::publish) left work that must be looked at soon although no
    /// doorbell will ring: held back, in flight and awaited, or in a ring without room.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.unfinished
    }

    /// Returns whether [`publish`](Self::publish) left work that is in flight and watched.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    /// Returns whether any channel of a GPU has work that is held back, or in flight and watched.
    pub(crate) fn pending_on(&self, gpu: u32) -> bool {
        let mut rings = self.rings.iter().filter(|r| r.gpu == gpu);
        rings.any(|r| {
            let mut channels = self.channels.iter();
            channels.any(|c| !c.is_quiet() && c.lives_in(&r.shadow) && c.pending(&r.shadow))
        })
    }

    /// Returns whether a GPU may have work of a managed channel, or will have. One that has failed
    /// ends nothing any more.
    pub(crate) fn has_work(&mut self) -> bool {
        let Self {
            rings,
            channels,
            notifiers,
            ..
        } = self;
        let mut living = channels
            .iter_mut()
            .filter(|c| !notifiers.has_ended(c.object));
        living.any(|channel| {
            let ring = rings.iter().find(|ring| channel.lives_in(&ring.shadow));
            ring.is_some_and(|ring| channel.has_work(&ring.shadow, !ending::holds()))
        })
    }

    /// Returns the GPUs with managed channels.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.rings.iter().map(|ring| ring.gpu)
    }

    /// Arms or disarms every doorbell. Returns false if a managed channel can be rung without a
    /// fault.
    pub(crate) fn arm(&self, armed: bool) -> bool {
        let shadowed = self.doorbells.iter().filter(|d| d.shadow.is_apart());
        let unheard = shadowed.filter(|d| !d.shadow.arm(armed)).count() > 0;
        !unheard && !self.channels.iter().any(|c| self.rings_by_itself(c))
    }

    /// Returns whether a managed channel's client has its real doorbells.
    fn rings_by_itself(&self, channel: &Channel) -> bool {
        let client = channel.object.client;
        let has_own = self.doorbells.iter().any(|d| d.client == client);
        let mut used = self.doorbells.iter();
        used.any(|d| (!has_own || d.client == client) && !d.shadow.is_apart())
    }

    /// Returns whether a doorbell page at an address is a shadow.
    pub(crate) fn shadows(&self, addr: usize) -> bool {
        let mut doorbells = self.doorbells.iter();
        doorbells.any(|d| d.shadow.contains(addr) && d.shadow.is_apart())
    }

    /// Returns the addresses of the doorbell pages, for the signal handler.
    pub(crate) fn doorbell_pages(&self) -> impl Iterator<Item = usize> + '_ {
        self.doorbells.iter().map(|d| d.shadow.tenant())
    }
}

fn memory_of(announcement: &Announcement) -> Object {
    Object {
        client: announcement.client,
        handle: announcement.memory,
    }
}

/// Returns the address of the tenant's segment at a GPU address. The segment must be system memory
/// that this process maps at the same address, as libcuda's pushbuffers are. `last` caches the
/// mapping, because most segments lie in the same one.
fn segment(mappings: &[Mapping], last: &Cell<usize>, gpu_va: u64, len: usize) -> Option<usize> {
    // CAST: addresses are 64 bits wide where this driver runs.
    let addr = gpu_va as usize;
    let holds = |m: &Mapping| {
        let offset = addr.wrapping_sub(m.addr);
        m.gpu.is_none() && offset < m.len && len <= m.len - offset
    };
    if !mappings.get(last.get()).is_some_and(holds) {
        last.set(mappings.iter().position(holds)?);
    }
    Some(addr)
}

#[cfg(test)]
pub(crate) mod tests;
