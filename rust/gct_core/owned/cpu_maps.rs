// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which mappings of the GPU's memory by the processor end, and when.
//!
//! NVIDIA's driver takes nothing out of page tables when memory is freed or unmapped, and gives its
//! addresses in the aperture to the next mapping. So what an ioctl may end is held while the
//! resource manager runs it, and ends or is shown again afterwards:
//!
//! ```text
//! held   nothing of it is mapped, and faults wait
//! over   its memory is gone; it stays so
//!
//! before a free      hold what may go with the object, by the object's class
//! before an unmap    hold what the resource manager may find by the address; if it does not know
//!                    the address, all of the memory
//! after either       end what is gone, and show the rest
//! close of the file  end all
//! ```
//!
//! A mapping is made by a device file, which has one piece of memory until it is closed. Then the
//! mapping stays in the resource manager, and here: an unmapping of its address ends no other. All
//! that were prepared by one file of the resource manager are in one order, by client and memory
//! object. Each ioctl looks at those of one memory object, or of one client where more may go.

use super::maps::{u32_at, u64_at};
use crate::rmapi::control::{self, Status};
use crate::rmapi::nv::{self, nvos33_with_fd as map, nvos34 as unmap, nvos56 as update};
use crate::rmapi::{self, Action, Class, Handle};

/// Most mappings of one memory object that are followed. A member gets no more.
pub const OF_MEMORY_MAX: usize = 1024;

/// The place of a mapping in the order of its file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    client: Handle,
    memory: Handle,
    number: u64,
}

impl Key {
    /// Returns the keys between which all mappings of a memory object lie.
    const fn of_memory(client: Handle, memory: Handle) -> [Self; 2] {
        [
            Self::new(client, memory, 0),
            Self::new(client, memory, u64::MAX),
        ]
    }

    /// Returns the keys between which all mappings of a client lie.
    const fn of_client(client: Handle) -> [Self; 2] {
        [
            Self::new(client, 0, 0),
            Self::new(client, Handle::MAX, u64::MAX),
        ]
    }

    /// The keys between which all mappings lie.
    const ALL: [Self; 2] = [
        Self::new(0, 0, 0),
        Self::new(Handle::MAX, Handle::MAX, u64::MAX),
    ];

    const fn new(client: Handle, memory: Handle, number: u64) -> Self {
        Self {
            client,
            memory,
            number,
        }
    }

    /// Returns the next key that may be.
    pub const fn next(self) -> Self {
        Self {
            number: self.number.saturating_add(1),
            ..self
        }
    }
}

/// What is mapped, and by which address the resource manager knows the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    client: Handle,
    /// The device or subdevice that was named.
    device: Handle,
    memory: Handle,
    offset: u64,
    bytes: u64,
    address: u64,
}

impl Piece {
    /// Returns the key of mapping `number` of its file.
    pub const fn key(&self, number: u64) -> Key {
        Key::new(self.client, self.memory, number)
    }
}

/// What an ioctl does to mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Prepares one. Its address is known afterwards.
    Map(Piece),
    /// Ends one of a memory object.
    Unmap {
        /// The client and the memory object.
        of: [Handle; 2],
        /// The address by which it is known.
        address: u64,
    },
    /// Has one be known by another address.
    Rename {
        /// The client and the memory object.
        of: [Handle; 2],
        /// Its address.
        from: u64,
        /// Its next address.
        to: u64,
    },
    /// Frees an object and its descendants.
    Free {
        /// The client and the object.
        object: [Handle; 2],
    },
}

