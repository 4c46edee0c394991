// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shows a tenant its limit in the place of the GPU's memory.
//!
//! cuMemGetInfo, NVML and nvidia-smi ask the resource manager (RM) for facts about device memory
//! with one control, FB_GET_INFO_V2 (seen on 580.159.04). Its parameters are a count and pairs:
//!
//! ```text
//! index   a fact
//! data    RM's answer, in KiB for all sizes
//! ```
//!
//! A tenant under `gmem.limit` gets the lesser of RM's answer and of its [`MemoryView`]:
//!
//! ```text
//! sizes of memory and heap     min(answer, limit)
//! free memory, largest region  min(answer, left)
//! ```
//!
//! All other facts stay. The edit is advice for programs that size a cache by the answer. What
//! enforces the limit is the charge of each allocation.

use super::nv::{self, fb_info, nvos54};
use super::{escape, Fields, Handle};
use crate::units::Bytes;

/// Bytes of a pair of index and data.
const PAIR: usize = 8;

/// The memory of a GPU as a tenant's limits show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryView {
    /// The tightest limit.
    pub limit: Bytes,
    /// The least that a limit leaves.
    pub left: Bytes,
}

impl MemoryView {
    /// Creates the view under a limit of which `used` is charged.
    pub fn new(limit: Bytes, used: Bytes) -> Self {
        let left = limit - used;
        Self { limit, left }
    }

    /// Returns the view under the limits of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            limit: self.limit.min(other.limit),
            left: self.left.min(other.left),
        }
    }

    /// Returns the most that a tenant may see as the answer for a fact, in KiB; `None` for a fact
    /// that its limits do not change.
    fn most(&self, index: u32) -> Option<u32> {
        let most = match index {
            nv::NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE
            | nv::NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE
            | nv::NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE
            | nv::NV2080_CTRL_FB_INFO_INDEX_USABLE_RAM_SIZE => self.limit,
            nv::NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE
            | nv::NV2080_CTRL_FB_INFO_INDEX_LARGEST_FREE_REGION_SIZE_KB => self.left,
            _ => return None,
        };
        Some(u32::try_from((most / 1024).get()).unwrap_or(u32::MAX))
    }

    /// Reduces the answers in the parameters of FB_GET_INFO_V2 to what the tenant may see.
    pub fn show(&self, params: &mut [u8]) {
        let count = Fields(params).u32(fb_info::COUNT).unwrap_or(0);
        let pairs = params.get_mut(fb_info::LIST..).unwrap_or_default();
        let pairs = pairs.chunks_exact_mut(PAIR);
        for pair in pairs.take(usize::try_from(count).unwrap_or(usize::MAX)) {
            let Some((index, data)) = pair.split_first_chunk_mut() else {
                continue;
            };
            let Some(data) = data.first_chunk_mut() else {
                continue;
            };
            if let Some(most) = self.most(u32::from_le_bytes(*index)) {
                *data = u32::from_le_bytes(*data).min(most).to_le_bytes();
            }
        }
    }
}

/// A FB_GET_INFO_V2 that RM has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The client.
    pub client: Handle,
    /// The subdevice.
    pub object: Handle,
    /// The address of the parameters.
    pub address: u64,
    /// Their size.
    pub bytes: usize,
}

