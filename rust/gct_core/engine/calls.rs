// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Files of the driver, and the ioctls on them.

use crate::account::Amount;
use crate::error::Error;
use crate::ids::{FileId, GpuId, GroupId, ProcKey};
use crate::iface::CgroupPath;
use crate::objects::{Object, ObjectKey};
use crate::rmapi::{Action, Call, Class, Handle};
use crate::state::{Failure, File, Proc, State};

/// What [`State::call_enter`] leaves for [`State::call_leave`] of the same ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Where the object was, and where it is hidden; 0 is nowhere.
    home: u64,
    hidden: u64,
    handle: Handle,
}

impl Ticket {
    /// Nothing was done on entering.
    pub const NONE: Self = Self {
        home: 0,
        hidden: 0,
        handle: 0,
    };

    /// Memory was granted, and is charged for the object at `hidden`.
    pub(super) const fn reserved(hidden: ObjectKey) -> Self {
        Self {
            home: 0,
            hidden: hidden.space,
            handle: hidden.handle,
        }
    }

    /// Where memory is charged that was granted.
    pub(super) fn reservation(self) -> Option<ObjectKey> {
        (self.hidden != 0 && self.home == 0).then(|| ObjectKey::new(self.hidden, self.handle))
    }

    /// For the caller's stack.
    pub fn words(self) -> [u64; 4] {
        [self.home, self.hidden, u64::from(self.handle), 0]
    }

    /// From the caller's stack. Words that no ticket ever was are harmless.
    pub fn from_words([home, hidden, handle, _]: [u64; 4]) -> Self {
        match Handle::try_from(handle) {
            Ok(handle) => Self {
                home,
                hidden,
                handle,
            },
            Err(_) => Self::NONE,
        }
    }
}

/// Where a new object goes.
struct New {
    key: ObjectKey,
    /// The file of its client.
    file: FileId,
    /// The process that opened that file, and is charged.
    proc: ProcKey,
}