impl Call {
    /// Reads an ioctl, and the status that the resource manager has written. Returns `None` for one
    /// that changes no mapping.
    pub fn decode(escape: u32, bytes: &[u8]) -> Option<(Self, Status)> {
        let handles = |client, object| Some([u32_at(bytes, client)?, u32_at(bytes, object)?]);
        match (escape, bytes.len()) {
            (nv::NV_ESC_RM_MAP_MEMORY, map::SIZE) => {
                let piece = Piece {
                    client: u32_at(bytes, map::CLIENT)?,
                    device: u32_at(bytes, map::DEVICE)?,
                    memory: u32_at(bytes, map::MEMORY)?,
                    offset: u64_at(bytes, map::OFFSET)?,
                    bytes: u64_at(bytes, map::LENGTH)?,
                    address: u64_at(bytes, map::ADDRESS)?,
                };
                Some((Self::Map(piece), u32_at(bytes, map::STATUS)?))
            }
            (nv::NV_ESC_RM_UNMAP_MEMORY, unmap::SIZE) => {
                let of = handles(unmap::CLIENT, unmap::MEMORY)?;
                let address = u64_at(bytes, unmap::ADDRESS)?;
                Some((Self::Unmap { of, address }, u32_at(bytes, unmap::STATUS)?))
            }
            (nv::NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO, update::SIZE) => {
                let of = handles(update::CLIENT, update::MEMORY)?;
                let (from, to) = (u64_at(bytes, update::FROM)?, u64_at(bytes, update::TO)?);
                Some((
                    Self::Rename { of, from, to },
                    u32_at(bytes, update::STATUS)?,
                ))
            }
            _ => {
                let call = rmapi::decode(escape, bytes).ok().flatten()?;
                let object = [call.client, call.object];
                matches!(call.action, Action::Free).then_some((Self::Free { object }, call.status))
            }
        }
    }
}

/// A mapping that the resource manager has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuMap {
    piece: Piece,
    /// Whether its process was governed then.
    is_governed: bool,
    /// Whether it goes with its memory, and with what that is below, alone.
    is_leaf: bool,
    is_held: bool,
    /// Whether the resource manager has known it by another address.
    is_renamed: bool,
    /// Whether the resource manager may know it by any address.
    is_unknown: bool,
    /// Whether its device file is closed.
    is_closed: bool,
    /// Mappings that are alike in the resource manager.
    count: usize,
}

impl CpuMap {
    /// Returns a mapping that is about to be prepared.
    pub const fn new(piece: Piece, is_governed: bool) -> Self {
        Self {
            piece: Piece {
                address: 0,
                ..piece
            },
            is_governed,
            is_leaf: false,
            is_held: false,
            is_renamed: false,
            is_unknown: false,
            is_closed: false,
            count: 1,
        }
    }

    /// Takes note that its device file is closed.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Returns whether an unmapping of an address may end it.
    fn may_have(&self, address: u64) -> bool {
        self.is_unknown || self.piece.address == address
    }

    /// Returns whether the resource manager may end one of two for the other.
    fn is_alike(&self, other: &Self) -> bool {
        let both = [self, other];
        let is_exact = both.iter().all(|map| map.is_governed && !map.is_renamed);
        is_exact && self.piece == other.piece
    }
}

/// What becomes of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Nothing.
    Leave,
    /// It is held.
    Hold,
    /// It is held no more.
    Show,
    /// It is over, and is forgotten.
    End,
    /// It is forgotten.
    Forget,
}

/// The mappings of a file, in the order of their keys.
pub trait Maps {
    /// Calls `each` with those between two keys, in their order, and does what it returns. Tells
    /// each before whether its device file is closed ([`CpuMap::close`]).
    fn walk(&mut self, between: [Key; 2], each: &mut dyn FnMut(Key, &mut CpuMap) -> Deed);
}

/// Asks the resource manager for the class of a client's object.
pub type Ask<'a> = &'a mut dyn FnMut([Handle; 2]) -> Result<u32, Status>;

/// The keys between which mappings are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held([Key; 2]);

/// Returns whether a memory object has room for one more mapping.
pub fn has_room(maps: &mut dyn Maps, piece: &Piece) -> bool {
    let mut count = 0_usize;
    maps.walk(Key::of_memory(piece.client, piece.memory), &mut |_, _| {
        count = count.saturating_add(1);
        Deed::Leave
    });
    count < OF_MEMORY_MAX
}

