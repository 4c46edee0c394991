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

/// A recorded program.
struct Program {
    /// The letter that stands for its client in parameters.
    name: char,
    client: Client,
    gpu_id: u32,
    /// Keeps the GPU initialised.
    _file: File,
    /// The owner of the address space, once there is one.
    space: Option<Uvm>,
    device: Handle,
    subdevice: Handle,
}

/// The programs of a record so far. The last one issues the calls.
struct Programs(Vec<Program>);

/// Replays a record of `tests/fixtures/ioctls/580`, whose README says how it is written, on the
/// first GPU.
///
/// # Errors
///
/// Those of system calls, and EINVAL for a line that cannot be read. A status is no error.
pub fn replay(record: &str) -> Result<Vec<Replayed>, Error> {
    let mut programs = Programs(Vec::new());
    let lines = record.lines();
    let calls = lines.filter_map(|line| programs.issue(line).transpose());
    calls.collect()
}

fn wrong() -> Error {
    io::Error::from(io::ErrorKind::InvalidInput).into()
}

fn hexadecimal(word: &str) -> Result<u32, Error> {
    u32::from_str_radix(word, 16).map_err(|_| wrong())
}

impl Program {
    fn start(name: char) -> Result<Self, Error> {
        let client = Client::open()?;
        let cards = client.control_file().gpus()?;
        let (minor, gpu_id) = *cards.first().ok_or_else(wrong)?;
        let file = gpu::open(&client, minor)?;
        Ok(Self {
            name,
            client,
            gpu_id,
            _file: file,
            space: None,
            device: 0,
            subdevice: 0,
        })
    }

    /// Returns the GPU as the program has opened it.
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
}

impl Programs {
    /// Bytes of the longest parameters of a class.
    const PARAMETERS: usize = 1024;

    fn last(&mut self) -> Result<&mut Program, Error> {
        self.0.last_mut().ok_or_else(wrong)
    }

    fn named(&self, name: char) -> Result<&Program, Error> {
        let mut programs = self.0.iter();
        programs
            .find(|program| program.name == name)
            .ok_or_else(wrong)
    }

    /// Issues a line's call. Returns `None` for a line that is none.
    fn issue(&mut self, line: &str) -> Result<Option<Replayed>, Error> {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["program", name] = words[..] {
            let name = name.chars().next().ok_or_else(wrong)?;
            self.0.push(Program::start(name)?);
            return Ok(None);
        }
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
                let bytes = self.bytes(input)?;
                let program = self.last()?;
                let object = program.handle(object)?;
                let parent = program.handle(parent)?;
                replayed.status = program.alloc(class, parent, object, bytes)?;
                match class {
                    n::DEVICE => program.device = object,
                    n::SUBDEVICE => program.subdevice = object,
                    _ => (),
                }
            }
            ["control", object, command, size, input, answer] => {
                let command = hexadecimal(command)?;
                let mut bytes = self.bytes(input)?;
                // CAST: 32 bits fit.
                bytes.resize(hexadecimal(size)? as usize, 0);
                let program = self.last()?;
                replayed.status = program.control(program.handle(object)?, command, &mut bytes)?;
                replayed.command = Some(command);
                if answer != "=" {
                    replayed.recorded = self.bytes(answer)?;
                    bytes.truncate(replayed.recorded.len());
                    replayed.answer = bytes;
                }
            }
            ["space", space] => {
                let program = self.last()?;
                let gpu = program.gpu()?;
                let uvm = Uvm::open(&gpu)?;
                uvm.register_space(&gpu, program.handle(space)?)?;
                program.space = Some(uvm);
            }
            ["channel", channel] => {
                let program = self.last()?;
                let (channel, gpu) = (program.handle(channel)?, program.gpu()?);
                let space = program.space.as_ref().ok_or_else(wrong)?;
                replayed.status = status(space.register_channel(&gpu, channel))?;
            }
            ["share", object] => {
                let program = self.last()?;
                let shared = program.client.share_with_all(program.handle(object)?);
                replayed.status = status(shared)?;
            }
            ["dup", parent, object, owner, source] => {
                let owner = owner.chars().next().ok_or_else(wrong)?;
                let owner = self.named(owner)?.client.handle();
                let program = self.last()?;
                program.client.choose_next(program.handle(object)?);
                let (parent, source) = (program.handle(parent)?, hexadecimal(source)?);
                let made = program.client.dup_of(parent, owner, source);
                replayed.status = status(made.map(drop))?;
            }
            ["free", parent, object] => {
                let program = self.last()?;
                let mut call = abi::Free {
                    root: program.client.handle(),
                    parent: program.handle(parent)?,
                    object: program.handle(object)?,
                    status: 0,
                };
                let file = program.client.control_file().file();
                sys::ioctl_plain(file, n::ESCAPE_FREE, &mut call)?;
                replayed.status = call.status;
            }
            _ => return Err(wrong()),
        }
        Ok(Some(replayed))
    }

    /// Reads parameters, of which whole words may be a client's handle or the GPU's id.
    fn bytes(&self, text: &str) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let mut rest = text.trim_start_matches('-');
        while !rest.is_empty() {
            let (word, behind) = rest.split_at(rest.len().min(8));
            match word.chars().next() {
                Some('Y') => {
                    let program = self.0.last().ok_or_else(wrong)?;
                    bytes.extend(program.gpu_id.to_le_bytes());
                }
                Some(name @ 'S'..='Z') => {
                    bytes.extend(self.named(name)?.client.handle().to_le_bytes());
                }
                _ => {
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

/// Returns the status of a call that may be refused.
fn status(outcome: Result<(), Error>) -> Result<u32, Error> {
    match outcome {
        Ok(()) => Ok(n::OK),
        Err(Error::Status(status)) => Ok(status),
        Err(error) => Err(error),
    }
}

impl Program {
    fn alloc(
        &self,
        class: u32,
        parent: Handle,
        object: Handle,
        mut bytes: Vec<u8>,
    ) -> Result<u32, Error> {
        let is_empty = bytes.is_empty();
        bytes.resize(Programs::PARAMETERS, 0);
        let mut call = abi::Alloc {
            root: self.client.handle(),
            parent,
            object,
            class,
            ..Default::default()
        };
        if !is_empty {
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
}
