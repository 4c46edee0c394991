// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sends controls that move rings, change page tables and debug, as no program that computes does.

use crate::abi::{self, Handle};
use crate::client::{Client, Error};
use crate::numbers as n;
use crate::session::Session;
use crate::sys;
use std::io;

/// Words of `NV0080_CTRL_DMA_GET_PTE_INFO_PARAMS`.
pub const PTE_WORDS: usize = 46;

/// Number and bytes of the parameters of each open control of 535.261.03, as
/// `ci/controls.sh --sizes` prints them.
const CONTROLS: &str = include_str!("controls.txt");

/// Returns number and bytes of the parameters of each control that 535.261.03 gives to everybody.
pub fn open_controls() -> impl Iterator<Item = (u32, usize)> {
    CONTROLS.lines().filter_map(|line| {
        let (number, bytes) = line.split_once(' ')?;
        Some((u32::from_str_radix(number, 16).ok()?, bytes.parse().ok()?))
    })
}

/// Where in them the address space's handle is.
const PTE_SPACE: usize = 44;

impl Client {
    /// Sends any control with any words as its parameters. Returns the status.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn send(&self, object: Handle, command: u32, words: &mut [u32]) -> io::Result<u32> {
        self.send_flagged(object, command, words, 0)
    }

    /// The same with the first bytes of the words.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn send_bytes(
        &self,
        object: Handle,
        command: u32,
        words: &mut [u32],
        bytes: usize,
    ) -> io::Result<u32> {
        self.send_sized(object, command, words, bytes.min(size_of_val(words)), 0)
    }

    /// The same with flags of the call, such as that of serialized parameters.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn send_flagged(
        &self,
        object: Handle,
        command: u32,
        words: &mut [u32],
        flags: u32,
    ) -> io::Result<u32> {
        let bytes = size_of_val(words);
        self.send_sized(object, command, words, bytes, flags)
    }

    fn send_sized(
        &self,
        object: Handle,
        command: u32,
        words: &mut [u32],
        bytes: usize,
        flags: u32,
    ) -> io::Result<u32> {
        let mut call = abi::Control {
            client: self.handle(),
            object,
            command,
            flags,
            // CAST: an address of this process.
            parameters: match words.is_empty() {
                true => 0,
                false => words.as_mut_ptr() as u64,
            },
            // CAST: a few kilobytes.
            parameters_size: bytes as u32,
            status: 0,
        };
        // SAFETY: the parameters are at least as long as the call says and accept any bytes.
        // Addresses in them are 0 or of memory that the caller has given up.
        unsafe { sys::ioctl(self.control_file().file(), n::ESCAPE_CONTROL, &mut call) }?;
        Ok(call.status)
    }

    /// Allocates an object with any words as its parameters.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn alloc_words(
        &self,
        parent: Handle,
        class: u32,
        words: &mut [u32],
    ) -> Result<Handle, Error> {
        // CAST: an address of this process, and a few words.
        let (address, bytes) = (words.as_mut_ptr() as u64, size_of_val(words) as u32);
        // SAFETY: as for `send_flagged`.
        let (object, status) = unsafe { self.alloc_from(parent, class, address, bytes) }?;
        crate::client::done(status).map(|()| object)
    }
}

impl Session {
    /// Has a channel fetch from another ring (`NV2080_CTRL_CMD_SET_GPFIFO`). Returns the status.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn set_ring(&self, channel: Handle, ring: u64, entries: u32) -> io::Result<u32> {
        // CAST: the halves of an address.
        let mut words = [channel, 0, ring as u32, (ring >> 32) as u32, entries, 0];
        let gpu = self.gpu();
        gpu.client()
            .send(gpu.subdevice(), n::SET_GPFIFO, &mut words)
    }

    /// Reads or writes the page table entry of an address (`NV0080_CTRL_CMD_DMA_GET_PTE_INFO`,
    /// `.._SET_PTE_INFO`). Returns the status.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn page_entry(
        &self,
        command: u32,
        address: u64,
        words: &mut [u32; PTE_WORDS],
    ) -> io::Result<u32> {
        // CAST: the halves of an address.
        [words[0], words[1]] = [address as u32, (address >> 32) as u32];
        words[PTE_SPACE] = self.space();
        let gpu = self.gpu();
        gpu.client().send(gpu.device(), command, words)
    }

    /// Allocates a debugger of an object of a client on a channel (`GT200_DEBUGGER`).
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn debugger(&self, client: Handle, object: Handle) -> Result<Handle, Error> {
        let mut words = [0, client, object];
        let gpu = self.gpu();
        gpu.client()
            .alloc_words(gpu.device(), n::DEBUGGER, &mut words)
    }

    /// Has a debugger write words at an address of the debugged channel's address space, or read
    /// them. Returns the status.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn surface(
        &self,
        debugger: Handle,
        command: u32,
        address: u64,
        bytes: &mut [u32],
    ) -> io::Result<u32> {
        // `NV83DE_CTRL_DEBUG_ACCESS_SURFACE_PARAMETERS`: a count, and 64 operations of an address,
        // a buffer and a length.
        let mut words = [0u32; 2 + 64 * 6];
        // CAST: addresses of this process, and their halves.
        let buffer = bytes.as_mut_ptr() as u64;
        words[0] = 1;
        [words[2], words[3]] = [address as u32, (address >> 32) as u32];
        [words[4], words[5]] = [buffer as u32, (buffer >> 32) as u32];
        words[6] = size_of_val(bytes) as u32;
        self.gpu().client().send(debugger, command, &mut words)
    }
}