impl State<'_> {
    /// A process opened the driver. `cgroup` is its absolute cgroup-v2 path, empty
    /// when unknown, and `by_pid` the group it belongs to by pid.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`], [`Error::NeedSlots`].
    pub fn file_open(
        &mut self,
        key: ProcKey,
        cgroup: &[u8],
        by_pid: Option<GroupId>,
    ) -> Result<FileId, Error> {
        self.files.reserve(1)?;
        self.procs.reserve(1)?;
        self.objects.reserve(1)?;

        let id = FileId(self.sequence.next());
        self.files.insert(id, File { proc: key })?;
        self.objects.add_root(id.raw(), id)?;
        if !self.procs.contains(&key) {
            let proc = Proc {
                cgroup: CgroupPath::EMPTY,
                by_pid: None,
                group: None,
                files: 0,
                visible: 0,
            };
            self.procs.insert(key, proc)?;
        }
        let by_pid = by_pid.filter(|group| self.groups.contains(group));
        if let Some(proc) = self.procs.get_mut(&key) {
            proc.files = proc.files.saturating_add(1);
            proc.by_pid = by_pid;
            if !cgroup.is_empty() {
                proc.cgroup = CgroupPath::from_path(cgroup);
            }
        }
        self.place(key);
        Ok(id)
    }

    /// A file of the driver is closed, and everything made through it is gone.
    pub fn file_close(&mut self, id: FileId) {
        let Some(File { proc }) = self.files.remove(&id) else {
            return;
        };
        // Each turn frees one client; the bound only guards what never is.
        for _ in 0..self.objects.len() {
            let Some(client) = self.objects.first_below_root(id.raw()) else {
                break;
            };
            self.free(proc, client);
        }
        self.drain(proc, ObjectKey::root(id.raw()));
        let Some(entry) = self.procs.get_mut(&proc) else {
            return;
        };
        entry.files = entry.files.saturating_sub(1);
        if entry.files == 0 {
            self.procs.remove(&proc);
        }
    }

    /// An ioctl is about to run. What it may free loses its handles now, since
    /// they may be given to others before the ioctl returns.
    pub fn call_enter(&mut self, file: FileId, call: &Call) -> Ticket {
        if call.action != Action::Free {
            return Ticket::NONE;
        }
        let Some(key) = self.find(file, call) else {
            return Ticket::NONE;
        };
        let hidden = self.sequence.next();
        self.objects.detach(key, hidden);
        Ticket {
            home: key.space,
            hidden,
            handle: key.handle,
        }
    }

    /// An ioctl has run. `call` is decoded anew, and `hint` is what its
    /// [`Call::hint`] asked for, if that could be read.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: what was made is not tracked.
    pub fn call_leave(
        &mut self,
        file: FileId,
        call: &Call,
        ticket: Ticket,
        hint: Option<u64>,
    ) -> Result<(), Error> {
        let Some(proc) = self.files.get(&file).map(|file| file.proc) else {
            return Err(Error::Gone);
        };
        if call.action != Action::Free {
            // What was asked for is charged anew, as what it became.
            self.call_withdraw(file, ticket);
        }
        match call.action {
            Action::Free => self.freed(proc, call.succeeded(), ticket),
            _ if !call.succeeded() => {}
            Action::Alloc { class, .. } if !class.is_tracked() => {}
            Action::Alloc {
                class: Class::Client,
                ..
            } => self.client_made(proc, file, call.object)?,
            Action::Alloc { class, bytes, .. } => self.made(file, call, class, bytes.or(hint))?,
            Action::Dup {
                source_client,
                source,
            } => {
                let class = self.class_of(file, source_client, source);
                self.dup_made(file, call, class)?;
            }
        }
        Ok(())
    }

    /// The object that a call to free means.
    fn find(&self, file: FileId, call: &Call) -> Option<ObjectKey> {
        let key = if call.object == call.client {
            ObjectKey::new(file.raw(), call.client)
        } else {
            ObjectKey::new(self.objects.space(file, call.client)?, call.object)
        };
        (key.handle != 0).then_some(key)?;
        self.objects.get(key).map(|_| key)
    }

    /// The resource manager freed what is hidden, or refused to.
    fn freed(&mut self, proc: ProcKey, succeeded: bool, ticket: Ticket) {
        let hidden = ObjectKey::new(ticket.hidden, ticket.handle);
        if ticket.hidden == 0 || self.objects.get(hidden).is_none() {
            return;
        }
        if succeeded || !self.objects.attach(hidden, ticket.home) {
            self.free(proc, hidden);
        }
    }

    fn client_made(&mut self, proc: ProcKey, file: FileId, handle: Handle) -> Result<(), Error> {
        self.objects.reserve(2)?;
        let key = ObjectKey::new(file.raw(), handle);
        self.free(proc, key);
        let inner = self.sequence.next();
        let mut name = Object::new(file, Class::Client);
        name.inner = inner;
        self.objects.add(key, name)?;
        self.objects.add_root(inner, file)
    }

    fn made(
        &mut self,
        file: FileId,
        call: &Call,
        class: Class,
        number: Option<u64>,
    ) -> Result<(), Error> {
        let Some(new) = self.key_for_new(file, call)? else {
            return Ok(());
        };
        self.reserve_charge()?;
        self.free(new.proc, new.key);
        let mut object = Object::new(new.file, class);
        object.parent = self.parent_handle(call);
        object.gpu = match class {
            Class::Device => self.gpu_of_device(number),
            _ => self.gpu_of_parent(new.key, &object),
        };
        let amount = Amount::of_object(class, number.unwrap_or(0));
        object.charged = self.charge(new.proc, object.gpu, amount);
        self.objects.add(new.key, object)
    }

    /// A second name of an object is tracked and not charged: its owner is charged already.
    fn dup_made(&mut self, file: FileId, call: &Call, class: Class) -> Result<(), Error> {
        let Some(new) = self.key_for_new(file, call)? else {
            return Ok(());
        };
        self.free(new.proc, new.key);
        let mut object = Object::new(new.file, class);
        object.parent = self.parent_handle(call);
        object.gpu = self.gpu_of_parent(new.key, &object);
        self.objects.add(new.key, object)
    }

    fn gpu_of_parent(&self, key: ObjectKey, object: &Object) -> Option<GpuId> {
        let parent = ObjectKey::new(key.space, object.parent);
        self.objects.get(parent)?.gpu
    }

    /// Where a new object goes, with room for it; `None` when its client is unknown.
    fn key_for_new(&mut self, file: FileId, call: &Call) -> Result<Option<New>, Error> {
        self.objects.reserve(1)?;
        let new = match self.client(file, call.client) {
            Some((file, space)) if call.object != 0 => {
                let proc = self.files.get(&file).map(|file| file.proc);
                let key = ObjectKey::new(space, call.object);
                proc.map(|proc| New { key, file, proc })
            }
            _ => None,
        };
        if new.is_none() {
            self.count(Failure::Client);
        }
        Ok(new)
    }

    /// The file to which a client belongs, and the client's space.
    ///
    /// That is the file of the ioctl, but for ioctls on a device's file and for
    /// the source of a dup. The resource manager has checked that the caller may
    /// use the client, and gives no handle to two clients at a time.
    pub(super) fn client(&self, file: FileId, client: Handle) -> Option<(FileId, u64)> {
        let of = |file: FileId| Some((file, self.objects.space(file, client)?));
        of(file).or_else(|| self.files.iter().find_map(|(other, _)| of(*other)))
    }

    /// A client as parent is the root of its space.
    pub(super) fn parent_handle(&self, call: &Call) -> Handle {
        if call.parent == call.client {
            0
        } else {
            call.parent
        }
    }

    /// What kind of object a client has under a handle.
    fn class_of(&self, file: FileId, client: Handle, object: Handle) -> Class {
        self.client(file, client)
            .and_then(|(_, space)| self.objects.get(ObjectKey::new(space, object)))
            .map_or(Class::Other, |object| object.class)
    }

    /// Takes out an object and all below it; a client's name with all the client has.
    pub(super) fn free(&mut self, proc: ProcKey, key: ObjectKey) {
        let Some(object) = self.objects.get(key) else {
            return;
        };
        if object.inner != 0 {
            self.drain(proc, ObjectKey::root(object.inner));
        }
        self.drain(proc, key);
    }

    fn drain(&mut self, proc: ProcKey, top: ObjectKey) {
        // Each turn takes an object out of a tree that only shrinks.
        while let Some(object) = self.objects.pop(top) {
            self.uncharge(proc, &object);
        }
    }
}
