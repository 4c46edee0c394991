// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the objects of the driver's own client, and says which objects of a tenant it takes a name
//! for.
//!
//! The client shares nothing, so that its names are of no use to a tenant. That they cannot be
//! guessed is a second line of defence.

use crate::rmapi::{nv, Handle};

/// Lowest name. All names are below its double: the resource manager numbers objects of its own
/// from far above, and 0 is no name.
const FIRST: Handle = 1 << 30;

/// Bits of one half of a number that is permuted.
const HALF: u32 = 15;
const HALF_MASK: u32 = (1 << HALF) - 1;

/// Returns the name with a number, for a client with a random key. Numbers below 2^30 have
/// different names.
///
/// A Feistel network of four rounds permutes the numbers. A tenant never sees a name, so the
/// rounds need not withstand one who does.
pub const fn name(key: u64, number: u32) -> Handle {
    let (mut left, mut right) = (number >> HALF & HALF_MASK, number & HALF_MASK);
    let mut round = 0;
    while round < 4 {
        // CAST: the low half of what a round sees of the key.
        let mixed = right.wrapping_add((key >> (16 * round)) as u32);
        // 2^32 divided by the golden ratio, odd: it spreads each bit to the upper ones.
        let mixed = mixed.wrapping_mul(0x9e37_79b1) >> 17;
        (left, right) = (right, (left ^ mixed) & HALF_MASK);
        round += 1;
    }
    FIRST | left << HALF | right
}

/// What the driver takes a name for in its own client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory that it maps for the kernel, or has the GPU use: a ring, USERD, segments.
    Memory,
    /// An address space, in which it maps memory of its own.
    Space,
}

impl Kind {
    /// Returns whether an object of a class may be used as this kind.
    ///
    /// Memory is what a tenant may map itself, with the same rights: device memory and host memory
    /// that the resource manager has allocated. `NV01_MEMORY_LOCAL_PRIVILEGED`, which every tenant
    /// may allocate, shows the GPU's registers, and only the kernel may map it.
    pub const fn accepts(self, class: u32) -> bool {
        match self {
            Self::Memory => matches!(class, nv::NV01_MEMORY_LOCAL_USER | nv::NV01_MEMORY_SYSTEM),
            Self::Space => class == nv::FERMI_VASPACE_A,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn names_differ_and_are_in_range(key: u64, first in 0..(1_u32 << 30) - 2000) {
            let names: HashSet<_> = (first..first + 2000).map(|number| name(key, number)).collect();
            prop_assert_eq!(names.len(), 2000);
            prop_assert!(names.iter().all(|name| (FIRST..2 * FIRST).contains(name)));
        }

        #[test]
        fn other_keys_give_other_names(key: u64, number in 0..1_u32 << 30) {
            let same = (0..64).filter(|bit| name(key ^ 1 << bit, number) == name(key, number)).count();
            // Each round sees 32 bits of the key, of which the upper ones count through a sum.
            prop_assert!(same < 16, "{same} of 64");
        }
    }

    #[test]
    fn registers_and_other_objects_are_no_memory() {
        for class in [
            nv::NV01_MEMORY_LOCAL_PRIVILEGED,
            nv::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR,
            nv::NV01_MEMORY_VIRTUAL,
            nv::NV_MEMORY_FABRIC,
            nv::FERMI_VASPACE_A,
            0,
        ] {
            assert!(!Kind::Memory.accepts(class), "{class:#x}");
        }
        assert!(Kind::Memory.accepts(nv::NV01_MEMORY_LOCAL_USER));
        assert!(Kind::Memory.accepts(nv::NV01_MEMORY_SYSTEM));
        assert!(
            Kind::Space.accepts(nv::FERMI_VASPACE_A) && !Kind::Space.accepts(nv::NV01_DEVICE_0)
        );
    }
}
