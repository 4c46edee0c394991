// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Builds the controls that gctgroup itself sends to the resource manager.
//!
//! Numbers, sizes and offsets are in [`nv`]. The resource manager compares the size, so it refuses
//! another layout.

use super::nv::{self, disable_channels, gpu_id, handle_info, id_info, share_policy, timeslice};
use super::{element, Class, Fields, Handle, Hint};
use crate::units::Us;

/// Most channels that one control disables or enables.
// CAST: 64.
pub const CHANNELS_MAX: usize = nv::NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES as usize;

/// Bytes of the largest parameters, those of [`Control::disable_channels`].
pub const BYTES_MAX: usize = disable_channels::SIZE;

/// Status of the resource manager.
pub type Status = u32;

pub use nv::NV_ERR_INSUFFICIENT_RESOURCES as NO_RESOURCES;
pub use nv::NV_ERR_INVALID_CLIENT as INVALID_CLIENT;
pub use nv::NV_ERR_NOT_SUPPORTED as NOT_SUPPORTED;
/// The handle is still taken, but its object is gone: it was freed with an object that it depends
/// on.
pub use nv::NV_ERR_RESOURCE_LOST as RESOURCE_LOST;

/// Returns whether the status of a control on one object says that the handle names no object any
/// more.
pub const fn is_gone(status: Status) -> bool {
    matches!(
        status,
        nv::NV_ERR_INVALID_CHANNEL
            | nv::NV_ERR_INVALID_CLIENT
            | nv::NV_ERR_INVALID_OBJECT
            | nv::NV_ERR_INVALID_OBJECT_HANDLE
            | nv::NV_ERR_OBJECT_NOT_FOUND
            | RESOURCE_LOST
    )
}

/// Returns the parameters of a tenant's FIFO_DISABLE_CHANNELS at an address.
pub(super) fn list_hint(address: u64) -> Option<Hint> {
    // CAST: 536.
    let bytes = disable_channels::SIZE as u32;
    (address != 0).then_some(Hint { address, bytes })
}

/// Returns client and handle of each channel in the parameters of a FIFO_DISABLE_CHANNELS.
pub fn named(params: &[u8]) -> impl Iterator<Item = (Handle, Handle)> + '_ {
    let word = |at: usize| Fields(params).u32(at).unwrap_or(0);
    let count = usize::try_from(word(disable_channels::COUNT)).unwrap_or(CHANNELS_MAX);
    (0..count.min(CHANNELS_MAX)).map(move |number| {
        let client = word(element(disable_channels::CLIENTS, number));
        let channel = word(element(disable_channels::CHANNELS, number));
        (client, channel)
    })
}

/// Returns whether such parameters may enable channels. Only the value 1 certainly disables.
pub fn may_enable(params: &[u8]) -> bool {
    params.get(disable_channels::DISABLE) != Some(&1)
}

/// A control to send. RM writes the answer into its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// The client that sends it.
    pub client: Handle,
    /// The object that it addresses.
    pub object: Handle,
    /// RM's identifier of a GPU: the sender puts a client of its own and its subdevice there in the
    /// place of `client` and `object`.
    pub own_subdevice: Option<u32>,
    /// `NVxxxx_CTRL_CMD_*`.
    pub command: u32,
    bytes: [u8; BYTES_MAX],
    len: usize,
}

impl Control {
    const fn new(client: Handle, object: Handle, command: u32, len: usize) -> Self {
        Self {
            client,
            object,
            own_subdevice: None,
            command,
            bytes: [0; BYTES_MAX],
            len,
        }
    }

    /// Asks on which GPU a subdevice is.
    pub fn gpu_of_subdevice(client: Handle, subdevice: Handle) -> Self {
        Self::new(
            client,
            subdevice,
            nv::NV2080_CTRL_CMD_GPU_GET_ID,
            gpu_id::SIZE,
        )
    }

    /// Returns the answer to [`Control::gpu_of_subdevice`].
    pub fn gpu(&self) -> u32 {
        self.u32(gpu_id::GPU_ID)
    }