impl Answered {
    /// Decodes an `NVOS54_PARAMETERS`. Returns `None` for another control, and if RM has refused.
    pub fn decode(escape: u32, bytes: &[u8]) -> Option<Self> {
        let fields = Fields(bytes);
        let is_answer = (escape, bytes.len()) == (escape::CONTROL, nvos54::SIZE)
            && fields.u32(nvos54::COMMAND).ok()? == nv::NV2080_CTRL_CMD_FB_GET_INFO_V2
            && fields.u32(nvos54::STATUS).ok()? == nv::NV_OK;
        is_answer.then_some(())?;
        let size = usize::try_from(fields.u32(nvos54::PARAMS_SIZE).ok()?).ok()?;
        let address = fields.u64(nvos54::PARAMS).ok()?;
        // RM accepts one size alone. A tenant may have changed the structure since.
        let is_size = super::query::FB_BYTES.contains(&size);
        (is_size && address != 0).then_some(())?;
        Some(Self {
            client: fields.u32(nvos54::CLIENT).ok()?,
            object: fields.u32(nvos54::OBJECT).ok()?,
            address,
            bytes: size,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    /// Returns parameters of 54 pairs that begin with these.
    fn params(pairs: &[(u32, u32)]) -> Vec<u8> {
        let mut words = vec![0u32; 1 + 2 * 54];
        words[0] = u32::try_from(pairs.len()).unwrap();
        for (at, (index, data)) in pairs.iter().enumerate() {
            (words[1 + 2 * at], words[2 + 2 * at]) = (*index, *data);
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    const VIEW: MemoryView = MemoryView {
        limit: Bytes(10 << 30),
        left: Bytes(3 << 30),
    };

    /// Checks the questions of NVML and of cuMemGetInfo, with the answers of an H100
    /// (`ioctls-580`).
    #[test]
    fn the_limit_is_the_total_and_what_is_left_is_free() {
        let mut nvml = params(&[(0x16, 0x04f2_dc00), (8, 0x04fa_5c00), (9, 0x04f2_dc00)]);
        VIEW.show(&mut nvml);
        assert_eq!(
            nvml,
            params(&[(0x16, 3 << 20), (8, 10 << 20), (9, 10 << 20)])
        );
        let mut cuda = params(&[(0x16, 0x04e7_10c0), (9, 0x04f2_dc00), (0x10, 0)]);
        VIEW.show(&mut cuda);
        assert_eq!(cuda, params(&[(0x16, 3 << 20), (9, 10 << 20), (0x10, 0)]));
    }

    #[test]
    fn other_facts_stay_as_they_are() {
        // The facts of libcuda's start: bus width, L2 cache, memory type, masks.
        let facts = [
            (0xb, 0x1400),
            (0x19, 0xa),
            (0x1b, 0x0320_0000),
            (0x3b, u32::MAX),
        ];
        let mut shown = params(&facts);
        VIEW.show(&mut shown);
        assert_eq!(shown, params(&facts));
    }

    #[test]
    fn less_memory_than_the_limit_stays() {
        let small = [(0x16, 1 << 20), (9, 2 << 20)];
        let mut shown = params(&small);
        VIEW.show(&mut shown);
        assert_eq!(shown, params(&small));
    }

    #[test]
    fn pairs_beyond_the_count_or_the_end_are_left_alone() {
        let mut shown = params(&[(9, u32::MAX), (9, u32::MAX)]);
        shown[0] = 1;
        VIEW.show(&mut shown);
        assert_eq!(shown[8..12], (10u32 << 20).to_le_bytes());
        assert_eq!(shown[16..20], u32::MAX.to_le_bytes());
        for len in 0..20 {
            let mut cut = params(&[(9, u32::MAX); 54]);
            cut.truncate(len);
            cut.iter_mut().take(4).for_each(|byte| *byte = 0xff);
            VIEW.show(&mut cut);
        }
    }

    #[test]
    fn the_tightest_limit_counts_and_so_does_the_least_that_is_left() {
        let view = MemoryView::new(Bytes(100), Bytes(10));
        let view = view.and(MemoryView::new(Bytes(200), Bytes(150)));
        assert_eq!((view.limit, view.left), (Bytes(100), Bytes(50)));
        assert_eq!(MemoryView::new(Bytes(5), Bytes(9)).left, Bytes(0));
    }

    #[test]
    fn an_answer_is_told_from_other_controls() {
        let control = |command: u32, size: u32, status: u32| {
            let mut bytes = vec![0; nvos54::SIZE];
            for (at, word) in [
                (0, 7),
                (4, 9),
                (8, command),
                (16, 0x1000),
                (24, size),
                (28, status),
            ] {
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            Answered::decode(escape::CONTROL, &bytes)
        };
        let answered = Answered {
            client: 7,
            object: 9,
            address: 0x1000,
            bytes: 1028,
        };
        assert_eq!(control(0x2080_1303, 1028, 0), Some(answered));
        assert_eq!(control(0x2080_1303, 1028, 0x1f), None);
        assert_eq!(control(0x2080_1301, 1028, 0), None);
        assert_eq!(control(0x2080_1303, u32::MAX, 0), None);
        assert_eq!(Answered::decode(escape::FREE, &[0; nvos54::SIZE]), None);
    }

    proptest! {
        /// Checks that no answer grows, and that a second edit changes nothing.
        #[test]
        fn no_answer_grows(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            limit: u64,
            left: u64,
            count in 0u32..80,
        ) {
            let mut params = bytes;
            if let Some(first) = params.first_chunk_mut() {
                *first = count.to_le_bytes();
            }
            let before = params.clone();
            let view = MemoryView { limit: Bytes(limit), left: Bytes(left) };
            view.show(&mut params);
            let words = |params: &[u8]| -> Vec<u32> {
                let words = params.chunks_exact(4);
                words.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
            };
            let pairs = words(&before).into_iter().zip(words(&params)).enumerate();
            for (at, (old, new)) in pairs {
                prop_assert!(new <= old);
                prop_assert!(new == old || at % 2 == 0 && at > 0, "an index or the count changed");
            }
            let once = params.clone();
            view.show(&mut params);
            prop_assert_eq!(params, once);
        }
    }
}
