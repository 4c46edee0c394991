// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that neither a pause nor a freeze depends on the subdevices that tenants have allocated.

use super::*;
use crate::engine::{InFlight, Prepared};
use crate::plan::Update;
use crate::rmapi::control::{Status, NO_RESOURCES};

/// RM's identifier of the world's GPU.
const GPU: u32 = 1;

fn next(timed: &mut Timed) -> Option<(Control, InFlight)> {
    match timed.world.store.state().next_control(&Flush::ALL) {
        Next::Send(control, in_flight) => Some((control, in_flight)),
        _ => None,
    }
}

/// Another tenant has a subdevice on the GPU, which is not used.
#[test]
fn a_channel_without_a_subdevice_pauses_through_one_of_the_drivers() {
    let mut timed = Timed::new();
    let file = timed.open(APP);
    timed.open(other(1));
    timed.write(Owner::Proc(APP), LIMIT);
    timed.pass(0);
    for own in [None, Some(GPU)] {
        if own.is_some() {
            timed.world.free(file, SUBDEVICE, 0);
        }
        for (ms, stops) in [(20, true), (80, false)] {
            timed.pass(ms);
            let (control, in_flight) = next(&mut timed).unwrap();
            assert_eq!((control.own_subdevice, control.channels()), (own, 1));
            assert_eq!(control.channel(0), (stops, handle(CLIENT), handle(CHANNEL)));
            let mut state = timed.world.store.state();
            state.control_done(&in_flight, &control, Ok(()));
            // It is seen that the channel stands, or runs.
            timed.pass(0);
        }
    }
}

/// Answers as RM does when it gives the driver no subdevice, while the channel exists.
fn without_resources(update: Update, control: &mut Control) -> Result<(), Status> {
    match update {
        Update::Freeze(_) => {
            assert_eq!(control.own_subdevice, Some(GPU));
            Err(NO_RESOURCES)
        }
        Update::CheckClass(_) => {
            control.params()[8..12].copy_from_slice(&0xc86f_u32.to_le_bytes());
            Ok(())
        }
        _ => Ok(()),
    }
}

#[test]
fn a_freeze_fails_if_rm_gives_the_driver_no_subdevice() {
    let mut timed = Timed::new();
    let file = timed.open(APP);
    timed.world.free(file, SUBDEVICE, 0);
    let pool = timed.world.pool(Owner::Proc(APP));
    let mut state = timed.world.store.state();
    let prepared = state.write_prepare(File::ComputeFreeze, pool, b"1");
    assert_eq!(prepared, Ok(Prepared::Pending));
    while let Some((mut control, in_flight)) = next(&mut timed) {
        let outcome = without_resources(in_flight.update, &mut control);
        let mut state = timed.world.store.state();
        if state.control_done(&in_flight, &control, outcome).refused {
            break;
        }
    }
    let written = timed.world.store.state().write_commit();
    assert_eq!(written, Err(Error::Refused));
    let shown = timed.world.read(File::ComputeFreeze, pool);
    assert_eq!(shown, Ok(String::from("0\n")));
}
