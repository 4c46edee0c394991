// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocates the parts of one owned channel, and maps its tenant's memory.

use super::client::{Client, Refused};
use super::sheet::{Cover, Shadow};
use super::view::{Mapped, ReadView, View};
use crate::bindings::{self, gct_uvm_memory, gct_uvm_space};
use crate::rm::own::Own;
use core::ptr;
use gct_core::owned::kit::{self, Params, Part};
use gct_core::owned::maps::{Place, Window};
use gct_core::owned::names::Kind;
use gct_core::owned::shadow::Seen;
use gct_core::owned::uvm::UvmSpace;
use gct_core::owned::{self, Mailbox};
use gct_core::rmapi::{nv, Handle};
use kernel::prelude::*;
use kernel::sync::Arc;

/// The names of one channel's objects, 0 where there is none. Dropping this frees the objects.
struct Names {
    client: Arc<Client>,
    parts: [Handle; Part::ALL.len()],
}

impl Names {
    fn new(client: Arc<Client>) -> Self {
        let parts = [0; Part::ALL.len()];
        Self { client, parts }
    }

    /// Notes the name of a part that was made.
    fn add(&mut self, part: Part, name: Handle) {
        // CAST: a number below that of parts.
        if let Some(slot) = self.parts.get_mut(part as usize) {
            *slot = name;
        }
    }

    fn of(&self, part: Part) -> Handle {
        // CAST: a number below that of parts. The resource manager refuses 0.
        self.parts.get(part as usize).copied().unwrap_or(0)
    }

    /// Returns the name of a part, below that of the device.
    fn below(&self, part: Part) -> [Handle; 2] {
        [self.client.own.device(), self.of(part)]
    }

    fn alloc(&mut self, part: Part, class: u32, params: Params) -> Result<(), Refused> {
        let own = &self.client.own;
        let name = own.new_name();
        own.alloc([own.device(), name], class, params)?;
        self.add(part, name);
        Ok(())
    }

    /// Takes a name for an object of a tenant.
    fn take(&mut self, part: Part, kind: Kind, tenant: [Handle; 2]) -> Result<(), Refused> {
        let name = self.client.own.new_name();
        self.client.own.take(name, kind, tenant)?;
        self.add(part, name);
        Ok(())
    }

    fn map(&self, part: Part, offset: u64, bytes: u64) -> Result<View, Refused> {
        View::map(&self.client.own, self.below(part), offset, bytes)
    }

    /// Allocates host memory, and maps it for the kernel and for the GPU.
    fn place(&mut self, part: Part, bytes: u64, access: u32) -> Result<Placed, Refused> {
        let memory = Params::host_memory(self.client.own.client(), bytes);
        self.alloc(part, nv::NV01_MEMORY_SYSTEM, memory)?;
        let view = self.map(part, 0, bytes)?;
        let names = [self.of(Part::Range), self.of(part)];
        let address = self.client.own.map_gpu(names, bytes, access)?;
        Ok(Placed {
            view,
            address,
            uvm: None,
        })
    }

    /// Allocates the memory for a ring, copies and slots, and that of the progress word, in a
    /// tenant's address space.
    fn arena(
        &mut self,
        tenant: Handle,
        home: &Home<'_>,
        waits: Waits,
    ) -> Result<[Placed; 2], Refused> {
        if let Home::Rm(space) = home {
            self.take(Part::Space, Kind::Space, [tenant, *space])?;
            let range = Params::range(self.of(Part::Space));
            self.alloc(Part::Range, nv::NV01_MEMORY_VIRTUAL, range)?;
        }
        let mut place = |part, bytes, access| match home {
            Home::Rm(_) => self.place(part, bytes, access),
            Home::Uvm(space) => UvmMemory::place(space, bytes, access, waits),
        };
        let ring = place(Part::Ring, kit::RING_BYTES, kit::GPU_READS)?;
        let progress = place(Part::Progress, kit::PAGE, kit::GPU_WRITES)?;
        progress.view.write32(0, 0);
        Ok([ring, progress])
    }

