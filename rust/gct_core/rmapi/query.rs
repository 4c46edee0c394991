// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Builds the queries that the user-space mode sends to the resource manager (RM) as a client.
//!
//! RM compares the size of parameters, so it refuses another layout. No query needs privilege
//! (tried as root and as nobody on 580.159.04).

use super::nv::{self, arch_info, card_info, sm_order};
use super::{Fields, Handle};
use crate::topology::{Chip, Sm};

/// Lists all GPUs, in an array of [`CARDS_BYTES`].
pub use nv::NV_ESC_CARD_INFO as CARD_INFO;
/// Ties a GPU's file to a control file. The argument is the control file's descriptor.
pub use nv::NV_ESC_REGISTER_FD as REGISTER_FD;

/// Bytes of the list of all GPUs.
// CAST: 32.
pub const CARDS_BYTES: usize = nv::NV_MAX_DEVICES as usize * card_info::SIZE;

pub use nv::device::SIZE as DEVICE_BYTES;
pub use nv::subdevice::SIZE as SUBDEVICE_BYTES;
pub use nv::NV01_DEVICE_0 as DEVICE;
pub use nv::NV01_ROOT_CLIENT as CLIENT;
pub use nv::NV20_SUBDEVICE_0 as SUBDEVICE;

pub use nv::arch_info::SIZE as ARCH_BYTES;
/// Queries the architecture. Its parameters have [`ARCH_BYTES`].
pub use nv::NV2080_CTRL_CMD_MC_GET_ARCH_INFO as ARCH_INFO;

/// Queries facts about the graphics engine.
pub use nv::NV2080_CTRL_CMD_GR_GET_INFO as GR_INFO;

/// Queries facts about device memory.
pub use nv::NV2080_CTRL_CMD_FB_GET_INFO_V2 as FB_INFO;
/// Bytes of its parameters, newest first: a count and 128 or 54 pairs.
pub const FB_BYTES: [usize; 2] = [4 + 8 * 128, 4 + 8 * 54];

/// Queries the place of each SM.
pub use nv::NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER as SM_ORDER;
// CAST: 512.
const SMS_MAX: usize = nv::NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER_MAX_SM_COUNT as usize;
/// Bytes of an SM in the answer, newest first. 580 has 18 and 535 has 12; the first 12 are alike.
const SM_BYTES: [usize; 4] = [18, 16, 14, 12];
/// Bytes of the parameters of [`SM_ORDER`] for each of them: the SMs, two counts, and a route of 16
/// bytes.
pub const SM_ORDER_BYTES: [usize; 4] = [
    sm_order_bytes(SM_BYTES[0]),
    sm_order_bytes(SM_BYTES[1]),
    sm_order_bytes(SM_BYTES[2]),
    sm_order_bytes(SM_BYTES[3]),
];

const fn sm_order_bytes(sm: usize) -> usize {
    (SMS_MAX * sm + 4).next_multiple_of(8) + 16
}

/// Returns the request number of an escape, `_IOWR('F', escape, ..)` of a structure of `bytes`.
pub const fn request(escape: u32, bytes: usize) -> u32 {
    // CAST: an ioctl's size has 14 bits.
    0xc000_0000 | ((bytes as u32) & 0x3fff).wrapping_shl(16) | 0x4600 | (escape & 0xff)
}

/// Returns an `NVOS21_PARAMETERS` that makes an object. `params` is the address of `len` bytes.
pub fn alloc(
    root: Handle,
    parent: Handle,
    object: Handle,
    class: u32,
    params: u64,
    len: usize,
) -> [u32; 8] {
    let [low, high] = halves(params);
    [root, parent, object, class, low, high, length(len), 0]
}

/// Returns the object in an answered [`alloc`], if RM has made it.
pub fn made([_, _, object, .., status]: &[u32; 8]) -> Option<Handle> {
    (*status == nv::NV_OK).then_some(*object)
}

/// Returns an `NVOS54_PARAMETERS` that sends a control. `params` is the address of `len` bytes.
pub fn control(client: Handle, object: Handle, command: u32, params: u64, len: usize) -> [u32; 8] {
    let [low, high] = halves(params);
    [client, object, command, 0, low, high, length(len), 0]
}

/// Returns whether RM has answered a [`control`] with success.
pub fn is_done([.., status]: &[u32; 8]) -> bool {
    *status == nv::NV_OK
}

/// Returns RM's number of the GPU `/dev/nvidia<minor>` from the answer to [`CARD_INFO`].
pub fn gpu_id(cards: &[u8], minor: u32) -> Option<u32> {
    let mut cards = cards.chunks_exact(card_info::SIZE);
    cards.find_map(|card| {
        let fields = Fields(card);
        let valid =
            card.get(card_info::VALID) != Some(&0) && fields.u32(card_info::MINOR).ok()? == minor;
        valid.then(|| fields.u32(card_info::GPU_ID).ok()).flatten()
    })
}

/// Returns the parameters of [`GR_INFO`], `NV2080_CTRL_GR_GET_INFO_PARAMS`, for a [`gr_list`] at
/// `address`.
pub fn gr_params(address: u64) -> [u32; 8] {
    let [low, high] = halves(address);
    [2, 0, low, high, 0, 0, 0, 0]
}

/// Returns the list of facts for [`GR_INFO`].
pub const fn gr_list() -> [u32; 4] {
    [
        nv::NV0080_CTRL_GR_INFO_INDEX_LITTER_NUM_GPCS,
        0,
        nv::NV0080_CTRL_GR_INFO_INDEX_LITTER_NUM_TPC_PER_GPC,
        0,
    ]
}

