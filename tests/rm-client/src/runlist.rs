// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Issues every control that starts or stops channels, on channels of any client, and shares
//! channel groups.

use crate::abi::{self, Handle};
use crate::client::{done, Client, Error};
use crate::numbers as n;
use crate::queue::Queue;
use crate::session::Session;
use crate::sys;

impl Client {
    /// Lets every client duplicate an object, as an MPS server does.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn share_with_all(&self, object: Handle) -> Result<(), Error> {
        let mut call = abi::SharePolicy {
            client: self.handle(),
            object,
            target: self.handle(),
            rights: n::SHARE_DUP,
            with: n::SHARE_WITH_ALL,
            ..Default::default()
        };
        sys::ioctl_plain(self.control_file().file(), n::ESCAPE_SHARE, &mut call)?;
        done(call.status)
    }
}

impl Session {
    /// Disables channels of any clients, or enables them again.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn disable_of(&self, channels: &[(Handle, Handle)], disable: bool) -> Result<(), Error> {
        let mut parameters = abi::DisableChannels {
            disable: disable.into(),
            ..Default::default()
        };
        let clients = parameters.clients.as_flattened_mut().iter_mut();
        let handles = parameters.channels.as_flattened_mut().iter_mut();
        for ((client, handle), channel) in clients.zip(handles).zip(channels) {
            (*client, *handle) = *channel;
            parameters.count += 1;
        }
        let gpu = self.gpu();
        gpu.client()
            .control(gpu.subdevice(), n::DISABLE_CHANNELS, &mut parameters)
    }

    /// Asks for a ring of this session, and for its positions, in place of those of a queue.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn move_ring(&self, queue: &Queue, ring: u64) -> Result<(), Error> {
        let gpu = self.gpu();
        let mut parameters = abi::UpdateChannel {
            client: gpu.client().handle(),
            channel: queue.channel(),
            positions: self.positions(),
            entries: Self::ENTRIES,
            ring,
            offset: 0,
        };
        gpu.client()
            .control(gpu.subdevice(), n::UPDATE_CHANNEL, &mut parameters)
    }

    /// Puts a queue's channel on the runlist, as libcuda does.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn schedule_queue(&self, queue: &Queue) -> Result<(), Error> {
        self.schedule_channel(queue.channel(), 0xa06f)
    }

    /// Puts a channel on the runlist by a generation's number of the control, such as 0xa06f or
    /// 0xc36f.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn schedule_channel(&self, channel: Handle, generation: u16) -> Result<(), Error> {
        let mut parameters = abi::Schedule {
            enable: 1,
            skip_submit: 0,
        };
        let command = u32::from(generation) << 16 | n::CHANNEL_SCHEDULE & 0xffff;
        self.gpu()
            .client()
            .control(channel, command, &mut parameters)
    }

    /// Starts a channel by a control of the device.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn start_channel(&self, channel: Handle) -> Result<(), Error> {
        let channels = [channel];
        let mut parameters = abi::StartChannels {
            count: 1,
            // CAST: an address of this process, from which the driver reads one handle.
            list: channels.as_ptr() as u64,
            ..Default::default()
        };
        let gpu = self.gpu();
        gpu.client()
            .control(gpu.device(), n::START_CHANNELS, &mut parameters)
    }
}
