// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queries the resource manager about a GPU, as an RM client of its own.
//!
//! [`gct_core::rmapi::query`] builds the requests and parses the replies. Opening the node of an
//! idle GPU initialises it, which takes a second or two without persistence mode.

use crate::descriptor::{Descriptor, Kept};
use gct_core::rmapi::control::Control;
use gct_core::rmapi::escape;
use gct_core::rmapi::query;
use gct_core::topology::{Chip, Topology};
use rustix::fd::AsRawFd;
use rustix::fs::{open, Mode, OFlags};
use rustix::ioctl::{ioctl, Updater};

/// Handles that this client chooses.
const DEVICE: u32 = 0x5c00_0001;
const SUBDEVICE: u32 = 0x5c00_0002;

/// Returns a field of a GPU's `information` file in /proc.
pub fn field<'a>(information: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = information.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(key, _)| key.trim() == name);
    found.map(|(_, value)| value.trim())
}

/// The properties of a GPU that the resource manager reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The chip.
    pub chip: Chip,
    /// The TPCs; `None` for a chip whose numbering is unknown, and in MIG mode.
    pub topology: Option<Topology>,
    /// Bytes of device memory.
    pub memory: Option<u64>,
}

/// Queries the GPU `/dev/nvidia<minor>`. Returns `None` without a GPU or a driver that replies.
pub fn ask(minor: u32) -> Option<Facts> {
    let gpu = Gpu::open(minor)?;
    let chip = gpu.chip()?;
    Some(Facts {
        chip,
        topology: gpu.topology(chip),
        memory: gpu.memory(),
    })
}

/// An RM client with a subdevice. The resource manager frees it when its descriptors are closed.
#[derive(Debug)]
struct Gpu {
    control_fd: Kept,
    client: u32,
    _node: Kept,
}

impl Gpu {
    fn open(minor: u32) -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let node = |path: &str| Kept::high(open(path, flags, Mode::empty()).ok()?).ok();
        let control = node("/dev/nvidiactl")?;
        let of_gpu = node(&format!("/dev/nvidia{minor}"))?;
        let mut number = control.checked().ok()?.as_raw_fd();
        call::<{ query::request(query::REGISTER_FD, 4) }, _>(&of_gpu, &mut number)?;
        let mut cards = [0; query::CARDS_BYTES];
        call::<{ query::request(query::CARD_INFO, query::CARDS_BYTES) }, _>(&control, &mut cards)?;
        let id = query::gpu_id(&cards, minor)?;
        let mut gpu = Self {
            control_fd: control,
            client: 0,
            _node: of_gpu,
        };
        gpu.client = gpu.alloc(0, 0, query::CLIENT, &mut [])?;
        let mut instance = Control::instance_of_gpu(gpu.client, id);
        let (client, command) = (gpu.client, instance.command);
        gpu.control(client, command, instance.params())?;
        let mut params = [0; query::DEVICE_BYTES];
        params[..4].copy_from_slice(&instance.instance().to_le_bytes());
        gpu.alloc(client, DEVICE, query::DEVICE, &mut params)?;
        gpu.alloc(
            DEVICE,
            SUBDEVICE,
            query::SUBDEVICE,
            &mut [0; query::SUBDEVICE_BYTES],
        )?;
        Some(gpu)
    }

    fn alloc(&self, parent: u32, object: u32, class: u32, params: &mut [u8]) -> Option<u32> {
        let address = match params.is_empty() {
            true => 0,
            false => params.as_mut_ptr() as u64,
        };
        let mut words = query::alloc(self.client, parent, object, class, address, params.len());
        call::<{ query::request(escape::ALLOC, 32) }, _>(&self.control_fd, &mut words)?;
        query::made(&words)
    }

    /// Sends a control. Addresses in its parameters must be of memory that outlives the call.
    fn control(&self, object: u32, command: u32, params: &mut [u8]) -> Option<()> {
        let address = params.as_mut_ptr() as u64;
        let mut words = query::control(self.client, object, command, address, params.len());
        call::<{ query::request(escape::CONTROL, 32) }, _>(&self.control_fd, &mut words)?;
        query::is_done(&words).then_some(())
    }

    fn chip(&self) -> Option<Chip> {
        let mut arch = [0; query::ARCH_BYTES];
        self.control(SUBDEVICE, query::ARCH_INFO, &mut arch)?;
        let mut list = query::gr_list();
        let params = query::gr_params(list.as_mut_ptr() as u64);
        let mut bytes = [0; 32];
        for (to, word) in bytes.chunks_exact_mut(4).zip(params) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.control(SUBDEVICE, query::GR_INFO, &mut bytes)?;
        query::chip(&arch, &list)
    }

    fn topology(&self, chip: Chip) -> Option<Topology> {
        query::SM_ORDER_BYTES.into_iter().find_map(|len| {
            let mut params = vec![0; len];
            self.control(SUBDEVICE, query::SM_ORDER, &mut params)?;
            let sms = query::sms(&params)?;
            Topology::from_sm_order(chip, sms)
        })
    }

    fn memory(&self) -> Option<u64> {
        query::FB_BYTES.into_iter().find_map(|len| {
            let mut params = vec![0; len];
            query::write_memory_query(&mut params);
            self.control(SUBDEVICE, query::FB_INFO, &mut params)?;
            query::memory(&params)
        })
    }
}

/// Makes an ioctl of the driver.
fn call<const REQUEST: u32, T>(fd: &Kept, structure: &mut T) -> Option<()> {
    let fd = fd.checked().ok()?;
    // SAFETY: each request of this module encodes the size of `T`, which consists of integers that
    // the driver reads and writes. Addresses in it are of memory that outlives the call and is as
    // long as the request says.
    unsafe { ioctl(fd, Updater::<REQUEST, T>::new(structure)) }.ok()
}
