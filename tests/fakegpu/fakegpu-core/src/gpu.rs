// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Represents the whole device. The guest's accesses arrive here.

use crate::bar0;
use crate::bits::low_u32;
use crate::chip::ChipDescription;
use crate::copies::Copies;
use crate::faults::Faults;
use crate::fsp::Fsp;
use crate::gsp::refusals::Refusal;
use crate::gsp::rpc::Context;
use crate::gsp::Gsp;
use crate::host::channel::ChannelId;
use crate::host::execute::{ChannelFault, Progress, Work};
use crate::host::Host;
use crate::intr::InterruptTree;
use crate::journal::Journal;
use crate::memory::PhysicalMemory;
use crate::mmio;
use crate::pci::{ConfigEffect, PciConfig};
use crate::platform::Platform;
use crate::recorder::Event;
use crate::registers::Registers;
use crate::regs::*;
use crate::tlb::Invalidation;
use std::sync::Arc;

/// Version of FSP's firmware. From 0x44c on RM needs no workaround.
const FSP_VERSION: u32 = 0x450;
/// Value of the register by which FSP says that it is ready.
const FSP_BOOT_COMPLETE: u32 = 0xff;

/// The apertures of the device. RM calls them BAR0, BAR1 and BAR2; on the bus they are BAR 0, 2 and
/// 4, each 64 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aperture {
    /// BAR0: registers.
    Registers,
    /// BAR1: video memory.
    Framebuffer,
    /// BAR2: instance memory.
    Instance,
}

impl Aperture {
    /// Returns the aperture behind PCI BAR `index`.
    pub fn from_bar_index(index: u32) -> Option<Self> {
        match index {
            0 => Some(Self::Registers),
            2 => Some(Self::Framebuffer),
            4 => Some(Self::Instance),
            _ => None,
        }
    }

    /// Returns its size on `chip` in bytes.
    pub fn bytes(self, chip: &ChipDescription) -> u64 {
        match self {
            Self::Registers => chip.bars.registers,
            Self::Framebuffer => chip.bars.framebuffer,
            Self::Instance => chip.bars.instance,
        }
    }
}

/// Common prefix of the UUIDs of all software GPUs. The last byte distinguishes them.
const UUID_BASE: [u8; 16] = *b"fake-gh100-gpu-\0";

/// Maximum number of faults reported per interrupt.
const FAULTS_PER_INTERRUPT: usize = 8;

/// One software GPU.
pub struct Gpu {
    pub(crate) chip: ChipDescription,
    pub(crate) registers: Registers,
    pub(crate) intr: InterruptTree,
    pub(crate) fsp: Fsp,
    pub(crate) memory: PhysicalMemory,
    pub(crate) host: Host,
    pub(crate) platform: Platform,
    pub(crate) journal: Arc<Journal>,
    pub(crate) copies: Copies,
    pub(crate) unmapped_accesses: u64,
    /// Faults that GSP has not reported yet.
    faults: Vec<ChannelFault>,
    /// Accesses that wait for the driver.
    pub(crate) replayable: Faults,
    gsp: Gsp,
    refusals: Vec<Refusal>,
    pci: PciConfig,
    slot_id: u8,
    dropped_writes: u64,
    stale_accesses: u64,
}

impl Gpu {
    /// Creates a device in its state after power-on. `slot_id` distinguishes it from others of its
    /// kind.
    pub fn new(chip: ChipDescription, slot_id: u8, platform: Platform) -> Self {
        let journal = Journal::new(platform.recorder.clone());
        let platform = Platform {
            recorder: journal.clone(),
            ..platform
        };
        Self {
            registers: Registers::new(chip.bars.registers, reset_values(&chip)),
            intr: InterruptTree::new(platform.interrupts.clone()),
            fsp: Fsp::default(),
            memory: PhysicalMemory::new(chip.fb_bytes, platform.memory.clone()),
            host: Host::default(),
            faults: Vec::new(),
            replayable: Faults::default(),
            gsp: Gsp::default(),
            refusals: Vec::new(),
            pci: PciConfig::new(&chip),
            platform,
            journal,
            copies: Copies::default(),
            chip,
            slot_id,
            dropped_writes: 0,
            stale_accesses: 0,
            unmapped_accesses: 0,
        }
    }

