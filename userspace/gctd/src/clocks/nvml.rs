// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sets clocks by NVML, which is loaded only when it is asked for.

use super::Device;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::GpuLockedClocksSetting;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::Nvml;

/// The library that the driver installs. The name without a number is for programs that are built
/// with it, and often absent.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Opens NVML.
///
/// # Errors
///
/// A text if it cannot be loaded, or finds no driver.
pub(crate) fn open() -> Result<Opened, String> {
    let opened = Nvml::builder().lib_path(LIBRARY.as_ref()).init();
    opened.map(Opened).map_err(|error| text(&error))
}

/// NVML, opened.
#[derive(Debug)]
pub(crate) struct Opened(Nvml);

fn text(error: &NvmlError) -> String {
    format!("NVML: {error}")
}

impl Opened {
    fn with<T>(
        &self,
        pci: &str,
        call: impl FnOnce(&mut nvml_wrapper::Device<'_>) -> Result<T, NvmlError>,
    ) -> Result<T, String> {
        let device = self.0.device_by_pci_bus_id(pci);
        device
            .and_then(|mut device| call(&mut device))
            .map_err(|error| text(&error))
    }
}

impl Device for Opened {
    fn supported(&mut self, pci: &str) -> Result<Vec<u32>, String> {
        self.with(pci, |device| {
            let memory = device.max_clock_info(Clock::Memory)?;
            device.supported_graphics_clocks(memory)
        })
    }

    fn keep(&mut self, pci: &str, least: u32, most: u32) -> Result<(), String> {
        let range = GpuLockedClocksSetting::Numeric {
            min_clock_mhz: least,
            max_clock_mhz: most,
        };
        self.with(pci, |device| device.set_gpu_locked_clocks(range))
    }

    fn release(&mut self, pci: &str) -> Result<(), String> {
        self.with(pci, |device| device.reset_gpu_locked_clocks())
    }

    fn processes(&mut self, pci: &str) -> Result<Vec<u32>, String> {
        self.with(pci, |device| {
            let mut all = device.running_compute_processes()?;
            all.extend(device.running_graphics_processes()?);
            Ok(all.iter().map(|process| process.pid).collect())
        })
    }
}
