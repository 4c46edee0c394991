// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the structures of the resource manager's ioctls in this process. [`gct_core::rmapi`]
//! decodes them.
//!
//! This code runs in the tenant's own process, on the structures it passed to the driver, after the
//! driver accepted them. A wrong decoding here can harm only the tenant itself.

use gct_core::rmapi::channel::{class_number, ChannelParams, Mapping, Token};
use gct_core::rmapi::class::Class;
use gct_core::rmapi::control::{Control, Status};
use gct_core::rmapi::{self, escape, Action};

/// The ioctl type of NVIDIA's escapes, `NV_IOCTL_MAGIC`.
const MAGIC: u64 = b'F' as u64;

/// An RM handle, with the client that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) client: u32,
    pub(crate) handle: u32,
}

/// A decoded ioctl that this library tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// An object was allocated below `parent`.
    Alloc {
        object: Object,
        parent: u32,
        class: u32,
        channel: Option<ChannelParams>,
    },
    /// An object, and all below it, is about to be freed.
    Free { object: Object },
    /// The next `mmap` of a descriptor will map memory.
    Map(Mapping),
    /// A channel's work-submit token became known.
    Token { channel: Object, token: u32 },
}

/// Returns whether objects of `class` map doorbells.
pub(crate) fn is_usermode(class: u32) -> bool {
    Class::from_number(class) == Class::Usermode
}

/// Returns the escape number and the structure size of an NVIDIA ioctl.
pub(crate) fn escape(request: u64) -> Option<(u32, usize)> {
    // CAST: the size field has 14 bits, an escape 8.
    let size = ((request >> 16) & 0x3fff) as usize;
    ((request >> 8) & 0xff == MAGIC).then_some(((request & 0xff) as u32, size))
}

/// Returns the escape number and the structure of an NVIDIA ioctl.
///
/// # Safety
///
/// `arg` is the caller's argument of `ioctl` for `request`, and nobody writes there meanwhile.
pub(crate) unsafe fn structure<'a>(request: u64, arg: u64) -> Option<(u32, &'a [u8])> {
    let (escape, size) = escape(request)?;
    if arg == 0 || size == 0 {
        return None;
    }
    // SAFETY: the caller passes a structure of the size that the request says.
    let bytes = unsafe { core::slice::from_raw_parts(arg as *const u8, size) };
    Some((escape, bytes))
}

/// Sends a control to an object of this process. Returns `None` if the ioctl itself failed.
pub(crate) fn send(fd: i32, control: &mut Control) -> Option<Status> {
    let at = control.params().as_mut_ptr() as u64;
    let mut structure = control.structure(at);
    let size = size_of_val(&structure) as u64;
    let request = 0xc000_0000 | size << 16 | MAGIC << 8 | u64::from(escape::CONTROL);
    // SAFETY: the structure is as long as the request says. Its parameters live as long as
    // `control` and have no pointers in them.
    let ret = unsafe { crate::sys::ioctl(fd, request, structure.as_mut_ptr().cast()) };
    (ret == 0).then(|| Control::status(&structure))
}

/// Decodes an ioctl that must be handled before the driver runs it: the free of an object.
///
/// # Safety
///
/// `arg` is the caller's argument of `ioctl` for `request`.
pub(crate) unsafe fn before(request: u64, arg: u64) -> Option<Call> {
    // SAFETY: passed on.
    let (number, bytes) = unsafe { structure(request, arg)? };
    if number != escape::FREE {
        return None;
    }
    let call = rmapi::decode(number, bytes).ok()??;
    Some(Call::Free {
        object: Object {
            client: call.client,
            handle: call.object,
        },
    })
}

/// Decodes an ioctl that the driver has carried out.
///
/// # Safety
///
/// `arg` is the caller's argument of `ioctl` for `request`, and the ioctl returned 0.
pub(crate) unsafe fn after(request: u64, arg: u64) -> Option<Call> {
    // SAFETY: passed on.
    let (number, bytes) = unsafe { structure(request, arg)? };
    match number {
        // SAFETY: the driver has just used the parameters that the structure points to.
        escape::ALLOC => unsafe { alloc(number, bytes) },
        escape::MAP_MEMORY => Mapping::decode(number, bytes).map(Call::Map),
        escape::CONTROL => {
            let token = Token::decode(number, bytes)?;
            Some(Call::Token {
                channel: Object {
                    client: token.client,
                    handle: token.channel,
                },
                // SAFETY: the driver has just written the token there.
                token: unsafe { (token.address as *const u32).read_unaligned() },
            })
        }
        _ => None,
    }
}

/// # Safety
///
/// `bytes` is a structure that the driver completed.
unsafe fn alloc(number: u32, bytes: &[u8]) -> Option<Call> {
    let call = rmapi::decode(number, bytes).ok()??;
    let Action::Alloc { params, .. } = call.action else {
        return None;
    };
    let class = class_number(number, bytes).filter(|_| call.succeeded())?;
    let channel = if Class::is_queue(class) && params != 0 {
        let (at, len) = (params as *const u8, ChannelParams::BYTES);
        // SAFETY: the driver read NV_CHANNEL_ALLOC_PARAMS there, which is longer.
        ChannelParams::decode(unsafe { core::slice::from_raw_parts(at, len) })
    } else {
        None
    };
    Some(Call::Alloc {
        object: Object {
            client: call.client,
            handle: call.object,
        },
        parent: call.parent,
        class,
        channel,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // SAFETY: both structures live on this stack and have the layout that is read.
        let call = unsafe { after(request(escape::ALLOC, 48), nvos64.as_ptr() as u64) };
        let Some(Call::Alloc {
            object,
            parent: 0x5c00_0015,
            class: 0xcf6f,
            channel: Some(channel),
        }) = call
        else {
            panic!("{call:?}");
        };
        assert_eq!((object.client, object.handle), (0xc1d0_0019, 0x5c00_001c));
        assert_eq!(channel.entries, 1024);
        nvos64[10] = 0x51;
        // SAFETY: as above.
        let failed = unsafe { after(request(escape::ALLOC, 48), nvos64.as_ptr() as u64) };
        assert_eq!(failed, None);
    }

    #[test]
    fn other_ioctls_are_none_of_our_business() {
        let zeros = [0u32; 16];
        let arg = zeros.as_ptr() as u64;
        // SAFETY: 64 readable bytes, more than each of these sizes.
        unsafe {
            assert_eq!(after(0x5401, arg), None);
            assert_eq!(after(request(0x57, 56), arg), None);
            assert_eq!(before(request(escape::ALLOC, 48), arg), None);
            assert_eq!(before(request(escape::FREE, 16), 0), None);
        }
    }
}
