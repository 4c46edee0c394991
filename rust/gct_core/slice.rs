// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The time slice of one channel group: what the resource manager is to be told of it, and what it was told.
//!
//! The engine keeps one for each channel group. Where a process sends the controls of its channel groups itself, as in the
//! user-space mode, it keeps them.

use crate::rmapi::control::{Control, Status, NOT_SUPPORTED};
use crate::rmapi::Handle;
use crate::units::Us;

/// The time slice of a channel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    /// Its own, whatever that is.
    Own,
    /// Its own, which the resource manager has said.
    Known(Us),
    /// Ours, in place of its own.
    Ours {
        /// What it gets back.
        own: Us,
        /// What it has.
        now: Us,
    },
}

/// What the resource manager is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceOrder {
    /// It is asked for the channel group's own time slice.
    Ask,
    /// The channel group gets a time slice of ours.
    Set(Us),
    /// The channel group gets its own time slice back.
    GiveBack(Us),
}

impl Slice {
    /// What comes next to make it `limit`, or its own with `None`; `None` when it is.
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

    /// What it is when somebody else may have set it: what it gets back is known as before.
    #[must_use]
    pub const fn lost(self) -> Self {
        /// No limit is this short.
        const UNKNOWN: Us = Us(0);
        match self {
            Self::Ours { own, .. } => Self::Ours { own, now: UNKNOWN },
            other => other,
        }
    }

    /// What it is once the resource manager has obeyed `order` and said `now`.
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
    /// The control that says it of a channel group.
    pub fn control(self, client: Handle, group: Handle) -> Control {
        match self {
            Self::Ask => Control::get_timeslice(client, group),
            Self::Set(slice) | Self::GiveBack(slice) => {
                Control::set_timeslice(client, group, slice)
            }
        }
    }

    /// What came of the control: a time slice that is not the one that was asked for is not the limit.
    ///
    /// # Errors
    ///
    /// The resource manager's, and [`NOT_SUPPORTED`].
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

    /// Obeys orders until there is none; returns how many there were.
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
