// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges a process and its group for what they have on a GPU.
//!
//! ```text
//! usage     what is charged to one owner on one GPU; a group's is the sum of its members'
//! charge    add an amount to a process and its group; both or neither
//! uncharge  subtract an amount that was charged
//! transfer  move a process's usage from one group to another
//! ```

use crate::rmapi::Class;
use crate::round::{Divisor, Round};
use crate::units::Bytes;

/// An amount of each resource. Every object has one, so counts have 32 bits: there are at most
/// [`OBJECTS_MAX`](crate::limits::OBJECTS_MAX) objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Channel groups.
    pub channel_groups: u32,
    /// Channels.
    pub channels: u32,
    /// Those of them in channel groups that other processes made.
    pub shared_channels: u32,
    /// Channels with their tenant's ring.
    pub native_channels: u32,
    /// Those of them that are shadowed.
    pub shadowed_channels: u32,
    /// Channels whose registers nobody saw.
    pub unseen_channels: u32,
    /// Address spaces.
    pub spaces: u32,
    /// Device memory allocated by the resource manager: what the tenant asked for, and the
    /// [charges](crate::costs) for other objects.
    pub memory: Bytes,
    /// Managed memory allocated by the UVM driver, wherever its pages are.
    pub managed: Bytes,
    /// The part of it that is for page tables.
    pub tables: Bytes,
    /// Host memory that evictions of managed memory have taken.
    pub host: Bytes,
    /// The round of a single channel group; meaningless in a sum.
    pub round: Round,
}

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self {
        channel_groups: 0,
        channels: 0,
        shared_channels: 0,
        native_channels: 0,
        shadowed_channels: 0,
        unseen_channels: 0,
        spaces: 0,
        memory: Bytes(0),
        managed: Bytes(0),
        tables: Bytes(0),
        host: Bytes(0),
        round: Round::GRAPHICS,
    };

    /// The part of a channel's amount that goes when the driver owns its ring.
    pub(crate) const NATIVE: Self = Self {
        native_channels: 1,
        ..Self::ZERO
    };

    /// The part of a channel's amount that comes when it is shadowed.
    pub(crate) const SHADOWED: Self = Self {
        shadowed_channels: 1,
        ..Self::ZERO
    };

    /// The part of a channel's amount that comes when nobody saw what its registers are.
    pub(crate) const UNSEEN: Self = Self {
        unseen_channels: 1,
        ..Self::ZERO
    };

    /// Returns the amount of a range of managed memory.
    pub(crate) const fn of_managed(managed: Bytes) -> Self {
        Self {
            managed,
            ..Self::ZERO
        }
    }

    /// Returns the amount that says of managed memory that it is for page tables.
    pub(crate) const fn of_tables(tables: Bytes) -> Self {
        Self {
            tables,
            ..Self::ZERO
        }
    }

    /// Returns the amount of host memory that an eviction takes.
    pub(crate) const fn of_host(host: Bytes) -> Self {
        Self { host, ..Self::ZERO }
    }

    /// Returns device memory and managed memory together: what `gmem.limit` bounds.
    pub fn all_memory(&self) -> Bytes {
        // INVARIANT: this does not saturate, because `plus` refuses such a sum.
        self.memory + self.managed
    }

    /// Returns the part of [`Amount::all_memory`] that cannot be evicted.
    pub fn fixed_memory(&self) -> Bytes {
        self.memory + self.tables
    }

    /// Returns the amount of one object of a class. `answer` is the answer to its
    /// [`Lookup`](crate::rmapi::Lookup): bytes of memory, or the engine of a channel group.
    pub(crate) fn of_object(class: Class, answer: u64) -> Self {
        match class {
            Class::ChannelGroup => Self {
                channel_groups: 1,
                round: Round::of_engine(answer),
                ..Self::ZERO
            },
            Class::Channel => Self {
                channels: 1,
                native_channels: 1,
                ..Self::ZERO
            },
            Class::Space => Self {
                spaces: 1,
                ..Self::ZERO
            },
            Class::DeviceMemory => Self {
                memory: Bytes(answer),
                ..Self::ZERO
            },
            _ => Self::ZERO,
        }
    }

    /// Returns what is left of the amount without a part of it, or `None` if that is no part.
    pub(crate) fn without(&self, part: &Self) -> Option<Self> {
        self.minus(part).map(|rest| Self {
            round: self.round,
            ..rest
        })
    }

    fn plus(&self, other: &Self) -> Option<Self> {
        let sum = Self {
            channel_groups: self.channel_groups.checked_add(other.channel_groups)?,
            channels: self.channels.checked_add(other.channels)?,
            shared_channels: self.shared_channels.checked_add(other.shared_channels)?,
            native_channels: self.native_channels.checked_add(other.native_channels)?,
            shadowed_channels: self
                .shadowed_channels
                .checked_add(other.shadowed_channels)?,
            unseen_channels: self.unseen_channels.checked_add(other.unseen_channels)?,
            spaces: self.spaces.checked_add(other.spaces)?,
            memory: self.memory.checked_add(other.memory)?,
            managed: self.managed.checked_add(other.managed)?,
            tables: self.tables.checked_add(other.tables)?,
            host: self.host.checked_add(other.host)?,
            round: Round::GRAPHICS,
        };
        sum.memory.checked_add(sum.managed).map(|_| sum)
    }

    fn minus(&self, other: &Self) -> Option<Self> {
        Some(Self {
            channel_groups: self.channel_groups.checked_sub(other.channel_groups)?,
            channels: self.channels.checked_sub(other.channels)?,
            shared_channels: self.shared_channels.checked_sub(other.shared_channels)?,
            native_channels: self.native_channels.checked_sub(other.native_channels)?,
            shadowed_channels: self
                .shadowed_channels
                .checked_sub(other.shadowed_channels)?,
            unseen_channels: self.unseen_channels.checked_sub(other.unseen_channels)?,
            spaces: self.spaces.checked_sub(other.spaces)?,
            memory: self.memory.checked_sub(other.memory)?,
            managed: self.managed.checked_sub(other.managed)?,
            tables: self.tables.checked_sub(other.tables)?,
            host: self.host.checked_sub(other.host)?,
            round: Round::GRAPHICS,
        })
    }
}

