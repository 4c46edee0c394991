// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects that come and go without an ioctl that names them as such: what the resource manager has
//! made although it says no, what it frees along, what is kept in files.

use super::Ticket;
use crate::account::Amount;
use crate::error::Error;
use crate::ids::{FileId, ProcKey};
use crate::objects::{Object, ObjectKey};
use crate::rmapi::control::{Status, NOT_SUPPORTED};
use crate::rmapi::{Action, Call, Class, Handle, Overrides, Shared, INSUFFICIENT_RESOURCES};
use crate::state::State;

/// How many objects are looked at in one call of [`State::next_channel`].
const STEPS_MAX: usize = 256;

/// An object of a client, for somebody who goes through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visited {
    /// Its handle.
    pub object: Handle,
    /// What it is.
    pub class: Class,
}

impl Visited {
    /// Is it a channel or a channel group?
    pub const fn is_channel(&self) -> bool {
        matches!(self.class, Class::Channel | Class::ChannelGroup)
    }
}

/// What the resource manager says of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// What it is.
    pub class: Class,
    /// Bytes of device memory.
    pub bytes: u64,
}

impl State<'_> {
    /// Why a call must not run: its object could not be kept to a limit that binds its owner. A channel
    /// directly below a device gets a channel group of its own, of which the resource manager tells no
    /// handle, and so no time slice can be set. For one in a channel group that others share, see `sharers.rs`.
    pub fn call_refused(&self, file: FileId, call: &Call) -> Option<Status> {
        match call.action {
            Action::Alloc {
                class: Class::Channel,
                ..
            } => self.channel_refused(file, call),
            // What nobody follows, since the owner had used up its share before it had a limit, may be another name of
            // what is limited.
            Action::Control(Overrides::Schedule | Overrides::Timeslice)
                if self.is_vacant(file, call.client, call.object) && self.binds_file(file) =>
            {
                Some(INSUFFICIENT_RESOURCES)
            }
            // A name that nobody follows would be a way around every later limit, and costs its owner nothing.
            Action::Dup {
                source_client,
                source,
            } => {
                let key = self.key_of_source(source_client, source)?;
                let class = self.objects.get(key)?.class;
                let runs = matches!(class, Class::ChannelGroup | Class::Channel);
                let full = runs && self.objects.check_alias_limit(key).is_err();
                full.then_some(INSUFFICIENT_RESOURCES)
            }
            _ => None,
        }
    }

    fn channel_refused(&self, file: FileId, call: &Call) -> Option<Status> {
        let space = self.objects.space(file, call.client)?;
        let above = ObjectKey::new(space, call.parent);
        let parent = self.objects.get(above)?;
        let (proc, gpu) = (self.proc_of_file(file)?, parent.gpu?);
        let limits = self.effective(proc, gpu);
        let kept = match parent.class {
            Class::Device => limits.timeslice.is_none(),
            Class::ChannelGroup => self.can_be_kept(above, proc, gpu, &limits),
            _ => true,
        };
        (!kept).then_some(NOT_SUPPORTED)
    }

    /// May an object have been made by a call that has failed? An allocation fails after the fact where
    /// its parameters cannot be written back; the object stays. The caller asks the resource manager.
    ///
    /// A client's handle is in the ioctl's structure whoever has it, the driver's own clients among them. Whose it is the
    /// resource manager does not say; but only what it has made it writes back (`written`).
    pub fn may_be_made(&self, file: FileId, call: &Call, written: bool) -> bool {
        match call.action {
            Action::Alloc { class, .. } if !class.is_tracked() || call.object == 0 => false,
            Action::Alloc {
                class: Class::Client,
                ..
            } => written && self.objects.space_of_any(call.object).is_none(),
            Action::Alloc { .. } => self.is_vacant(file, call.client, call.object),
            _ => false,
        }
    }

    /// Has a file's client no object of this handle here?
    pub fn is_vacant(&self, file: FileId, client: Handle, object: Handle) -> bool {
        let space = self.objects.space(file, client);
        space.is_some_and(|space| self.objects.get(ObjectKey::new(space, object)).is_none())
    }

    /// May a call to free an object take channels along that are not below it? `None` if the resource
    /// manager has to be asked for its class, before the call.
    pub fn takes_channels(&self, file: FileId, call: &Call) -> Option<bool> {
        if call.action != Action::Free || call.object == call.client {
            return Some(false);
        }
        let space = self.objects.space(file, call.client);
        let Some(space) = space.filter(|_| call.object != 0) else {
            return Some(false);
        };
        let object = self.objects.get(ObjectKey::new(space, call.object))?;
        Some(object.class == Class::ContextShare)
    }

    /// The object of a client that comes after another one, from 0: the next channel or channel group, or
    /// one on the way to it.
    pub fn next_channel(&self, file: FileId, client: Handle, after: Handle) -> Option<Visited> {
        let space = self.objects.space(file, client)?;
        let mut at = after;
        for _ in 0..STEPS_MAX {
            at = self.objects.after(ObjectKey::root(space), at)?.handle;
            if self.passed(space, at)?.is_channel() {
                break;
            }
        }
        self.passed(space, at)
    }

    /// The resource manager has an object no more. Returns what comes after it and all below it.
    pub fn vanished(&mut self, file: FileId, client: Handle, object: Handle) -> Option<Visited> {
        let proc = self.proc_of_file(file)?;
        let space = self.objects.space(file, client)?;
        let key = ObjectKey::new(space, object);
        let next = self.objects.beyond(ObjectKey::root(space), object);
        self.free(proc, key);
        self.passed(space, next?.handle)
    }

    fn passed(&self, space: u64, object: Handle) -> Option<Visited> {
        let class = self.objects.get(ObjectKey::new(space, object))?.class;
        Some(Visited { object, class })
    }

    /// An object has got a name in an open file, in the place of what had the index. It is kept there, and
    /// charged to the file's opener when it has no other name, until the file is closed.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: the name is not tracked.
    pub fn exported(
        &mut self,
        file: FileId,
        client: Handle,
        shared: &Shared,
        into: FileId,
    ) -> Result<(), Error> {
        let Some((_, key)) = self.place_in_file(into, shared)? else {
            return Ok(());
        };
        let known = self.key_of(file, client, shared.object);
        match known.filter(|_| shared.object != 0) {
            Some(known) => self.name_in_file(known, key, into),
            None => Ok(()),
        }
    }

    /// Returns the file's process and the free place of a name that the file keeps, with room for it; `None` if the file is not known.
    fn place_in_file(
        &mut self,
        into: FileId,
        shared: &Shared,
    ) -> Result<Option<(ProcKey, ObjectKey)>, Error> {
        let Some(proc) = self.proc_of_file(into) else {
            return Ok(None);
        };
        self.reserve_objects(into, 1)?;
        self.reserve_charge()?;
        let key = exported_key(into, shared);
        self.free(proc, key);
        Ok(Some((proc, key)))
    }

    /// The driver has dup'ed memory of any client, for a dma-buf, which is `into` here. If the object has
    /// gone meanwhile, what the driver has counts as much as the resource manager says.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: the name is not tracked.
    pub fn kept(
        &mut self,
        client: Handle,
        shared: &Shared,
        into: FileId,
        gpu_id: u32,
        bytes: u64,
    ) -> Result<(), Error> {
        let Some((proc, key)) = self.place_in_file(into, shared)? else {
            return Ok(());
        };
        if let Some(known) = self.key_of_source(client, shared.object) {
            return self.name_in_file(known, key, into);
        }
        let mut object = Object::new(into, Class::DeviceMemory);
        object.gpu = self.gpu_or_only(Some(u64::from(gpu_id)));
        let amount = Amount::of_object(object.class, bytes);
        object.charged = self.charge(proc, object.gpu, amount);
        self.objects.add(key, object)?;
        self.tally(into);
        Ok(())
    }

    /// Gives what `known` names a name in a file. The caller has made room.
    fn name_in_file(
        &mut self,
        known: ObjectKey,
        key: ObjectKey,
        into: FileId,
    ) -> Result<(), Error> {
        let Some(thing) = self.objects.get(known) else {
            return Ok(());
        };
        let mut name = Object::new(into, thing.class);
        name.gpu = thing.gpu;
        self.name(known, key, name)?;
        self.tally(into);
        Ok(())
    }

    /// A client has got a name of what a file keeps. `from` is the file if it is known; otherwise, or if
    /// what it keeps is not, `imported` is charged to the client's process.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: the object is not tracked.
    pub fn imported(
        &mut self,
        file: FileId,
        client: Handle,
        shared: &Shared,
        from: Option<FileId>,
        imported: &Imported,
    ) -> Result<(), Error> {
        let space = self.objects.space(file, client);
        let Some((space, proc)) = space.zip(self.proc_of_file(file)) else {
            return Ok(());
        };
        if shared.object == 0 || !imported.class.is_tracked() {
            return Ok(());
        }
        if !self.redeem_one(file) {
            self.reserve_objects(file, 1)?;
            self.reserve_charge()?;
        }
        let key = ObjectKey::new(space, shared.object);
        self.free(proc, key);
        let mut object = Object::new(file, imported.class);
        object.client = client;
        object.parent = if shared.parent == client {
            0
        } else {
            shared.parent
        };
        let known = from.map(|from| exported_key(from, shared));
        if let Some((known, thing)) = known.and_then(|key| Some((key, self.objects.get(key)?))) {
            (object.class, object.gpu) = (thing.class, thing.gpu);
            self.name(known, key, object)?;
        } else {
            let parent = ObjectKey::new(space, object.parent);
            object.gpu = self.objects.get(parent).and_then(|parent| parent.gpu);
            let amount = Amount::of_object(imported.class, imported.bytes);
            object.charged = self.charge(proc, object.gpu, amount);
            object.acked.primary = true;
            self.objects.add(key, object)?;
        }
        self.tally(file);
        self.mark_if_dirty(key);
        Ok(())
    }

    /// Every object of a control that imports has been followed. What it was promised and did not need is free again.
    pub fn imports_end(&mut self, file: FileId, ticket: Ticket) {
        self.redeem(file, ticket.promised);
    }

    /// Adds a further name of what `known` names. The caller has made room.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when it has as many as it may.
    fn name(&mut self, known: ObjectKey, key: ObjectKey, object: Object) -> Result<(), Error> {
        let counts = Amount::of_object(object.class, 1) != Amount::ZERO;
        self.objects.check_alias_limit(known)?;
        self.objects.add(key, object)?;
        if counts {
            self.objects.add_alias(known, key);
        }
        Ok(())
    }

    fn proc_of_file(&self, file: FileId) -> Option<ProcKey> {
        self.files.get(&file).map(|file| file.proc)
    }
}

/// Where a file's exported object is kept. Handles of clients are far above all indices
/// (`RS_CLIENT_HANDLE_BASE`).
fn exported_key(file: FileId, shared: &Shared) -> ObjectKey {
    ObjectKey::new(file.raw(), shared.index.saturating_add(1))
}