    /// Maps a part of a tenant's memory object.
    fn map_of_tenant<V: Mapped>(
        &mut self,
        part: Part,
        tenant: Handle,
        place: Place,
        bytes: u64,
    ) -> Result<V, Refused> {
        self.take(part, Kind::Memory, [tenant, place.memory])?;
        map_place(&self.client.own, self.below(part), place.offset, bytes)
    }
}

/// Maps `bytes` at any offset of a memory object of the driver's client.
fn map_place<V: Mapped>(
    own: &Own,
    names: [Handle; 2],
    offset: u64,
    bytes: u64,
) -> Result<V, Refused> {
    let (page, skipped) = (offset & !(kit::PAGE - 1), offset % kit::PAGE);
    let mapped = bytes.checked_add(skipped).ok_or(Refused)?;
    let view = V::map(own, names, page, mapped)?;
    view.part(skipped, bytes).ok_or(Refused)
}

/// A part of a tenant's memory that is mapped for the kernel.
pub(super) struct Shown {
    pub(super) view: ReadView,
    /// Whether it lies in the GPU's memory, which the kernel reads across the bus.
    pub(super) is_device: bool,
    client: Arc<Client>,
    name: Handle,
}

impl Shown {
    /// Maps a window into a tenant's memory.
    pub(super) fn new(client: Arc<Client>, window: &Window) -> Result<Self, Refused> {
        let own = &client.own;
        let name = own.new_name();
        let class = own.take(name, Kind::Memory, [window.client(), window.place.memory])?;
        let names = [own.device(), name];
        let view = map_place(own, names, window.place.offset, window.bytes);
        match view {
            Ok(view) => Ok(Self {
                view,
                is_device: class != nv::NV01_MEMORY_SYSTEM,
                client,
                name,
            }),
            Err(refused) => {
                own.free(name);
                Err(refused)
            }
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.client.own.free(self.name);
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        for name in self.parts.into_iter().filter(|name| *name != 0) {
            self.client.own.free(name);
        }
    }
}

/// The parts of an owned or shadowed channel, and its tenant's mailbox.
pub(super) struct Kit {
    // Fields are dropped in this order: views before what keeps their memory.
    tenant_ring: TenantRing,
    pub(super) tenant_userd: View,
    /// The ring, the copies behind it, and the slots behind these. The GPU only reads them.
    pub(super) ring: View,
    /// The progress word, and the words that atoms write.
    pub(super) progress: View,
    pub(super) userd: View,
    /// GPU virtual addresses of the ring and of the progress word.
    pub(super) ring_address: u64,
    pub(super) progress_address: u64,
    /// Memory of the ring and of the progress word in an address space of nvidia-uvm.
    _uvm: [Option<UvmMemory>; 2],
    names: Names,
}

/// The ring that a tenant writes.
enum TenantRing {
    /// Its own, beside the driver's.
    Mapped(ReadView),
    /// Pages in place of its own, which the GPU reads.
    Covered(Shadow),
}

/// The address space of a channel.
pub(super) enum Home<'a> {
    /// The handle of one whose page tables the resource manager owns.
    Rm(Handle),
    /// One whose page tables nvidia-uvm owns.
    Uvm(&'a UvmSpace),
}

/// How long a tenant is waited for that keeps its address space locked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// As long as it takes: in the tenant's own ioctl, which nobody else waits for.
    Long,
    /// A moment: others wait, too.
    Briefly,
}

/// Memory of the driver's in a tenant's address space.
struct Placed {
    view: View,
    /// Its GPU virtual address.
    address: u64,
    /// Keeps the memory, unless a name does.
    uvm: Option<UvmMemory>,
}