/// Returns the chip from the answers to [`ARCH_INFO`] and [`GR_INFO`].
pub fn chip(arch: &[u8], [_, gpcs, _, tpcs_per_gpc]: &[u32; 4]) -> Option<Chip> {
    Some(Chip {
        architecture: Fields(arch).u32(arch_info::ARCHITECTURE).ok()?,
        gpcs: u16::try_from(*gpcs).ok()?,
        tpcs_per_gpc: u16::try_from(*tpcs_per_gpc).ok()?,
    })
}

/// Writes a query for the memory's size into the parameters of [`FB_INFO`].
pub fn write_memory_query(params: &mut [u8]) {
    let words = params.chunks_exact_mut(4);
    for (word, value) in words.zip([1, nv::NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE]) {
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Returns the memory's size in bytes from the answer to [`FB_INFO`].
pub fn memory(params: &[u8]) -> Option<u64> {
    let kib = Fields(params).u32(8).ok()?;
    u64::from(kib).checked_mul(1024).filter(|bytes| *bytes > 0)
}

/// Returns the SMs in an answer to [`SM_ORDER`] of one of the sizes [`SM_ORDER_BYTES`].
pub fn sms(params: &[u8]) -> Option<impl Iterator<Item = Sm> + '_> {
    let mut sizes = SM_ORDER_BYTES.into_iter().zip(SM_BYTES);
    let (_, size) = sizes.find(|(len, _)| *len == params.len())?;
    let number = |at: usize| {
        let bytes = params.get(at..)?.first_chunk()?;
        Some(u16::from_le_bytes(*bytes))
    };
    let count = usize::from(number(SMS_MAX.checked_mul(size)?)?).min(SMS_MAX);
    // The size is not 0, but the compiler cannot prove it.
    let sms = params.chunks_exact(size.max(1)).take(count);
    Some(sms.filter_map(|sm| {
        let field = |at: usize| Some(u16::from_le_bytes(*sm.get(at..)?.first_chunk()?));
        Some(Sm {
            virtual_gpc: field(sm_order::VIRTUAL_GPC)?,
            migratable_tpc: field(sm_order::MIGRATABLE_TPC)?,
        })
    }))
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Returns the low and the high half of an address.
fn halves(address: u64) -> [u32; 2] {
    // CAST: the two halves.
    [address as u32, address.wrapping_shr(32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn structures_have_the_sizes_that_were_accepted() {
        assert_eq!(SM_ORDER_BYTES, [9240, 8216, 7192, 6168]);
        assert_eq!(FB_BYTES, [0x404, 0x1b4]);
        assert_eq!(request(super::super::escape::CONTROL, 32), 0xc020_462a);
        assert_eq!(request(CARD_INFO, CARDS_BYTES), 0xc900_46c8);
        assert_eq!(
            alloc(1, 2, 3, 0x80, 0x1_0000_0002, 56),
            [1, 2, 3, 0x80, 2, 1, 56, 0]
        );
        assert_eq!(made(&[0, 0, 7, 0, 0, 0, 0, 0]), Some(7));
        assert_eq!(made(&[0, 0, 7, 0, 0, 0, 0, 0x1f]), None);
        assert!(!is_done(&control(1, 2, SM_ORDER, 0, 0).map(|_| 1)));
    }

    /// Checks the answer of an H100 (`ioctls-580`).
    #[test]
    fn a_gpu_is_found_by_its_minor() {
        let mut cards = vec![0; CARDS_BYTES];
        for (card, (id, minor)) in cards
            .chunks_exact_mut(card_info::SIZE)
            .zip([(6u32, 0u32), (7, 1)])
        {
            card[0] = 1;
            card[16..20].copy_from_slice(&id.to_le_bytes());
            card[56..60].copy_from_slice(&minor.to_le_bytes());
        }
        assert_eq!(gpu_id(&cards, 1), Some(7));
        assert_eq!(gpu_id(&cards, 0), Some(6));
        assert_eq!(gpu_id(&cards, 2), None, "what is not valid is none");
        assert_eq!(gpu_id(&[], 0), None);
    }

    #[test]
    fn sms_are_read_in_every_size() {
        for (len, size) in SM_ORDER_BYTES.into_iter().zip(SM_BYTES) {
            let mut answer = vec![0; len];
            for (number, sm) in (0u16..132).zip(answer.chunks_exact_mut(size)) {
                sm[8..10].copy_from_slice(&(number / 18).to_le_bytes());
                sm[10..12].copy_from_slice(&(number % 9).to_le_bytes());
            }
            answer[512 * size..][..2].copy_from_slice(&132u16.to_le_bytes());
            let found: Vec<Sm> = sms(&answer).unwrap().collect();
            assert_eq!(found.len(), 132);
            let last = Sm {
                virtual_gpc: 7,
                migratable_tpc: 5,
            };
            assert_eq!(found.last(), Some(&last));
            // A count beyond the array.
            answer[512 * size..][..2].copy_from_slice(&[0xff; 2]);
            assert_eq!(sms(&answer).unwrap().count(), SMS_MAX);
        }
        assert!(sms(&[0; 100]).is_none());
    }

    #[test]
    fn memory_is_told_in_kib() {
        let mut params = [0; FB_BYTES[0]];
        write_memory_query(&mut params);
        assert_eq!(params[..8], [1, 0, 0, 0, 7, 0, 0, 0]);
        params[8..12].copy_from_slice(&83_516_416u32.to_le_bytes());
        assert_eq!(memory(&params), Some(81_559 << 20));
        assert_eq!(memory(&[0; 12]), None);
        let chip = chip(&[0x80, 1, 0, 0], &[0x14, 8, 0x17, 9]).unwrap();
        assert_eq!(
            (chip.architecture, chip.gpcs, chip.tpcs_per_gpc),
            (0x180, 8, 9)
        );
    }
}