/// The usage of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    now: Amount,
    peak: Bytes,
    /// For a group: how many of its processes have channel groups.
    sharers: Divisor,
    /// For a process: its channel groups in each round.
    rounds: [Divisor; Round::COUNT],
}

impl Usage {
    /// The usage of a new pool.
    pub const ZERO: Self = Self {
        now: Amount::ZERO,
        peak: Bytes(0),
        sharers: Divisor::ONE,
        rounds: [Divisor::ONE; Round::COUNT],
    };

    /// Returns what is charged now.
    pub const fn now(&self) -> &Amount {
        &self.now
    }

    /// Returns the peak of [`Amount::all_memory`] since the last reset.
    pub const fn peak(&self) -> Bytes {
        self.peak
    }

    /// Returns the divisor of a group's time slice among its processes.
    pub const fn sharers(&self) -> &Divisor {
        &self.sharers
    }

    /// Returns the divisors of a process's time slice, one for each round.
    pub const fn rounds(&self) -> &[Divisor; Round::COUNT] {
        &self.rounds
    }

    /// Returns the divisor of a process's time slice in a round.
    pub fn round(&self, round: Round) -> &Divisor {
        self.rounds.get(round.index()).unwrap_or(&Divisor::ONE)
    }

    /// Adds a charged channel group to its round, or removes an uncharged one.
    fn recount(&mut self, amount: &Amount, change: fn(&mut Divisor)) {
        let round = self.rounds.get_mut(amount.round.index());
        if let Some(round) = round.filter(|_| amount.channel_groups > 0) {
            change(round);
        }
    }

    /// Returns whether a process has a share of its group's time slice.
    const fn shares(&self) -> bool {
        self.now.channel_groups > 0
    }

    /// Sets the peak to what is charged now.
    pub fn reset_peak(&mut self) {
        self.peak = self.now.all_memory();
    }

    fn set(&mut self, now: Amount) {
        self.now = now;
        self.peak = self.peak.max(now.all_memory());
    }

    /// Subtracts `amount`. Returns false and changes nothing if less is charged.
    fn take(&mut self, amount: &Amount) -> bool {
        match self.now.minus(amount) {
            Some(now) => {
                self.set(now);
                true
            }
            None => false,
        }
    }
}

/// Charges a process and its group, if it has one: both or neither.
///
/// Returns whether they were charged. The sum can exceed 64 bits if a tenant lies about a size;
/// then nothing is charged.
#[must_use]
pub fn charge(proc: &mut Usage, group: Option<&mut Usage>, amount: &Amount) -> bool {
    let Some(of_proc) = proc.now.plus(amount) else {
        return false;
    };
    let shared = proc.shares();
    if let Some(group) = group {
        let Some(of_group) = group.now.plus(amount) else {
            return false;
        };
        group.set(of_group);
        if !shared && amount.channel_groups > 0 {
            group.sharers.add();
        }
    }
    proc.set(of_proc);
    proc.recount(amount, Divisor::add);
    true
}

