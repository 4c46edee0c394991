// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the structures of the resource manager's ioctls in this process. [`gct_core::rmapi`]
//! decodes them.
//!
//! This code runs in the tenant's own process, on the structures it passed to the driver, after the
//! driver accepted them. A wrong decoding here can harm only the tenant itself.

use crate::devices::device_node;
use gct_core::rmapi::channel::{class_number, ChannelParams, Mapping, Token};
use gct_core::rmapi::class::Class;
use gct_core::rmapi::control::{Control, Status, INVALID_CLIENT};
use gct_core::rmapi::memory_info::{Answered, MemoryView};
use gct_core::rmapi::nv::NV_OK;
use gct_core::rmapi::{self, escape, Action, Call, Handle, Hint};
use gctd_ipc::message;

/// The ioctl type of NVIDIA's escapes, `NV_IOCTL_MAGIC`.
const MAGIC: u64 = b'F' as u64;

/// An RM handle, with the client that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) client: u32,
    pub(crate) handle: u32,
}

/// An object that the program has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) object: Object,
    pub(crate) parent: Handle,
    pub(crate) class: u32,
    /// The parameters, if it is a channel.
    pub(crate) channel: Option<ChannelParams>,
}

/// What an ioctl that the driver has carried out means for channels and their mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Made(Made),
    /// The next `mmap` of a descriptor will map memory.
    Announced(Mapping),
    /// A channel's work-submit token became known.
    Token {
        channel: Object,
        token: u32,
    },
}

impl Effect {
    /// Returns whether it is a new channel.
    pub(crate) fn is_channel(&self) -> bool {
        matches!(self, Self::Made(made) if made.channel.is_some())
    }
}

/// Returns whether objects of `class` map doorbells.
pub(crate) fn is_usermode(class: u32) -> bool {
    Class::from_number(class) == Class::Usermode
}

/// An ioctl of the resource manager, from before the driver runs it until it returns.
///
/// This is the only place that reads its structure and what that points to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ioctl {
    escape: u32,
    at: *mut u8,
    len: usize,
}

