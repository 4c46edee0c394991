// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks objects that no call creates or frees by name: RM created them though the call failed,
//! freed them along with others, or keeps them in files.

use super::Ticket;
use crate::account::Amount;
use crate::error::Error;
use crate::ids::{FileId, GpuId, ProcKey};
use crate::limits;
use crate::objects::{Object, ObjectKey};
use crate::rmapi::control::{Status, NOT_SUPPORTED};
use crate::rmapi::{Action, Call, Class, Handle, Overrides, Shared, INSUFFICIENT_RESOURCES};
use crate::state::State;
use crate::units::{Bytes, Sat};

/// Maximum number of objects that one call of [`State::next_channel`] visits.
const STEPS_MAX: usize = 256;

/// The lowest handle of [`unnamed_key`]. It is above all indices.
const UNNAMED: Handle = 1 << 31;

/// Bits of a GPU's number in such a handle. They leave it below `RS_CLIENT_HANDLE_BASE`.
const UNNAMED_BITS: u64 = 0x3fff_ffff;

/// An object of a client, in a walk over all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visited {
    /// The object's handle.
    pub object: Handle,
    /// The object's class.
    pub class: Class,
}

impl Visited {
    /// Returns whether the object is a channel or a channel group.
    pub const fn is_channel(&self) -> bool {
        matches!(self.class, Class::Channel | Class::ChannelGroup)
    }
}

/// What RM reports of an imported object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The object's class.
    pub class: Class,
    /// Bytes of device memory.
    pub bytes: u64,
}

