// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Issues recorded calls again, with the handles that the recorded program chose.

use crate::abi::{self, Handle};
use crate::client::{Client, Error};
use crate::gpu::{self, Gpu};
use crate::numbers as n;
use crate::sys;
use crate::uvm::Uvm;
use std::fs::File;
use std::io;

/// What the driver said to one call of a record.
#[derive(Debug)]
pub struct Replayed {
    /// The call's line, without parameters.
    pub call: String,
    /// The command of a control.
    pub command: Option<u32>,
    /// The status in the structure, of a control, an allocation or a free.
    pub status: u32,
    /// What the record has as answer, or nothing where only the status is to be compared.
    pub recorded: Vec<u8>,
    /// As many bytes of the parameters behind the call.
    pub answer: Vec<u8>,
}

/// Where a record is replayed.
struct Place {
    client: Client,
    gpu_id: u32,
    /// Keeps the GPU initialised.
    _file: File,
    /// The owner of the address space, once there is one.
    space: Option<Uvm>,
    device: Handle,
    subdevice: Handle,
}

/// Replays a record of `tests/fixtures/ioctls`, which says how it is written, on the first GPU.
///
/// # Errors
///
/// Those of system calls, and EINVAL for a line that cannot be read. A status is no error.
pub fn replay(record: &str) -> Result<Vec<Replayed>, Error> {
    let client = Client::open()?;
    let cards = client.control_file().gpus()?;
    let (minor, gpu_id) = *cards.first().ok_or_else(wrong)?;
    let file = gpu::open(&client, minor)?;
    let mut place = Place {
        client,
        gpu_id,
        _file: file,
        space: None,
        device: 0,
        subdevice: 0,
    };
    let lines = record.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| place.issue(line)).collect()
}

fn wrong() -> Error {
    io::Error::from(io::ErrorKind::InvalidInput).into()
}

fn hexadecimal(word: &str) -> Result<u32, Error> {
    u32::from_str_radix(word, 16).map_err(|_| wrong())
}

impl Place {
    /// Bytes of the longest parameters of a class.
    const PARAMETERS: usize = 1024;

    fn issue(&mut self, line: &str) -> Result<Replayed, Error> {
        let words: Vec<&str> = line.split(' ').collect();
        let mut replayed = Replayed {
            call: words[..words.len().min(4)].join(" "),
            command: None,
            status: n::OK,
            recorded: Vec::new(),
            answer: Vec::new(),
        };
        match words[..] {
            ["alloc", class, parent, object, input] => {
                let class = hexadecimal(class)?;
                let object = self.handle(object)?;
                replayed.status = self.alloc(class, self.handle(parent)?, object, input)?;
                match class {
                    n::DEVICE => self.device = object,
                    n::SUBDEVICE => self.subdevice = object,
                    _ => (),
                }
            }
            ["control", object, command, size, input, answer] => {
                let command = hexadecimal(command)?;
                let mut bytes = self.bytes(input)?;
                // CAST: 32 bits fit.
                bytes.resize(hexadecimal(size)? as usize, 0);
                replayed.status = self.control(self.handle(object)?, command, &mut bytes)?;
                replayed.command = Some(command);
                if answer != "=" {
                    replayed.recorded = self.bytes(answer)?;
                    bytes.truncate(replayed.recorded.len());
                    replayed.answer = bytes;
                }
            }
            ["space", space] => {
                let gpu = self.gpu()?;
                let uvm = Uvm::open(&gpu)?;
                uvm.register_space(&gpu, self.handle(space)?)?;
                self.space = Some(uvm);
            }
            ["channel", channel] => {
                let (channel, gpu) = (self.handle(channel)?, self.gpu()?);
                let space = self.space.as_ref().ok_or_else(wrong)?;
                match space.register_channel(&gpu, channel) {
                    Err(Error::Status(status)) => replayed.status = status,
                    other => other?,
                }
            }
            ["free", parent, object] => {
                let mut call = abi::Free {
                    root: self.client.handle(),
                    parent: self.handle(parent)?,
                    object: self.handle(object)?,
                    status: 0,
                };
                sys::ioctl_plain(self.client.control_file().file(), n::ESCAPE_FREE, &mut call)?;
                replayed.status = call.status;
            }
            _ => return Err(wrong()),
        }
        Ok(replayed)
    }

    fn alloc(&self, class: u32, parent: Handle, object: Handle, input: &str) -> Result<u32, Error> {
        let mut bytes = self.bytes(input)?;
        bytes.resize(Self::PARAMETERS, 0);
        let mut call = abi::Alloc {
            root: self.client.handle(),
            parent,
            object,
            class,
            ..Default::default()
        };
        if input != "-" {
            // CAST: an address of this process.
            call.parameters = bytes.as_mut_ptr() as u64;
        }
        // SAFETY: the parameters are longer than any class's, and the record has no class whose
        // parameters hold an address.
        unsafe {
            sys::ioctl(
                self.client.control_file().file(),
                n::ESCAPE_ALLOC,
                &mut call,
            )
        }?;
        Ok(call.status)
    }

    fn control(&self, object: Handle, command: u32, bytes: &mut [u8]) -> Result<u32, Error> {
        let mut call = abi::Control {
            client: self.client.handle(),
            object,
            command,
            flags: 0,
            parameters: match bytes.len() {
                0 => 0,
                // CAST: an address of this process.
                _ => bytes.as_mut_ptr() as u64,
            },
            // CAST: the record's sizes have 32 bits.
            parameters_size: bytes.len() as u32,
            status: 0,
        };
        // SAFETY: the parameters have this length, and the record has no command whose parameters
        // hold an address that the driver follows.
        unsafe {
            sys::ioctl(
                self.client.control_file().file(),
                n::ESCAPE_CONTROL,
                &mut call,
            )
        }?;
        Ok(call.status)
    }

    /// Returns the GPU as the record has opened it.
    fn gpu(&self) -> Result<Gpu, Error> {
        Ok(Gpu {
            client: self.client.clone(),
            minor: 0,
            gpu_id: self.gpu_id,
            file: gpu::open(&self.client, 0)?,
            device: self.device,
            subdevice: self.subdevice,
        })
    }

    fn handle(&self, word: &str) -> Result<Handle, Error> {
        match word {
            "client" => Ok(self.client.handle()),
            word => hexadecimal(word),
        }
    }

    /// Reads parameters, of which whole words may be the client's handle or the GPU's id.
    fn bytes(&self, text: &str) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let mut rest = text.trim_start_matches('-');
        while !rest.is_empty() {
            let (word, behind) = rest.split_at(rest.len().min(8));
            match word {
                "XXXXXXXX" => bytes.extend(self.client.handle().to_le_bytes()),
                "YYYYYYYY" => bytes.extend(self.gpu_id.to_le_bytes()),
                word => {
                    for at in (0..word.len()).step_by(2) {
                        let digits = word.get(at..at + 2).ok_or_else(wrong)?;
                        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
                    }
                }
            }
            rest = behind;
        }
        Ok(bytes)
    }
}