/// Uncharges what [`charge`] has charged. Returns whether that much was charged.
#[must_use]
pub fn uncharge(proc: &mut Usage, group: Option<&mut Usage>, amount: &Amount) -> bool {
    let shared = proc.shares();
    let mut whole = proc.take(amount);
    if whole {
        proc.recount(amount, Divisor::take);
    }
    if let Some(group) = group {
        whole &= group.take(amount);
        if shared && !proc.shares() {
            group.sharers.take();
        }
    }
    whole
}

/// Moves a process's usage from one group to another; `None` is no group.
///
/// Returns whether both groups were changed exactly. If the sum of the new group does not fit,
/// neither group changes.
#[must_use]
pub fn transfer(amount: &Amount, from: Option<&mut Usage>, to: Option<&mut Usage>) -> bool {
    if let Some(to) = to {
        match to.now.plus(amount) {
            Some(now) => to.set(now),
            None => return false,
        }
        if amount.channel_groups > 0 {
            to.sharers.add();
        }
    }
    let Some(from) = from else { return true };
    if amount.channel_groups > 0 {
        from.sharers.take();
    }
    from.take(amount)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn memory(bytes: u64) -> Amount {
        Amount::of_object(Class::DeviceMemory, bytes)
    }

    const fn managed(bytes: u64) -> Amount {
        Amount::of_managed(Bytes(bytes))
    }

    #[test]
    fn both_or_neither() {
        let (mut proc, mut group) = (Usage::ZERO, Usage::ZERO);
        assert!(charge(&mut group, None, &memory(u64::MAX)));
        assert!(!charge(&mut proc, Some(&mut group), &memory(1)));
        assert_eq!(proc, Usage::ZERO);
        assert_eq!(group.now().memory, Bytes(u64::MAX));
        assert!(charge(&mut proc, None, &memory(u64::MAX)));
        let mut empty = Usage::ZERO;
        assert!(!charge(&mut proc, Some(&mut empty), &memory(1)));
        assert_eq!(empty, Usage::ZERO);
    }

    #[test]
    fn peaks_stay_until_reset() {
        let mut proc = Usage::ZERO;
        assert!(charge(&mut proc, None, &memory(10)));
        assert!(uncharge(&mut proc, None, &memory(4)));
        assert_eq!((proc.now().memory, proc.peak()), (Bytes(6), Bytes(10)));
        assert!(charge(&mut proc, None, &managed(5)));
        assert_eq!(
            (proc.now().all_memory(), proc.peak()),
            (Bytes(11), Bytes(11))
        );
        assert!(uncharge(&mut proc, None, &managed(5)));
        proc.reset_peak();
        assert_eq!(proc.peak(), Bytes(6));
        assert!(!uncharge(&mut proc, None, &memory(7)));
        assert_eq!(proc.now().memory, Bytes(6));
    }

    #[test]
    fn both_kinds_of_memory_together_fit_or_are_not_charged() {
        let mut proc = Usage::ZERO;
        assert!(charge(&mut proc, None, &memory(u64::MAX - 1)));
        assert!(!charge(&mut proc, None, &managed(2)));
        assert!(charge(&mut proc, None, &managed(1)));
        assert_eq!(proc.now().all_memory(), Bytes(u64::MAX));
        assert!(
            !uncharge(&mut proc, None, &managed(2)),
            "each kind by itself"
        );
        assert!(uncharge(&mut proc, None, &managed(1)));
    }

    proptest! {
        /// Checks that a group's usage is the sum of its members' at any time, and every charge can
        /// be uncharged.
        #[test]
        fn a_group_is_the_sum_of_its_members(ops in prop::collection::vec((0usize..3, any::<bool>(), any::<bool>(), prop_oneof![0u64..100, any::<u64>()]), 0..60)) {
            let mut procs = [Usage::ZERO; 3];
            let mut group = Usage::ZERO;
            let mut charged: Vec<(usize, Amount)> = Vec::new();
            for (who, add, is_managed, bytes) in ops {
                if add {
                    let amount = if is_managed { managed(bytes) } else { memory(bytes) };
                    if charge(&mut procs[who], Some(&mut group), &amount) {
                        charged.push((who, amount));
                    }
                } else if let Some((who, amount)) = charged.pop() {
                    prop_assert!(uncharge(&mut procs[who], Some(&mut group), &amount));
                }
                for kind in [|now: &Amount| now.memory, |now: &Amount| now.managed, Amount::all_memory] {
                    let sum = procs.iter().map(|proc| u128::from(kind(proc.now()).get())).sum::<u128>();
                    prop_assert_eq!(sum, u128::from(kind(group.now()).get()));
                }
                prop_assert!(group.peak() >= group.now().all_memory());
            }
            for (who, amount) in charged {
                prop_assert!(uncharge(&mut procs[who], Some(&mut group), &amount));
            }
            prop_assert_eq!(group.now(), &Amount::ZERO);
        }
    }
}