    /// Makes GSP refuse the controls in `refusals`.
    pub fn refuse(&mut self, refusals: Vec<Refusal>) {
        self.refusals = refusals;
    }

    /// Returns the description of the chip.
    pub fn chip(&self) -> &ChipDescription {
        &self.chip
    }

    /// Returns the UUID by which the driver and its clients know this GPU.
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = UUID_BASE;
        uuid[15] = self.slot_id;
        uuid
    }

    /// Returns whether [`step`](Self::step) may find work.
    pub fn has_work(&self) -> bool {
        self.host.has_work()
            || self.memory.tlb().suspects()
            || (!self.faults.is_empty() && !self.gsp_interrupts())
    }

    /// Executes submitted work of channels, for a bounded time.
    pub fn step(&mut self) -> Progress {
        for root in self.host.take_unbound() {
            self.memory.tlb().invalidate(&Invalidation {
                root: Some(root),
                range: None,
            });
        }
        let mut work = Work {
            chip: &self.chip,
            memory: &mut self.memory,
            intr: &mut self.intr,
            clock: &*self.platform.clock,
            now_ns: 0,
            recorder: &*self.platform.recorder,
            faults: &mut self.faults,
            replayable: &mut self.replayable,
            copies: &mut self.copies,
            engine: None,
            methods: 0,
            bytes: 0,
        };
        let progress = self.host.step(&mut work);
        self.report_faults();
        self.report_stale();
        match self.memory.tlb().suspects() {
            true => progress.and(Progress::Waiting),
            false => progress,
        }
    }

    /// Returns how many accesses a stale translation would have allowed.
    pub fn stale_accesses(&self) -> u64 {
        self.stale_accesses
    }

    fn report_stale(&mut self) {
        if !self.memory.tlb().suspects() {
            return;
        }
        let now_ns = self.platform.clock.now_ns();
        let stale = self.memory.tlb().stale(now_ns);
        for access in stale {
            log::error!("an invalidation is missing: {access:x?}");
            self.stale_accesses += 1;
            self.platform.recorder.record(now_ns, &Event::Stale(access));
        }
    }

    /// Reports a bounded number of faults to the driver. Its queue has room for that many, and the
    /// driver takes them before it clears the next interrupt.
    fn report_faults(&mut self) {
        if self.faults.is_empty() || self.gsp_interrupts() {
            return;
        }
        let count = self.faults.len().min(FAULTS_PER_INTERRUPT);
        let faults: Vec<_> = self.faults.drain(..count).collect();
        let told = self.with_gsp(|gsp, context| {
            faults
                .iter()
                .filter(|fault| gsp.report_fault(context, fault))
                .count()
        });
        if told > 0 {
            self.interrupt_by_gsp();
        }
    }

    /// Reads configuration space for the guest.
    pub fn config_read(&self, offset: u64, data: &mut [u8]) {
        self.pci.read(offset, data);
    }

    /// Writes configuration space for the guest.
    pub fn config_write(&mut self, offset: u64, data: &[u8]) {
        match self.pci.write(offset, data) {
            ConfigEffect::None => {}
            ConfigEffect::FunctionReset => self.reset(),
        }
    }

    /// Reads an aperture for the guest. Bytes beyond its end read as 0xff.
    pub fn read(&mut self, aperture: Aperture, offset: u64, data: &mut [u8]) {
        if !self.inside(aperture, offset, data.len()) {
            data.fill(0xff);
            return;
        }
        match aperture {
            Aperture::Registers => mmio::read(self, offset, data),
            Aperture::Framebuffer | Aperture::Instance => self.window_read(aperture, offset, data),
        }
    }

    /// Writes an aperture for the guest. Writes beyond its end are dropped.
    pub fn write(&mut self, aperture: Aperture, offset: u64, data: &[u8]) {
        if !self.inside(aperture, offset, data.len()) {
            return;
        }
        match aperture {
            Aperture::Registers => self.register_write(offset, data),
            Aperture::Framebuffer | Aperture::Instance => self.window_write(aperture, offset, data),
        }
    }

    /// Restores the state after power-on. Guest memory and the interrupt connection belong to the
    /// guest and stay.
    pub fn reset(&mut self) {
        log::info!("reset");
        self.pci.reset();
        self.registers.reset();
        self.intr.reset();
        self.fsp = Fsp::default();
        self.gsp = Gsp::default();
        self.faults.clear();
        self.replayable = Faults::default();
        self.host.reset();
        self.memory.reset();
    }

    /// Writes registers, by an access of any size.
    pub(crate) fn register_write(&mut self, offset: u64, data: &[u8]) {
        if mmio::write(self, offset, data) > 0 {
            self.note_dropped_write(offset, data.len());
        }
    }

    /// Calls `work` with GSP and its context.
    pub(crate) fn with_gsp<T>(&mut self, work: impl FnOnce(&mut Gsp, &mut Context<'_>) -> T) -> T {
        let uuid = self.uuid();
        let mut context = Context {
            chip: &self.chip,
            uuid,
            memory: &mut self.memory,
            host: &mut self.host,
            replayable: &mut self.replayable,
            recorder: &*self.platform.recorder,
            refusals: &mut self.refusals,
            now_ns: self.platform.clock.now_ns(),
        };
        work(&mut self.gsp, &mut context)
    }

    /// Rings the doorbell of a channel.
    pub(crate) fn ring(&mut self, id: ChannelId) {
        match self.host.ring_doorbell(id) {
            Some(channel) => {
                let event = Event::Doorbell { channel };
                self.platform
                    .recorder
                    .record(self.platform.clock.now_ns(), &event);
            }
            None => log::warn!("doorbell for {id:?}, which does not exist"),
        }
    }

    fn inside(&self, aperture: Aperture, offset: u64, len: usize) -> bool {
        offset
            .checked_add(len as u64)
            .is_some_and(|end| end <= aperture.bytes(&self.chip))
    }

    fn note_dropped_write(&mut self, offset: u64, len: usize) {
        self.dropped_writes += 1;
        if self.dropped_writes == 1 {
            log::warn!("write of {len} bytes at {offset:#x} covers part of a register: dropped");
        }
    }
}

