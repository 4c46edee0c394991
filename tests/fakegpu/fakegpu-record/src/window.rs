// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Maps the registers through which the device shows its recorder.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Size of BAR0, and the offset of the window, which reaches to its end.
const BYTES: usize = 0x100_0000;
const OFFSET: usize = 0xff_0000;
/// Its registers: GCT_RECORD_* and GCT_COPIES of fakegpu-core's regs.rs.
const MAGIC: usize = 0x0;
const COUNT: usize = 0x4;
const SELECT: usize = 0x8;
const LENGTH: usize = 0xc;
const TEXT: usize = 0x1000;
const COPIES: usize = 0x2000;
/// The value of MAGIC.
const MAGIC_VALUE: u32 = 0x6a74_6367;

/// The mapped registers.
#[derive(Debug)]
pub(crate) struct Window(NonNull<u32>);

impl Window {
    /// Maps the registers of the device whose BAR0 is `file`.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address of the new mapping, so it replaces nothing of this
        // process.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        let window = match NonNull::new(start.cast()) {
            Some(address) if start != libc::MAP_FAILED => Self(address),
            _ => return Err(io::Error::last_os_error()),
        };
        match window.read(MAGIC) {
            MAGIC_VALUE => Ok(window),
            _ => Err(io::Error::other("this GPU has no recorder")),
        }
    }

    /// Returns the number of events so far.
    pub(crate) fn count(&self) -> u32 {
        self.read(COUNT)
    }

    /// Returns the line of event `number`, if the device still has it.
    pub(crate) fn line(&self, number: u32) -> Option<String> {
        self.write(SELECT, number);
        let bytes = usize::try_from(self.read(LENGTH)).ok()?;
        let words = bytes.div_ceil(4).min((COPIES - TEXT) / 4);
        let mut text: Vec<u8> = (0..words)
            .flat_map(|word| self.read(TEXT + 4 * word).to_le_bytes())
            .collect();
        text.truncate(bytes);
        (bytes > 0).then(|| String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns a number of 64 bits of what the copy engines have moved.
    pub(crate) fn copied(&self, index: usize) -> u64 {
        let [low, high] = [0, 4].map(|half| u64::from(self.read(COPIES + 8 * index + half)));
        high << 32 | low
    }

    /// Returns a register of BAR0.
    pub(crate) fn register(&self, at: usize) -> u32 {
        assert!(at < BYTES, "outside");
        // SAFETY: the address is aligned and inside the mapping, which lives as long as `self`.
        unsafe { self.0.as_ptr().add(at / 4).read_volatile() }
    }

    fn read(&self, offset: usize) -> u32 {
        self.register(OFFSET + offset)
    }

    fn write(&self, offset: usize, value: u32) {
        assert!(OFFSET + offset < BYTES, "outside");
        // SAFETY: as above. The device expects writes to the register.
        unsafe {
            self.0
                .as_ptr()
                .add((OFFSET + offset) / 4)
                .write_volatile(value)
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}
