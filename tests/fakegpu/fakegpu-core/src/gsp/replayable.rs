// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Handles controls about the buffer of replayable faults, and those that end stalled accesses.

use crate::abi::{self, Malformed};
use crate::faults::Faults;
use crate::gsp::objects::ObjectKey;
use crate::memory::PhysicalAddress;
use std::collections::BTreeSet;

/// Size of the buffer's pages.
const PAGE_BYTES: u64 = 4096;

/// Applies control `command` on `object` to the buffer.
pub(super) fn observe(
    faults: &mut Faults,
    object: ObjectKey,
    command: u32,
    params: &[u8],
) -> Result<(), Malformed> {
    match command {
        abi::NV2080_CTRL_CMD_INTERNAL_GMMU_REGISTER_FAULT_BUFFER => {
            use abi::NV2080_CTRL_INTERNAL_GMMU_REGISTER_FAULT_BUFFER_PARAMS as P;
            let bytes = abi::get(params, P::faultBufferSize)?;
            let count = usize::try_from(bytes / PAGE_BYTES).unwrap_or(usize::MAX);
            let pages = P::faultBufferPteArray;
            let pages = (0..count.min(pages.count()))
                .map(|index| abi::get(params, pages.get(index)).map(PhysicalAddress::system));
            faults.register(pages.collect::<Result<_, _>>()?);
        }
        abi::NV2080_CTRL_CMD_INTERNAL_GMMU_UNREGISTER_FAULT_BUFFER => faults.register(Vec::new()),
        abi::NVA06F_CTRL_CMD_STOP_CHANNEL => faults.forget(&BTreeSet::from([object])),
        _ => {}
    }
    Ok(())
}
