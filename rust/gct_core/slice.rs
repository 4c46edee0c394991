// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks the time slice of one channel group, and which control the resource manager gets next.
//!
//! The engine keeps a [`Slice`] for each channel group. In the user-space mode the process sends
//! these controls itself, and keeps them instead.

use crate::rmapi::control::{Control, Status, NOT_SUPPORTED};
use crate::rmapi::Handle;
use crate::units::Us;

/// Time slice of a channel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    /// The original one, not yet read.
    Own,
    /// The original one, as the resource manager reported it.
    Known(Us),
    /// A limit, in place of the original.
    Ours {
        /// The original time slice, to be restored.
        own: Us,
        /// The time slice in force.
        now: Us,
    },
}

/// The next control for the resource manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceOrder {
    /// Read the channel group's original time slice.
    Ask,
    /// Set the time slice to a limit.
    Set(Us),
    /// Restore the original time slice.
    GiveBack(Us),
}

impl Slice {
    /// Returns the next control towards `limit`, or towards the original with `None`. Returns
    /// `None` when the time slice is right.
    pub const fn order(self, limit: Option<Us>) -> Option<SliceOrder> {
        match (self, limit) {
            (Self::Own, Some(_)) => Some(SliceOrder::Ask),
            (Self::Known(_), Some(slice)) => Some(SliceOrder::Set(slice)),
            (Self::Ours { now, .. }, Some(slice)) if now.get() != slice.get() => {
                Some(SliceOrder::Set(slice))
            }
            (Self::Ours { own, .. }, None) => Some(SliceOrder::GiveBack(own)),
            _ => None,
        }
    }

    /// Returns the state after somebody else may have set the time slice. The original is still
    /// known.
    #[must_use]
    pub const fn lost(self) -> Self {
        /// No limit is this short.
        const UNKNOWN: Us = Us(0);
        match self {
            Self::Ours { own, .. } => Self::Ours { own, now: UNKNOWN },
            other => other,
        }
    }

    /// Returns the state after the resource manager has carried out `order` and reported `now`.
    #[must_use]
    pub const fn after(self, order: SliceOrder, now: Us) -> Self {
        match (order, self) {
            (SliceOrder::Ask, _) => Self::Known(now),
            (SliceOrder::GiveBack(_), _) => Self::Own,
            (SliceOrder::Set(_), Self::Known(own) | Self::Ours { own, .. }) => {
                Self::Ours { own, now }
            }
            (SliceOrder::Set(_), Self::Own) => Self::Own,
        }
    }
}

impl SliceOrder {
    /// Builds the control for a channel group.
    pub fn control(self, client: Handle, group: Handle) -> Control {
        match self {
            Self::Ask => Control::get_timeslice(client, group),
            Self::Set(slice) | Self::GiveBack(slice) => {
                Control::set_timeslice(client, group, slice)
            }
        }
    }

    /// Checks the outcome of the control. A time slice other than the requested one is not the
    /// limit.
    ///
    /// # Errors
    ///
    /// The resource manager's, and [`NOT_SUPPORTED`] for another time slice.
    pub fn taken(self, control: &Control, outcome: Result<(), Status>) -> Result<(), Status> {
        match (self, outcome) {
            (Self::Set(slice), Ok(())) if control.timeslice() != slice => Err(NOT_SUPPORTED),
            (_, outcome) => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries out orders until there is none, and returns how many there were.
    fn settle(slice: &mut Slice, driver: &mut Us, limit: Option<Us>) -> u32 {
        let mut count = 0;
        while let Some(order) = slice.order(limit) {
            match order {
                SliceOrder::Ask => {}
                SliceOrder::Set(new) | SliceOrder::GiveBack(new) => *driver = new,
            }
            *slice = slice.after(order, *driver);
            count += 1;
        }
        count
    }

    #[test]
    fn a_limit_replaces_what_the_driver_had_and_gives_it_back() {
        let (mut slice, mut driver) = (Slice::Own, Us(2048));
        assert_eq!(settle(&mut slice, &mut driver, None), 0);
        assert_eq!(settle(&mut slice, &mut driver, Some(Us(50))), 2);
        assert_eq!(driver, Us(50));
        assert_eq!(settle(&mut slice, &mut driver, Some(Us(50))), 0);
        assert_eq!(settle(&mut slice, &mut driver, Some(Us(10_000))), 1);
        assert_eq!(settle(&mut slice, &mut driver, None), 1);
        assert_eq!((slice, driver), (Slice::Own, Us(2048)));
    }

    #[test]
    fn what_is_lost_is_set_again_or_given_back() {
        let (mut slice, mut driver) = (Slice::Own, Us(2048));
        assert_eq!(settle(&mut slice, &mut driver, Some(Us(50))), 2);
        slice = slice.lost();
        assert_eq!(settle(&mut slice, &mut driver, Some(Us(50))), 1);
        slice = slice.lost();
        assert_eq!(settle(&mut slice, &mut driver, None), 1);
        assert_eq!((slice, driver), (Slice::Own, Us(2048)));
    }

    #[test]
    fn another_time_slice_than_the_one_asked_for_is_a_refusal() {
        let mut control = SliceOrder::Set(Us(50)).control(1, 2);
        assert_eq!(SliceOrder::Set(Us(50)).taken(&control, Ok(())), Ok(()));
        control.params()[0] = 51;
        let taken = SliceOrder::Set(Us(50)).taken(&control, Ok(()));
        assert_eq!(taken, Err(NOT_SUPPORTED));
        assert_eq!(SliceOrder::Ask.taken(&control, Ok(())), Ok(()));
        assert_eq!(SliceOrder::Ask.taken(&control, Err(0x21)), Err(0x21));
    }
}
