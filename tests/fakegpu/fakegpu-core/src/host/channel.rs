// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models one channel.

use crate::abi::{self, Malformed};
use crate::bits::{low_u32, Bits};
use crate::ce::{CopyEngine, HOPPER_DMA_COPY_A};
use crate::chip::EngineKind;
use crate::compute::{Compute, Running, HOPPER_COMPUTE_A};
use crate::faults::Place;
use crate::gmmu::{AddressSpace, Fault};
use crate::gsp::objects::ObjectKey;
use crate::host::execute::Work;
use crate::host::methods::{HostMethods, Method, FIRST_ENGINE_METHOD};
use crate::memory::{Location, PhysicalAddress};
use crate::regs::NV_VIRTUAL_FUNCTION_DOORBELL;
use crate::twod::{TwoD, FERMI_TWOD_A};
use gct_core::submit::gpfifo::{Fetch, Segment};
use gct_core::submit::method::PartialBurst;
use std::collections::{BTreeSet, VecDeque};

/// USERD areas on one page.
const USERD_PER_PAGE: u32 = 8;
/// The index of the channel's USERD on its page, in the allocation flags.
const USERD_INDEX: Bits = Bits::new(
    abi::CHANNEL_USERD_INDEX_VALUE_HIGH,
    abi::CHANNEL_USERD_INDEX_VALUE_LOW,
);
/// The number of that page, in the allocation flags.
const USERD_PAGE: Bits = Bits::new(
    abi::CHANNEL_USERD_INDEX_PAGE_VALUE_HIGH,
    abi::CHANNEL_USERD_INDEX_PAGE_VALUE_LOW,
);

/// A channel's number, as in its doorbell token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelId {
    /// The runlist.
    pub runlist: u32,
    /// The channel's number on the runlist.
    pub channel: u32,
}

impl ChannelId {
    /// Returns the channel that a doorbell token names.
    pub fn from_doorbell(token: u32) -> Self {
        let token = NV_VIRTUAL_FUNCTION_DOORBELL::from_raw(token);
        Self {
            runlist: token.get(NV_VIRTUAL_FUNCTION_DOORBELL::RUNLIST_ID),
            channel: token.get(NV_VIRTUAL_FUNCTION_DOORBELL::VECTOR),
        }
    }
}

/// The address space of a channel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Space {
    /// Its key, if the channel has one.
    pub key: Option<ObjectKey>,
    /// Whether its faults can be replayed.
    pub replayable: bool,
    /// The number of the channel's context share.
    pub subcontext: u32,
}

/// A channel: a ring of entries that point at commands.
pub struct Channel {
    id: ChannelId,
    object: ObjectKey,
    /// The channel's group; the channel itself if it belongs to none.
    group: ObjectKey,
    space: Space,
    /// Its instance block.
    instance: PhysicalAddress,
    ring_va: u64,
    pub(super) ring_entries: u32,
    userd: PhysicalAddress,
    /// Where its owner reads errors.
    error_notifier: Option<PhysicalAddress>,
    /// The next ring entry to fetch: GP_GET.
    pub(super) get: u32,
    /// Entries that were fetched, and whose segments are still to be read.
    pub(super) fetched: VecDeque<Segment>,
    /// The remaining methods of the entry in progress.
    pub(super) methods: VecDeque<Method>,
    /// The unfinished burst.
    pub(super) partial: Option<PartialBurst>,
    pub(super) fetch: Fetch,
    pub(super) host: HostMethods,
    pub(super) copy: CopyEngine,
    two_d: TwoD,
    pub(super) compute: Compute,
    /// Whether the doorbell has rung since the ring was last empty.
    pub(super) rung: bool,
    stopped: bool,
    /// Whether the channel is on the runlist.
    scheduled: bool,
    /// Whether the channel is frozen.
    disabled: bool,
    /// Whether the channel may begin no new work.
    held: bool,
    /// Whether running launches go on although the channel may begin no new work: its group still
    /// has the engine.
    lingers: bool,
    unknown_class: bool,
}