    /// Asks which device instance a GPU has now.
    pub fn instance_of_gpu(client: Handle, gpu: u32) -> Self {
        let mut control = Self::new(
            client,
            client,
            nv::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2,
            id_info::SIZE,
        );
        control.set_u32(id_info::GPU_ID, gpu);
        control
    }

    /// Returns the answer to [`Control::instance_of_gpu`].
    pub fn instance(&self) -> u32 {
        self.u32(id_info::DEVICE_INSTANCE)
    }

    /// Asks what class an object of a client has, if it exists.
    pub fn class_of(client: Handle, object: Handle) -> Self {
        let mut control = Self::new(
            client,
            client,
            nv::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO,
            handle_info::SIZE,
        );
        control.set_u32(handle_info::OBJECT, object);
        control.set_u32(
            handle_info::INDEX,
            nv::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID,
        );
        control
    }

    /// Returns the answer to [`Control::class_of`].
    pub fn class(&self) -> u32 {
        self.u32(handle_info::RESULT)
    }

    /// Has a client share none of its objects with anybody. By default each process shares with
    /// itself, as the resource manager counts processes: by the pid of whoever made the client.
    pub fn share_nothing(client: Handle) -> Self {
        let command = nv::NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY;
        let mut control = Self::new(client, client, command, share_policy::SIZE);
        // Without RS_SHARE_ACTION_FLAG_COMPOSE this takes out all policies, and adds none.
        let fields = [
            (share_policy::TYPE, nv::RS_SHARE_TYPE_ALL),
            (share_policy::ACTION, nv::RS_SHARE_ACTION_FLAG_REVOKE),
        ];
        for (at, value) in fields {
            if let Some(byte) = control.bytes.get_mut(at) {
                // CAST: 1.
                *byte = value as u8;
            }
        }
        control
    }

    /// Asks whether a channel or a channel group still exists. The answer is [`RESOURCE_LOST`] if
    /// it does not. A living channel answers `NV906F_CTRL_GET_CLASS_ENGINEID` of no object with
    /// `NV_ERR_OBJECT_NOT_FOUND`.
    pub fn probe(client: Handle, object: Handle, class: Class) -> Option<Self> {
        match class {
            Class::ChannelGroup => Some(Self::get_timeslice(client, object)),
            Class::Channel => Some(Self::new(
                client,
                object,
                nv::NV906F_CTRL_GET_CLASS_ENGINEID,
                nv::class_engine_id::SIZE,
            )),
            _ => None,
        }
    }

    /// Asks what a channel's doorbell is rung with.
    pub fn work_token(client: Handle, channel: Handle) -> Self {
        Self::new(
            client,
            channel,
            nv::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN,
            nv::work_token::SIZE,
        )
    }

    /// Stops a channel at once, and writes its error notifier.
    pub fn stop_channel(client: Handle, channel: Handle) -> Self {
        let command = nv::NVA06F_CTRL_CMD_STOP_CHANNEL;
        let mut control = Self::new(client, channel, command, nv::stop_channel::SIZE);
        if let Some(immediate) = control.bytes.get_mut(nv::stop_channel::IMMEDIATE) {
            *immediate = 1;
        }
        control
    }

    /// Returns the answer to [`Control::work_token`].
    pub fn token(&self) -> u32 {
        self.u32(nv::work_token::TOKEN)
    }

    /// Asks for the time slice of a channel group.
    pub fn get_timeslice(client: Handle, group: Handle) -> Self {
        Self::new(
            client,
            group,
            nv::NVA06C_CTRL_CMD_GET_TIMESLICE,
            timeslice::SIZE,
        )
    }

    /// Sets the time slice of a channel group.
    pub fn set_timeslice(client: Handle, group: Handle, slice: Us) -> Self {
        let mut control = Self::new(
            client,
            group,
            nv::NVA06C_CTRL_CMD_SET_TIMESLICE,
            timeslice::SIZE,
        );
        let [low, high] = halves(slice.get());
        control.set_u32(0, low);
        control.set_u32(4, high);
        control
    }

