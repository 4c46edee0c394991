// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Dispatches accesses to BAR0 to the unit that owns each register.

use crate::fsp::FspRequest;
use crate::gpu::Gpu;
use crate::gsp::rpc::Outcome;
use crate::host::channel::ChannelId;
use crate::memory::PhysicalAddress;
use crate::mmio::Mmio;
use crate::pramin;
use crate::recorder::Event;
use crate::regs::*;
use crate::timer;
use crate::tlb::Invalidation;

/// The value of GSP's mailbox after GSP has halted.
const MAILBOX_HALTED: u32 = 1 << 31;

impl Mmio for Gpu {
    fn read32(&mut self, offset: u32) -> u32 {
        let window = self.registers.get(NV_XAL_EP_BAR0_WINDOW::OFFSET);
        pramin::read(&self.memory, window, offset)
            .or_else(|| self.intr.read(offset))
            .or_else(|| timer::read(offset, self.platform.clock.now_ns()))
            .or_else(|| self.fsp.read(offset))
            .or_else(|| self.read_done(offset))
            .or_else(|| self.replayable.read(offset))
            .or_else(|| self.journal.read(offset))
            .or_else(|| self.copies.read(offset))
            .unwrap_or_else(|| self.registers.guest_read(offset))
    }

    fn write32(&mut self, offset: u32, value: u32) {
        let window = self.registers.get(NV_XAL_EP_BAR0_WINDOW::OFFSET);
        if pramin::write(&mut self.memory, window, offset, value)
            || self.intr.write(offset, value)
            || self.journal.write(offset, value)
            || self.write_faults(offset, value)
        {
            return;
        }
        match self.fsp.write(offset, value) {
            (true, Some(FspRequest::BootGsp { parameters })) => self.boot_gsp(parameters),
            (true, None) => {}
            (false, _) => self.write_other(offset, value),
        }
    }
}

impl Gpu {
    /// Reads a completion register. Every request completes at once.
    fn read_done(&self, offset: u32) -> Option<u32> {
        let token = |register| {
            NV_XAL_EP_UFLUSH_L2_FLUSH_DIRTY::TOKEN.of(u64::from(self.registers.get(register)))
        };
        let done = match offset {
            NV_XAL_EP_UFLUSH_L2_CLEAN_COMPTAGS_COMPLETED::OFFSET => {
                token(NV_XAL_EP_UFLUSH_L2_CLEAN_COMPTAGS::OFFSET)
            }
            NV_XAL_EP_UFLUSH_L2_FLUSH_DIRTY_COMPLETED::OFFSET => {
                token(NV_XAL_EP_UFLUSH_L2_FLUSH_DIRTY::OFFSET)
            }
            NV_VIRTUAL_FUNCTION_PRIV_FUNC_L2_SYSMEM_INVALIDATE_COMPLETED::OFFSET => {
                token(NV_VIRTUAL_FUNCTION_PRIV_FUNC_L2_SYSMEM_INVALIDATE::OFFSET)
            }
            NV_VIRTUAL_FUNCTION_PRIV_FUNC_L2_PEERMEM_INVALIDATE_COMPLETED::OFFSET => {
                token(NV_VIRTUAL_FUNCTION_PRIV_FUNC_L2_PEERMEM_INVALIDATE::OFFSET)
            }
            // The trigger bit is clear once the invalidation has completed.
            NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE::OFFSET => 0,
            _ => return None,
        };
        u32::try_from(done).ok()
    }

    /// Writes a register of the buffer of replayable faults. Returns whether `offset` is one.
    fn write_faults(&mut self, offset: u32, value: u32) -> bool {
        let vector = self.chip.vectors.replayable_fault;
        let written = self.replayable.write(&mut self.intr, vector, offset, value);
        if let Some(batch) = written.filter(|batch| batch.faults > 0) {
            let now_ns = self.platform.clock.now_ns();
            self.platform.recorder.record(now_ns, &Event::Batch(batch));
        }
        written.is_some()
    }

