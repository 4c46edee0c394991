// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocates the parts of owned channels in a client of the driver's own, one on each GPU.

use crate::bindings;
use crate::rm;
use core::ptr::NonNull;
use gct_core::owned::kit::{self, Params, Part};
use gct_core::owned::maps::{Place, Window};
use gct_core::owned::{self, Mailbox};
use gct_core::rmapi::control::{Control, Status};
use gct_core::rmapi::{nv, Handle};
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;

/// A client of the resource manager, with a device, a subdevice and a doorbell. It keeps its GPU
/// initialised.
pub(super) struct Client {
    gpu: u32,
    handle: Handle,
    doorbell: View,
    /// Number of the next channel's names.
    channels: Atomic<u32>,
    /// Number of the next window's name.
    windows: Atomic<u32>,
}

/// The error of a refusal, by the resource manager or by a bound.
pub(super) struct Refused;

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

/// Keeps a GPU initialised.
struct Held(u32);

impl Held {
    fn new(gpu: u32) -> Result<Self, Refused> {
        // SAFETY: takes any number; sleeps, which hooks around an ioctl may.
        match unsafe { bindings::gct_helper_gpu_hold(gpu) } {
            0 => Ok(Self(gpu)),
            _ => Err(Refused),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: held since `new`.
        unsafe { bindings::gct_helper_gpu_release(self.0) };
    }
}

/// Allocates an object of a client. Returns the parameters, to which the resource manager may have
/// written.
fn alloc(
    client: Handle,
    [parent, object]: [Handle; 2],
    class: u32,
    mut params: Params,
) -> Result<Params, Refused> {
    // SAFETY: `params` is writable and has the 256 bytes that the helper asks for.
    let status = unsafe {
        let params = params.0.as_mut_ptr().cast();
        bindings::gct_helper_client_alloc(client, parent, object, class, params)
    };
    done(status).map(|()| params)
}

/// Frees the object of a client that has a handle, if there is one.
pub(super) fn free(client: Handle, object: Handle) {
    // SAFETY: takes any numbers: the resource manager looks them up.
    let _ = unsafe { bindings::gct_helper_client_free(client, object) };
}

/// A client, which is freed when this is dropped.
struct Root(Handle);

impl Drop for Root {
    fn drop(&mut self) {
        free(self.0, self.0);
    }
}

impl Client {
    /// Opens a client on a GPU. The caller may call the resource manager.
    pub(super) fn open(gpu: u32) -> Result<Self, Refused> {
        let held = Held::new(gpu)?;
        let root = Root(alloc(0, [0, 0], nv::NV01_ROOT, Params::client())?.handle());
        let mut instance = Control::instance_of_gpu(root.0, gpu);
        rm::send(&mut instance).map_err(|_| Refused)?;
        let device = Params::device(instance.instance());
        alloc(root.0, [root.0, kit::DEVICE], nv::NV01_DEVICE_0, device)?;
        let below = [kit::DEVICE, kit::SUBDEVICE];
        alloc(root.0, below, nv::NV20_SUBDEVICE_0, Params::subdevice())?;
        let below = [kit::SUBDEVICE, kit::DOORBELL];
        alloc(root.0, below, nv::HOPPER_USERMODE_A, Params::doorbell())?;
        let doorbell = View::new(root.0, [kit::SUBDEVICE, kit::DOORBELL], 0, DOORBELL_BYTES)?;
        let (handle, gpu) = (root.0, held.0);
        // `Client` frees both when it is dropped.
        core::mem::forget((root, held));
        Ok(Self {
            gpu,
            handle,
            doorbell,
            channels: Atomic::new(0),
            windows: Atomic::new(0),
        })
    }

    /// Returns the resource manager's number of its GPU.
    pub(super) fn id(&self) -> u32 {
        self.gpu
    }