impl Kit {
    /// Allocates a ring and USERD for a channel in a tenant's address space, and maps its mailbox.
    pub(super) fn new(
        client: Arc<Client>,
        tenant: Handle,
        home: &Home<'_>,
        mailbox: &Mailbox,
    ) -> Result<Self, Refused> {
        let mut names = Names::new(client);
        let memory = Params::kernel_memory(names.client.own.client(), kit::PAGE);
        names.alloc(Part::Userd, nv::NV01_MEMORY_LOCAL_USER, memory)?;
        let userd = names.map(Part::Userd, 0, kit::PAGE)?;
        for at in (0..).step_by(4).take(owned::USERD_WORDS) {
            userd.write32(at, 0);
        }
        let [ring, progress] = names.arena(tenant, home, Waits::Long)?;
        let bytes = mailbox.ring_bytes();
        let tenant_ring = names.map_of_tenant(Part::TenantRing, tenant, mailbox.ring, bytes)?;
        let bytes = owned::USERD_BYTES;
        let tenant_userd = names.map_of_tenant(Part::TenantUserd, tenant, mailbox.userd, bytes)?;
        Ok(Self {
            tenant_ring: TenantRing::Mapped(tenant_ring),
            tenant_userd,
            ring: ring.view,
            progress: progress.view,
            userd,
            ring_address: ring.address,
            progress_address: progress.address,
            _uvm: [ring.uvm, progress.uvm],
            names,
        })
    }

    /// Allocates what a channel needs that has its tenant's ring and USERD, and maps these. Pages
    /// of `covers` are to stand for the ring and for USERD.
    pub(super) fn shadow(
        client: Arc<Client>,
        seen: &Seen,
        home: &Home<'_>,
        covers: [Cover; 2],
    ) -> Result<Self, Refused> {
        let mut names = Names::new(client);
        let (tenant, mailbox) = (seen.client, &seen.mailbox);
        let [ring, progress] = names.arena(tenant, home, Waits::Briefly)?;
        let bytes = mailbox.ring_bytes();
        let real_ring = names.map_of_tenant(Part::TenantRing, tenant, mailbox.ring, bytes)?;
        let skipped = mailbox.userd.offset % kit::PAGE;
        let page = Place {
            memory: mailbox.userd.memory,
            offset: mailbox.userd.offset.saturating_sub(skipped),
        };
        let page = names.map_of_tenant(Part::TenantUserd, tenant, page, kit::PAGE)?;
        let userd = |page: &View| page.part(skipped, owned::USERD_BYTES);
        let userds = [covers[1].first(), Some(&page)].map(|page| page.and_then(userd));
        let [Some(tenant_userd), Some(userd)] = userds else {
            return Err(Refused);
        };
        let shadow = Shadow::new(names.client.id(), [real_ring, page], covers);
        Ok(Self {
            tenant_userd,
            ring: ring.view,
            progress: progress.view,
            userd,
            ring_address: ring.address,
            progress_address: progress.address,
            _uvm: [ring.uvm, progress.uvm],
            tenant_ring: TenantRing::Covered(shadow),
            names,
        })
    }

    /// Returns the number of entries of the real ring.
    pub(super) fn real_entries(&self, mailbox: &Mailbox) -> u32 {
        match &self.tenant_ring {
            TenantRing::Mapped(_) => owned::REAL_ENTRIES,
            TenantRing::Covered(_) => mailbox.entries,
        }
    }

    /// Returns an entry of the tenant's ring.
    pub(super) fn entry(&self, index: u32) -> Option<u64> {
        let at = index.checked_mul(owned::ENTRY_BYTES)?;
        match &self.tenant_ring {
            TenantRing::Mapped(ring) => ring.read64(at),
            TenantRing::Covered(shadow) => shadow.entry(at),
        }
    }

    /// Stores an entry into the real ring.
    pub(super) fn set_entry(&self, index: u32, entry: u64) {
        let ring = match &self.tenant_ring {
            TenantRing::Mapped(_) => &self.ring,
            TenantRing::Covered(shadow) => shadow.ring(),
        };
        ring.write64(index.saturating_mul(owned::ENTRY_BYTES), entry);
    }

    /// Has the tenant see the pages that stand for its ring and USERD, unless `begins` refuses the
    /// GP_GET and GP_PUT of that moment. Returns whether it sees them.
    pub(super) fn turn(&self, begins: impl FnOnce(u32, u32) -> bool) -> bool {
        let TenantRing::Covered(shadow) = &self.tenant_ring else {
            return false;
        };
        let userd = &self.userd;
        shadow.turn(|| {
            let [get, put] = [owned::GP_GET, owned::GP_PUT].map(|at| userd.read32(at));
            get.zip(put).is_some_and(|(get, put)| begins(get, put))
        })
    }

