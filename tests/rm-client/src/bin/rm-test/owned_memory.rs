// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that no work of a tenant writes to the memory that its owned channels execute from.

use crate::faults::{events, shown, MMU_FAULT};
use crate::gpus::{me, session};
use crate::launch::recorder;
use crate::owned::{as_member, counts, rings};
use crate::submit::{queue, release};
use crate::tree::eventually;
use gct_ktap::{failed, same, Outcome, Test};

pub(crate) const TESTS: &[Test] = &[("owned_hostile_writes_to_the_ring_by_the_gpu", ring)];

/// Offset of the copies of segments from the ring that names them: one page.
const COPIES: u64 = 0x1000;

/// Lets the GPU write to a real ring, and to the copies of segments behind it. The channels that do
/// so fault, and that of the ring runs on.
fn ring() -> Outcome {
    as_member(|_| {
        let recorder = recorder()?;
        let session = session(0)?;
        let mark = recorder.mark()?;
        let mut victim = queue(&session)?;
        let mut attackers = [queue(&session)?, queue(&session)?];
        counts(3, 0)?;
        let [ring, ..] = rings(&recorder, mark)?[..] else {
            return Err(failed("rings are expected"));
        };
        same("the tenant's", ring == victim.ring_address(), false)?;
        for (attacker, (at, errors)) in attackers.iter_mut().zip([(ring, 1), (ring + COPIES, 2)]) {
            release(attacker, 0, 1)?;
            attacker.submit_release_at(at, u32::MAX);
            eventually("errors", &shown(errors, MMU_FAULT), || events(&me()))?;
        }
        for number in 1..=3 {
            release(&mut victim, 0, number)?;
        }
        Ok(())
    })
}
