// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Controls that gctgroup itself sends to the resource manager.
//!
//! Numbers, sizes and offsets are those of NVIDIA's `ctrl0000gpu.h`,
//! `ctrl2080gpu.h`, `ctrl2080fifo.h` and `ctrla06cgpfifo.h`, equal in 535 and 550.
//! The resource manager compares the size, so another layout is refused.

use super::Handle;

/// `NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES`.
pub const CHANNELS_MAX: usize = 64;

/// Bytes of the largest parameters: `NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS`.
pub const BYTES_MAX: usize = 24 + 8 * CHANNELS_MAX;

/// Status of the resource manager: `NV_OK` is 0.
pub type Status = u32;

/// A control, ready to be sent; its bytes are the answer afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// The client in whose name it is sent.
    pub client: Handle,
    /// The object that is asked or changed.
    pub object: Handle,
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
            command,
            bytes: [0; BYTES_MAX],
            len,
        }
    }

    /// `NV2080_CTRL_CMD_GPU_GET_ID`: on which GPU a subdevice is.
    pub fn gpu_of_subdevice(client: Handle, subdevice: Handle) -> Self {
        Self::new(client, subdevice, 0x2080_0142, 4)
    }

    /// The answer to [`Control::gpu_of_subdevice`].
    pub fn gpu(&self) -> u32 {
        self.u32(0)
    }

    /// `NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2`: which device instance a GPU has now.
    pub fn instance_of_gpu(client: Handle, gpu: u32) -> Self {
        let mut control = Self::new(client, client, 0x0205, 32);
        control.set_u32(0, gpu);
        control
    }

    /// The answer to [`Control::instance_of_gpu`].
    pub fn instance(&self) -> u32 {
        self.u32(8)
    }

    /// The parameters, which the resource manager reads and writes.
    pub fn params(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.len).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