    /// Has the tenant see its ring and USERD again, and the GPU fetch what the tenant has
    /// submitted. The channel's token is `token`, and GP_GET is the tenant's. Nobody serves the
    /// channel. Returns whether the tenant sees them.
    pub(super) fn turn_back(&self, token: u32) -> bool {
        let TenantRing::Covered(shadow) = &self.tenant_ring else {
            return false;
        };
        let put = |view: &View| view.read32(owned::GP_PUT).unwrap_or(0);
        let hide_put = || {
            // Entries come before their number: the GPU may look at any time.
            let submitted = put(&self.tenant_userd);
            self.tenant_userd.write32(owned::GP_PUT, put(&self.userd));
            submitted
        };
        let ring = |submitted| self.client().ring(&self.userd, submitted, token);
        shadow.turn_back(hide_put, ring)
    }

    /// Returns whether its tenant's ring and USERD are covered.
    pub(super) fn is_shadow(&self) -> bool {
        matches!(self.tenant_ring, TenantRing::Covered(_))
    }

    /// Duplicates the driver's USERD into a tenant's client, as a name below a device.
    pub(super) fn lend_userd(&self, to: [Handle; 3]) -> Result<(), Refused> {
        self.names.client.own.lend(self.names.of(Part::Userd), to)
    }

    /// Returns the GPU virtual address of the copies.
    pub(super) fn copies_address(&self) -> u64 {
        self.ring_address.saturating_add(kit::PAGE)
    }

    /// Returns the GPU virtual address of the atoms' slots.
    pub(super) fn slots_address(&self) -> u64 {
        self.ring_address.saturating_add(kit::SLOTS)
    }

    /// Returns the GPU virtual address of the slots of launches that stay whole.
    pub(super) fn whole_address(&self) -> u64 {
        self.ring_address.saturating_add(kit::WHOLE)
    }

    /// Returns the GPU virtual address of the words that these write.
    pub(super) fn whole_done_address(&self) -> u64 {
        self.progress_address.saturating_add(kit::WHOLE_DONE)
    }

    /// Returns the GPU virtual address of the words that atoms write.
    pub(super) fn done_address(&self) -> u64 {
        self.progress_address.saturating_add(kit::DONE)
    }

    /// Returns the client.
    pub(super) fn client(&self) -> &Client {
        &self.names.client
    }
}

/// Memory that nvidia-uvm has mapped in an address space of its own.
struct UvmMemory(gct_uvm_memory);

// SAFETY: the pointers belong to the kernel and not to a process. nvidia-uvm frees the memory from
// any thread.
unsafe impl Send for UvmMemory {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl Sync for UvmMemory {}

impl UvmMemory {
    /// Allocates memory, and maps it for the kernel and for the GPU.
    fn place(space: &UvmSpace, bytes: u64, access: u32, waits: Waits) -> Result<Placed, Refused> {
        let named = gct_uvm_space {
            number: space.uvm,
            client: space.client,
            object: space.space,
            uuid: space.uuid,
        };
        let mut memory = gct_uvm_memory {
            file: ptr::null_mut(),
            words: ptr::null_mut(),
            address: 0,
        };
        let writes = u32::from(access == kit::GPU_WRITES);
        let waits = u32::from(waits == Waits::Long);
        // SAFETY: both structures live during the call; nvidia-uvm looks the numbers up.
        let status =
            unsafe { bindings::gct_helper_uvm_map(&named, bytes, writes, waits, &mut memory) };
        (status == 0).then_some(()).ok_or(Refused)?;
        let (words, address) = (memory.words, memory.address);
        // From here on it is unmapped.
        let uvm = Self(memory);
        // SAFETY: nvidia-uvm has mapped so many bytes there, until they are unmapped.
        let view = unsafe { View::of(words, bytes) }.ok_or(Refused)?;
        Ok(Placed {
            view,
            address,
            uvm: Some(uvm),
        })
    }
}

impl Drop for UvmMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `place`, and unmapped once. No view of it is used any more: `Kit`
        // drops its views first.
        unsafe { bindings::gct_helper_uvm_unmap(&self.0) };
    }
}