impl Channel {
    /// Creates the channel of an engine that `params` (NV_CHANNEL_ALLOC_PARAMS) describe.
    ///
    /// # Errors
    /// [`Malformed`] if they are too short.
    pub fn new(
        object: ObjectKey,
        group: ObjectKey,
        (engine, space): (u32, Space),
        params: &[u8],
    ) -> Result<Self, Malformed> {
        use abi::NV_CHANNEL_ALLOC_PARAMS as P;
        let flags = abi::get(params, P::flags)?;
        Ok(Self {
            id: ChannelId {
                runlist: runlist_of(engine),
                channel: low_u32(USERD_PAGE.of(flags)) * USERD_PER_PAGE
                    + low_u32(USERD_INDEX.of(flags)),
            },
            object,
            group,
            space,
            instance: memory_of(params, P::instanceMem_addressSpace, P::instanceMem_base)?,
            ring_va: abi::get(params, P::gpFifoOffset)?,
            ring_entries: abi::get_u32(params, P::gpFifoEntries)?,
            userd: memory_of(params, P::userdMem_addressSpace, P::userdMem_base)?,
            error_notifier: match abi::get(params, P::errorNotifierMem_size)? {
                0 => None,
                _ => Some(memory_of(
                    params,
                    P::errorNotifierMem_addressSpace,
                    P::errorNotifierMem_base,
                )?),
            },
            get: 0,
            fetched: VecDeque::new(),
            methods: VecDeque::new(),
            partial: None,
            fetch: Fetch::new(),
            host: HostMethods::default(),
            copy: CopyEngine::default(),
            two_d: TwoD::default(),
            compute: Compute::default(),
            rung: false,
            stopped: false,
            scheduled: false,
            disabled: false,
            held: false,
            lingers: false,
            unknown_class: false,
        })
    }

    /// Returns the channel's number.
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// Returns the channel's key.
    pub fn object(&self) -> ObjectKey {
        self.object
    }

    /// Returns the group whose turns it shares.
    pub fn group(&self) -> ObjectKey {
        self.group
    }

    /// Returns the ring's address in the channel's address space, and its number of entries.
    pub fn ring(&self) -> (u64, u32) {
        (self.ring_va, self.ring_entries)
    }

    /// Returns the address of its user-mode registers (USERD).
    pub fn userd(&self) -> PhysicalAddress {
        self.userd
    }

    /// Returns its address space.
    pub fn space(&self) -> Option<ObjectKey> {
        self.space.key
    }

    /// Says who accesses memory when the channel does. `space` is its address space.
    pub(super) fn place(&self, space: AddressSpace) -> Place {
        Place {
            channel: self.object,
            instance: self.instance,
            subcontext: self.space.subcontext,
            space,
            replayable: self.space.replayable,
        }
    }

    /// Fetches from another ring from now on. GP_GET and GP_PUT stay.
    pub fn set_ring(&mut self, ring: u64, entries: u32) {
        (self.ring_va, self.ring_entries) = (ring, entries);
    }

    /// Rings its doorbell.
    pub fn ring_doorbell(&mut self) {
        self.rung = true;
    }

    /// Puts the channel on the runlist, or takes it off. If `has_engine`, running launches go on
    /// until the group loses the engine.
    pub fn set_scheduled(&mut self, scheduled: bool, has_engine: bool) {
        self.scheduled = scheduled;
        self.lingers = !scheduled && has_engine;
    }

    /// Lets the channel begin no new work. `has_engine` as in
    /// [`set_scheduled`](Self::set_scheduled).
    pub fn hold(&mut self, has_engine: bool) {
        self.held = true;
        self.lingers = has_engine;
    }

    /// Freezes the channel.
    pub fn disable(&mut self) {
        self.disabled = true;
    }

    /// Thaws the channel. It runs if it is on the runlist.
    pub fn enable(&mut self) {
        (self.disabled, self.held) = (false, false);
    }

