// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines numbers with units, and operators on them that cannot panic.
//!
//! The kernel panics on integer overflow, and has neither floats nor 128-bit integers. So the
//! operators of an amount saturate, and a policy reads as its formula:
//!
//! | operator | out of range |
//! |---|---|
//! | `a + b`, `a * n`, `a << n` | [`MAX`](Ns::MAX) |
//! | `a - b` | 0 |
//! | `a / n`, `a / b`, `a.div_ceil(n)`, `a.pieces_of(b)` by 0 | the largest number |
//!
//! A sum that decides whether something is allowed uses `checked_add` instead. A plain number is a
//! `core::num::Saturating` ([`Sat`]). It is a `core::num::Wrapping` if it counts modulo 2^n or
//! cannot leave its range.

use core::ops::{Add, AddAssign, Div, Mul, Shl, Sub, SubAssign};

pub use core::num::Saturating as Sat;

/// Declares a number with a unit.
macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($raw:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub $raw);

        impl $name {
            /// Returns the bare number.
            pub const fn get(self) -> $raw {
                self.0
            }
        }
    };
}

/// Declares a 64-bit number with a unit that can be added, and multiplied by a plain number.
macro_rules! amount {
    ($(#[$doc:meta])* $name:ident) => {
        unit!($(#[$doc])* $name(u64));

        impl $name {
            /// The largest amount.
            pub const MAX: Self = Self(u64::MAX);

            /// Returns the sum, or `None` when it does not fit.
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// Returns the difference, or `None` when it would be negative.
            pub const fn checked_sub(self, other: Self) -> Option<Self> {
                match self.0.checked_sub(other.0) {
                    Some(difference) => Some(Self(difference)),
                    None => None,
                }
            }

            /// Divides by a plain number and rounds up.
            #[must_use]
            #[inline]
            pub fn div_ceil(self, divisor: u64) -> Self {
                Self(div_ceil(self.0, divisor))
            }

            /// Returns how many pieces of `each` cover the amount: the quotient, rounded up.
            #[inline]
            pub fn pieces_of(self, each: Self) -> u64 {
                div_ceil(self.0, each.0)
            }

            /// Returns `self * part / whole`, rounded down. `part` and `whole` have one unit.
            #[must_use]
            pub fn scale<U: Into<u64>>(self, part: U, whole: U) -> Self {
                mul_div(self.0, part.into(), whole.into()).map_or(Self::MAX, Self)
            }
        }

        impl From<$name> for u64 {
            fn from(amount: $name) -> Self {
                amount.0
            }
        }

        impl Add for $name {
            type Output = Self;

            #[inline]
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $name {
            #[inline]
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Sub for $name {
            type Output = Self;

            #[inline]
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl SubAssign for $name {
            #[inline]
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }

        impl Mul<u64> for $name {
            type Output = Self;

            #[inline]
            fn mul(self, factor: u64) -> Self {
                Self(self.0.saturating_mul(factor))
            }
        }

        impl Shl<u32> for $name {
            type Output = Self;

            #[inline]
            fn shl(self, bits: u32) -> Self {
                let factor = 1u64.checked_shl(bits).unwrap_or(u64::MAX);
                Self(self.0.saturating_mul(factor))
            }
        }

        impl Div<u64> for $name {
            type Output = Self;

            #[inline]
            fn div(self, divisor: u64) -> Self {
                Self(self.0.checked_div(divisor).unwrap_or(u64::MAX))
            }
        }

        impl Div for $name {
            type Output = u64;

            #[inline]
            fn div(self, other: Self) -> u64 {
                self.0.checked_div(other.0).unwrap_or(u64::MAX)
            }
        }
    };
}

amount!(
    /// Nanoseconds: clocks and start times.
    Ns
);
amount!(
    /// Microseconds: every duration of the interface.
    Us
);
amount!(
    /// Bytes of memory.
    Bytes
);
amount!(
    /// Blocks of a grid (CTAs).
    Blocks
);
amount!(
    /// Nanoseconds of one TPC: what a launch costs, however many TPCs share it.
    TpcNs
);
amount!(
    /// Processors, in thousandths.
    Cpus
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
    /// Clocks in MHz.
    Mhz(u32)
);
unit!(
    /// Percent.
    Percent(u8)
);

/// A GPU virtual address. Sums and distances are modulo 2^64, as the GPU computes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Va(pub u64);

impl Va {
    /// Returns the bare address.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Add<u64> for Va {
    type Output = Self;

    #[inline]
    fn add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u64> for Va {
    #[inline]
    fn add_assign(&mut self, bytes: u64) {
        *self = *self + bytes;
    }
}

impl Sub for Va {
    type Output = u64;

    #[inline]
    fn sub(self, other: Self) -> u64 {
        self.0.wrapping_sub(other.0)
    }
}

/// Returns the product of three sizes: the blocks of a grid, the threads of a block.
#[inline]
pub fn volume(sizes: [u32; 3]) -> Sat<u64> {
    let [x, y, z] = sizes.map(|size| Sat(u64::from(size)));
    x * y * z
}

impl Us {
    /// Returns the same duration in nanoseconds, or `None` when it does not fit.
    pub const fn to_ns(self) -> Option<Ns> {
        match self.0.checked_mul(1_000) {
            Some(ns) => Some(Ns(ns)),
            None => None,
        }
    }
}

impl Priority {
    /// Priority of a group without a written one.
    pub const DEFAULT: Self = Self(8);
    /// The last priority.
    pub const LAST: Self = Self(15);
    /// The first.
    pub const FIRST: Self = Self(0);
}

/// Returns `a / b`, rounded up; the largest number for a `b` of 0.
///
/// `u64::div_ceil` adds with an overflow check.
#[inline]
pub fn div_ceil(a: u64, b: u64) -> u64 {
    match (a.checked_div(b), a.checked_rem(b)) {
        (Some(quotient), Some(0)) => quotient,
        (Some(quotient), _) => quotient.saturating_add(1),
        (None, _) => u64::MAX,
    }
}

/// Returns `a * b / c`, rounded down, without a 128-bit intermediate. Returns `None` for a `c` of
/// zero and for a result that does not fit 64 bits.
pub fn mul_div(a: u64, b: u64, c: u64) -> Option<u64> {
    if let Some(product) = a.checked_mul(b) {
        return product.checked_div(c);
    }
    if c == 0 {
        return None;
    }
    // Long division, one bit of `a` at a time from the top. After the bits seen so far, `quotient *
    // c + remainder` is their value times `b`, with `remainder < c`.
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
        // The sum is below 2 * c, so subtracting c once leaves the remainder, even from a sum that
        // wrapped.
        _ => Some((
            quotient.checked_add(1)?,
            remainder.wrapping_add(addend).wrapping_sub(c),
        )),
    }
}

impl Weight {
    /// Weight of a group without a written one.
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
        assert_eq!(Ns::MAX + Ns(1), Ns::MAX);
        assert_eq!((Ns(3) - Ns(4), Ns(4) - Ns(3)), (Ns(0), Ns(1)));
        assert_eq!((Ns::MAX * 2, Ns(3) * 2), (Ns::MAX, Ns(6)));
        assert_eq!(
            (Ns(3) << 2, Ns(3) << 63, Ns(1) << 64),
            (Ns(12), Ns::MAX, Ns::MAX)
        );
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

    #[test]
    fn addresses_wrap_and_volumes_do_not() {
        assert_eq!((Va(u64::MAX) + 2, Va(1) - Va(2)), (Va(1), u64::MAX));
        assert_eq!(volume([2, 3, 4]), Sat(24));
        assert_eq!(volume([u32::MAX; 3]), Sat(u64::MAX));
    }

    #[test]
    fn a_division_by_zero_is_the_largest_number() {
        assert_eq!((Ns(7) / 2, Ns(7) / 0), (Ns(3), Ns::MAX));
        assert_eq!((Ns(7) / Ns(2), Ns(0) / Ns(0)), (3, u64::MAX));
        assert_eq!((Ns(7).div_ceil(2), Ns(0).div_ceil(0)), (Ns(4), Ns::MAX));
        assert_eq!(
            (
                Blocks(7).pieces_of(Blocks(2)),
                Blocks(8).pieces_of(Blocks(2))
            ),
            (4, 4)
        );
        assert_eq!(Blocks(7).pieces_of(Blocks(0)), u64::MAX);
        assert_eq!(Blocks(7).scale(Ns(3), Ns(2)), Blocks(10));
        assert_eq!(Blocks(7).scale(Ns(3), Ns(0)), Blocks::MAX);
    }

    proptest! {
        #[test]
        fn rounding_up_is_exact(a: u64, b in 1u64..) {
            prop_assert_eq!(Ns(a).div_ceil(b), Ns(a.div_ceil(b)));
        }

        #[test]
        fn mul_div_is_exact(a: u64, b: u64, c: u64) {
            let wide = (u128::from(a) * u128::from(b)).checked_div(u128::from(c));
            prop_assert_eq!(mul_div(a, b, c), wide.and_then(|q| u64::try_from(q).ok()));
        }
    }
}
