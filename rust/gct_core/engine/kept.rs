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
use crate::ids::{FileId, Kept, KeptNames, OF_CHANNEL};
use crate::limits;
use crate::objects::{Object, ObjectKey};
use crate::rmapi::{Class, Handle};
use crate::state::State;
use crate::units::Sat;

const fn key(kept: Kept, file: FileId) -> ObjectKey {
    ObjectKey::new(file.raw(), kept.raw())
}

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
            if let Some(object) = self.objects.get_mut(key(kept, into)) {
                object.keepers += 1;
            }
            return Ok(Some(kept));
        }
        self.reserve_objects(into, 1)?;
        self.reserve_charge()?;
        let kept = self.vacant_name(into).ok_or(Error::NoSpace)?;
        let mut name = Object::new(into, thing.class);
        (name.gpu, name.keepers) = (thing.gpu, Sat(1));
        self.objects.add(key(kept, into), name)?;
        self.objects.add_alias(known, key(kept, into));
        self.count_objects_of(into);
        Ok(Some(kept))
    }

    /// Ends what one [`State::keep`] has begun. The last one frees the name.
    pub fn let_go(&mut self, into: FileId, kept: Kept) {
        let proc = self.files.get(&into).map(|file| file.proc);
        let object = self.objects.get_mut(key(kept, into));
        let Some((proc, object)) = proc.zip(object) else {
            return;
        };
        object.keepers -= 1;
        if object.keepers.0 == 0 {
            self.free(proc, key(kept, into));
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
            if self.objects.get(key(at?, into)).is_none() {
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