    /// Notes that its group has lost the engine.
    pub fn lose_engine(&mut self) {
        self.lingers = false;
    }

    /// Returns whether the channel may begin new work.
    pub(super) fn may_begin(&self) -> bool {
        self.scheduled && !self.held
    }

    /// Returns whether there may be something to execute.
    pub fn wants_turn(&self) -> bool {
        let may_run = self.may_begin() || self.lingers && self.compute.runs();
        self.rung && may_run && !self.stopped && !self.disabled
    }

    /// Charges `ns` of engine time to the running launches.
    pub(super) fn pass(&mut self, ns: u64) {
        self.compute.pass(ns);
    }

    /// Returns the launches whose time runs.
    pub(super) fn running(&mut self) -> impl Iterator<Item = &mut Running> {
        self.compute.running()
    }

    /// Stops the channel for good, and writes its error notifier.
    pub(super) fn stop(&mut self, work: &mut Work<'_>) {
        use abi::NvNotification as N;
        self.stopped = true;
        work.replayable.forget(&BTreeSet::from([self.object]));
        let mut notification = [0; N::SIZE];
        let fields = [
            (N::timeStamp, work.clock.now_ns()),
            (
                N::info32,
                u64::from(abi::ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT),
            ),
            (N::status, NOTIFICATION_ERROR),
        ];
        for (field, value) in fields {
            // PANIC: the fields lie in the structure.
            abi::set(&mut notification, field, value).expect("a notification has its fields");
        }
        if let Some(at) = self.error_notifier {
            // If the memory is gone, nothing reads it.
            let _ = work.memory.write(at, &notification);
        }
    }

    /// Gathers a method for the compute engine. Returns whether it is one and there was room.
    pub(super) fn gather(&mut self, method: Method) -> bool {
        method.method >= FIRST_ENGINE_METHOD
            && self.host.class(method.subchannel) == HOPPER_COMPUTE_A
            && self.compute.push(method)
    }

    /// Passes a method to the engine of its subchannel.
    pub(super) fn execute_on_engine(
        &mut self,
        work: &mut Work<'_>,
        space: AddressSpace,
        method: Method,
    ) -> Result<(), Fault> {
        let class = self.host.class(method.subchannel);
        let copies = work
            .engine
            .is_some_and(|engine| engine.kind != EngineKind::Graphics);
        match class {
            HOPPER_DMA_COPY_A => self.copy.execute(method),
            0 if copies => self.copy.execute(method),
            // The buffer was full. The method is gathered once its contents have been executed.
            HOPPER_COMPUTE_A => {
                self.compute.push(method);
            }
            FERMI_TWOD_A => self.two_d.execute(work, space, method)?,
            _ => self.note_unknown(class),
        }
        Ok(())
    }

    fn note_unknown(&mut self, class: u32) {
        if !self.unknown_class {
            self.unknown_class = true;
            let name = abi::class_name(class).unwrap_or("a class without a name");
            log::info!(
                "{:x?}: methods of {name} ({class:#x}) are not executed",
                self.id
            );
        }
    }
}

/// Status of a notification of an error.
const NOTIFICATION_ERROR: u64 = 0xffff;

/// Returns the address of a piece of memory in NV_CHANNEL_ALLOC_PARAMS.
fn memory_of(
    params: &[u8],
    space: abi::Field,
    base: abi::Field,
) -> Result<PhysicalAddress, Malformed> {
    let location = match abi::get_u32(params, space)? {
        abi::ADDR_SYSMEM => Location::System,
        _ => Location::Video,
    };
    Ok(PhysicalAddress {
        location,
        offset: abi::get(params, base)?,
    })
}

/// Returns the runlist of an engine. Graphics has the first; copy engines follow.
fn runlist_of(engine: u32) -> u32 {
    match engine.checked_sub(abi::NV2080_ENGINE_TYPE_COPY0) {
        Some(copy) => copy + 1,
        None => 0,
    }
}