    fn write_other(&mut self, offset: u32, value: u32) {
        match offset {
            // The identity registers are read-only.
            NV_PMC_BOOT_0::OFFSET | NV_PMC_BOOT_1::OFFSET | NV_PMC_BOOT_42::OFFSET => {}
            NV_PGSP_FALCON_ENGINE::OFFSET => {
                let reset =
                    NV_PGSP_FALCON_ENGINE::from_raw(value).get(NV_PGSP_FALCON_ENGINE::RESET);
                self.registers.set(offset, falcon_engine(reset == 1).raw());
            }
            NV_PGSP_QUEUE_HEAD::OFFSET => self.serve_gsp(),
            NV_PGSP_FALCON_IRQSCLR::OFFSET => {
                let pending = self.registers.get(NV_PGSP_FALCON_IRQSTAT::OFFSET) & !value;
                self.registers.set(NV_PGSP_FALCON_IRQSTAT::OFFSET, pending);
            }
            NV_PGSP_FALCON_INTR_RETRIGGER::OFFSET => {
                if self.registers.get(NV_PGSP_FALCON_IRQSTAT::OFFSET) != 0 {
                    self.intr.trigger(self.chip.vectors.gsp);
                }
            }
            NV_VIRTUAL_FUNCTION_DOORBELL::OFFSET | NV_VIRTUAL_FUNCTION_PRIV_DOORBELL::OFFSET => {
                self.ring(ChannelId::from_doorbell(value));
            }
            NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE::OFFSET => self.invalidate_tlb(value),
            _ => self.registers.guest_write(offset, value),
        }
    }

    /// Invalidates all addresses of a page directory, or of all.
    fn invalidate_tlb(&mut self, value: u32) {
        use {
            NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE as Invalidate,
            NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE_PDB as Lower,
            NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE_UPPER_PDB as Upper,
        };
        let lower = Lower::from_raw(self.registers.get(Lower::OFFSET));
        let upper = Upper::from_raw(self.registers.get(Upper::OFFSET));
        // In pages, of which the upper register has the bits from 28 on.
        let pages = u64::from(lower.get(Lower::ADDR)) | u64::from(upper.get(Upper::ADDR)) << 28;
        let root = match lower.get(Lower::APERTURE) {
            0 => PhysicalAddress::video(pages << 12),
            _ => PhysicalAddress::system(pages << 12),
        };
        let is_all = Invalidate::from_raw(value).get(Invalidate::ALL_PDB) == 1;
        self.memory.tlb().invalidate(&Invalidation {
            root: (!is_all).then_some(root),
            range: None,
        });
    }

    /// Returns whether GSP has an interrupt that the driver has not cleared.
    pub(crate) fn gsp_interrupts(&self) -> bool {
        self.registers.get(NV_PGSP_FALCON_IRQSTAT::OFFSET) != 0
    }

    /// Interrupts the driver: GSP has put a record into its queue.
    pub(crate) fn interrupt_by_gsp(&mut self) {
        let pending =
            NV_PGSP_FALCON_IRQSTAT::from_raw(self.registers.get(NV_PGSP_FALCON_IRQSTAT::OFFSET))
                .with(NV_PGSP_FALCON_IRQSTAT::SWGEN0, 1);
        self.registers
            .set(NV_PGSP_FALCON_IRQSTAT::OFFSET, pending.raw());
        self.intr.trigger(self.chip.vectors.gsp);
    }

    fn boot_gsp(&mut self, parameters: u64) {
        self.registers.set(NV_PGSP_FALCON_MAILBOX0::OFFSET, 0);
        self.set_gsp_halted(false);
        self.with_gsp(|gsp, context| gsp.boot(context, parameters));
    }

    fn serve_gsp(&mut self) {
        if self.with_gsp(|gsp, context| gsp.serve(context)) == Outcome::Halted {
            log::info!("GSP has halted");
            self.registers
                .set(NV_PGSP_FALCON_MAILBOX0::OFFSET, MAILBOX_HALTED);
            self.set_gsp_halted(true);
        }
    }

    /// Shows whether GSP has halted. It stays active: the driver looks at that only after a start.
    fn set_gsp_halted(&mut self, halted: bool) {
        use NV_PGSP_RISCV_CPUCTL as Control;
        let control = Control::from_raw(self.registers.get(Control::OFFSET))
            .with(Control::HALTED, u32::from(halted));
        self.registers.set(Control::OFFSET, control.raw());
    }
}

/// Returns the value of GSP's reset register.
pub(crate) fn falcon_engine(in_reset: bool) -> NV_PGSP_FALCON_ENGINE {
    NV_PGSP_FALCON_ENGINE::default()
        .with(NV_PGSP_FALCON_ENGINE::RESET, u32::from(in_reset))
        .with(
            NV_PGSP_FALCON_ENGINE::RESET_STATUS,
            if in_reset { 0 } else { 2 },
        )
}