impl State<'_> {
    /// Returns the status with which to refuse a call whose object would escape a limit in force:
    ///
    /// ```text
    /// channel directly below a device, under a time slice  RM returns no handle of its group
    /// channel in a shared channel group                    see `sharers.rs`
    /// control of an untracked object, under any limit      it may alias a limited object
    /// dup of an object with the maximum of aliases         an untracked alias escapes any limit
    /// ```
    pub fn call_refused(&self, file: FileId, call: &Call) -> Option<Status> {
        match call.action {
            Action::Alloc {
                class: Class::Channel,
                ..
            } => self.channel_refused(file, call),
            // The object is not tracked: its owner had used up its share of the table before it got
            // a limit.
            Action::Control(Overrides::Schedule | Overrides::Timeslice)
                if self.is_vacant(file, call.client, call.object) && self.binds_file(file) =>
            {
                Some(INSUFFICIENT_RESOURCES)
            }
            // The caller pays nothing for an alias that is not tracked, and it would stay so under
            // later limits.
            Action::Dup {
                source_client,
                source,
            } => {
                let key = self.key_of_duplicated(file, source_client, source)?;
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

    /// Returns whether a call that failed may have created an object. RM fails an allocation whose
    /// parameters it cannot copy back, and keeps the object. The caller asks RM whether it exists.
    ///
    /// Any client's handle may be in the structure of a failed ioctl, also one of the driver's own
    /// clients. RM does not report the owner, but it writes the handle back only of a client that
    /// it has created (`written`).
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

    /// Returns whether a client is known and has no object with this handle.
    pub fn is_vacant(&self, file: FileId, client: Handle, object: Handle) -> bool {
        let space = self.objects.space(file, client);
        space.is_some_and(|space| self.objects.get(ObjectKey::new(space, object)).is_none())
    }

    /// Returns whether a free may also free channels that are not below the object. Returns `None`
    /// if the caller must ask RM for the object's class before the call.
    pub fn takes_channels(&self, file: FileId, call: &Call) -> Option<bool> {
        if call.action != Action::Free || call.object == call.client {
            return Some(false);
        }
        let space = self.objects.space(file, call.client);
        let Some(space) = space.filter(|_| call.object != 0) else {
            return Some(false);
        };
        match self.objects.get(ObjectKey::new(space, call.object))?.class {
            // Its number says whether it is memory of the process.
            Class::OtherMemory => None,
            class => Some(matches!(class, Class::ContextShare | Class::Space)),
        }
    }

    /// Returns the next channel or channel group of a client after `after`, which starts at 0.
    /// After [`STEPS_MAX`] objects it returns the one reached.
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

    /// Frees an object that RM does not have any more. Returns the object that follows it and all
    /// below it.
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

    /// Adds an alias that an open file keeps until it is closed. It replaces the one with the same
    /// index. The file's opener is charged if the resource has no other alias.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: the alias is not tracked.
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

    /// Frees the alias with the same index in a file. Returns the file's process and the free key,
    /// with room reserved, or `None` if the file is not tracked.
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

    /// Charges what an export keeps without an alias: [`State::exported`] has failed, or RM's file
    /// is not tracked (`None`). The charge is one of its own, beside that of the aliases, and stays
    /// until the file is closed; without a tracked file, until the exporter's is.
    ///
    /// A file has at most one object for this on each GPU. So it may exceed the share of its owner.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`], if the ioctl has reserved no room: nothing is
    /// charged.
    pub fn exported_unnamed(
        &mut self,
        file: FileId,
        client: Handle,
        shared: &Shared,
        into: Option<FileId>,
    ) -> Result<(), Error> {
        let holder = into.unwrap_or(file);
        let Some(proc) = self.proc_of_file(holder) else {
            return Ok(());
        };
        if into.is_some() {
            // RM has replaced what was there.
            self.free(proc, exported_key(holder, shared));
        }
        let known = self.key_of(file, client, shared.object);
        let known = known.filter(|_| shared.object != 0);
        let charged = known.and_then(|known| self.charged_alias(known));
        let charged = charged.and_then(|thing| Some((thing.gpu?, thing.charged.memory)));
        let Some((gpu, bytes)) = charged.filter(|(_, bytes)| *bytes > Bytes(0)) else {
            return Ok(());
        };
        let key = unnamed_key(holder, gpu);
        if self.objects.get(key).is_none() {
            if !self.use_reserved(file) {
                self.objects.reserve((*self.reserved_objects + Sat(1)).0)?;
                self.reserve_charge()?;
            }
            let mut object = Object::new(holder, Class::DeviceMemory);
            object.gpu = Some(gpu);
            self.objects.add(key, object)?;
            self.count_objects_of(holder);
        }
        self.charge_more(proc, key, bytes);
        Ok(())
    }

    /// Adds memory that the driver has dup'ed for a dma-buf, which is file `into` here. Until this
    /// returns, the driver holds off all that makes and frees RM's objects. So what has the
    /// source's handle here is what was dup'ed. If nothing has, or it has the maximum of aliases,
    /// the memory gets a charge of its own: `bytes`, until [`State::kept_bytes`].
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: the memory is not tracked.
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
        let known = self.key_of_source(client, shared.object);
        let known = known.filter(|known| self.objects.check_alias_limit(*known).is_ok());
        if let Some(known) = known {
            return self.name_in_file(known, key, into);
        }
        let mut object = Object::new(into, Class::DeviceMemory);
        object.gpu = self.gpu_or_only(Some(u64::from(gpu_id)));
        object.unconfirmed = true;
        let amount = Amount::of_object(object.class, bytes);
        object.charged = self.charge(proc, object.gpu, amount);
        self.objects.add(key, object)?;
        self.count_objects_of(into);
        Ok(())
    }

    /// Returns whether memory of a dma-buf is charged for itself, and [`State::kept_bytes`] has not
    /// told its size.
    pub fn lacks_bytes(&self, shared: &Shared, into: FileId) -> bool {
        let object = self.objects.get(exported_key(into, shared));
        object.is_some_and(|object| object.unconfirmed)
    }

    /// Sets the charge of memory that is charged for itself to the size that RM reports.
    pub fn kept_bytes(&mut self, shared: &Shared, into: FileId, bytes: Bytes) {
        let key = exported_key(into, shared);
        let object = self.objects.get(key).copied();
        let object = object.filter(|object| object.unconfirmed);
        let Some((proc, object)) = self.proc_of_file(into).zip(object) else {
            return;
        };
        let was = object.charged.memory;
        if bytes > was {
            // Its pool exists, unless nothing is charged because no GPU is known.
            self.charge_more(proc, key, bytes - was);
        } else {
            let less = Amount::of_object(object.class, (was - bytes).get());
            self.uncharge_part(proc, &object, less);
        }
        if let Some(object) = self.objects.get_mut(key) {
            object.charged.memory = object.charged.memory.min(bytes);
            object.unconfirmed = false;
        }
    }

    /// Adds device memory to what an object is charged for.
    fn charge_more(&mut self, proc: ProcKey, key: ObjectKey, bytes: Bytes) {
        let gpu = self.objects.get(key).and_then(|object| object.gpu);
        let more = Amount::of_object(Class::DeviceMemory, bytes.get());
        let charged = self.charge(proc, gpu, more).memory;
        if let Some(object) = self.objects.get_mut(key) {
            object.charged.memory += charged;
        }
    }

    /// Returns the alias that is charged for an object's resource.
    fn charged_alias(&self, known: ObjectKey) -> Option<&Object> {
        let mut at = known;
        for _ in 0..limits::ALIASES_MAX {
            let object = self.objects.get(at)?;
            if object.charged != Amount::ZERO {
                return Some(object);
            }
            at = self.objects.next_alias(at);
        }
        None
    }

    /// Adds an alias in a file. The caller has reserved room.
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
        self.count_objects_of(into);
        Ok(())
    }

    /// Adds an object that a client has imported from a file. It is an alias of what `from` keeps.
    /// If that is not tracked, or has the maximum of aliases, the client's process is charged for
    /// `imported`.
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
        if !self.use_reserved(file) {
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
        let known = known.filter(|known| self.objects.check_alias_limit(*known).is_ok());
        if let Some((known, thing)) = known.and_then(|key| Some((key, self.objects.get(key)?))) {
            (object.class, object.gpu) = (thing.class, thing.gpu);
            self.name(known, key, object)?;
        } else {
            let parent = ObjectKey::new(space, object.parent);
            object.gpu = self.objects.get(parent).and_then(|parent| parent.gpu);
            let amount = self.amount_of(object.gpu, imported.class, imported.bytes);
            object.charged = self.charge(proc, object.gpu, amount);
            object.acked.primary = true;
            self.objects.add(key, object)?;
        }
        self.count_objects_of(file);
        self.mark_if_dirty(key);
        Ok(())
    }

    /// Ends a control that exports or imports, and returns the reserved objects that it did not
    /// use.
    pub fn share_ends(&mut self, file: FileId, ticket: Ticket) {
        self.release_reserved(file, ticket.reserved);
    }

    /// Adds an alias. The caller has reserved room.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] at the maximum number of aliases.
    fn name(&mut self, known: ObjectKey, key: ObjectKey, object: Object) -> Result<(), Error> {
        let counts = object.class.takes_memory();
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

/// Returns the key of an object that a file exports. Client handles are far above all indices
/// (`RS_CLIENT_HANDLE_BASE`).
fn exported_key(file: FileId, shared: &Shared) -> ObjectKey {
    ObjectKey::new(file.raw(), shared.index.saturating_add(1))
}

/// Returns the key of the object with which a file is charged for what it keeps without an alias.
fn unnamed_key(file: FileId, gpu: GpuId) -> ObjectKey {
    let low = u32::try_from(gpu.0 & UNNAMED_BITS).unwrap_or(0);
    ObjectKey::new(file.raw(), UNNAMED | low)
}
