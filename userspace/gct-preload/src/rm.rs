// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the resource manager's ioctls say, as far as channels and mappings go.
//!
//! These run in the tenant's own process, on the structures it passed to the
//! driver, after the driver accepted them: a wrong reading here can only harm
//! the tenant itself. Layouts: `nvos.h` and `alloc/alloc_channel.h` of the
//! open kernel modules, 535 to 580 (identical for what is read here).

/// The NVIDIA escapes' ioctl type, `NV_IOCTL_MAGIC`.
const MAGIC: u64 = b'F' as u64;

const ESC_RM_FREE: u64 = 0x29;
const ESC_RM_CONTROL: u64 = 0x2a;
const ESC_RM_ALLOC: u64 = 0x2b;
const ESC_RM_MAP_MEMORY: u64 = 0x4e;

/// `NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN`.
const GET_WORK_SUBMIT_TOKEN: u32 = 0xc36f_0108;

/// An RM handle together with the client that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) client: u32,
    pub(crate) handle: u32,
}

/// What a channel's allocation says of its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelParams {
    /// GPU virtual address of the ring.
    pub(crate) ring_va: u64,
    /// Entries in the ring.
    pub(crate) entries: u32,
    /// The memory object that holds USERD.
    pub(crate) userd_memory: u32,
    /// Where USERD begins in that memory, in bytes.
    pub(crate) userd_offset: u64,
}

/// An ioctl that matters here, decoded.
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
    /// Memory will be mapped by the next `mmap` of `fd`.
    Map {
        memory: Object,
        offset: u64,
        len: u64,
        fd: i32,
    },
    /// A channel's work-submit token became known.
    Token { channel: Object, token: u32 },
}

/// Whether `class` is a channel's: the `..6F` classes of Kepler and later.
pub(crate) fn is_channel(class: u32) -> bool {
    class & 0xff == 0x6f && class >= 0xa06f
}

/// Whether `class` maps doorbells: Volta's to Blackwell's usermode objects.
pub(crate) fn is_usermode(class: u32) -> bool {
    matches!(class, 0xc361 | 0xc461 | 0xc561 | 0xc661 | 0xc761)
}

/// A reader over a structure of the tenant's.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }

    fn u64(&self, at: usize) -> Option<u64> {
        let bytes = self.0.get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }
}

/// Borrows `len` bytes of the tenant's own memory at the address the driver just used.
///
/// # Safety
///
/// `[addr, addr + len)` must be readable, as it is when the driver accepted it.
unsafe fn bytes<'a>(addr: u64, len: usize) -> Fields<'a> {
    // SAFETY: the caller vouches for the range.
    Fields(unsafe { core::slice::from_raw_parts(addr as *const u8, len) })
}

/// The escape number and structure size of an NVIDIA ioctl.
pub(crate) fn escape(request: u64) -> Option<(u64, usize)> {
    // CAST: the size field has 14 bits.
    let size = ((request >> 16) & 0x3fff) as usize;
    ((request >> 8) & 0xff == MAGIC).then_some((request & 0xff, size))
}

/// Sends a control to an object of this process; the resource manager's status, or `None` if the
/// ioctl itself failed.
///
/// # Safety
///
/// The command takes parameters of this size and no pointers in them.
pub(crate) unsafe fn control_of(
    fd: i32,
    client: u32,
    object: u32,
    command: u32,
    params: &mut [u8],
) -> Option<u32> {
    let at = params.as_mut_ptr() as u64;
    let size = u32::try_from(params.len()).ok()?;
    // CAST: the halves of an address.
    let mut nvos54 = [
        client,
        object,
        command,
        0,
        at as u32,
        (at >> 32) as u32,
        size,
        0,
    ];
    let request = 0xc000_0000 | 32 << 16 | MAGIC << 8 | ESC_RM_CONTROL;
    // SAFETY: `nvos54` is 32 bytes, as the request says, and the caller vouches for the rest.
    let ret = unsafe { crate::sys::ioctl(fd, request, nvos54.as_mut_ptr().cast()) };
    (ret == 0).then_some(nvos54[7])
}

/// Decodes what must be known before the driver acts: objects that go away.
///
/// # Safety
///
/// `arg` is what the caller of `ioctl` passed for `request`.
pub(crate) unsafe fn before(request: u64, arg: u64) -> Option<Call> {
    let (nr, size) = escape(request)?;
    if nr != ESC_RM_FREE || size < 16 || arg == 0 {
        return None;
    }
    // SAFETY: libcuda passes a whole NVOS00 (16 bytes), as `size` says.
    let nvos00 = unsafe { bytes(arg, 16) };
    Some(Call::Free {
        object: Object {
            client: nvos00.u32(0)?,
            handle: nvos00.u32(8)?,
        },
    })
}

