// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the keys of tables and their hashes.

use crate::ids::{FileId, GpuId, GroupId, Owner, ProcKey, UserId};
use crate::records::PathHash;

/// Mixes a word into a hash by the finaliser of SplitMix64.
pub(crate) const fn mix(hash: u64, word: u64) -> u64 {
    let mut x = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A key of a table.
pub(crate) trait Key: Copy + Eq {
    /// Returns a hash that is uniform over 64 bits.
    fn hash(&self, seed: u64) -> u64;
}

impl Key for ProcKey {
    fn hash(&self, seed: u64) -> u64 {
        mix(mix(seed, u64::from(self.tgid)), self.start_time_ns)
    }
}

impl Key for GroupId {
    fn hash(&self, seed: u64) -> u64 {
        mix(seed, self.0)
    }
}

impl Key for GpuId {
    fn hash(&self, seed: u64) -> u64 {
        mix(seed, self.0)
    }
}

impl Key for FileId {
    fn hash(&self, seed: u64) -> u64 {
        mix(seed, self.0)
    }
}

impl Key for PathHash {
    fn hash(&self, seed: u64) -> u64 {
        mix(seed, self.0)
    }
}

impl Key for UserId {
    fn hash(&self, seed: u64) -> u64 {
        mix(seed, u64::from(self.0))
    }
}

impl Key for u32 {
    fn hash(&self, seed: u64) -> u64 {
        mix(seed, u64::from(*self))
    }
}

impl Key for (Owner, GpuId) {
    fn hash(&self, seed: u64) -> u64 {
        let seed = mix(seed, self.1 .0);
        match self.0 {
            Owner::Group(group) => group.hash(seed),
            Owner::Proc(proc) => proc.hash(!seed),
        }
    }
}
