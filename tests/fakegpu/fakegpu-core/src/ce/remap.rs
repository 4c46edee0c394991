// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Remaps the components of a copy's elements: moves them, replaces them by constants, or keeps
//! them.

use crate::bits::Bits;

/// Fields of SET_REMAP_COMPONENTS.
mod fields {
    use super::Bits;
    pub(super) const DST: [Bits; 4] = [
        Bits::new(2, 0),
        Bits::new(6, 4),
        Bits::new(10, 8),
        Bits::new(14, 12),
    ];
    pub(super) const CONST_A: u64 = 4;
    pub(super) const CONST_B: u64 = 5;
    pub(super) const COMPONENT_SIZE: Bits = Bits::new(17, 16);
    pub(super) const NUM_SRC_COMPONENTS: Bits = Bits::new(21, 20);
    pub(super) const NUM_DST_COMPONENTS: Bits = Bits::new(25, 24);
}

/// Components of a scrub: both constants, one after the other.
pub(super) const SCRUB_COMPONENTS: u64 = fields::CONST_A | fields::CONST_B << 4 | 3 << 16 | 1 << 24;

/// Where each component of an element comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remap {
    /// SET_REMAP_COMPONENTS.
    pub(super) components: u64,
    /// SET_REMAP_CONST_A and SET_REMAP_CONST_B.
    pub(super) constants: [u32; 2],
}

impl Remap {
    fn component_bytes(&self) -> usize {
        // CAST: at most 4.
        fields::COMPONENT_SIZE.of(self.components) as usize + 1
    }

    /// Returns the bytes of a source element.
    pub(super) fn source_bytes(&self) -> u64 {
        (fields::NUM_SRC_COMPONENTS.of(self.components) + 1) * self.component_bytes() as u64
    }

    /// Returns the bytes of a destination element.
    pub(super) fn destination_bytes(&self) -> u64 {
        (fields::NUM_DST_COMPONENTS.of(self.components) + 1) * self.component_bytes() as u64
    }

    /// Returns the selector of each component of a destination element.
    fn selectors(&self) -> impl Iterator<Item = u64> + '_ {
        // CAST: at most 4.
        let count = fields::NUM_DST_COMPONENTS.of(self.components) as usize + 1;
        fields::DST
            .into_iter()
            .take(count)
            .map(|field| field.of(self.components))
    }

    fn constant(&self, selector: u64) -> Option<u32> {
        match selector {
            fields::CONST_A => Some(self.constants[0]),
            fields::CONST_B => Some(self.constants[1]),
            _ => None,
        }
    }

    /// Returns whether any component comes from the source.
    pub(super) fn needs_source(&self) -> bool {
        self.selectors().any(|selector| selector < fields::CONST_A)
    }

    /// Returns whether any component of the destination is kept.
    pub(super) fn keeps_some(&self) -> bool {
        self.selectors().any(|selector| selector > fields::CONST_B)
    }

    /// Returns whether every byte of the destination becomes zero.
    pub(super) fn is_clear(&self) -> bool {
        let mask = u32::MAX >> (32 - 8 * self.component_bytes());
        self.selectors().all(|selector| {
            self.constant(selector)
                .is_some_and(|constant| constant & mask == 0)
        })
    }

    /// Remaps the elements of `source` into `destination`, which holds the previous contents.
    pub(super) fn apply(&self, source: &[u8], destination: &mut [u8]) {
        let bytes = self.component_bytes();
        let source_bytes = self.source_bytes() as usize;
        for (index, element) in destination
            .chunks_exact_mut(self.destination_bytes() as usize)
            .enumerate()
        {
            for (component, selector) in element.chunks_exact_mut(bytes).zip(self.selectors()) {
                if let Some(constant) = self.constant(selector) {
                    component.copy_from_slice(&constant.to_le_bytes()[..bytes]);
                } else if selector < fields::CONST_A {
                    let start = index * source_bytes + selector as usize * bytes;
                    if let Some(value) = source.get(start..start + bytes) {
                        component.copy_from_slice(value);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Components of one byte: two swapped from the source, a constant, and one kept.
    const MIXED: Remap = Remap {
        components: 1 | 5 << 8 | 6 << 12 | 1 << 20 | 3 << 24,
        constants: [0xa, 0xb],
    };

    #[test]
    fn components_are_moved_replaced_and_kept() {
        let mut destination = [0xee; 8];
        MIXED.apply(&[1, 2, 3, 4], &mut destination);
        assert_eq!(destination, [2, 1, 0xb, 0xee, 4, 3, 0xb, 0xee]);
        assert!(MIXED.needs_source() && MIXED.keeps_some() && !MIXED.is_clear());
    }

    #[test]
    fn only_zeros_of_the_component_count_as_clear() {
        let fill = |constant| Remap {
            components: 4,
            constants: [constant, 0xff],
        };
        assert!(fill(0x100).is_clear());
        assert!(!fill(0x1).is_clear());
    }
}