/// Decodes what the driver did.
///
/// # Safety
///
/// `arg` is what the caller of `ioctl` passed for `request`, and the ioctl returned 0.
pub(crate) unsafe fn after(request: u64, arg: u64) -> Option<Call> {
    let (nr, size) = escape(request)?;
    if arg == 0 {
        return None;
    }
    // SAFETY: the driver copied `size` bytes from and to `arg`.
    let outer = unsafe { bytes(arg, size) };
    match nr {
        // SAFETY: the driver has just used the parameters that NVOS21/64 points to.
        ESC_RM_ALLOC => unsafe { alloc(&outer, size) },
        ESC_RM_MAP_MEMORY => map(&outer),
        // SAFETY: as above, for NVOS54.
        ESC_RM_CONTROL => unsafe { control(&outer) },
        _ => None,
    }
}

/// # Safety
///
/// `outer` is an NVOS21 or NVOS64 that the driver completed.
unsafe fn alloc(outer: &Fields<'_>, size: usize) -> Option<Call> {
    let status = outer.u32(if size >= 48 { 40 } else { 28 })?;
    if status != 0 {
        return None;
    }
    let object = Object {
        client: outer.u32(0)?,
        handle: outer.u32(8)?,
    };
    let class = outer.u32(12)?;
    let params = outer.u64(16)?;
    let channel = if is_channel(class) && params != 0 {
        // SAFETY: the driver read NV_CHANNEL_ALLOC_PARAMS there, which is longer than 72 bytes.
        let p = unsafe { bytes(params, 72) };
        Some(ChannelParams {
            ring_va: p.u64(8)?,
            entries: p.u32(16)?,
            userd_memory: p.u32(32)?,
            userd_offset: p.u64(64)?,
        })
    } else {
        None
    };
    Some(Call::Alloc {
        object,
        parent: outer.u32(4)?,
        class,
        channel,
    })
}

fn map(outer: &Fields<'_>) -> Option<Call> {
    if outer.u32(40)? != 0 {
        return None;
    }
    Some(Call::Map {
        memory: Object {
            client: outer.u32(0)?,
            handle: outer.u32(8)?,
        },
        offset: outer.u64(16)?,
        len: outer.u64(24)?,
        // CAST: a file descriptor, stored in 32 bits.
        fd: outer.u32(48)? as i32,
    })
}

/// # Safety
///
/// `outer` is an NVOS54 that the driver completed.
unsafe fn control(outer: &Fields<'_>) -> Option<Call> {
    if outer.u32(8)? != GET_WORK_SUBMIT_TOKEN || outer.u32(28)? != 0 {
        return None;
    }
    // SAFETY: the driver wrote the token, 4 bytes, to `params`.
    let token = unsafe { bytes(outer.u64(16)?, 4) }.u32(0)?;
    Some(Call::Token {
        channel: Object {
            client: outer.u32(0)?,
            handle: outer.u32(4)?,
        },
        token,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(nr: u64, size: u64) -> u64 {
        0xc000_0000 | size << 16 | MAGIC << 8 | nr
    }

    #[test]
    fn a_channel_is_found_in_an_nvos64() {
        let mut params = [0u32; 40];
        params[2] = 0x0060_0000;
        params[3] = 2;
        params[4] = 1024;
        params[8] = 0x5c00_0017;
        params[16] = 0x2000;
        let mut nvos64 = [0u32; 12];
        nvos64[0] = 0xc1d0_0019;
        nvos64[1] = 0x5c00_0015;
        nvos64[2] = 0x5c00_001c;
        nvos64[3] = 0xc86f;
        let at = params.as_ptr() as u64;
        nvos64[4] = at as u32;
        nvos64[5] = (at >> 32) as u32;
        // SAFETY: both structures live on this stack and have the layout that is read.
        let call = unsafe { after(request(ESC_RM_ALLOC, 48), nvos64.as_ptr() as u64) };
        let expected = ChannelParams {
            ring_va: 0x2_0060_0000,
            entries: 1024,
            userd_memory: 0x5c00_0017,
            userd_offset: 0x2000,
        };
        assert_eq!(
            call,
            Some(Call::Alloc {
                object: Object {
                    client: 0xc1d0_0019,
                    handle: 0x5c00_001c
                },
                parent: 0x5c00_0015,
                class: 0xc86f,
                channel: Some(expected),
            })
        );
        nvos64[10] = 0x51;
        // SAFETY: as above.
        let failed = unsafe { after(request(ESC_RM_ALLOC, 48), nvos64.as_ptr() as u64) };
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
            assert_eq!(before(request(ESC_RM_ALLOC, 48), arg), None);
            assert_eq!(before(request(ESC_RM_FREE, 16), 0), None);
        }
    }
}