/// Holds what an ioctl may end, before the resource manager runs it. Mappings that are not a
/// member's are held if the caller `is_governed`. Returns what is held, if anything is.
pub fn enter(maps: &mut dyn Maps, call: &Call, is_governed: bool, ask: Ask<'_>) -> Option<Held> {
    match call {
        Call::Free { object } => {
            let goes = Goes::with(*object, ask);
            let [client, handle] = *object;
            let between = match goes {
                Goes::Itself => Key::of_memory(client, handle),
                Goes::Others | Goes::All => Key::of_client(client),
            };
            hold(maps, between, is_governed, |map| {
                let goes_too = match goes {
                    Goes::Itself => false,
                    Goes::Others => !map.is_leaf,
                    Goes::All => true,
                };
                goes_too || map.piece.memory == handle
            })
        }
        Call::Unmap {
            of: [client, memory],
            address,
        } => {
            let between = Key::of_memory(*client, *memory);
            if shared(maps, between, *address).is_some() {
                return None;
            }
            let mut is_found = false;
            each(maps, between, |map| {
                is_found |= map.piece.address == *address && !map.is_unknown;
            });
            hold(maps, between, is_governed, |map| {
                !is_found || map.may_have(*address)
            })
        }
        Call::Map(_) | Call::Rename { .. } => None,
    }
}

/// Takes note of what an ioctl did to mappings that were there before. `held` is what [`enter`] has
/// returned for it.
pub fn leave(
    maps: &mut dyn Maps,
    call: &Call,
    has_succeeded: bool,
    held: Option<Held>,
    ask: Ask<'_>,
) {
    match (call, held) {
        (Call::Free { .. }, Some(held)) => settle(maps, held, false, ask),
        (Call::Unmap { .. }, Some(held)) => settle(maps, held, has_succeeded, ask),
        (Call::Unmap { of, address }, None) if has_succeeded => unmapped(maps, *of, *address),
        (Call::Rename { of, from, to }, _) if has_succeeded => renamed(maps, *of, [*from, *to]),
        _ => {}
    }
}

/// Takes note of a mapping that the resource manager has prepared, and of its address.
pub fn made(maps: &mut dyn Maps, key: Key, piece: Piece, ask: Ask<'_>) {
    let class = ask([piece.client, piece.memory]).map(Class::from_number);
    let mut new = None;
    maps.walk([key, key], &mut |_, map| {
        map.piece = piece;
        map.is_leaf = matches!(class, Ok(Class::DeviceMemory | Class::Usermode));
        new = Some(*map);
        Deed::Leave
    });
    let Some(mut new) = new else { return };
    let between = Key::of_memory(piece.client, piece.memory);
    maps.walk(between, &mut |at, map| {
        if at != key && map.is_alike(&new) {
            new.count = map.count.saturating_add(1);
        }
        Deed::Leave
    });
    count(maps, between, &new);
    forget(maps, between, &new);
}

/// Forgets mappings that are like one and whose files are closed, if more are known than there are.
fn forget(maps: &mut dyn Maps, between: [Key; 2], like: &CpuMap) {
    let mut known = 0_usize;
    each(maps, between, |map| {
        known = known.saturating_add(usize::from(map.is_alike(like)));
    });
    let mut extra = known.saturating_sub(like.count);
    maps.walk(
        between,
        &mut |_, map| match extra > 0 && map.is_closed && map.is_alike(like) {
            true => {
                extra = extra.saturating_sub(1);
                Deed::Forget
            }
            false => Deed::Leave,
        },
    );
}

/// Ends all mappings when their file is closed. Those that are not a member's are forgotten, unless
/// the file's process `is_governed`.
pub fn close(maps: &mut dyn Maps, is_governed: bool) {
    maps.walk(
        Key::ALL,
        &mut |_, map| match is_governed || map.is_governed {
            true => Deed::End,
            false => Deed::Forget,
        },
    );
}

/// Which mappings may go with an object that is freed.
enum Goes {
    /// Those of the object: nothing is below it, or there is no such object.
    Itself,
    /// Those of memory that may be anywhere below the object, too.
    Others,
    /// All of the client's.
    All,
}

