// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Handles calls that say where page directories lie.

use crate::abi::{self, Malformed};
use crate::gmmu::ROOT_SHIFT;
use crate::gsp::objects::{ObjectKey, Objects};
use crate::gsp::rpc::Context;
use crate::host::Host;
use crate::memory::PhysicalAddress;

/// The aperture value of video memory in a copy of page directory entries.
const GMMU_APERTURE_VIDEO: u32 = 1;
/// NV0080_CTRL_DMA_SET_PAGE_DIRECTORY_FLAGS_APERTURE; zero is video memory.
pub(super) const PAGE_DIRECTORY_APERTURE: u32 = 3;

/// Records what control `command` on `object` says about page directories.
pub(super) fn observe(
    host: &mut Host,
    objects: &Objects,
    object: ObjectKey,
    command: u32,
    params: &[u8],
) -> Result<(), Malformed> {
    use abi::NV2080_CTRL_INTERNAL_GMMU_COPY_RESERVED_SPLIT_GVASPACE_PDES_TO_SERVER_PARAMS as Split;
    use abi::NV90F1_CTRL_VASPACE_COPY_SERVER_RESERVED_PDES_PARAMS as Pdes;
    if command == abi::NV0080_CTRL_CMD_DMA_SET_PAGE_DIRECTORY {
        return set_page_directory(host, objects, object, params);
    }
    let (address, aperture) = match command {
        abi::NV90F1_CTRL_CMD_VASPACE_COPY_SERVER_RESERVED_PDES => {
            (Pdes::root_physAddress, Pdes::root_aperture)
        }
        abi::NV2080_CTRL_CMD_INTERNAL_GMMU_COPY_RESERVED_SPLIT_GVASPACE_PDES_TO_SERVER => {
            (Split::root_physAddress, Split::root_aperture)
        }
        _ => return Ok(()),
    };
    let root = physical(
        abi::get_u32(params, aperture)? != GMMU_APERTURE_VIDEO,
        abi::get(params, address)?,
    );
    host.set_page_directory(objects.origin(object), root);
    Ok(())
}

/// Sets the page directory of an address space of a device. Older drivers do so by a remote call of
/// its own.
fn set_page_directory(
    host: &mut Host,
    objects: &Objects,
    device: ObjectKey,
    params: &[u8],
) -> Result<(), Malformed> {
    use abi::NV0080_CTRL_DMA_SET_PAGE_DIRECTORY_PARAMS as Params;
    let handle = match abi::get_u32(params, Params::hVASpace)? {
        0 => device.handle,
        handle => handle,
    };
    let space = ObjectKey { handle, ..device };
    let in_system = abi::get_u32(params, Params::flags)? & PAGE_DIRECTORY_APERTURE != 0;
    let root = physical(in_system, abi::get(params, Params::physAddress)?);
    host.set_page_directory(objects.origin(space), root);
    Ok(())
}

/// Returns a physical address in guest or video memory.
pub(super) fn physical(in_system: bool, offset: u64) -> PhysicalAddress {
    if in_system {
        PhysicalAddress::system(offset)
    } else {
        PhysicalAddress::video(offset)
    }
}

/// Returns whether NV_VASPACE_ALLOCATION_PARAMETERS request the device's own address space.
pub(super) fn names_default_space(params: &[u8]) -> Result<bool, Malformed> {
    let index = abi::get_u32(params, abi::NV_VASPACE_ALLOCATION_PARAMETERS::index)?;
    Ok(index == abi::NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE)
}

/// Returns the key of address space `handle`, or of the device's own one.
pub(super) fn space_key(
    payload: &[u8],
    client: abi::Field,
    device: abi::Field,
    space: abi::Field,
) -> Result<ObjectKey, Malformed> {
    let handle = match abi::get_u32(payload, space)? {
        0 => abi::get_u32(payload, device)?,
        handle => handle,
    };
    Ok(ObjectKey {
        client: abi::get_u32(payload, client)?,
        handle,
    })
}

/// Writes the topmost entry of the page directory of BAR1 or BAR2, which GSP owns.
pub(super) fn update_bar_pde(context: &mut Context<'_>, payload: &[u8]) -> Result<(), Malformed> {
    use abi::rpc_update_bar_pde_v as Call;
    let root = match abi::get_u32(payload, Call::barType)? {
        abi::NV_RPC_UPDATE_PDE_BAR_1 => context.chip.bar1_root(),
        abi::NV_RPC_UPDATE_PDE_BAR_2 => context.chip.bar2_root(),
        bar => {
            log::warn!("GSP: UPDATE_BAR_PDE for BAR {bar}");
            return Ok(());
        }
    };
    let shift = abi::get(payload, Call::entryLevelShift)?;
    if shift != u64::from(ROOT_SHIFT) {
        log::warn!("GSP: UPDATE_BAR_PDE of a table at bit {shift}: only the topmost is known");
        return Ok(());
    }
    let entry = abi::get(payload, Call::entryValue)?;
    if context
        .memory
        .write_u64(PhysicalAddress::video(root), entry)
        .is_err()
    {
        log::warn!("GSP: the page directory at {root:#x} is not in video memory");
    }
    Ok(())
}