impl Ioctl {
    /// Returns the ioctl; `None` if the request is another driver's or has no structure.
    ///
    /// # Safety
    ///
    /// `arg` is the caller's argument of `ioctl` for `request`. As long as the value is used, the
    /// structure there and the memory it points to stay, and only the driver writes there.
    pub(crate) unsafe fn new(request: u64, arg: u64) -> Option<Self> {
        // CAST: the size field has 14 bits, an escape 8.
        let (escape, len) = ((request & 0xff) as u32, ((request >> 16) & 0x3fff) as usize);
        let is_ours = (request >> 8) & 0xff == MAGIC && len > 0 && arg != 0;
        is_ours.then_some(Self {
            escape,
            at: arg as *mut u8,
            len,
        })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the caller of `new` vouches for a structure of the size that the request says,
        // and the driver does not run meanwhile.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }

    /// Decodes the call before the driver runs it. Returns `None` if it concerns no object that the
    /// core tracks.
    pub(crate) fn call(&self) -> Option<Call> {
        rmapi::decode(self.escape, self.bytes()).ok()?
    }

    /// Returns a call of [`call`](Self::call) with what the driver wrote back. The ioctl returned
    /// `ret`; unless that is 0, the driver has written no status.
    pub(crate) fn returned(&self, call: Call, ret: i32) -> Call {
        let result = match ret {
            0 => 0,
            _ => rmapi::NO_MEMORY,
        };
        call.returned(self.escape, self.bytes(), result)
    }

    /// Returns the message that reports the ioctl to the daemon. The ioctl returned
    /// `ret`; unless that is 0, this adds the status that the driver has not written.
    pub(crate) fn message(&self, hint: Option<u64>, ret: i32) -> message::Ioctl {
        let mut bytes = self.bytes().to_vec();
        if ret != 0 {
            rmapi::set_status(self.escape, &mut bytes, rmapi::NO_MEMORY);
        }
        message::Ioctl {
            escape: self.escape,
            bytes,
            hint,
        }
    }

    /// Writes into the structure that a limit refuses the allocation.
    pub(crate) fn refuse(&self) {
        // SAFETY: as in `bytes`; the structure is the caller's to be written, as the driver would.
        let bytes = unsafe { core::slice::from_raw_parts_mut(self.at, self.len) };
        rmapi::set_status(self.escape, bytes, rmapi::NO_MEMORY);
    }

    /// Reads a number of 4 or 8 bytes in the parameters of the call.
    pub(crate) fn word(&self, hint: Hint) -> Option<u64> {
        match hint.bytes {
            // SAFETY: by the contract of `new`; the driver reads the same bytes.
            4 => Some(u64::from(unsafe {
                (hint.address as *const u32).read_unaligned()
            })),
            // SAFETY: as above.
            8 => Some(unsafe { (hint.address as *const u64).read_unaligned() }),
            _ => None,
        }
    }

    /// Returns the effect of the ioctl, which the driver has carried out. `call` is what it
    /// decodes to.
    pub(crate) fn effect(&self, call: Option<&Call>) -> Option<Effect> {
        if let Some(call) = call {
            return self.made(call).map(Effect::Made);
        }
        let mapping = Mapping::decode(self.escape, self.bytes()).map(Effect::Announced);
        mapping.or_else(|| self.token())
    }

    /// Reduces the driver's answer about device memory to what `view` returns for the question's
    /// client and object. Does nothing for any other ioctl.
    pub(crate) fn show_memory(&self, view: impl FnOnce(Handle, Handle) -> Option<MemoryView>) {
        let Some(answered) = Answered::decode(self.escape, self.bytes()) else {
            return;
        };
        if let Some(view) = view(answered.client, answered.object) {
            // SAFETY: by the contract of `new`; the driver has just written its answers there.
            view.show(unsafe {
                core::slice::from_raw_parts_mut(answered.address as *mut u8, answered.bytes)
            });
        }
    }

    fn made(&self, call: &Call) -> Option<Made> {
        let Action::Alloc { params, .. } = call.action else {
            return None;
        };
        let class = class_number(self.escape, self.bytes()).filter(|_| call.succeeded())?;
        let channel = if Class::is_queue(class) && params != 0 {
            let (at, len) = (params as *const u8, ChannelParams::BYTES);
            // SAFETY: by the contract of `new`; the driver has read NV_CHANNEL_ALLOC_PARAMS there,
            // which is longer.
            ChannelParams::decode(unsafe { core::slice::from_raw_parts(at, len) })
        } else {
            None
        };
        Some(Made {
            object: Object {
                client: call.client,
                handle: call.object,
            },
            parent: call.parent,
            class,
            channel,
        })
    }

    fn token(&self) -> Option<Effect> {
        let token = Token::decode(self.escape, self.bytes())?;
        Some(Effect::Token {
            channel: Object {
                client: token.client,
                handle: token.channel,
            },
            // SAFETY: by the contract of `new`; the driver has just written the token there.
            token: unsafe { (token.address as *const u32).read_unaligned() },
        })
    }
}

/// The function that sends a control on one of the program's descriptors.
pub(crate) type Send = fn(fd: i32, control: &mut Control) -> Result<(), Status>;

/// Sends a control to an object of this process. Returns the resource manager's refusal as an
/// error. The program may have closed `fd` and opened another file under its number, which gets no
/// control.
pub(crate) fn send(fd: i32, control: &mut Control) -> Result<(), Status> {
    if device_node(fd).is_none() {
        return Err(INVALID_CLIENT);
    }
    let at = control.params().as_mut_ptr() as u64;
    let mut structure = control.structure(at);
    let size = size_of_val(&structure) as u64;
    let request = 0xc000_0000 | size << 16 | MAGIC << 8 | u64::from(escape::CONTROL);
    // SAFETY: the structure is as long as the request says. Its parameters live as long as
    // `control` and have no pointers in them.
    let ret = unsafe { crate::sys::ioctl(fd, request, structure.as_mut_ptr().cast()) };
    match Control::status(&structure) {
        // The descriptor is no longer the driver's.
        _ if ret != 0 => Err(INVALID_CLIENT),
        NV_OK => Ok(()),
        status => Err(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_core::units::Bytes;

    fn request(number: u32, size: u64) -> u64 {
        0xc000_0000 | size << 16 | MAGIC << 8 | u64::from(number)
    }

    #[test]
    fn a_channel_is_found_in_an_nvos64() {
        let mut params = [0u32; 40];
        params[4] = 1024;
        let mut nvos64 = [0u32; 12];
        nvos64[0] = 0xc1d0_0019;
        nvos64[1] = 0x5c00_0015;
        nvos64[2] = 0x5c00_001c;
        // A future generation.
        nvos64[3] = 0xcf6f;
        let at = params.as_ptr() as u64;
        nvos64[4] = at as u32;
        nvos64[5] = (at >> 32) as u32;
        let made = |nvos64: &[u32; 12]| {
            // SAFETY: both structures live on this stack and have the layout that is read.
            let ioctl = unsafe { Ioctl::new(request(escape::ALLOC, 48), nvos64.as_ptr() as u64) };
            let ioctl = ioctl.unwrap();
            ioctl.made(&ioctl.call().unwrap())
        };
        let Some(Made {
            object,
            parent: 0x5c00_0015,
            class: 0xcf6f,
            channel: Some(channel),
        }) = made(&nvos64)
        else {
            panic!("{:?}", made(&nvos64));
        };
        assert_eq!((object.client, object.handle), (0xc1d0_0019, 0x5c00_001c));
        assert_eq!(channel.entries, 1024);
        nvos64[10] = 0x51;
        assert_eq!(made(&nvos64), None);
    }

    #[test]
    fn what_the_driver_writes_back_goes_with_the_call() {
        let mut nvos21 = [1u32, 1, 0, 0x2080, 0, 0, 0, 0];
        let at = nvos21.as_mut_ptr() as u64;
        // SAFETY: the structure lives on this stack, and the test alone writes there.
        let ioctl = unsafe { Ioctl::new(request(escape::ALLOC, 32), at) }.unwrap();
        let call = ioctl.call().unwrap();
        // SAFETY: inside the structure: the driver chooses a handle.
        unsafe { (at as *mut u32).add(2).write(0xcaf0) };
        let done = ioctl.returned(call, 0);
        assert_eq!((done.object, done.succeeded()), (0xcaf0, true));
        // An ioctl that fails leaves the program's own status there.
        assert!(!ioctl.returned(call, -1).succeeded());
        let decoded = |message: message::Ioctl| rmapi::decode(message.escape, &message.bytes);
        let told = [0, -1].map(|ret| decoded(ioctl.message(None, ret)).unwrap().unwrap());
        assert_eq!(told.map(|call| call.succeeded()), [true, false]);
    }

    #[test]
    fn the_answer_about_memory_shows_the_limit() {
        // FB_GET_INFO_V2 of 54 pairs: the size of the heap, and what is free of it.
        let mut params = [0u32; 1 + 2 * 54];
        let answer = [2, 9, 0x04f2_dc00, 0x16, 0x04e7_10c0];
        params[..5].copy_from_slice(&answer);
        let at = params.as_mut_ptr() as u64;
        let mut nvos54 = [7, 9, 0x2080_1303, 0, at as u32, (at >> 32) as u32, 436, 0];
        let shown = |nvos54: &mut [u32; 8], view: Option<MemoryView>| {
            let mut asked = None;
            // SAFETY: both structures live on this stack, and this thread alone uses them.
            let ioctl = unsafe { Ioctl::new(request(0x2a, 32), nvos54.as_mut_ptr() as u64) };
            ioctl.unwrap().show_memory(|client, object| {
                asked = Some((client, object));
                view
            });
            // SAFETY: the parameters live on this stack.
            let words = unsafe { core::slice::from_raw_parts(at as *const u32, 5) };
            (asked, words.to_vec())
        };
        let view = MemoryView::new(Bytes(10 << 30), Bytes(7 << 30));
        nvos54[7] = 0x1f;
        assert_eq!(shown(&mut nvos54, Some(view)), (None, answer.to_vec()));
        nvos54[7] = 0;
        let unlimited = (Some((7, 9)), answer.to_vec());
        assert_eq!(shown(&mut nvos54, None), unlimited);
        let limited = vec![2, 9, 10 << 20, 0x16, 3 << 20];
        assert_eq!(shown(&mut nvos54, Some(view)), (Some((7, 9)), limited));
    }

    #[test]
    fn other_ioctls_are_none_of_our_business() {
        let zeros = [0u32; 16];
        let at = zeros.as_ptr() as u64;
        // SAFETY: 64 readable bytes, more than each of these sizes.
        let ioctl = |request, arg| unsafe { Ioctl::new(request, arg) };
        assert!(ioctl(0x5401, at).is_none());
        assert!(ioctl(request(escape::FREE, 16), 0).is_none());
        let other = ioctl(request(0x57, 56), at).unwrap();
        assert_eq!((other.call(), other.effect(None)), (None, None));
    }
}