    /// Publishes GP_PUT in a channel's USERD and rings the doorbell.
    pub(super) fn ring(&self, userd: &View, put: u32, token: u32) {
        let at = [
            userd.at(owned::GP_PUT, 4),
            self.doorbell.at(owned::DOORBELL, 4),
        ];
        if let [Some(put_at), Some(doorbell)] = at {
            // SAFETY: `View::at` has checked both; their mappings live as long as the views.
            unsafe { bindings::gct_helper_ring(put_at.as_ptr(), put, doorbell.as_ptr(), token) };
        }
    }
}

/// Bytes of the doorbell's mapping.
const DOORBELL_BYTES: u64 = 0x1_0000;

impl Drop for Client {
    fn drop(&mut self) {
        drop(Root(self.handle));
        drop(Held(self.gpu));
    }
}

/// Memory that the resource manager has mapped for the kernel. Its owner keeps the memory object.
pub(super) struct View {
    base: NonNull<c_void>,
    bytes: u64,
}

// SAFETY: the mapping is the kernel's and not a process's; each access is one load or store of
// memory that others change at any time, by C helpers.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    fn new(
        client: Handle,
        [device, memory]: [Handle; 2],
        offset: u64,
        bytes: u64,
    ) -> Result<Self, Refused> {
        // SAFETY: takes any numbers: the resource manager looks them up and checks the bounds.
        let base =
            unsafe { bindings::gct_helper_client_map(client, device, memory, offset, bytes) };
        let base = NonNull::new(base).ok_or(Refused)?;
        Ok(Self { base, bytes })
    }

    /// Returns the address of `bytes` at an offset, if they lie inside and are aligned.
    fn at(&self, offset: u32, bytes: u32) -> Option<NonNull<c_void>> {
        self.run(offset, u64::from(bytes), bytes)
    }

    /// Returns the address of `bytes` at an offset, if they lie inside and begin at a multiple of
    /// `align`.
    fn run(&self, offset: u32, bytes: u64, align: u32) -> Option<NonNull<c_void>> {
        let end = u64::from(offset).checked_add(bytes)?;
        (end <= self.bytes && offset.checked_rem(align)? == 0).then_some(())?;
        let offset = usize::try_from(offset).ok()?;
        // SAFETY: inside of the mapping, as was just checked.
        Some(unsafe { self.base.byte_add(offset) })
    }

    pub(super) fn read32(&self, offset: u32) -> Option<u32> {
        let at = self.at(offset, 4)?;
        // SAFETY: `at` has checked it.
        Some(unsafe { bindings::gct_helper_read32(at.as_ptr()) })
    }

    pub(super) fn write32(&self, offset: u32, value: u32) {
        if let Some(at) = self.at(offset, 4) {
            // SAFETY: `at` has checked it.
            unsafe { bindings::gct_helper_write32(at.as_ptr(), value) };
        }
    }

    /// Copies words from an offset on, each read once. Returns false where they do not lie inside.
    pub(super) fn read_words(&self, offset: u32, to: &mut [u32]) -> bool {
        let count = u32::try_from(to.len()).unwrap_or(u32::MAX);
        let Some(from) = self.run(offset, 4 * u64::from(count), 4) else {
            return false;
        };
        // SAFETY: `run` has checked the source; `to` has `count` words.
        unsafe { bindings::gct_helper_read_words(to.as_mut_ptr(), from.as_ptr(), count) };
        true
    }

    /// Stores words from an offset on. Returns false where they do not lie inside.
    pub(super) fn write_words(&self, offset: u32, from: &[u32]) -> bool {
        let count = u32::try_from(from.len()).unwrap_or(u32::MAX);
        let Some(to) = self.run(offset, 4 * u64::from(count), 4) else {
            return false;
        };
        // SAFETY: `run` has checked the destination; `from` has `count` words.
        unsafe { bindings::gct_helper_write_words(to.as_ptr(), from.as_ptr(), count) };
        true
    }

    pub(super) fn read64(&self, offset: u32) -> Option<u64> {
        let at = self.at(offset, 8)?;
        // SAFETY: `at` has checked it.
        Some(unsafe { bindings::gct_helper_read64(at.as_ptr()) })
    }

    pub(super) fn write64(&self, offset: u32, value: u64) {
        if let Some(at) = self.at(offset, 8) {
            // SAFETY: `at` has checked it.
            unsafe { bindings::gct_helper_write64(at.as_ptr(), value) };
        }
    }
}

