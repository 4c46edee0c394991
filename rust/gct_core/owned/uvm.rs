// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks the address spaces whose page tables nvidia-uvm owns.
//!
//! The resource manager maps nothing there, so nvidia-uvm maps the rings of owned channels. It must
//! be the address space in which the channel runs: elsewhere the tenant could map other memory at
//! the ring's address. So a record goes with its handle, and a handle that names two is refused.

use super::maps::Change;
use crate::rmapi::Handle;

/// Most address spaces of one open file that are remembered: one for each GPU is usual.
pub const UVM_SPACES_MAX: usize = 256;

/// An address space of nvidia-uvm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UvmSpace {
    /// The number of nvidia-uvm's open file. It is not 0, and never used again.
    pub uvm: u64,
    /// The client that has the address space.
    pub client: Handle,
    /// Its handle there.
    pub space: Handle,
    /// The GPU's UUID.
    pub uuid: [u8; 16],
}

impl UvmSpace {
    /// Returns whether nvidia-uvm has given the address space back: it unregistered that of a GPU,
    /// or the file is closed.
    pub fn is_gone(&self, uvm: u64, uuid: Option<[u8; 16]>) -> bool {
        self.uvm == uvm && uuid.is_none_or(|uuid| uuid == self.uuid)
    }

    /// Returns whether the record is forgotten when an object is freed. `is_there` says whether a
    /// handle of a client is an address space still: one may go with its device, too.
    pub fn goes_with(
        &self,
        client: Handle,
        object: Handle,
        is_there: impl Fn(Handle, Handle) -> bool,
    ) -> bool {
        let is_named = [client, self.space].contains(&object);
        self.client == client && (is_named || !is_there(client, self.space))
    }
}

/// Returns nvidia-uvm's address space that a client's handle names, if there is one.
///
/// # Errors
///
/// Several are recorded.
pub fn find(
    spaces: &[UvmSpace],
    client: Handle,
    space: Handle,
) -> Result<Option<&UvmSpace>, Several> {
    let is_it = |known: &&UvmSpace| (known.client, known.space) == (client, space);
    let mut found = spaces.iter().filter(is_it);
    let first = found.next();
    match found.next() {
        None => Ok(first),
        Some(_) => Err(Several),
    }
}

/// A handle names several address spaces of nvidia-uvm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Several;

/// Returns what changes when nvidia-uvm unmaps addresses: in the space of one GPU, or in all.
/// Returns `None` if it is a GPU whose space is not known.
pub fn cleared(
    spaces: &[UvmSpace],
    uvm: u64,
    [address, bytes]: [u64; 2],
    uuid: Option<[u8; 16]>,
) -> Option<Change> {
    let space = match uuid {
        None => 0,
        Some(_) => on_gpu(spaces, uvm, uuid?)?.space,
    };
    Some(Change::Cleared {
        uvm,
        space,
        address,
        bytes,
    })
}

/// Returns the address space of a GPU in an open file of nvidia-uvm.
pub fn on_gpu(spaces: &[UvmSpace], uvm: u64, uuid: [u8; 16]) -> Option<&UvmSpace> {
    let mut all = spaces.iter();
    all.find(|space| space.is_gone(uvm, Some(uuid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Handle = 0xc1;

    fn space(uvm: u64, space: Handle, gpu: u8) -> UvmSpace {
        UvmSpace {
            uvm,
            client: CLIENT,
            space,
            uuid: [gpu; 16],
        }
    }

    #[test]
    fn a_handle_names_one_space_or_none() {
        let all = [space(1, 5, 0), space(1, 6, 1), space(2, 6, 1)];
        assert_eq!(find(&all, CLIENT, 5), Ok(Some(&all[0])));
        assert_eq!(find(&all, CLIENT, 7), Ok(None));
        assert_eq!(find(&all, 0xc2, 5), Ok(None));
        assert_eq!(find(&all, CLIENT, 6), Err(Several));
    }

    #[test]
    fn a_space_goes_with_its_handle_its_gpu_or_its_file() {
        let one = space(1, 5, 0);
        assert!(one.is_gone(1, None) && one.is_gone(1, Some([0; 16])));
        assert!(!one.is_gone(2, None) && !one.is_gone(1, Some([1; 16])));
        let (here, gone) = (|_, _| true, |_, _| false);
        for object in [5, CLIENT] {
            assert!(one.goes_with(CLIENT, object, here));
        }
        assert!(!one.goes_with(CLIENT, 4, here));
        assert!(one.goes_with(CLIENT, 4, gone), "its device was freed");
        assert!(!one.goes_with(0xc2, 5, gone));
    }

    #[test]
    fn addresses_are_cleared_for_one_gpu_or_for_all() {
        let all = [space(1, 5, 0), space(1, 6, 1)];
        let of = |uuid| match cleared(&all, 1, [0x1000, 0x2000], uuid) {
            Some(Change::Cleared { uvm: 1, space, .. }) => Some(space),
            _ => None,
        };
        assert_eq!(of(None), Some(0));
        assert_eq!(of(Some([1; 16])), Some(6));
        assert_eq!(of(Some([2; 16])), None);
        assert_eq!(on_gpu(&all, 2, [1; 16]), None);
    }
}
