// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks for what a tenant could use that a driver's own calls lend, name or map.

use crate::abi::{self, Handle};
use crate::client::{done, Client, Error};
use crate::gpu::{self, Gpu};
use crate::numbers as n;
use crate::queue::{release, Queue};
use crate::session::{Engine, Session};
use crate::sys::{self, Mapping};

impl Client {
    /// Returns the handle of a child of an object by its number inside of the resource manager, 0
    /// if there is none.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn child_of(&self, parent: Handle, number: u32) -> Result<Handle, Error> {
        let mut call = [parent, number, 0];
        self.control(self.handle(), n::GET_CHILD_HANDLE, &mut call)?;
        Ok(call[2])
    }

    /// Allocates an object without parameters under the next handle.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn alloc_plain(&self, parent: Handle, class: u32) -> Result<Handle, Error> {
        // SAFETY: there are no parameters.
        let (object, status) = unsafe { self.alloc_from(parent, class, 0, 0) }?;
        done(status).map(|()| object)
    }
}

impl Session {
    /// Allocates a channel with any ring, and USERD at any place of any object.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn channel_with(
        &self,
        group: Handle,
        engine: Engine,
        (ring, entries): (u64, u32),
        (userd, offset): (Handle, u64),
    ) -> Result<Handle, Error> {
        let mut parameters = self.channel_parameters(0, engine, ring, 0);
        parameters.ring_entries = entries;
        parameters.userd_memory[0] = userd;
        parameters.userd_offset[0] = offset;
        let client = self.gpu().client();
        client.alloc(group, n::CHANNEL, &mut parameters)
    }
}

impl Gpu {
    /// Registers the first page of a mapping as I/O memory: by the escape that is the device's.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn register_page(&self, mapping: &Mapping) -> Result<Handle, Error> {
        const PAGE: u64 = 4096;
        let file = gpu::open(self.client(), self.minor())?;
        let mut call = abi::AllocMemory {
            root: self.client().handle(),
            parent: self.device(),
            object: self.client().new_handle(),
            class: n::OS_DESCRIPTOR,
            flags: n::IO_MEMORY,
            address: mapping.address(),
            limit: PAGE - 1,
            ..Default::default()
        };
        // SAFETY: the driver looks up where the mapping leads. It writes nothing there.
        unsafe { sys::ioctl(&file, n::ESCAPE_ALLOC_MEMORY, &mut call) }?;
        done(call.status).map(|()| call.object)
    }
}

impl Queue {
    /// Returns the mapping of its ring.
    pub fn mapping(&self) -> &Mapping {
        &self.memory
    }

    /// Submits the release of a semaphore in three segments. The one in the middle is the payload,
    /// and lies at an address.
    pub fn submit_release_of(&mut self, semaphore: u32, payload_at: u64) {
        /// Where the other words are, in words behind the ring.
        const AT: u32 = 256;
        let address = self.ring_address() + u64::from(Self::semaphore_at(semaphore));
        let [header, low, high, _, above, execute] = release(address, 0);
        for (at, word) in (AT..).zip([header, low, high, above, execute]) {
            self.write_push(at, word);
        }
        let words = self.ring_address() + u64::from(Self::PUSHES + 4 * AT);
        self.submit_segment(words, 3);
        self.submit_segment(payload_at, 1);
        self.submit_segment(words + 12, 2);
    }
}
