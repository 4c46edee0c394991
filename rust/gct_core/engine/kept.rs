// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Follows device memory that lives on without a tenant's handle.
//!
//! ```text
//! keeper   a mapping of nvidia-uvm, or a channel for its USERD, notifiers and ring
//! kept     a name of the memory in the keeper's file: one for all keepers of that file
//! ```
//!
//! A kept name is an alias as any other: of several, one is charged. It goes with its last keeper,
//! or with its file.

use crate::error::Error;
use crate::ids::FileId;
use crate::limits;
use crate::objects::{Object, ObjectKey};
use crate::rmapi::{Class, Handle};
use crate::state::State;
use crate::units::Sat;
use core::num::NonZero;

/// A name of memory in a file, until [`State::let_go`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept(NonZero<Handle>);

impl Kept {
    /// The lowest handle of one. Exports have lower handles, and clients higher ones.
    const FIRST: Handle = 1 << 30;
    /// The number of handles.
    const COUNT: Handle = 1 << 30;

    /// Returns the number with which C names it. It is not 0.
    pub const fn raw(self) -> u32 {
        self.0.get()
    }

    /// Returns the name with a number, if there may be one.
    pub fn from_raw(raw: u32) -> Option<Self> {
        let handle = NonZero::new(raw);
        handle.filter(|_| Self::is_handle(raw)).map(Self)
    }

    const fn is_handle(handle: Handle) -> bool {
        handle >= Self::FIRST && handle - Self::FIRST < Self::COUNT
    }

    /// Returns the name after another one, after the last the first.
    fn after(last: Option<Self>) -> Option<Self> {
        let next = last.and_then(|last| Self::from_raw(last.raw().checked_add(1)?));
        next.or_else(|| Self::from_raw(Self::FIRST))
    }

    const fn key(self, file: FileId) -> ObjectKey {
        ObjectKey::new(file.raw(), self.raw())
    }
}

/// Names that one channel keeps: those of two notifiers, USERD and the ring.
pub const OF_CHANNEL: usize = 4;

/// The names that a channel keeps.
pub type KeptNames = [Option<Kept>; OF_CHANNEL];

impl State<'_> {
    /// Keeps a client's device memory for one more keeper, in a file. Returns `None` for an object
    /// for which no device memory is charged.
    ///
    /// The caller holds off all that could free the object or give its handle to another: the
    /// ioctls of the client's file.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: the memory cannot be followed.
    pub fn keep(
        &mut self,
        into: FileId,
        client: Handle,
        object: Handle,
    ) -> Result<Option<Kept>, Error> {
        let Some(known) = self.key_of_source(client, object) else {
            return Ok(None);
        };
        let Some(thing) = self.objects.get(known).copied() else {
            return Ok(None);
        };
        if thing.class != Class::DeviceMemory || !self.files.contains(&into) {
            return Ok(None);
        }
        if let Some(kept) = self.kept_in(known, into)? {
            if let Some(object) = self.objects.get_mut(kept.key(into)) {
                object.keepers += 1;
            }
            return Ok(Some(kept));
        }
        self.reserve_objects(into, 1)?;
        self.reserve_charge()?;
        let kept = self.vacant_name(into).ok_or(Error::NoSpace)?;
        let mut name = Object::new(into, thing.class);
        (name.gpu, name.keepers) = (thing.gpu, Sat(1));
        self.objects.add(kept.key(into), name)?;
        self.objects.add_alias(known, kept.key(into));
        self.count_objects_of(into);
        Ok(Some(kept))
    }

    /// Ends what one [`State::keep`] has begun. The last one frees the name.
    pub fn let_go(&mut self, into: FileId, kept: Kept) {
        let proc = self.files.get(&into).map(|file| file.proc);
        let object = self.objects.get_mut(kept.key(into));
        let Some((proc, object)) = proc.zip(object) else {
            return;
        };
        object.keepers -= 1;
        if object.keepers.0 == 0 {
            self.free(proc, kept.key(into));
        }
    }

    /// Ends what a channel keeps, or an ioctl that was to make one.
    pub(super) fn let_all_go(&mut self, into: FileId, names: KeptNames) {
        for kept in names.into_iter().flatten() {
            self.let_go(into, kept);
        }
    }

    /// Returns the name in a file of the resource of `known`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`]: there is none, and the resource has the maximum of aliases.
    fn kept_in(&self, known: ObjectKey, into: FileId) -> Result<Option<Kept>, Error> {
        let mut at = known;
        for _ in 0..limits::ALIASES_MAX {
            let kept = Kept::from_raw(at.handle).filter(|_| at.space == into.raw());
            if kept.is_some() {
                return Ok(kept);
            }
            at = self.objects.next_alias(at);
            if at == known {
                return self.objects.check_alias_limit(known).map(|()| None);
            }
        }
        Err(Error::NoSpace)
    }

    /// Returns a name that a file does not have. Of as many as it has objects, one more is free.
    fn vacant_name(&mut self, into: FileId) -> Option<Kept> {
        let most = Sat(usize::try_from(self.objects.of_file(into)).ok()?) + Sat(1);
        let mut at = self.files.get(&into)?.last_kept;
        for _ in 0..most.0 {
            at = Kept::after(at);
            if self.objects.get(at?.key(into)).is_none() {
                self.files.get_mut(&into)?.last_kept = at;
                return at;
            }
        }
        None
    }

    /// Keeps the memory objects that a channel is to be made of. The driver may hold them as a
    /// whole, whatever their tenant frees. The names go with the ticket or the channel.
    ///
    /// # Errors
    ///
    /// Those of [`State::keep`]: nothing is kept.
    pub fn keep_for_channel(
        &mut self,
        file: FileId,
        client: Handle,
        memory: [Handle; OF_CHANNEL],
    ) -> Result<KeptNames, Error> {
        let mut names = KeptNames::default();
        for (name, object) in names.iter_mut().zip(memory) {
            match self.keep(file, client, object) {
                Ok(kept) => *name = kept,
                Err(error) => {
                    self.let_all_go(file, names);
                    return Err(error);
                }
            }
        }
        Ok(names)
    }
}
