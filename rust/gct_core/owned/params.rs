// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Says which parameters of a tenant's calls are read where channels may be owned.

use super::Request;
use crate::rmapi::{nv, word, Action, Call, Class, Handle, Hint};

impl Call {
    /// Returns the parameters that are read where channels may be owned: those of
    /// [`params`](Self::params), and those that say where a channel is and in which address space.
    pub fn params_of_owned(&self) -> Option<Hint> {
        let Action::Alloc {
            class,
            params: params @ 1..,
            ..
        } = self.action
        else {
            return self.params();
        };
        let (offset, bytes) = match class {
            Class::Channel => (0, Request::BYTES),
            Class::ChannelGroup => (nv::channel_group::ADDRESS_SPACE, GROUP_BYTES),
            Class::ContextShare => (nv::context_share::ADDRESS_SPACE, SPACE_BYTES),
            _ => return self.params(),
        };
        Some(Hint {
            // CAST: an offset, far below 2^64.
            address: params.checked_add(offset as u64)?,
            bytes: u32::try_from(bytes).ok()?,
        })
    }

    /// Returns how many bytes of the parameters the resource manager reads at most, where it reads
    /// some of them otherwise than the tenant wrote them, else 0.
    pub const fn params_most(&self) -> u16 {
        match self.allocates_channel() {
            true => nv::CHANNEL_PARAMS_MOST,
            false => 0,
        }
    }

    /// Returns the address space of a channel group or context share. `params` are those that were
    /// read for [`params_of_owned`](Self::params_of_owned).
    pub fn space_in(&self, params: &[u8]) -> Option<Handle> {
        let bytes = usize::try_from(self.params_of_owned()?.bytes).ok()?;
        let first = params
            .get(..SPACE_BYTES)
            .filter(|_| params.len() == bytes)?;
        let space = Handle::try_from(word(first)?).ok()?;
        (space != 0).then_some(space)
    }

    /// Returns the word for [`lookup`](Self::lookup). `params` are those that were read for
    /// [`params`](Self::params) or [`params_of_owned`](Self::params_of_owned), which end alike.
    pub fn answer_in(&self, params: &[u8]) -> Option<u64> {
        let bytes = usize::try_from(self.lookup()?.hint()?.bytes).ok()?;
        word(params.get(params.len().checked_sub(bytes)?..)?)
    }
}

/// Bytes of the handle of an address space.
const SPACE_BYTES: usize = 4;
/// Bytes of a channel group's address space and engine.
const GROUP_BYTES: usize = nv::channel_group::ENGINE_TYPE + 4 - nv::channel_group::ADDRESS_SPACE;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rmapi::nv::nvos21;
    use crate::rmapi::{decode, escape};

    fn alloc(class: u32, params: u64) -> Call {
        let mut bytes = [0; nvos21::SIZE];
        let mut set = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        set(nvos21::CLASS, &class.to_le_bytes());
        set(nvos21::PARAMS, &params.to_le_bytes());
        decode(escape::ALLOC, &bytes).unwrap().unwrap()
    }

    #[test]
    fn a_group_is_asked_for_its_space_and_its_engine() {
        let group = alloc(nv::KEPLER_CHANNEL_GROUP_A, 0x1000);
        let hint = |address, bytes| Some(Hint { address, bytes });
        assert_eq!(group.params_of_owned(), hint(0x1008, 8));
        let params = [5, 0, 0, 0, 9, 0, 0, 0];
        assert_eq!(group.space_in(&params), Some(5));
        assert_eq!(group.answer_in(&params), Some(9));
        // Without the space the engine is read alone.
        assert_eq!(group.params(), hint(0x100c, 4));
        assert_eq!(
            (group.space_in(&params[4..]), group.answer_in(&params[4..])),
            (None, Some(9))
        );
        assert_eq!(group.space_in(&[0; 8]), None);
    }

    #[test]
    fn others_are_asked_as_ever() {
        let share = alloc(nv::FERMI_CONTEXT_SHARE_A, 0x1000);
        let bytes = share.params_of_owned().map(|hint| hint.bytes);
        assert_eq!((bytes, share.space_in(&[7, 0, 0, 0])), (Some(4), Some(7)));
        let channel = alloc(nv::HOPPER_CHANNEL_GPFIFO_A, 0x1000);
        assert_eq!(channel.params_of_owned().map(|hint| hint.bytes), Some(144));
        for class in [nv::NV01_DEVICE_0, nv::NV01_MEMORY_LOCAL_USER, nv::NV01_ROOT] {
            let call = alloc(class, 0x1000);
            assert_eq!(call.params_of_owned(), call.params());
        }
        let bare = alloc(nv::KEPLER_CHANNEL_GROUP_A, 0);
        assert_eq!(bare.params_of_owned(), None);
    }
}
