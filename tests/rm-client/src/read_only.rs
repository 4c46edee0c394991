// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Issues ioctls whose parameters the driver cannot write back. They fail after they have done
//! everything.

use crate::abi::{self, share, Handle};
use crate::client::{Client, Control, Error};
use crate::layout::Plain;
use crate::numbers as n;
use crate::session::{Engine, Session};
use crate::sys::{self, Page};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Returns EEXIST for a success.
fn failed(status: u32) -> Result<(), Error> {
    match status {
        n::OK => Err(io::Error::from(io::ErrorKind::AlreadyExists).into()),
        _ => Ok(()),
    }
}

impl Client {
    /// Allocates a client. The driver reports a failure.
    ///
    /// # Errors
    ///
    /// Those of the driver; EEXIST if it reports success.
    pub fn new_read_only(control: Arc<Control>) -> Result<Self, Error> {
        let page = Page::read_only(&0u32)?;
        let mut call = abi::Alloc {
            class: n::CLIENT,
            parameters: page.address(),
            ..Default::default()
        };
        // SAFETY: the class's parameters are one handle. The driver's write to it fails.
        unsafe { sys::ioctl(control.file(), n::ESCAPE_ALLOC, &mut call) }?;
        failed(call.status)?;
        Ok(Self::of(control, call.object))
    }

    /// Allocates an object. Returns the handle that it has if it exists.
    fn alloc_read_only<T: Plain>(
        &self,
        parent: Handle,
        class: u32,
        parameters: &T,
    ) -> Result<Handle, Error> {
        let page = Page::read_only(parameters)?;
        // SAFETY: the parameters are the class's. The driver's write to them fails.
        let (object, status) = unsafe { self.alloc_from(parent, class, page.address(), 0) }?;
        failed(status).map(|()| object)
    }

    /// Imports an object from a file, below a parent. The driver reports a failure. Returns the
    /// handle that the object has if it exists.
    ///
    /// # Errors
    ///
    /// Those of the driver; EEXIST if it reports success.
    pub fn import_read_only(&self, parent: Handle, from: &Control) -> Result<Handle, Error> {
        let object = self.new_handle();
        let page = Page::read_only(&share::Import {
            descriptor: from.file().as_raw_fd(),
            kind: n::EXPORT_OBJECT,
            device: parent,
            parent,
            object,
        })?;
        let mut call = abi::Control {
            client: self.handle(),
            object: self.handle(),
            command: n::IMPORT,
            parameters: page.address(),
            // CAST: a small structure.
            parameters_size: size_of::<share::Import>() as u32,
            ..Default::default()
        };
        // SAFETY: the parameters are the control's. The driver's write to them fails.
        unsafe { sys::ioctl(self.control_file().file(), n::ESCAPE_CONTROL, &mut call) }?;
        failed(call.status).map(|()| object)
    }
}

impl Session {
    /// Allocates a channel group. The driver reports a failure.
    ///
    /// # Errors
    ///
    /// Those of the driver; EEXIST if it reports success.
    pub fn group_read_only(&self, engine: Engine) -> Result<Handle, Error> {
        let parameters = abi::ChannelGroup {
            address_space: self.space(),
            engine: engine.number(),
            ..Default::default()
        };
        let gpu = self.gpu();
        gpu.client()
            .alloc_read_only(gpu.device(), n::CHANNEL_GROUP, &parameters)
    }
}
