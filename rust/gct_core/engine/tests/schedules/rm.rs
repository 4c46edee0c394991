// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models an RM that carries out controls late, fails in part, and loses objects silently.

use super::chance::Chance;
use crate::rmapi::control::{Control, Status};
use crate::rmapi::Handle;
use crate::units::Us;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

/// `NV_ERR_OBJECT_NOT_FOUND`, `NV_ERR_NOT_SUPPORTED`, `NV_ERR_RESOURCE_LOST`, and an unspecific
/// error.
const GONE: Status = 0x57;
const UNSUPPORTED: Status = 0x56;
const LOST: Status = 0x6e;
pub(super) const FAILED: Status = 0x65;

/// Client and handle.
pub(super) type Name = (Handle, Handle);

/// The object that a handle names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thing {
    pub(super) class: u32,
    /// Identifies a resource. Aliases share it, and it is never used again.
    pub(super) number: u64,
    pub(super) parent: Handle,
}

#[derive(Default)]
pub(super) struct Rm {
    pub(super) names: BTreeMap<Name, Thing>,
    /// Handles that are taken by lost objects, with their class.
    pub(super) husks: BTreeMap<Name, u32>,
    /// Stopped channels.
    pub(super) stopped: BTreeMap<u64, bool>,
    pub(super) slices: BTreeMap<u64, u64>,
    next: u64,
    /// Whether our controls may fail at random.
    pub(super) fails: bool,
    /// Number of such failures.
    pub(super) failed: u32,
}

/// Original time slice of a channel group.
pub(super) const STOCK: u64 = 1024;

impl Rm {
    pub(super) fn add(&mut self, name: Name, parent: Handle, class: u32) {
        self.next += 1;
        let number = self.next;
        let thing = Thing {
            class,
            number,
            parent,
        };
        self.names.insert(name, thing);
        self.stopped.insert(number, false);
        self.slices.insert(number, STOCK);
    }

    fn is_taken(&self, name: Name) -> bool {
        self.has(name) || self.husks.contains_key(&name)
    }

    pub(super) fn has(&self, name: Name) -> bool {
        self.names.contains_key(&name)
    }

    /// Loses an object and all below it, because of another object on which it depends.
    pub(super) fn lose(&mut self, name: Name) -> Vec<Name> {
        let Some(class) = self.names.get(&name).map(|thing| thing.class) else {
            return vec![];
        };
        let below: Vec<Name> = self.below(name).collect();
        let mut gone: Vec<Name> = below.into_iter().flat_map(|name| self.lose(name)).collect();
        self.names.remove(&name);
        self.husks.insert(name, class);
        gone.push(name);
        gone
    }

    /// Creates an object.
    pub(super) fn alloc(&mut self, name: Name, parent: Handle, class: u32) -> Status {
        if self.is_taken(name) || !self.has((name.0, parent)) {
            return GONE;
        }
        self.add(name, parent, class);
        0
    }

    pub(super) fn dup(&mut self, name: Name, parent: Handle, source: Name) -> Status {
        let Some(thing) = self.names.get(&source).copied() else {
            return GONE;
        };
        if self.is_taken(name) || !self.has((name.0, parent)) {
            return GONE;
        }
        self.names.insert(name, Thing { parent, ..thing });
        0
    }

    /// Frees an object and all below it.
    pub(super) fn free(&mut self, name: Name) -> Status {
        if self.husks.remove(&name).is_some() {
            return 0;
        }
        if !self.has(name) {
            return GONE;
        }
        let below: Vec<Name> = self.below(name).collect();
        for key in below {
            self.free(key);
        }
        self.names.remove(&name);
        0
    }

    /// Resets all channels to running, and all channel groups to the original time slice.
    pub(super) fn forget(&mut self) {
        self.stopped
            .values_mut()
            .for_each(|stopped| *stopped = false);
        self.slices.values_mut().for_each(|slice| *slice = STOCK);
    }

    /// Returns whether another client has an alias of the resource.
    pub(super) fn is_shared(&self, name: Name) -> bool {
        let number = |name: &Name| self.names.get(name).map(|thing| thing.number);
        let mut others = self.names.keys().filter(|other| other.0 != name.0);
        others.any(|other| number(other) == number(&name))
    }

