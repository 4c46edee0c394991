// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Stops this process's channels while it is frozen (`compute.freeze`). It sends the control that
//! the kernel module sends. The driver lets every program send it for its own channels.
//!
//! A disabled channel is off the GPU when the control returns, together with its running kernel.
//! Only channels in channel groups of this process are stopped. The channels of an MPS client are
//! in a group of the server. Stopping one of these stops its neighbours in the group as well, for
//! as long as its own kernel is unfinished (seen on an H100).

use crate::rm::Send;
use gct_core::rmapi::control::{is_gone, Control, Status, NOT_SUPPORTED};
use gct_core::rmapi::{Call, Handle};

/// A subdevice of this process. It takes the control for the channels of its device.
#[derive(Debug)]
struct Subdevice {
    client: Handle,
    device: Handle,
    object: Handle,
}

/// A channel in a channel group of this process.
#[derive(Debug)]
struct Channel {
    client: Handle,
    device: Handle,
    group: Handle,
    object: Handle,
    /// The descriptor on which the program allocated it.
    fd: i32,
    stopped: bool,
}

/// A device, as client and handle.
pub(crate) type Device = (Handle, Handle);

/// The channels of this process that can be stopped.
#[derive(Debug, Default)]
pub(crate) struct Halts {
    subdevices: Vec<Subdevice>,
    channels: Vec<Channel>,
}

impl Halts {
    pub(crate) const fn new() -> Self {
        Self {
            subdevices: Vec::new(),
            channels: Vec::new(),
        }
    }

    /// Adds a subdevice.
    pub(crate) fn subdevice(&mut self, call: &Call) {
        self.subdevices.push(Subdevice {
            client: call.client,
            device: call.parent,
            object: call.object,
        });
    }

    /// Adds a channel in a group of this process.
    pub(crate) fn channel(&mut self, call: &Call, device: Handle, fd: i32) {
        self.channels.push(Channel {
            client: call.client,
            device,
            group: call.parent,
            object: call.object,
            fd,
            stopped: false,
        });
    }

    /// Removes an object that is about to be freed, and all objects below it.
    pub(crate) fn freed(&mut self, client: Handle, object: Handle) {
        self.subdevices
            .retain(|s| s.client != client || ![client, s.device, s.object].contains(&object));
        self.channels.retain(|c| {
            c.client != client || ![client, c.device, c.group, c.object].contains(&object)
        });
    }

    /// Forgets which channels of a client are stopped, because the program has enabled some itself.
    pub(crate) fn changed(&mut self, client: Handle) {
        for channel in self.channels.iter_mut().filter(|c| c.client == client) {
            channel.stopped = false;
        }
    }

    /// Stops the channels on `devices`, or lets them run. Returns the resource manager's refusal as
    /// an error.
    pub(crate) fn settle(
        &mut self,
        devices: &[Device],
        stop: bool,
        send: Send,
    ) -> Result<(), Status> {
        for &(client, device) in devices {
            let of = |s: &&Subdevice| (s.client, s.device) == (client, device);
            let subdevice = self.subdevices.iter().find(of).map(|s| s.object);
            let due = |c: &Channel| (c.client, c.device) == (client, device) && c.stopped != stop;
            while let Some(fd) = self.channels.iter().find(|c| due(c)).map(|c| c.fd) {
                // A subdevice takes this control.
                let subdevice = subdevice.ok_or(NOT_SUPPORTED)?;
                let mut control = Control::disable_channels(client, subdevice, stop);
                let mut sent = Vec::new();
                for channel in self.channels.iter().filter(|c| due(c)) {
                    if control.add_channel(client, channel.object) {
                        sent.push(channel.object);
                    }
                }
                match send(fd, &mut control) {
                    Ok(()) => self.record(client, &sent, stop),
                    Err(_) => self.one_by_one(client, subdevice, &sent, stop, send)?,
                }
            }
        }
        Ok(())
    }

    /// Sends a control for each channel after one for all was refused. Forgets channels that have
    /// gone, so they do not veto the others.
    fn one_by_one(
        &mut self,
        client: Handle,
        subdevice: Handle,
        channels: &[Handle],
        stop: bool,
        send: Send,
    ) -> Result<(), Status> {
        let mut outcome = Ok(());
        for &object in channels {
            let Some(fd) = self
                .channels
                .iter()
                .find(|c| c.is(client, object))
                .map(|c| c.fd)
            else {
                continue;
            };
            let mut control = Control::disable_channels(client, subdevice, stop);
            control.add_channel(client, object);
            match send(fd, &mut control) {
                Ok(()) => self.record(client, &[object], stop),
                Err(status) if is_gone(status) => self.channels.retain(|c| !c.is(client, object)),
                Err(status) => outcome = Err(status),
            }
        }
        outcome
    }

    fn record(&mut self, client: Handle, channels: &[Handle], stopped: bool) {
        for channel in &mut self.channels {
            if channel.client == client && channels.contains(&channel.object) {
                channel.stopped = stopped;
            }
        }
    }
}

impl Channel {
    fn is(&self, client: Handle, object: Handle) -> bool {
        (self.client, self.object) == (client, object)
    }
}
