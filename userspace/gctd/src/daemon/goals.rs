// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps a controller for each goal.

use super::seen::{Key, Seen, NONE};
use gct_core::policy::slo::Controller;
use gct_core::state::State;
use gct_core::units::{Ns, Us};

/// The goals, each with its controller.
#[derive(Debug, Default)]
pub(super) struct Goals(Vec<(Key, Controller)>);

impl Goals {
    /// Returns whether there is no goal.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes over the goals that were written, and those that are gone.
    pub(super) fn follow(&mut self, state: &State<'_>, now: Ns) {
        let mut written: Vec<(Key, Us)> = Vec::new();
        state.each_goal(&mut |owner, gpu, goal| written.push(((owner, gpu), goal)));
        let list = &mut self.0;
        list.retain(|(key, _)| written.iter().any(|(of, _)| of == key));
        for (key, goal) in written {
            match list.iter_mut().find(|(of, _)| *of == key) {
                Some((_, known)) if known.goal() == goal => {}
                Some((_, known)) => known.set_goal(goal, now),
                None => list.push((key, Controller::new(goal, now))),
            }
        }
    }

    /// Decides how hard each goal presses, by the requests since the last look.
    pub(super) fn look(&mut self, state: &mut State<'_>, seen: &Seen, now: Ns) {
        for ((owner, gpu), controller) in &mut self.0 {
            let (ended, open) = seen.get(&(*owner, *gpu)).unwrap_or(&NONE);
            let verdict = controller.look(ended, *open, now);
            state.set_verdict(*owner, *gpu, verdict);
        }
    }
}
