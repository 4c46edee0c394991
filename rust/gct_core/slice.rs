// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks the time slice of one channel group, and decides which control RM gets next.
//!
//! The engine keeps a [`Slice`] for each channel group. In the user-space mode the process sends
//! these controls itself and keeps the `Slice`.

use crate::rmapi::control::{Control, Status, NOT_SUPPORTED};
use crate::rmapi::Handle;
use crate::units::Us;

/// Time slice of a channel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    /// The original one, not yet read.
    Own,
    /// The original one, as RM reported it.
    Known(Us),
    /// A limit, in place of the original.
    Ours {
        /// The original time slice, to be restored.
        own: Us,
        /// The time slice in force.
        now: Us,
    },
}

/// The next control for RM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceUpdate {
    /// Read the channel group's original time slice.
    Read,
    /// Set the time slice to a limit.
    Set(Us),
    /// Restore the original time slice.
    Restore(Us),
}

impl Slice {
    /// Returns the next control towards `limit`, or towards the original with `None`. Returns
    /// `None` when the time slice is right.
    pub const fn update(self, limit: Option<Us>) -> Option<SliceUpdate> {
        match (self, limit) {
            (Self::Own, Some(_)) => Some(SliceUpdate::Read),
            (Self::Known(_), Some(slice)) => Some(SliceUpdate::Set(slice)),
            (Self::Ours { now, .. }, Some(slice)) if now.get() != slice.get() => {
                Some(SliceUpdate::Set(slice))
            }
            (Self::Ours { own, .. }, None) => Some(SliceUpdate::Restore(own)),
            _ => None,
        }
    }

    /// Returns the state after another control may have set the time slice. The original stays
    /// known.
    #[must_use]
    pub const fn lost(self) -> Self {
        /// An impossible time slice: every limit is longer.
        const UNKNOWN: Us = Us(0);
        match self {
            Self::Ours { own, .. } => Self::Ours { own, now: UNKNOWN },
            other => other,
        }
    }

    /// Returns the state after RM has carried out `update` and reported `now`.
    #[must_use]
    pub const fn after(self, update: SliceUpdate, now: Us) -> Self {
        match (update, self) {
            (SliceUpdate::Read, _) => Self::Known(now),
            (SliceUpdate::Restore(_), _) => Self::Own,
            (SliceUpdate::Set(_), Self::Known(own) | Self::Ours { own, .. }) => {
                Self::Ours { own, now }
            }
            (SliceUpdate::Set(_), Self::Own) => Self::Own,
        }
    }
}

impl SliceUpdate {
    /// Builds the control for a channel group.
    pub fn control(self, client: Handle, group: Handle) -> Control {
        match self {
            Self::Read => Control::get_timeslice(client, group),
            Self::Set(slice) | Self::Restore(slice) => Control::set_timeslice(client, group, slice),
        }
    }

    /// Checks the outcome of the control. RM may round: a time slice other than the requested one
    /// is refused.
    ///
    /// # Errors
    ///
    /// RM's status, and [`NOT_SUPPORTED`] for another time slice.
    pub fn verify(self, control: &Control, outcome: Result<(), Status>) -> Result<(), Status> {
        match (self, outcome) {
            (Self::Set(slice), Ok(())) if control.timeslice() != slice => Err(NOT_SUPPORTED),
            (_, outcome) => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries out all updates and returns their number.
    fn settle(slice: &mut Slice, driver: &mut Us, limit: Option<Us>) -> u32 {
        let mut count = 0;
        while let Some(update) = slice.update(limit) {
            match update {
                SliceUpdate::Read => {}
                SliceUpdate::Set(new) | SliceUpdate::Restore(new) => *driver = new,
            }
            *slice = slice.after(update, *driver);
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
        let mut control = SliceUpdate::Set(Us(50)).control(1, 2);
        assert_eq!(SliceUpdate::Set(Us(50)).verify(&control, Ok(())), Ok(()));
        control.params()[0] = 51;
        let taken = SliceUpdate::Set(Us(50)).verify(&control, Ok(()));
        assert_eq!(taken, Err(NOT_SUPPORTED));
        assert_eq!(SliceUpdate::Read.verify(&control, Ok(())), Ok(()));
        assert_eq!(SliceUpdate::Read.verify(&control, Err(0x21)), Err(0x21));
    }
}
