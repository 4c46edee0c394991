// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Exports objects to files and dma-bufs, and imports them from there.

use crate::abi::{share, Handle, Release};
use crate::client::{done, Client, Control, Error};
use crate::gpu::Gpu;
use crate::numbers as n;
use crate::sys;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

impl Client {
    /// Exports an object to a file.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn export(&self, device: Handle, object: Handle, into: &Control) -> Result<(), Error> {
        let mut parameters = share::Export {
            kind: n::EXPORT_OBJECT,
            device,
            parent: device,
            object,
            descriptor: into.file().as_raw_fd(),
            flags: 0,
        };
        self.control(self.handle(), n::EXPORT, &mut parameters)
    }

    /// Imports it below a parent.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn import(&self, parent: Handle, from: &Control) -> Result<Handle, Error> {
        let mut parameters = share::Import {
            descriptor: from.file().as_raw_fd(),
            kind: n::EXPORT_OBJECT,
            device: parent,
            parent,
            object: self.new_handle(),
        };
        self.control(self.handle(), n::IMPORT, &mut parameters)?;
        Ok(parameters.object)
    }

    /// Exports objects to a file that has room for four, from an index on.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn export_many(
        &self,
        device: Handle,
        objects: &[Handle],
        into: &Control,
        index: u16,
    ) -> Result<(), Error> {
        let mut parameters = share::ExportMany {
            descriptor: into.file().as_raw_fd(),
            device,
            most: 4,
            index,
            ..Default::default()
        };
        for (place, object) in parameters.objects[0].iter_mut().zip(objects) {
            *place = *object;
            parameters.count += 1;
        }
        self.control(self.handle(), n::EXPORT_MANY, &mut parameters)
    }

    /// Imports two of them below a parent, with handles that the driver chooses.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn import_two(
        &self,
        parent: Handle,
        from: &Control,
        index: u16,
    ) -> Result<[Handle; 2], Error> {
        let mut parameters = share::ImportMany {
            descriptor: from.file().as_raw_fd(),
            parent,
            count: 2,
            index,
            ..Default::default()
        };
        self.control(self.handle(), n::IMPORT_MANY, &mut parameters)?;
        let [first, second, ..] = parameters.objects[0];
        Ok([first, second])
    }
}

impl Gpu {
    /// Exports memory to a dma-buf.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn dma_buf(&self, memory: Handle, bytes: u64) -> Result<OwnedFd, Error> {
        macro_rules! export {
            ($kind:ident) => {{
                let mut call = share::$kind {
                    descriptor: -1,
                    client: self.client.handle(),
                    total: 1,
                    count: 1,
                    total_size: bytes,
                    ..Default::default()
                };
                call.objects[0][0] = memory;
                call.sizes[0][0] = bytes;
                sys::ioctl_plain(&self.file, n::ESCAPE_EXPORT_DMA_BUF, &mut call)?;
                done(call.status)?;
                call.descriptor
            }};
        }
        let descriptor = match self.client.control_file().release() {
            Release::R580 | Release::R595 => export!(ExportDmaBufForMapping),
            Release::R535 | Release::R550 => export!(ExportDmaBuf),
        };
        // SAFETY: the driver has just opened the descriptor for this process, and nothing else owns
        // it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}
