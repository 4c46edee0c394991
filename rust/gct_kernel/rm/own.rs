// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Clients of the driver's own: what they allocate, and what they take of tenants.
//!
//! A tenant chooses the names that it passes, and the calls run with the kernel's rights. So each
//! call says what it accepts:
//!
//! | call | acts on | accepts |
//! |---|---|---|
//! | [`Own::open`] | nothing | a client that shares nothing, made by a kernel thread |
//! | [`Own::alloc`] | the own client | the classes that its callers name |
//! | [`Own::take`] | an object of a tenant | the classes of a [`Kind`], asked of the own name |
//! | [`Own::map`], [`Own::map_gpu`] | own names alone | what was allocated or taken |
//! | [`Own::lend`] | the driver's USERD, into a tenant's client | see [`Lent`](crate::owned) |

use crate::bindings;
use core::ptr::NonNull;
use gct_core::owned::kit::Params;
use gct_core::owned::names::{self, Kind};
use gct_core::rmapi::control::{Control, Status};
use gct_core::rmapi::{nv, Handle};
use kernel::ffi::c_void;
use kernel::sync::atomic::{Atomic, Relaxed};

/// The error of a refusal, by the resource manager or by a bound.
pub(crate) struct Refused;

impl From<kernel::alloc::AllocError> for Refused {
    fn from(_: kernel::alloc::AllocError) -> Self {
        Self
    }
}

fn done(status: Status) -> Result<(), Refused> {
    match status {
        0 => Ok(()),
        _ => Err(Refused),
    }
}

/// A client, which is freed when this is dropped, with all that it has.
struct Root(Handle);

impl Root {
    /// Allocates a client that shares nothing with anybody.
    fn open() -> Result<Self, Refused> {
        let mut params = Params::client();
        // SAFETY: `params` is writable and has the 256 bytes that the helper asks for. The kernel
        // thread that writes to it has ended when the helper returns.
        done(unsafe { bindings::gct_helper_rm_root(params.0.as_mut_ptr().cast()) })?;
        let root = Self(params.handle());
        super::send(&mut Control::share_nothing(root.0)).map_err(|_| Refused)?;
        Ok(root)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = super::free(self.0, self.0);
    }
}

/// A client with a device and a subdevice. It does not keep its GPU initialised.
pub(crate) struct Own {
    root: Root,
    device: Handle,
    subdevice: Handle,
    /// What its names are made of.
    key: u64,
    /// Number of the next name.
    numbers: Atomic<u32>,
}

impl Own {
    /// Opens a client on a GPU that is initialised. The caller is as for [`send`](super::send).
    pub(crate) fn open(gpu: u32) -> Result<Self, Refused> {
        let root = Root::open()?;
        let mut instance = Control::instance_of_gpu(root.0, gpu);
        super::send(&mut instance).map_err(|_| Refused)?;
        // SAFETY: has no preconditions.
        let key = unsafe { bindings::gct_helper_random() };
        let own = Self {
            device: names::name(key, 0),
            subdevice: names::name(key, 1),
            root,
            key,
            numbers: Atomic::new(2),
        };
        let device = Params::device(instance.instance());
        own.alloc([own.root.0, own.device], nv::NV01_DEVICE_0, device)?;
        let below = [own.device, own.subdevice];
        own.alloc(below, nv::NV20_SUBDEVICE_0, Params::subdevice())?;
        Ok(own)
    }

    pub(crate) fn client(&self) -> Handle {
        self.root.0
    }

    pub(crate) fn device(&self) -> Handle {
        self.device
    }

    pub(crate) fn subdevice(&self) -> Handle {
        self.subdevice
    }

    /// Returns a name that no object has. The resource manager refuses one that an object has after
    /// all, because 2^30 others were given since.
    pub(crate) fn new_name(&self) -> Handle {
        names::name(self.key, self.numbers.fetch_add(1, Relaxed))
    }

    /// Allocates an object below another.
    pub(crate) fn alloc(
        &self,
        [parent, name]: [Handle; 2],
        class: u32,
        mut params: Params,
    ) -> Result<(), Refused> {
        let params = params.0.as_mut_ptr().cast();
        // SAFETY: `params` is writable and has the 256 bytes that the helper asks for. The client
        // is the driver's.
        done(unsafe { bindings::gct_helper_rm_alloc(self.root.0, parent, name, class, params) })
    }

    /// Frees the object with a name, if there is one.
    pub(crate) fn free(&self, name: Handle) {
        let _ = super::free(self.root.0, name);
    }

    /// Takes a name for an object of a tenant, if it is of the kind. The tenant may have given its
    /// handle to another object before, but not to the own name: so that one's class is asked.
    /// Returns the class.
    pub(crate) fn take(
        &self,
        name: Handle,
        kind: Kind,
        tenant: [Handle; 2],
    ) -> Result<u32, Refused> {
        dup([self.root.0, self.device, name], tenant)?;
        match super::class_of(self.root.0, name) {
            Ok(class) if kind.accepts(class) => Ok(class),
            _ => {
                self.free(name);
                Err(Refused)
            }
        }
    }

    /// Duplicates an object into a tenant's client, below its device. Whoever calls this answers
    /// for what the tenant may do with it.
    pub(crate) fn lend(&self, name: Handle, to: [Handle; 3]) -> Result<(), Refused> {
        dup(to, [self.root.0, name])
    }

    /// Maps a part of an object for the kernel, until the object is freed. `parent` is the device
    /// or the subdevice above it. The resource manager checks the bounds, and not whether a tenant
    /// may write to the memory.
    pub(crate) fn map(
        &self,
        [parent, name]: [Handle; 2],
        offset: u64,
        bytes: u64,
        writes: bool,
    ) -> Result<NonNull<c_void>, Refused> {
        // SAFETY: the names are the driver's own, and what has them is memory or the doorbell:
        // `alloc` and `take` accept nothing else that can be mapped.
        let base = unsafe {
            bindings::gct_helper_rm_map(self.root.0, parent, name, offset, bytes, writes)
        };
        NonNull::new(base).ok_or(Refused)
    }

    /// Maps memory for the GPU. Returns its address.
    pub(crate) fn map_gpu(
        &self,
        [range, memory]: [Handle; 2],
        bytes: u64,
        access: u32,
    ) -> Result<u64, Refused> {
        let mut address = 0;
        // SAFETY: `address` is writable; the names are the driver's own.
        let status = unsafe {
            bindings::gct_helper_rm_map_gpu(
                self.root.0,
                self.device,
                range,
                memory,
                bytes,
                access,
                &mut address,
            )
        };
        done(status).map(|()| address)
    }
}

fn dup(
    [client, parent, name]: [Handle; 3],
    [source_client, source]: [Handle; 2],
) -> Result<(), Refused> {
    // SAFETY: takes any numbers: the resource manager looks them up. One of the clients is the
    // driver's.
    done(unsafe { bindings::gct_helper_rm_dup(client, parent, name, source_client, source) })
}