    /// Returns the time slice that the resource manager has answered or accepted.
    pub fn timeslice(&self) -> Us {
        Us(u64::from(self.u32(4)) << 32 | u64::from(self.u32(0)))
    }

    /// Disables or enables the channels that [`Control::add_channel`] adds. RM preempts a disabled
    /// channel and does not run it until it is enabled.
    pub fn disable_channels(client: Handle, subdevice: Handle, disable: bool) -> Self {
        let mut control = Self::new(
            client,
            subdevice,
            nv::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
            disable_channels::SIZE,
        );
        control.set_u32(disable_channels::DISABLE, u32::from(disable));
        control
    }

    /// Returns [`Control::disable_channels`] for a subdevice of the sender's own on a GPU.
    pub fn disable_channels_of(gpu: u32, disable: bool) -> Self {
        Self {
            own_subdevice: Some(gpu),
            ..Self::disable_channels(0, 0, disable)
        }
    }

    /// Adds a channel to [`Control::disable_channels`]. Returns false if it is full.
    pub fn add_channel(&mut self, client: Handle, channel: Handle) -> bool {
        let number = self.channels();
        if number >= CHANNELS_MAX {
            return false;
        }
        self.set_u32(element(disable_channels::CLIENTS, number), client);
        self.set_u32(element(disable_channels::CHANNELS, number), channel);
        let count = u32::try_from(number).unwrap_or(0).saturating_add(1);
        self.set_u32(disable_channels::COUNT, count);
        true
    }

    /// Returns how many channels were added.
    pub fn channels(&self) -> usize {
        usize::try_from(self.u32(disable_channels::COUNT)).unwrap_or(CHANNELS_MAX)
    }

    /// Returns how many channels it disables or enables; 0 for every other control.
    pub fn channels_named(&self) -> usize {
        match self.command {
            nv::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS => self.channels(),
            _ => 0,
        }
    }

    /// Returns whether the channels are disabled, and client and handle of one.
    #[cfg(test)]
    pub(crate) fn channel(&self, number: usize) -> (bool, Handle, Handle) {
        (
            self.u32(disable_channels::DISABLE) != 0,
            self.u32(disable_channels::CLIENTS + 4 * number),
            self.u32(disable_channels::CHANNELS + 4 * number),
        )
    }

    /// Returns the `NVOS54_PARAMETERS` of the ioctl [`escape::CONTROL`](super::escape::CONTROL)
    /// that sends it. `params` is the address of [`Control::params`].
    pub fn structure(&self, params: u64) -> [u32; 8] {
        let [low, high] = halves(params);
        let size = u32::try_from(self.len).unwrap_or(0);
        [
            self.client,
            self.object,
            self.command,
            0,
            low,
            high,
            size,
            0,
        ]
    }

    /// Returns RM's status in an answered structure.
    pub fn status(structure: &[u32; 8]) -> Status {
        let [.., status] = *structure;
        status
    }

    /// Returns the parameters, which RM reads and writes.
    pub fn params(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.len).unwrap_or_default()
    }

    /// Returns the first words of the parameters.
    #[cfg(test)]
    pub(crate) fn words(&self) -> [u32; 2] {
        [self.u32(0), self.u32(4)]
    }

    fn u32(&self, offset: usize) -> u32 {
        let word = self.bytes.get(offset..).and_then(<[u8]>::first_chunk);
        word.copied().map_or(0, u32::from_le_bytes)
    }

    fn set_u32(&mut self, offset: usize, value: u32) {
        let rest = self.bytes.get_mut(offset..);
        if let Some(word) = rest.and_then(<[u8]>::first_chunk_mut) {
            *word = value.to_le_bytes();
        }
    }
}

