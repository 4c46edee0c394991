// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Connects vfio-user's regions and interrupts to the device.

use crate::guest_memory::MappedMemory;
use crate::msi::Msi;
use crate::shared::Shared;
use fakegpu_core::platform::{Clock, Interrupts, Platform};
use fakegpu_core::recorder::Recorder;
use fakegpu_core::{Aperture, ChipDescription, Gpu};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;
use vfio_bindings::bindings::vfio::{
    vfio_region_info, VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_SET_ACTION_TRIGGER,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_INTX_IRQ_INDEX,
    VFIO_PCI_MSI_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, ServerBackend, ServerRegion};

/// Size of configuration space, as a region.
const CONFIG_BYTES: u64 = fakegpu_core::pci::CONFIG_BYTES as u64;

/// Time since the server started.
struct Monotonic(Instant);

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        // 584 years fit 64 bits.
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The device and its connections to one virtual machine.
pub(crate) struct Backend {
    gpu: Arc<Shared>,
    memory: Arc<MappedMemory>,
    msi: Arc<Msi>,
}

impl Backend {
    /// Creates a device in its state after power-on, not yet connected.
    pub(crate) fn new(chip: ChipDescription, slot_id: u8, recorder: Arc<dyn Recorder>) -> Self {
        let memory = Arc::new(MappedMemory::default());
        let msi = Arc::new(Msi::default());
        let platform = Platform {
            memory: memory.clone(),
            interrupts: msi.clone(),
            clock: Arc::new(Monotonic(Instant::now())),
            recorder,
        };
        let gpu = Gpu::new(chip, slot_id, platform);
        log::info!("{}, UUID {:02x?}", gpu.chip().name, gpu.uuid());
        Self {
            gpu: Shared::new(gpu),
            memory,
            msi,
        }
    }
}

impl Backend {
    /// Returns the device, for the thread that executes channels.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.gpu.clone()
    }
}

/// Returns the regions of the device: three apertures and configuration space.
pub(crate) fn regions(chip: &ChipDescription) -> Vec<ServerRegion> {
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let size = match Aperture::from_bar_index(index) {
                Some(aperture) => aperture.bytes(chip),
                None if index == VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_BYTES,
                None => 0,
            };
            let flags = if size == 0 {
                0
            } else {
                VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE
            };
            let region_info = vfio_region_info {
                // CAST: the size of a structure of 32 bytes.
                argsz: size_of::<vfio_region_info>() as u32,
                index,
                flags,
                size,
                ..Default::default()
            };
            ServerRegion {
                region_info,
                sparse_areas: Vec::new(),
                mmap_fd: None,
            }
        })
        .collect()
}

/// Returns the interrupts of the device: INTA and one MSI message. The device never raises INTA,
/// but the driver wants its pin connected.
pub(crate) fn interrupts() -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| {
            let exists = matches!(index, VFIO_PCI_INTX_IRQ_INDEX | VFIO_PCI_MSI_IRQ_INDEX);
            IrqInfo {
                index,
                count: u32::from(exists),
                flags: if exists { VFIO_IRQ_INFO_EVENTFD } else { 0 },
            }
        })
        .collect()
}

/// Checks that malformed requests get a successful reply: an error reply would end the virtual
/// machine, and with it the test that sent the request.
impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match Aperture::from_bar_index(region) {
            Some(aperture) => self.gpu.access(|gpu| gpu.read(aperture, offset, data)),
            None if region == VFIO_PCI_CONFIG_REGION_INDEX => {
                self.gpu.access(|gpu| gpu.config_read(offset, data))
            }
            None => data.fill(0xff),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match Aperture::from_bar_index(region) {
            Some(aperture) => self.gpu.access(|gpu| gpu.write(aperture, offset, data)),
            None if region == VFIO_PCI_CONFIG_REGION_INDEX => {
                self.gpu.access(|gpu| gpu.config_write(offset, data))
            }
            None => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        _flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        match file.map(|file| self.memory.map(file, offset, address, size)) {
            Some(Ok(())) => log::info!("guest memory {address:#x}+{size:#x} mapped"),
            Some(Err(error)) => {
                log::warn!("guest memory {address:#x}+{size:#x} stays unmapped: {error:#}")
            }
            None => log::info!("guest memory {address:#x}+{size:#x} has no file: out of reach"),
        }
        Ok(())
    }

    fn dma_unmap(&mut self, _flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.memory.unmap(address, size);
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.gpu.access(Gpu::reset);
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        _start: u32,
        count: u32,
        mut files: Vec<File>,
    ) -> io::Result<()> {
        if index != VFIO_PCI_MSI_IRQ_INDEX || flags & VFIO_IRQ_SET_ACTION_TRIGGER == 0 {
            return Ok(());
        }
        if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 {
            log::info!(
                "MSI {}",
                if files.is_empty() {
                    "disconnected"
                } else {
                    "connected"
                }
            );
            self.msi.connect(files.pop());
        } else if count == 0 {
            log::info!("MSI disabled");
            self.msi.connect(None);
        } else {
            self.msi.raise(0);
        }
        Ok(())
    }
}