    /// Returns the children of an object.
    pub(super) fn below(&self, top: Name) -> impl Iterator<Item = Name> + '_ {
        let is_below =
            move |name: &Name| name.0 == top.0 && *name != top && self.names[name].parent == top.1;
        self.names.keys().copied().filter(is_below)
    }

    /// Returns the channels below all aliases of the resource that `name` names, or the channel
    /// itself.
    fn channels_of(&self, name: Name) -> Vec<u64> {
        let Some(thing) = self.names.get(&name) else {
            return vec![];
        };
        if thing.class == 0xc86f {
            return vec![thing.number];
        }
        let same = |(_, other): &(&Name, &Thing)| other.number == thing.number;
        let names = self.names.iter().filter(same).map(|(name, _)| *name);
        let channels = names.flat_map(|name| self.below(name));
        channels.map(|name| self.names[&name].number).collect()
    }

    /// Runs a tenant's control that starts channels. It may fail in part.
    pub(super) fn let_run(&mut self, name: Name, chance: &mut Chance) -> Status {
        let channels = self.channels_of(name);
        let done = match chance.one_in(4) {
            true => chance.below(channels.len() + 1),
            false => channels.len(),
        };
        for channel in channels.iter().take(done) {
            self.stopped.insert(*channel, false);
        }
        if done == channels.len() {
            0
        } else {
            FAILED
        }
    }

    pub(super) fn set_slice(&mut self, name: Name, us: u64) -> Status {
        match self.names.get(&name) {
            Some(thing) if thing.class == 0xa06c => {
                self.slices.insert(thing.number, us);
                0
            }
            Some(_) => UNSUPPORTED,
            None => GONE,
        }
    }

    /// Runs one of our controls.
    pub(super) fn obey(
        &mut self,
        control: &mut Control,
        chance: &mut Chance,
    ) -> Result<(), Status> {
        if control.own_subdevice.is_some() {
            let fails = self.fails && chance.one_in(24);
            self.failed += u32::from(fails);
            return self.disable(control, fails, chance);
        }
        let name = (control.client, control.object);
        if self.husks.contains_key(&name) {
            return Err(LOST);
        }
        let Some(thing) = self.names.get(&name).copied() else {
            return Err(GONE);
        };
        let fails = self.fails && chance.one_in(24);
        self.failed += u32::from(fails);
        match (control.command, thing.class) {
            (0x0d02, _) => {
                let [handle, _] = control.words();
                let name = (control.client, handle);
                let thing = self.names.get(&name).map(|thing| thing.class);
                let class = thing.or(self.husks.get(&name).copied()).ok_or(GONE)?;
                control.params()[8..12].copy_from_slice(&class.to_le_bytes());
                Ok(())
            }
            _ if fails && control.command != 0x2080_110b => Err(FAILED),
            // RM returns this status for a channel that exists.
            (0x906f_0101, 0xc86f) => Err(GONE),
            (0xa06c_0104, 0xa06c) => {
                *control = Control::set_timeslice(name.0, name.1, Us(self.slices[&thing.number]));
                Ok(())
            }
            (0xa06c_0103, 0xa06c) => {
                self.slices.insert(thing.number, control.timeslice().get());
                Ok(())
            }
            (0x2080_110b, 0x2080) => self.disable(control, fails, chance),
            _ => Err(UNSUPPORTED),
        }
    }

    /// Visits the channels in order, up to one that fails or does not exist.
    fn disable(
        &mut self,
        control: &Control,
        fails: bool,
        chance: &mut Chance,
    ) -> Result<(), Status> {
        let count = control.channels();
        let fails_at = if fails { chance.below(count) } else { count };
        for at in 0..count {
            let (stop, client, channel) = control.channel(at);
            let thing = self.names.get(&(client, channel));
            let thing = thing.filter(|thing| thing.class == 0xc86f).ok_or(GONE)?;
            self.stopped.insert(thing.number, stop);
            if at == fails_at {
                return Err(FAILED);
            }
        }
        Ok(())
    }
}