/// Returns the low and the high half of a number.
fn halves(number: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = number.to_le_bytes();
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_slices_have_64_bits() {
        let slice = Us(0x1_0000_0002);
        let mut control = Control::set_timeslice(1, 2, slice);
        assert_eq!(control.params(), slice.get().to_le_bytes());
        assert_eq!(control.timeslice(), slice);
        assert_eq!(Control::get_timeslice(1, 2).params(), [0; 8]);
    }

    #[test]
    fn a_control_is_sent_by_a_structure() {
        let structure = Control::get_timeslice(1, 2).structure(0x7fff_0000_1000);
        let expected = [1, 2, 0xa06c_0104, 0, 0x1000, 0x7fff, 8, 0];
        assert_eq!(structure, expected);
        assert_eq!(Control::status(&[0, 0, 0, 0, 0, 0, 0, 0x1f]), 0x1f);
    }

    #[test]
    fn channels_beyond_the_structure_are_refused() {
        let mut control = Control::disable_channels(1, 2, true);
        assert_eq!(control.params().len(), 536);
        for number in 0..64 {
            assert!(control.add_channel(10 + number, 100 + number));
        }
        let full = control;
        assert!(!control.add_channel(1, 1));
        assert_eq!((control, control.channels()), (full, 64));
        assert_eq!(control.channel(0), (true, 10, 100));
        assert_eq!(control.channel(63), (true, 73, 163));
    }

    #[test]
    fn what_a_tenants_list_names_is_read() {
        let mut control = Control::disable_channels(1, 2, false);
        for number in 0..3 {
            control.add_channel(10 + number, 100 + number);
        }
        let read = |params: &[u8]| named(params).collect::<std::vec::Vec<_>>();
        assert_eq!(read(control.params()), [(10, 100), (11, 101), (12, 102)]);
        // More than there is room for, and parameters that end early.
        control.set_u32(4, u32::MAX);
        assert_eq!(read(control.params()).len(), CHANNELS_MAX);
        assert_eq!(read(&[0, 0, 0, 0, 1, 0, 0, 0]), [(0, 0)]);
        assert_eq!(read(&[]), []);
        for (disable, enables) in [(0, true), (1, false), (2, true)] {
            control.params()[0] = disable;
            assert_eq!(may_enable(control.params()), enables);
        }
    }

    #[test]
    fn questions_about_objects() {
        let mut control = Control::class_of(7, 9);
        assert_eq!(
            (control.client, control.object, control.command),
            (7, 7, 0xd02)
        );
        assert_eq!(control.params().len(), 16);
        assert_eq!(control.params()[..8], [9, 0, 0, 0, 2, 0, 0, 0]);
        control.params()[8..12].copy_from_slice(&0xa06cu32.to_le_bytes());
        assert_eq!((control.class(), control.channels_named()), (0xa06c, 0));
    }

    #[test]
    fn questions_about_gpus() {
        let mut control = Control::gpu_of_subdevice(1, 2);
        assert_eq!((control.client, control.object), (1, 2));
        assert_eq!(control.params(), [0; 4]);
        control
            .params()
            .copy_from_slice(&0x0102_0304u32.to_le_bytes());
        assert_eq!(control.gpu(), 0x0102_0304);
        let mut control = Control::instance_of_gpu(7, 0x1200);
        assert_eq!((control.object, control.command), (7, 0x205));
        assert_eq!(control.params().len(), 32);
        assert_eq!(control.params().first_chunk(), Some(&[0, 0x12, 0, 0]));
        control.params()[8] = 3;
        assert_eq!(control.instance(), 3);
        let mut control = Control::class_of(7, 9);
        assert_eq!((control.object, control.command), (7, 0xd02));
        assert_eq!(control.params().first_chunk(), Some(&[9, 0, 0, 0, 2]));
        control.params()[8..10].copy_from_slice(&[0x6f, 0xc8]);
        assert_eq!((control.class(), control.params().len()), (0xc86f, 16));
        let probe = Control::probe(7, 9, Class::ChannelGroup);
        assert_eq!(probe, Some(Control::get_timeslice(7, 9)));
        assert!(Control::probe(7, 9, Class::Channel).is_some());
        assert_eq!(Control::probe(7, 9, Class::Device), None);
        assert!(is_gone(RESOURCE_LOST) && !is_gone(NOT_SUPPORTED));
    }
}
