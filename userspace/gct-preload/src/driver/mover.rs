// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Moves pageable memory, and charges it with the daemon.

use super::backing::Backing;
use super::gate::Stop;
use super::symbols::Libcuda;
use super::{Device, Status, Stream, SUCCESS};
use crate::daemon;
use crate::pager::{Backend, SPARE};
use core::ffi::c_int;
use gctd_ipc::message::Paged;

/// Share of the host's memory that stays free, as a divisor.
const HOST_KEPT: u64 = 16;

static STREAM_IS_CAPTURING: Libcuda = Libcuda::new(c"cuStreamIsCapturing");

/// Moves memory of a GPU. What the program submits waits from the first move until this is dropped.
#[derive(Debug)]
pub(super) struct Mover<'a> {
    pub(super) device: Device,
    /// The N of `/dev/nvidiaN`.
    pub(super) minor: u32,
    pub(super) backing: &'a mut Backing,
    /// How often it tries to stop the program.
    pub(super) attempts: u32,
    /// While pieces move.
    pub(super) stop: Option<Stop>,
}

impl Mover<'_> {
    /// Returns whether pieces that something may use can move.
    fn stops(&mut self) -> bool {
        for _ in 0..self.attempts {
            self.stop = self.stop.take().or_else(Stop::new);
        }
        self.stop.is_some()
    }
}

impl Backend for Mover<'_> {
    fn migrate(&mut self, leave: &[(u64, u64)], come: &[(u64, u64)]) -> Option<Vec<u64>> {
        let mut both = leave.iter().chain(come);
        if both.any(|(at, _)| self.backing.is_mapped(*at)) && !self.stops() {
            return None;
        }
        self.backing.migrate(leave, come, self.device)
    }

    fn repage(&mut self, paged: Paged, is_last: bool) -> Result<(), Paged> {
        let grows = paged.host > daemon::paged(self.minor).host;
        match grows.then(|| self.room()).flatten() {
            Some(room) if paged.host > room.host => Err(room),
            _ => daemon::repage(self.minor, paged, SPARE, is_last),
        }
    }

    fn room(&mut self) -> Option<Paged> {
        let room = daemon::pageable_room(self.minor, SPARE)?;
        let exists = daemon::paged(self.minor).host.saturating_add(host_left());
        Some(Paged {
            host: room.host.min(exists),
            ..room
        })
    }
}

/// Returns the bytes that the host can spare.
fn host_left() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo");
    text.map_or(0, |text| spared(&text).unwrap_or(0))
}

/// Returns the bytes that the text of `/proc/meminfo` says can be spared.
fn spared(text: &str) -> Option<u64> {
    let kib = |key: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(key))?;
        value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    let kept = kib("MemTotal:")? / HOST_KEPT;
    kib("MemAvailable:")?.saturating_sub(kept).checked_mul(1024)
}

/// Returns whether a stream records a graph, or cannot be used while another one does.
pub(super) fn is_capturing(stream: Stream) -> bool {
    type Is = unsafe extern "C" fn(Stream, *mut c_int) -> Status;
    // SAFETY: the type is that of the function.
    let Some(is) = (unsafe { STREAM_IS_CAPTURING.function::<Is>() }) else {
        return true;
    };
    let mut state = 0;
    // SAFETY: the program launches on the stream, and `state` is valid for the call.
    unsafe { is(stream, &mut state) != SUCCESS || state != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sixteenth_of_the_host_is_kept() {
        let text = |available| {
            format!("MemTotal:       1600 kB\nMemFree: 1 kB\nMemAvailable:   {available} kB\n")
        };
        assert_eq!(spared(&text(900)), Some(800 << 10));
        assert_eq!(spared(&text(99)), Some(0));
        for wrong in ["", "MemTotal: 1 kB\n", "MemTotal: 1\nMemAvailable: 2\n"] {
            assert_eq!(spared(wrong), None);
        }
        assert_eq!(spared(&text(u64::MAX)), None);
    }
}
