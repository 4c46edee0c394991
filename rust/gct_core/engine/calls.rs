// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks the driver's open files and the ioctls on them.
//!
//! ```text
//! call_enter   before the ioctl: hides what it may free, names what it may dup, reserves room
//!     RM runs the ioctl
//! call_leave   after it: adds what it created, frees what it freed
//! ```

use super::freeing::OBJECTS_PER_STEP;
use super::{Kept, Ticket};
use crate::error::Error;
use crate::failures::Failure;
use crate::ids::{FileId, GpuId, GroupId, Owner, ProcKey, UserId};
use crate::iface::CgroupPath;
use crate::objects::{Object, ObjectKey, Objects};
use crate::records::File;
use crate::rmapi::{Action, Call, Class, Handle, Share};
use crate::state::State;
use crate::units::Sat;

/// Where to add an object.
struct New {
    key: ObjectKey,
    /// The process that opened the file. It is charged.
    proc: ProcKey,
}

impl State<'_> {
    /// Opens a file for a caller that limits users itself.
    ///
    /// # Errors
    ///
    /// Those of [`State::file_open_by`].
    pub fn file_open(
        &mut self,
        key: ProcKey,
        cgroup: &[u8],
        by_pid: Option<GroupId>,
    ) -> Result<FileId, Error> {
        self.file_open_by(UserId::default(), key, cgroup, by_pid)
    }

    /// Opens a file for a process. `cgroup` is its absolute cgroup-v2 path, empty when unknown.
    /// `by_pid` is the group to which it belongs by pid.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`]: the owner has used up its share; [`Error::NeedSlots`].
    pub fn file_open_by(
        &mut self,
        user: UserId,
        key: ProcKey,
        cgroup: &[u8],
        by_pid: Option<GroupId>,
    ) -> Result<FileId, Error> {
        let by_pid = by_pid.filter(|group| self.groups.contains(group));
        self.reserve_file(user, key, by_pid, cgroup)?;

        let id = FileId(self.sequence.next());
        let file = File {
            proc: key,
            objects: Sat(0),
            reserved: Sat(0),
            is_account: false,
            is_entangled: false,
            last_kept: None,
        };
        self.files.insert(id, file)?;
        self.objects.add_root(id.raw(), id)?;
        self.proc_enter(key, user)?;
        self.file_enter(key);
        self.count_objects_of(id);
        if let Some(proc) = self.procs.get_mut(&key) {
            proc.by_pid = by_pid;
            if !cgroup.is_empty() {
                proc.cgroup = CgroupPath::from_path(cgroup);
            }
        }
        self.place(key);
        Ok(id)
    }

    /// Prepares for an ioctl. Hides objects that it may free, because RM may give the same handles
    /// to other objects before the ioctl returns. Adds the alias that it may create, because the
    /// source may be freed before the ioctl returns.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: an alias cannot be tracked.
    pub fn call_enter(&mut self, file: FileId, call: &Call) -> Result<Ticket, Error> {
        let mut ticket = self.call_begin(file, call)?;
        while self.hides_more(&mut ticket) {}
        Ok(ticket)
    }

    /// Does as [`call_enter`](Self::call_enter), but may leave objects for
    /// [`hides_more`](Self::hides_more). They stay in the order in which they were until then, and
    /// no other ioctl uses the file.
    ///
    /// # Errors
    ///
    /// As [`call_enter`](Self::call_enter).
    pub fn call_begin(&mut self, file: FileId, call: &Call) -> Result<Ticket, Error> {
        let mut moving = 0;
        let (home, hidden, handle) = match call.action {
            Action::Control(_) => return Ok(Ticket::NONE),
            Action::Alloc { class, .. } => return self.reserve_for_alloc(file, call, class),
            Action::Share(share, _) => return self.reserve_for_share(file, call, share),
            Action::Free => {
                let Some(key) = self.find(file, call) else {
                    return Ok(Ticket::NONE);
                };
                let hidden = self.sequence.next();
                let next = self.objects.detach(key, hidden, OBJECTS_PER_STEP);
                moving = next.unwrap_or(0);
                (key.space, hidden, key.handle)
            }
            Action::Dup {
                source_client,
                source,
            } => {
                self.entangle(file, source_client);
                let Some(known) = self.key_of_duplicated(file, source_client, source) else {
                    return Ok(Ticket::NONE);
                };
                (0, self.prepare_alias(file, call, known)?, known.handle)
            }
        };
        Ok(Ticket {
            home,
            moving,
            hidden,
            handle,
            ..Ticket::NONE
        })
    }

    /// Reserves room for the objects that an ioctl may create.
    fn reserve_for_alloc(
        &mut self,
        file: FileId,
        call: &Call,
        class: Class,
    ) -> Result<Ticket, Error> {
        let reserved = match class {
            Class::Client => Objects::OF_CLIENT,
            class if class.is_tracked() && self.objects.space(file, call.client).is_some() => 1,
            _ => return Ok(Ticket::NONE),
        };
        self.reserve_places(1, 2)?;
        self.reserve_for_ioctl(file, reserved)?;
        Ok(Ticket {
            reserved,
            ..Ticket::NONE
        })
    }

    /// Reserves room for the objects that a control may import, or for the charge of its exports.
    fn reserve_for_share(
        &mut self,
        file: FileId,
        call: &Call,
        share: Share,
    ) -> Result<Ticket, Error> {
        let reserved = share.reserved_objects();
        if self.objects.space(file, call.client).is_none() {
            return Ok(Ticket::NONE);
        }
        let places = reserved.min(self.gpus.len());
        self.reserve_places(places, (Sat(places) * Sat(2)).0)?;
        self.reserve_for_ioctl(file, reserved)?;
        Ok(Ticket {
            reserved,
            ..Ticket::NONE
        })
    }

    /// Records what an ioctl has done. The caller decodes `call` again. `answer` is the answer to
    /// its [`Call::lookup`], if any.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: an object that was created cannot be tracked. The
    /// ticket's charge stays until [`State::uncharge_ticket`].
    pub fn call_leave(
        &mut self,
        file: FileId,
        call: &Call,
        ticket: Ticket,
        answer: Option<u64>,
    ) -> Result<(), Error> {
        let Some(proc) = self.files.get(&file).map(|file| file.proc) else {
            return Err(Error::Gone);
        };
        // Each import uses up one reserved object, until `share_ends`.
        if !matches!(call.action, Action::Share(..)) {
            self.release_reserved(file, ticket.reserved);
        }
        match call.action {
            Action::Free => self.freed(proc, call.succeeded(), ticket),
            Action::Dup { .. } => self.dup_made(file, call, ticket)?,
            // Even if it failed: RM may have carried it out and failed to copy the parameters back.
            Action::Control(overrides) => self.overridden(file, call, overrides),
            // `exported` and `imported` record each object.
            Action::Share(..) => {}
            _ if !call.succeeded() => self.uncharge_ticket(file, ticket),
            Action::Alloc { class, .. } if !class.is_tracked() => {
                self.uncharge_ticket(file, ticket);
            }
            Action::Alloc {
                class: Class::Client,
                ..
            } => self.client_made(proc, file, call.object, ticket)?,
            Action::Alloc { class, bytes, .. } => {
                self.made(file, call, class, bytes.or(answer), ticket)?
            }
        }
        Ok(())
    }

    /// Returns the object that a call frees.
    fn find(&self, file: FileId, call: &Call) -> Option<ObjectKey> {
        let key = if call.object == call.client {
            // What the file keeps has no handle that a tenant could free.
            self.objects.space(file, call.client)?;
            ObjectKey::new(file.raw(), call.client)
        } else {
            ObjectKey::new(self.objects.space(file, call.client)?, call.object)
        };
        (key.handle != 0).then_some(key)?;
        self.objects.get(key).map(|_| key)
    }

    /// Removes what RM has freed, or unhides it if RM refused.
    fn freed(&mut self, proc: ProcKey, succeeded: bool, ticket: Ticket) {
        let hidden = ObjectKey::new(ticket.hidden, ticket.handle);
        if ticket.hidden == 0 || self.objects.get(hidden).is_none() {
            return;
        }
        if succeeded || !self.objects.attach(hidden, ticket.home) {
            self.free(proc, hidden);
        } else {
            // Controls can name them again.
            self.invalidate_below(ObjectKey::new(ticket.home, ticket.handle));
            self.mark_owner(Owner::Proc(proc), None);
        }
    }

    /// Checks that an ioctl that has run finds room, reserved or not.
    fn room_for(&self, file: FileId, more: usize, ticket: Ticket) -> Result<(), Error> {
        if ticket.reserved >= more {
            return self.objects.reserve((*self.reserved_objects + Sat(more)).0);
        }
        self.reserve_objects(file, more)
    }

    fn client_made(
        &mut self,
        proc: ProcKey,
        file: FileId,
        handle: Handle,
        ticket: Ticket,
    ) -> Result<(), Error> {
        // RM gives no client such a handle, but a tenant may change the argument that is decoded
        // again. Here they are those of the root and of what the file keeps.
        if handle == 0 || Kept::from_raw(handle).is_some() {
            return Ok(());
        }
        self.room_for(file, Objects::OF_CLIENT, ticket)?;
        let key = ObjectKey::new(file.raw(), handle);
        self.free(proc, key);
        let inner = self.sequence.next();
        let other = self.objects.add_client(file, handle, inner)?;
        for file in [Some(file), other].into_iter().flatten() {
            self.count_objects_of(file);
        }
        Ok(())
    }

    fn made(
        &mut self,
        file: FileId,
        call: &Call,
        class: Class,
        number: Option<u64>,
        ticket: Ticket,
    ) -> Result<(), Error> {
        self.room_for(file, 1, ticket)?;
        self.reserve_charge()?;
        // Nothing fails between this and the charge of the object.
        self.uncharge_reserved(file, ticket);
        let Some(new) = self.key_for_new(file, call) else {
            self.let_all_go(file, ticket.keeps);
            return Ok(());
        };
        self.free(new.proc, new.key);
        let mut object = Object::new(file, class);
        object.parent = self.parent_handle(call);
        object.gpu = match class {
            Class::Device => self.gpu_or_only(number),
            Class::Subdevice => self.gpu_of_subdevice(new.key, &object, number),
            _ => self.gpu_of_parent(new.key, &object),
        };
        let mut amount = self.amount_of(object.gpu, class, number.unwrap_or(0));
        let parent = ObjectKey::new(new.key.space, object.parent);
        if class == Class::Channel {
            // RM creates a channel group below a device and does not return its handle.
            amount.channel_groups = u32::from(self.is_device(parent));
            amount.memory += self.cost_of_group_above(parent, object.gpu);
            amount.shared_channels = u32::from(self.is_made_by_another(parent, new.proc));
            amount.unseen_channels = u32::from(self.is_unseen(parent));
        }
        object.charged = self.charge(new.proc, object.gpu, amount);
        object.client = call.client;
        object.keeps = ticket.keeps;
        object.acked.primary = true;
        self.objects.add(new.key, object)?;
        if class == Class::Subdevice {
            let device = ObjectKey::new(new.key.space, object.parent);
            if let Some(device) = self.objects.get_mut(device) {
                device.subdevice = new.key.handle;
            }
        }
        self.count_objects_of(file);
        self.mark_if_dirty(new.key);
        Ok(())
    }

    /// Returns a subdevice's GPU as reported by RM, and moves its device and all below it there.
    /// Until then the GPU is known only from the tenant's parameters.
    fn gpu_of_subdevice(
        &mut self,
        key: ObjectKey,
        object: &Object,
        answer: Option<u64>,
    ) -> Option<GpuId> {
        let believed = self.gpu_of_parent(key, object);
        let Some(gpu) = answer.and_then(|_| self.gpu_or_only(answer)) else {
            return believed;
        };
        let device = ObjectKey::new(key.space, object.parent);
        if believed != Some(gpu) && self.is_device(device) {
            if believed.is_some() {
                self.count(Failure::Gpu);
            }
            self.move_to_gpu(device, gpu);
        }
        Some(gpu)
    }

    /// Adds a hidden alias of `known`, which becomes visible if RM accepts the dup. Returns its
    /// space.
    fn prepare_alias(&mut self, file: FileId, call: &Call, known: ObjectKey) -> Result<u64, Error> {
        if self.objects.space(file, call.client).is_none() {
            return Ok(0);
        }
        self.objects.check_alias_limit(known)?;
        self.reserve_objects(file, 1)?;
        self.reserve_charge()?;
        let Some(thing) = self.objects.get(known) else {
            return Ok(0);
        };
        let mut name = Object::new(file, thing.class);
        name.gpu = thing.gpu;
        name.unconfirmed = true;
        let hidden = ObjectKey::new(self.sequence.next(), known.handle);
        self.objects.hide(hidden, name)?;
        self.count_objects_of(file);
        if name.class.takes_memory() {
            self.objects.add_alias(known, hidden);
        }
        Ok(hidden.space)
    }

    /// Gives the hidden alias the handle that RM has chosen, or removes it if RM refused. A
    /// resource is charged once: when the charged alias goes, the next one is charged.
    fn dup_made(&mut self, file: FileId, call: &Call, ticket: Ticket) -> Result<(), Error> {
        self.reserve_charge()?;
        let hidden = ObjectKey::new(ticket.hidden, ticket.handle);
        let proc = self.files.get(&file).map(|file| file.proc);
        let Some(proc) = proc.filter(|_| ticket.hidden != 0) else {
            return Ok(());
        };
        let space = self.objects.space(file, call.client);
        let named = space
            .filter(|_| call.succeeded() && call.object != 0)
            .is_some_and(|space| {
                let key = ObjectKey::new(space, call.object);
                self.free(proc, key);
                let above = [call.client, self.parent_handle(call)];
                let named = self.objects.unhide(hidden, key, above);
                self.charge_deferred(proc, key);
                self.mark_if_dirty(key);
                named
            });
        if !named && self.objects.get(hidden).is_some() {
            self.drain(proc, hidden);
        }
        Ok(())
    }

    fn is_device(&self, key: ObjectKey) -> bool {
        let object = self.objects.get(key);
        object.is_some_and(|object| object.class == Class::Device)
    }

    fn gpu_of_parent(&self, key: ObjectKey, object: &Object) -> Option<GpuId> {
        let parent = ObjectKey::new(key.space, object.parent);
        self.objects.get(parent)?.gpu
    }

    /// Returns where to add a new object. Counts a failure and returns `None` when its client is
    /// unknown.
    fn key_for_new(&mut self, file: FileId, call: &Call) -> Option<New> {
        let space = self.objects.space(file, call.client);
        let proc = self.files.get(&file).map(|file| file.proc);
        let new = space.filter(|_| call.object != 0).zip(proc);
        let new = new.map(|(space, proc)| New {
            key: ObjectKey::new(space, call.object),
            proc,
        });
        if new.is_none() {
            self.count(Failure::Client);
        }
        new
    }

    /// Returns the handle of a new object's parent. Directly below a client it is the root of the
    /// space.
    pub(super) fn parent_handle(&self, call: &Call) -> Handle {
        if call.parent == call.client {
            0
        } else {
            call.parent
        }
    }

    /// Returns the key of a client's object.
    pub(super) fn key_of(&self, file: FileId, client: Handle, object: Handle) -> Option<ObjectKey> {
        let key = ObjectKey::new(self.objects.space(file, client)?, object);
        self.objects.get(key).map(|_| key)
    }

    /// Returns the key of what a file duplicates. In a daemon, other files may claim the handle of
    /// this one's client: it names this one's objects alone.
    pub(super) fn key_of_duplicated(
        &self,
        file: FileId,
        client: Handle,
        object: Handle,
    ) -> Option<ObjectKey> {
        match self.objects.space(file, client) {
            Some(_) => self.key_of(file, client, object),
            None => self.key_of_source(client, object),
        }
    }

    /// Returns the key of an object of any file's client: the source of a dup may belong to another
    /// process. RM decides whether the caller may dup it.
    pub(super) fn key_of_source(&self, client: Handle, object: Handle) -> Option<ObjectKey> {
        let key = ObjectKey::new(self.objects.space_of_any(client)?, object);
        self.objects.get(key).map(|_| key)
    }
}