impl Goes {
    fn with([client, object]: [Handle; 2], ask: Ask<'_>) -> Self {
        if object == client {
            return Self::All;
        }
        match ask([client, object]).map(Class::from_number) {
            Ok(Class::DeviceMemory | Class::Usermode | Class::OtherMemory) => Self::Itself,
            Ok(Class::Client | Class::Device | Class::Subdevice) => Self::All,
            Ok(_) => Self::Others,
            Err(status) if control::is_gone(status) => Self::Itself,
            Err(_) => Self::All,
        }
    }
}

fn each(maps: &mut dyn Maps, between: [Key; 2], mut look: impl FnMut(&CpuMap)) {
    maps.walk(between, &mut |_, map| {
        look(map);
        Deed::Leave
    });
}

/// Holds those of some mappings that may go.
fn hold(
    maps: &mut dyn Maps,
    between: [Key; 2],
    is_governed: bool,
    goes: impl Fn(&CpuMap) -> bool,
) -> Option<Held> {
    let mut held = None;
    maps.walk(between, &mut |_, map| {
        if !goes(map) || !(is_governed || map.is_governed) {
            return Deed::Leave;
        }
        map.is_held = true;
        held = Some(Held(between));
        Deed::Hold
    });
    held
}

/// Ends what was held and has gone, and shows the rest.
fn settle(maps: &mut dyn Maps, held: Held, is_unmapped: bool, ask: Ask<'_>) {
    // The answers for the last mapping: those of one memory object follow each other.
    let (mut device, mut memory) = (None, None);
    let mut is_gone = |last: &mut Option<([Handle; 2], bool)>, object| match *last {
        Some((known, is_gone)) if known == object => is_gone,
        _ => last.insert((object, ask(object).is_err())).1,
    };
    maps.walk(held.0, &mut |_, map| {
        if !core::mem::take(&mut map.is_held) {
            return Deed::Leave;
        }
        let of = map.piece.client;
        let goes = is_unmapped
            || is_gone(&mut device, [of, map.piece.device])
            || is_gone(&mut memory, [of, map.piece.memory]);
        match goes {
            true => Deed::End,
            false => Deed::Show,
        }
    });
}

/// Returns a mapping that an unmapping may end, if all of these are alike and one of them stays:
/// newer drivers give mappings of the same memory the same addresses.
fn shared(maps: &mut dyn Maps, between: [Key; 2], address: u64) -> Option<CpuMap> {
    let (mut first, mut are_alike) = (None, true);
    each(maps, between, |map| {
        if map.may_have(address) {
            are_alike &= map.is_alike(first.get_or_insert(*map));
        }
    });
    first.filter(|first| are_alike && first.count > 1)
}

/// Has all mappings that are like one have its count.
fn count(maps: &mut dyn Maps, between: [Key; 2], like: &CpuMap) {
    maps.walk(between, &mut |_, map| {
        if map.is_alike(like) {
            map.count = like.count;
        }
        Deed::Leave
    });
}

/// Takes note of an unmapping after which a mapping that is alike stays, if it was one.
fn unmapped(maps: &mut dyn Maps, [client, memory]: [Handle; 2], address: u64) {
    let between = Key::of_memory(client, memory);
    if let Some(mut like) = shared(maps, between, address) {
        like.count = like.count.saturating_sub(1);
        count(maps, between, &like);
        forget(maps, between, &like);
    }
}

/// Takes note of another address by which the resource manager knows a mapping.
fn renamed(maps: &mut dyn Maps, [client, memory]: [Handle; 2], [from, to]: [u64; 2]) {
    let between = Key::of_memory(client, memory);
    let (mut all, mut is_exact) = (0_usize, true);
    each(maps, between, |map| {
        if map.may_have(from) {
            all = all.saturating_add(map.count);
            is_exact &= !map.is_unknown;
        }
    });
    let is_only = all == 1 && is_exact;
    maps.walk(between, &mut |_, map| {
        match is_only {
            true if map.may_have(from) => {
                map.piece.address = to;
                map.is_renamed = true;
            }
            true => {}
            // The resource manager has chosen one.
            false => (map.is_renamed, map.is_unknown) = (true, true),
        }
        Deed::Leave
    });
}

#[cfg(test)]
mod tests;
