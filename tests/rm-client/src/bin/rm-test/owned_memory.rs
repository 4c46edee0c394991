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

/// A tenant that knows where its real ring lies lets the GPU write to it. That channel faults, and
/// the entries of the ring stay as they are.
fn ring() -> Outcome {
    as_member(|_| {
        let recorder = recorder()?;
        let session = session(0)?;
        let mark = recorder.mark()?;
        let (mut victim, mut attacker) = (queue(&session)?, queue(&session)?);
        counts(2, 0)?;
        let [ring, _] = rings(&recorder, mark)?[..] else {
            return Err(failed("two rings are expected"));
        };
        same("the tenant's", ring == victim.ring_address(), false)?;
        release(&mut attacker, 0, 1)?;
        attacker.submit_release_at(ring, u32::MAX);
        eventually("errors", &shown(1, MMU_FAULT), || events(&me()))?;
        for number in 1..=3 {
            release(&mut victim, 0, number)?;
        }
        Ok(())
    })
}
