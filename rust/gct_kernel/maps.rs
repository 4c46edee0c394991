// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps which mappings of the GPU's memory were prepared by a file, and has C unmap those that the
//! core says end ([`cpu_maps`], `gct_map.c`).

use crate::bindings::{self, gct_call, gct_map};
use crate::rm;
use core::ptr::{self, NonNull};
use gct_core::owned::cpu_maps::{self, Call, CpuMap, Deed, Held, Key, Piece};
use gct_core::rmapi::control::Status;
use gct_core::rmapi::Handle;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::{new_mutex, Arc, Mutex};

/// The mappings that were prepared by one file.
#[pin_data]
pub(crate) struct Maps {
    #[pin]
    inner: Mutex<Inner>,
}

struct Inner {
    all: Order,
    /// Number of the last mapping.
    number: u64,
    /// What the ioctl in progress has begun. The driver runs a file's ioctls one after another.
    begun: Option<Begun>,
}

/// What an ioctl has begun.
enum Begun {
    Map(Key, File),
    Hold(Held),
}

struct Order(RBTree<Key, Entry>);

struct Entry {
    map: CpuMap,
    file: File,
}

/// A device file, as far as it maps memory.
struct File(NonNull<gct_map>);

// SAFETY: C counts the references, and has a lock for what more than one thread changes.
unsafe impl Send for File {}

impl File {
    fn new(is_governed: bool) -> Option<Self> {
        // SAFETY: may sleep.
        NonNull::new(unsafe { bindings::gct_helper_map_new(is_governed) }).map(Self)
    }

    /// Returns whether the resource manager has found it by a descriptor.
    fn is_found(&self) -> bool {
        // SAFETY: it lives as long as `self`.
        unsafe { bindings::gct_helper_map_is_found(self.0.as_ptr()) }
    }

    fn is_closed(&self) -> bool {
        // SAFETY: as above.
        unsafe { bindings::gct_helper_map_is_closed(self.0.as_ptr()) }
    }

    /// Does to it what the core says. May sleep.
    fn act(&self, deed: Deed) {
        let state = match deed {
            Deed::Leave | Deed::Forget => return,
            Deed::Hold => bindings::GCT_MAP_HELD,
            Deed::Show => bindings::GCT_MAP_LIVE,
            Deed::End => bindings::GCT_MAP_OVER,
        };
        // SAFETY: as above. Whoever has an entry has the lock of its maps: nobody else changes it.
        unsafe { bindings::gct_helper_map_change(self.0.as_ptr(), state) }
    }
}

impl Clone for File {
    fn clone(&self) -> Self {
        // SAFETY: as above.
        unsafe { bindings::gct_helper_map_get(self.0.as_ptr()) };
        Self(self.0)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: made by `new` or `clone`, and put once. The device file has its own reference.
        unsafe { bindings::gct_helper_map_put(self.0.as_ptr()) }
    }
}

impl cpu_maps::Maps for Order {
    fn walk(&mut self, [first, last]: [Key; 2], each: &mut dyn FnMut(Key, &mut CpuMap) -> Deed) {
        let mut from = first;
        while let Some(mut cursor) = self.0.cursor_lower_bound_mut(&from) {
            let (key, entry) = cursor.current_mut();
            let key = *key;
            if key > last {
                break;
            }
            if entry.file.is_closed() {
                entry.map.close();
            }
            let deed = each(key, &mut entry.map);
            entry.file.act(deed);
            if matches!(deed, Deed::End | Deed::Forget) {
                self.0.remove(&key);
            }
            from = key.next();
        }
    }
}

/// Asks the resource manager for the class of a client's object.
fn class_of([client, object]: [Handle; 2]) -> Result<u32, Status> {
    rm::class_of(client, object)
}

impl Maps {
    pub(crate) fn new() -> Option<Arc<Self>> {
        let maps = pin_init!(Self {
            inner <- new_mutex!(Inner {
                all: Order(RBTree::new()),
                number: 0,
                begun: None,
            }, "gct::maps"),
        });
        Arc::pin_init(maps, GFP_KERNEL_ACCOUNT).ok()
    }

    /// Begins a mapping: has the device file that the resource manager finds be its file. Returns
    /// false if it cannot be followed.
    pub(crate) fn begin(&self, piece: Piece, is_governed: bool, room: &mut gct_call) -> bool {
        let Some(number) = self.number(&piece) else {
            return false;
        };
        let key = piece.key(number);
        let Some(file) = File::new(is_governed) else {
            return false;
        };
        let entry = Entry {
            map: CpuMap::new(piece, is_governed),
            file: file.clone(),
        };
        let Ok(node) = RBTreeNode::new(key, entry, GFP_KERNEL_ACCOUNT) else {
            return false;
        };
        // SAFETY: by gct.h, `room` belongs to this ioctl and does not move. The file is kept in
        // `begun` until `leave` takes it back, in the same task.
        if unsafe { bindings::gct_serve_offer(room, file.0.as_ptr()) } {
            let mut inner = self.inner.lock();
            inner.all.0.insert(node);
            inner.begun = Some(Begun::Map(key, file));
        }
        true
    }

    /// Returns the number of a new mapping, if there is room for it.
    fn number(&self, piece: &Piece) -> Option<u64> {
        let mut inner = self.inner.lock();
        inner.number = inner.number.saturating_add(1);
        cpu_maps::has_room(&mut inner.all, piece).then_some(inner.number)
    }

    /// Unmaps what an ioctl may end.
    pub(crate) fn enter(&self, call: &Call, is_governed: impl FnOnce() -> bool) {
        let mut inner = self.inner.lock();
        if !inner.all.0.is_empty() {
            let held = cpu_maps::enter(&mut inner.all, call, is_governed(), &mut class_of);
            inner.begun = held.map(Begun::Hold);
        }
    }

    /// Follows what an ioctl did.
    pub(crate) fn leave(&self, call: &Call, has_succeeded: bool, room: &mut gct_call) {
        let mut inner = self.inner.lock();
        let held = match inner.begun.take() {
            Some(Begun::Map(key, file)) => {
                // SAFETY: as in `begin`.
                unsafe { bindings::gct_serve_offer(room, ptr::null_mut()) };
                match call {
                    Call::Map(piece) if has_succeeded && file.is_found() => {
                        cpu_maps::made(&mut inner.all, key, *piece, &mut class_of);
                    }
                    _ => drop(inner.all.0.remove(&key)),
                }
                return;
            }
            Some(Begun::Hold(held)) => Some(held),
            None => None,
        };
        cpu_maps::leave(&mut inner.all, call, has_succeeded, held, &mut class_of);
    }

    /// Ends all, or forgets them.
    pub(crate) fn close(&self, is_governed: bool) {
        cpu_maps::close(&mut self.inner.lock().all, is_governed);
    }
}