/// The handles of one channel's objects. Dropping this frees the objects.
struct Names {
    client: Arc<Client>,
    channel: u32,
}

impl Names {
    fn of(&self, part: Part) -> Handle {
        part.of(self.channel)
    }

    fn alloc(&self, part: Part, class: u32, params: Params) -> Result<(), Refused> {
        let below = [kit::DEVICE, self.of(part)];
        alloc(self.client.handle, below, class, params).map(|_| ())
    }

    fn dup(&self, part: Part, tenant: Handle, object: Handle) -> Result<(), Refused> {
        dup(
            [self.client.handle, kit::DEVICE, self.of(part)],
            [tenant, object],
        )
    }

    fn map(&self, part: Part, offset: u64, bytes: u64) -> Result<View, Refused> {
        let names = [kit::DEVICE, self.of(part)];
        View::new(self.client.handle, names, offset, bytes)
    }

    /// Maps a part of a tenant's memory object.
    fn map_of_tenant(
        &self,
        part: Part,
        tenant: Handle,
        place: Place,
        bytes: u64,
    ) -> Result<View, Refused> {
        self.dup(part, tenant, place.memory)?;
        map_place(self.client.handle, self.of(part), place.offset, bytes)
    }
}

/// Maps `bytes` at any offset of a memory object of the driver's client.
fn map_place(client: Handle, memory: Handle, offset: u64, bytes: u64) -> Result<View, Refused> {
    let (page, skipped) = (offset & !(kit::PAGE - 1), offset % kit::PAGE);
    let mapped = bytes.checked_add(skipped).ok_or(Refused)?;
    let mut view = View::new(client, [kit::DEVICE, memory], page, mapped)?;
    let skipped = usize::try_from(skipped).map_err(|_| Refused)?;
    // SAFETY: `skipped` bytes were mapped in front of the view's.
    view.base = unsafe { view.base.byte_add(skipped) };
    view.bytes = bytes;
    Ok(view)
}

/// A part of a tenant's memory that is mapped for the kernel.
pub(super) struct Shown {
    pub(super) view: View,
    client: Arc<Client>,
    name: Handle,
}