/// Returns the values of registers after power-on.
fn reset_values(chip: &ChipDescription) -> Vec<(u32, u32)> {
    let hwcfg2 = NV_PGSP_FALCON_HWCFG2::default().with(NV_PGSP_FALCON_HWCFG2::RISCV, 1);
    let cpuctl = NV_PGSP_RISCV_CPUCTL::default().with(NV_PGSP_RISCV_CPUCTL::ACTIVE_STAT, 1);
    let fuse =
        NV_FUSE_OPT_SECURE_GSP_DEBUG_DIS::default().with(NV_FUSE_OPT_SECURE_GSP_DEBUG_DIS::DATA, 1);
    let fsp_version =
        NV_GFW_FSP_UCODE_VERSION::default().with(NV_GFW_FSP_UCODE_VERSION::FULL, FSP_VERSION);
    vec![
        (NV_PMC_BOOT_0::OFFSET, chip.boot.boot_0().raw()),
        (NV_PMC_BOOT_42::OFFSET, chip.boot.boot_42().raw()),
        (
            NV_THERM_I2CS_SCRATCH_FSP_BOOT_COMPLETE::OFFSET,
            FSP_BOOT_COMPLETE,
        ),
        (NV_GFW_FSP_UCODE_VERSION::OFFSET, fsp_version.raw()),
        (NV_FUSE_OPT_SECURE_GSP_DEBUG_DIS::OFFSET, fuse.raw()),
        (NV_PGSP_FALCON_HWCFG2::OFFSET, hwcfg2.raw()),
        (
            NV_PGSP_FALCON_ENGINE::OFFSET,
            bar0::falcon_engine(false).raw(),
        ),
        (NV_PGSP_RISCV_CPUCTL::OFFSET, cpuctl.raw()),
        (
            NV_PGSP_FALCON_IRQMASK::OFFSET,
            NV_PGSP_FALCON_IRQMASK::default()
                .with(NV_PGSP_FALCON_IRQMASK::SWGEN0, 1)
                .raw(),
        ),
        (
            NV_PGSP_RISCV_IRQMASK::OFFSET,
            NV_PGSP_RISCV_IRQMASK::default()
                .with(NV_PGSP_RISCV_IRQMASK::SWGEN0, 1)
                .raw(),
        ),
        (
            NV_PGSP_RISCV_IRQDEST::OFFSET,
            NV_PGSP_RISCV_IRQDEST::default()
                .with(NV_PGSP_RISCV_IRQDEST::SWGEN0, 1)
                .raw(),
        ),
        (
            NV_PGSP_FALCON_IRQDEST::OFFSET,
            NV_PGSP_FALCON_IRQDEST::default()
                .with(NV_PGSP_FALCON_IRQDEST::SWGEN0, 1)
                .raw(),
        ),
        (
            NV_USABLE_FB_SIZE_IN_MB::OFFSET,
            low_u32(chip.fb_bytes >> 20),
        ),
        (
            NV_VIRTUAL_FUNCTION_PRIV_ACCESS_COUNTER_NOTIFY_BUFFER_SIZE::OFFSET,
            chip.access_counter_entries,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::prelude::*;

    fn read_u32(gpu: &mut Gpu, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        gpu.read(Aperture::Registers, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn the_identity_cannot_be_written() {
        let mut gpu = testing::gpu();
        for offset in [0x0, 0x4, 0xa00] {
            let before = read_u32(&mut gpu, offset);
            gpu.write(Aperture::Registers, offset, &[0x5a; 4]);
            assert_eq!(read_u32(&mut gpu, offset), before);
        }
    }

    #[test]
    fn a_function_reset_clears_registers() {
        let mut gpu = testing::gpu();
        gpu.write(Aperture::Registers, 0x12_3400, &[1, 2, 3, 4]);
        assert_eq!(read_u32(&mut gpu, 0x12_3400), 0x0403_0201);
        gpu.config_write(0x68, &0x8000u16.to_le_bytes());
        assert_eq!(read_u32(&mut gpu, 0x12_3400), 0);
        assert_eq!(read_u32(&mut gpu, 0), 0x1800_00a1);
    }

    fn any_offset() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..0x100_0100, 0xff_fff0u64..0x100_0010, any::<u64>()]
    }

    proptest! {
        /// Checks that after hostile accesses of any kind the device still answers.
        #[test]
        fn no_access_breaks_it(ops in prop::collection::vec(
            (0u32..6, any_offset(), prop::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..60)) {
            let mut gpu = testing::gpu();
            for (bar, offset, mut data, write) in ops {
                match (Aperture::from_bar_index(bar), write) {
                    (Some(aperture), true) => gpu.write(aperture, offset, &data),
                    (Some(aperture), false) => gpu.read(aperture, offset, &mut data),
                    (None, true) => gpu.config_write(offset, &data),
                    (None, false) => gpu.config_read(offset, &mut data),
                }
            }
            prop_assert_eq!(read_u32(&mut gpu, 0), 0x1800_00a1);
        }
    }
}
