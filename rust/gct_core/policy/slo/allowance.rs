// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bounds how long a tenant waits because a service has a goal.
//!
//! ```text
//! in each PERIOD:   a pressed tenant that was held back for WAIT_MAX, and had nothing in flight or
//!                   nothing but pieces that need fewer TPCs (tpc::fit), has the rank that was
//!                   written for it, until the period ends
//! ```
//!
//! So a service that always works, or pretends to, leaves the others a fifth of the time at least.

use crate::units::Ns;

/// Length of a period.
pub const PERIOD: Ns = Ns(100_000_000);
/// How long a tenant waits at most in each.
pub const WAIT_MAX: Ns = Ns(80_000_000);

/// How long a tenant has waited in this period.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowance {
    period: u64,
    waited: Ns,
}

impl Allowance {
    /// Adds time for which the tenant was held back, until `now`.
    pub fn wait(&mut self, time: Ns, now: Ns) {
        let period = now / PERIOD;
        if core::mem::replace(&mut self.period, period) != period {
            self.waited = Ns(0);
        }
        self.waited += time;
    }

    /// Returns whether the tenant has waited long enough.
    pub fn is_over(&self, now: Ns) -> bool {
        self.period == now / PERIOD && self.waited >= WAIT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_waits_for_four_fifths_of_a_period_at_most() {
        let mut allowance = Allowance::default();
        let start = PERIOD * 7;
        allowance.wait(WAIT_MAX - Ns(1), start + WAIT_MAX);
        assert!(!allowance.is_over(start + WAIT_MAX));
        allowance.wait(Ns(1), start + WAIT_MAX);
        assert!(allowance.is_over(start + PERIOD - Ns(1)));
        assert!(!allowance.is_over(start + PERIOD), "the next period");
        allowance.wait(Ns(1), start + PERIOD);
        assert!(!allowance.is_over(start + PERIOD));
    }
}