impl Shown {
    /// Maps a window into a tenant's memory.
    pub(super) fn new(client: Arc<Client>, window: &Window) -> Result<Self, Refused> {
        let name = kit::window(client.windows.fetch_add(1, Relaxed));
        let memory = [window.client(), window.place.memory];
        dup([client.handle, kit::DEVICE, name], memory)?;
        let view = map_place(client.handle, name, window.place.offset, window.bytes);
        match view {
            Ok(view) => Ok(Self { view, client, name }),
            Err(refused) => {
                free(client.handle, name);
                Err(refused)
            }
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        free(self.client.handle, self.name);
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        for part in Part::ALL {
            free(self.client.handle, self.of(part));
        }
    }
}

/// Duplicates an object of `source_client` as `name` of `client`.
fn dup(
    [client, parent, name]: [Handle; 3],
    [source_client, source]: [Handle; 2],
) -> Result<(), Refused> {
    // SAFETY: takes any numbers: the resource manager looks them up.
    done(unsafe { bindings::gct_helper_client_dup(client, parent, name, source_client, source) })
}

/// The parts of an owned channel, and its tenant's mailbox.
pub(super) struct Kit {
    // Fields are dropped in this order: views before the names, which keep their memory.
    /// The ring, and the copies behind it.
    pub(super) ring: View,
    pub(super) progress: View,
    pub(super) userd: View,
    pub(super) tenant_ring: View,
    pub(super) tenant_userd: View,
    /// GPU virtual addresses of the ring and of the progress word.
    pub(super) ring_address: u64,
    pub(super) progress_address: u64,
    names: Names,
}

impl Kit {
    /// Allocates a ring and USERD for a channel in a tenant's address space, and maps its mailbox.
    pub(super) fn new(
        client: Arc<Client>,
        tenant: Handle,
        space: Handle,
        mailbox: &Mailbox,
    ) -> Result<Self, Refused> {
        let channel = client.channels.fetch_add(1, Relaxed);
        let names = Names { client, channel };
        let owner = names.client.handle;
        let memory = Params::host_memory(owner, kit::RING_BYTES);
        names.alloc(Part::Ring, nv::NV01_MEMORY_SYSTEM, memory)?;
        let memory = Params::host_memory(owner, kit::PAGE);
        names.alloc(Part::Progress, nv::NV01_MEMORY_SYSTEM, memory)?;
        let memory = Params::device_memory(owner, kit::PAGE);
        names.alloc(Part::Userd, nv::NV01_MEMORY_LOCAL_USER, memory)?;
        let ring = names.map(Part::Ring, 0, kit::RING_BYTES)?;
        let progress = names.map(Part::Progress, 0, kit::PAGE)?;
        progress.write32(0, 0);
        let userd = names.map(Part::Userd, 0, kit::PAGE)?;
        for at in (0..).step_by(4).take(owned::USERD_WORDS) {
            userd.write32(at, 0);
        }
        names.dup(Part::Space, tenant, space)?;
        let range = Params::range(names.of(Part::Space));
        names.alloc(Part::Range, nv::NV01_MEMORY_VIRTUAL, range)?;
        let map = |part, bytes, access| {
            let memory = [names.of(Part::Range), names.of(part)];
            map_gpu(owner, memory, bytes, access)
        };
        let ring_address = map(Part::Ring, kit::RING_BYTES, kit::GPU_READS)?;
        let progress_address = map(Part::Progress, kit::PAGE, kit::GPU_WRITES)?;
        let bytes = mailbox.ring_bytes();
        let tenant_ring = names.map_of_tenant(Part::TenantRing, tenant, mailbox.ring, bytes)?;
        let bytes = owned::USERD_BYTES;
        let tenant_userd = names.map_of_tenant(Part::TenantUserd, tenant, mailbox.userd, bytes)?;
        Ok(Self {
            ring,
            progress,
            userd,
            tenant_ring,
            tenant_userd,
            ring_address,
            progress_address,
            names,
        })
    }

    /// Duplicates the driver's USERD into the tenant's client, below its device.
    pub(super) fn lend_userd(
        &self,
        tenant: Handle,
        device: Handle,
        name: Handle,
    ) -> Result<(), Refused> {
        let names = &self.names;
        let source = [names.client.handle, names.of(Part::Userd)];
        dup([tenant, device, name], source)
    }

    /// Returns the GPU virtual address of the copies.
    pub(super) fn copies_address(&self) -> u64 {
        self.ring_address.saturating_add(kit::PAGE)
    }

    /// Returns the client.
    pub(super) fn client(&self) -> &Client {
        &self.names.client
    }
}

/// Maps memory for the GPU. Returns its address.
fn map_gpu(
    client: Handle,
    [range, memory]: [Handle; 2],
    bytes: u64,
    access: u32,
) -> Result<u64, Refused> {
    let mut address = 0;
    // SAFETY: `address` is writable; the resource manager looks the handles up.
    let status = unsafe {
        bindings::gct_helper_client_map_gpu(
            client,
            kit::DEVICE,
            range,
            memory,
            bytes,
            access,
            &mut address,
        )
    };
    done(status).map(|()| address)
}
