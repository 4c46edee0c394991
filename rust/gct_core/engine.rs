// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Applies events to the state. No other module changes it.
//!
//! Each event is a method of [`State`]. An event first reserves room in the tables for all that it
//! may add, then changes the state. So an error means that nothing has changed. What must happen
//! outside the lock is queued; see [`State::next_effect`] and [`State::next_control`].

mod admit;
mod ahead;
mod balance;
mod calls;
mod cgroup_limits;
mod charge;
mod clock;
mod dirty;
mod dirty_procs;
mod enforce;
mod faults;
mod files;
mod foreign;
mod freeing;
mod goals;
mod governed;
mod gpus;
mod group_procs;
mod groups;
mod host_memory;
mod kept;
mod managed;
mod memory_view;
mod owned;
mod pageable;
mod paths;
mod pauses;
mod pausing;
mod pending_write;
mod procs;
mod sharers;
mod shortage;
mod shortest;
mod side_effects;
mod slices;
mod table_share;
mod ticket;
mod tpc_quota;
mod unseen;

pub use crate::ids::{Kept, KeptNames, OF_CHANNEL};
pub use crate::plan::{Completion, Flush, InFlight, Next, Wait};
pub use host_memory::HostCharge;
pub use owned::{Progress, Shadowed, Site, Terms};
pub use pageable::Paged;
pub use pauses::Pausing;
pub use pending_write::{needs_acks, needs_controls, Prepared};
pub use shortage::Shortage;
pub use side_effects::{Imported, Visited};
pub use ticket::Ticket;

use crate::dirs::{DirPath, Effect, Step};
use crate::failures::Failure;
use crate::iface::Name;
use crate::state::State;
use crate::units::Sat;
use core::fmt::Write;

impl State<'_> {
    /// Returns the next directory to add or remove.
    ///
    /// The caller carries it out without the state's lock, and one thread at a time.
    pub fn next_effect(&mut self) -> Option<Effect> {
        Some(match self.dirs.next_effect()? {
            Step::Add(path, scope) => Effect::Add {
                path,
                scope,
                name: self.dir_name(path),
            },
            Step::Remove(path) => Effect::Remove { path },
        })
    }

    /// Returns whether directories may have to change. O(1).
    pub fn has_effects(&self) -> bool {
        self.dirs.has_effects()
    }

    /// Counts a failure, which the root's `events` shows.
    pub fn count(&mut self, failure: Failure) {
        let counter = match failure {
            Failure::Limit => &mut self.failures.limit,
            Failure::Memory => &mut self.failures.memory,
            Failure::Decode => &mut self.failures.decode,
            Failure::Client => &mut self.failures.client,
            Failure::Gpu => &mut self.failures.gpu,
            Failure::Charge => &mut self.failures.charge,
            Failure::Control => &mut self.failures.control,
            Failure::Forbidden => &mut self.failures.forbidden,
            Failure::Members(total) => {
                self.failures.members = self.failures.members.max(Sat(total));
                return;
            }
        };
        *counter += 1;
    }

    fn dir_name(&self, path: DirPath) -> Name {
        let mut name = Name::EMPTY;
        // Cannot fail: a number has at most ten digits.
        let _ = match path {
            DirPath::Group(group) => {
                return self.groups.get(&group).map_or(name, |group| group.name)
            }
            DirPath::Proc(tgid) => write!(name, "{tgid}"),
            DirPath::Gpu(gpu) | DirPath::GroupGpu(_, gpu) | DirPath::ProcGpu(_, gpu) => {
                write!(name, "{}", gpu.0)
            }
        };
        name
    }
}

#[cfg(test)]
mod tests;
