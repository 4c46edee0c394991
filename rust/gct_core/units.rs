// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Numbers with units, and the arithmetic that is allowed on them.
//!
//! Every operation is checked or saturating and says which. There is no float
//! and no 128-bit integer: the kernel has neither.

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($raw:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub $raw);

        impl $name {
            /// The bare number.
            pub const fn get(self) -> $raw {
                self.0
            }

            /// Sum, or `None` when it does not fit.
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// Difference, or `None` when it would be negative.
            pub const fn checked_sub(self, other: Self) -> Option<Self> {
                match self.0.checked_sub(other.0) {
                    Some(difference) => Some(Self(difference)),
                    None => None,
                }
            }

            /// Difference, or zero when it would be negative.
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }
    };
}

unit!(
    /// Nanoseconds: clocks and start times.
    Ns(u64)
);
unit!(
    /// Microseconds: every duration of the interface.
    Us(u64)
);
unit!(
    /// Bytes of memory.
    Bytes(u64)
);
unit!(
    /// Texture processing clusters: two SMs each, the finest unit of a mask.
    Tpcs(u16)
);
unit!(
    /// Share among equals, `1..=10000`.
    Weight(u16)
);
unit!(
    /// Order of preemption, `0..=15`, 0 first.
    Priority(u8)
);
unit!(
    /// Percent.
    Percent(u8)
);

impl Us {
    /// The same duration in nanoseconds, or `None` when it does not fit.
    pub const fn to_ns(self) -> Option<Ns> {
        match self.0.checked_mul(1_000) {
            Some(ns) => Some(Ns(ns)),
            None => None,
        }
    }
}

/// `a * b / c`, rounded down, without a 128-bit intermediate.
///
/// Returns `None` when `c` is zero or the result does not fit 64 bits.
pub fn mul_div(a: u64, b: u64, c: u64) -> Option<u64> {
    if let Some(product) = a.checked_mul(b) {
        return product.checked_div(c);
    }
    if c == 0 {
        return None;
    }
    // Long division, one bit of `a` at a time from the top. After the bits
    // seen so far, `quotient * c + remainder` is their value times `b`, with
    // `remainder < c`.
    let (whole, part) = (b.checked_div(c)?, b.checked_rem(c)?);
    let (mut quotient, mut remainder) = (0u64, 0u64);
    for shift in (0..u64::BITS).rev() {
        quotient = quotient.checked_mul(2)?;
        (quotient, remainder) = add_below(quotient, remainder, remainder, c)?;
        if (a >> shift) & 1 == 1 {
            quotient = quotient.checked_add(whole)?;
            (quotient, remainder) = add_below(quotient, remainder, part, c)?;
        }
    }
    Some(quotient)
}

/// Adds `addend` to `remainder` modulo `c` and carries into `quotient`. Both are below `c`.
fn add_below(quotient: u64, remainder: u64, addend: u64, c: u64) -> Option<(u64, u64)> {
    match remainder.checked_add(addend) {
        Some(sum) if sum < c => Some((quotient, sum)),
        // The sum is below 2 * c, so subtracting c once, even from a sum that
        // wrapped, leaves the remainder.
        _ => Some((
            quotient.checked_add(1)?,
            remainder.wrapping_add(addend).wrapping_sub(c),
        )),
    }
}

impl Priority {
    /// Where nobody wrote one.
    pub const DEFAULT: Self = Self(8);
}

impl Weight {
    /// Where nobody wrote one.
    pub const DEFAULT: Self = Self(100);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arithmetic_stops_at_both_ends() {
        assert_eq!(Bytes(u64::MAX).checked_add(Bytes(1)), None);
        assert_eq!(Bytes(0).checked_sub(Bytes(1)), None);
        assert_eq!(Bytes(0).saturating_sub(Bytes(1)), Bytes(0));
        assert_eq!(Us(2).to_ns(), Some(Ns(2_000)));
        assert_eq!(Us(u64::MAX).to_ns(), None);
    }

    #[test]
    fn mul_div_at_the_ends() {
        assert_eq!(mul_div(1, 1, 0), None);
        assert_eq!(mul_div(u64::MAX, u64::MAX, 0), None);
        assert_eq!(mul_div(u64::MAX, u64::MAX, u64::MAX), Some(u64::MAX));
        assert_eq!(mul_div(u64::MAX, 2, 1), None);
        assert_eq!(mul_div(0, u64::MAX, 1), Some(0));
    }

    proptest! {
        #[test]
        fn mul_div_is_exact(a: u64, b: u64, c: u64) {
            let wide = (u128::from(a) * u128::from(b)).checked_div(u128::from(c));
            prop_assert_eq!(mul_div(a, b, c), wide.and_then(|q| u64::try_from(q).ok()));
        }
    }
}
