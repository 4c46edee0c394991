// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Learns when an idle tenant usually comes back.
//!
//! Terminology
//!   request       the launches of a tenant that follow each other without a pause
//!   pause         the time without work between two requests; at least [`PAUSE_MIN`]
//!   idle timeout  the idle time after which the tenant counts as gone
//!   tolerance     how long a request may be delayed
//!
//! A request after a pause updates the statistics. Extremes count at once and fade slowly:
//!
//! ```text
//! longest  = max(pause, longest - longest / LONGEST_DECAY)     decaying maximum
//! shortest = decaying_min(shortest, pause)
//! request  = decaying_min(request, length of the request)
//! ```
//!
//! The predictions keep a margin of an eighth, and a wider one for irregular tenants:
//!
//! ```text
//! spread       = longest - shortest
//! idle timeout = longest + longest / 8 + spread, within IDLE_TIMEOUT_MIN and IDLE_TIMEOUT_MAX
//! returns not before  shortest - shortest / 8 - spread
//! tolerance    = request / TOLERANCE
//! ```

use crate::units::Ns;

/// A shorter pause is part of a request: its launches follow each other like that.
pub const PAUSE_MIN: Ns = Ns(50_000);
/// Shortest idle timeout.
pub const IDLE_TIMEOUT_MIN: Ns = Ns(500_000);
/// Longest idle timeout: a tenant that has been idle for so long counts as gone, whatever its
/// history.
pub const IDLE_TIMEOUT_MAX: Ns = Ns(20_000_000);
/// Share of a request by which it may be delayed, as a divisor: 6%, of the 10% that p99 may grow
/// by.
const TOLERANCE: u64 = 16;
/// Share by which the longest pause decays at each pause, as a divisor. With 64, 0.3% of random
/// (exponential) pauses outlast the idle timeout. With 16 it would be 2%, more than p99 allows.
const LONGEST_DECAY: u64 = 64;
/// Share of its distance to a longer time by which a decaying minimum grows, as a divisor.
const MIN_DECAY: u64 = 64;
/// Largest time in [`ArrivalStats::to_word`], in microseconds: 21 bits, 2.1 s.
const MICROS_MAX: u64 = (1 << 21) - 1;

/// Statistics of a tenant's requests and of the pauses between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrivalStats {
    /// Decaying maximum of its pauses.
    pub longest: Ns,
    /// Decaying minimum of its pauses; 0 before the first.
    pub shortest: Ns,
    /// Decaying minimum of the lengths of its requests; 0 before the first.
    pub request: Ns,
}

impl ArrivalStats {
    /// Returns the statistics after a request of length `request` and the `pause` behind it.
    ///
    /// A pause below [`PAUSE_MIN`] lies within a request and changes nothing. After one beyond
    /// [`IDLE_TIMEOUT_MAX`] the TPCs are lent in any case, so it says nothing about the next pause.
    #[must_use]
    pub fn after(self, request: Ns, pause: Ns) -> Self {
        if pause < PAUSE_MIN {
            return self;
        }
        let request = decaying_min(self.request, request);
        if pause > IDLE_TIMEOUT_MAX {
            return Self { request, ..self };
        }
        Self {
            longest: pause.max(self.longest - self.longest.div_ceil(LONGEST_DECAY)),
            shortest: decaying_min(self.shortest, pause),
            request,
        }
    }

    /// Returns how irregular the pauses are.
    fn spread(&self) -> Ns {
        self.longest - self.shortest
    }

    /// Returns the idle time after which the tenant counts as gone.
    pub(super) fn idle_timeout(&self) -> Ns {
        let late = self.spread() + self.longest / 8;
        (self.longest + late).clamp(IDLE_TIMEOUT_MIN, IDLE_TIMEOUT_MAX)
    }

    /// Returns the idle time before which the tenant hardly ever comes back; 0 where its pauses are
    /// too irregular to tell.
    pub(super) fn earliest_return(&self) -> Ns {
        self.shortest - (self.spread() + self.shortest / 8)
    }

    /// Returns how long the start of a request may be delayed.
    pub(super) fn tolerance(&self) -> Ns {
        self.request / TOLERANCE
    }

    /// Packs the statistics into one word, in microseconds, so that neighbours read them
    /// atomically.
    pub fn to_word(self) -> u64 {
        let micros = |time: Ns| (time / 1_000).get().min(MICROS_MAX);
        micros(self.request) << 42 | micros(self.longest) << 21 | micros(self.shortest)
    }

    /// Unpacks [`to_word`](Self::to_word). Every word is valid: a neighbour writes it.
    pub fn from_word(word: u64) -> Self {
        let time = |micros: u64| Ns(micros & MICROS_MAX) * 1_000;
        Self {
            longest: time(word >> 21),
            shortest: time(word),
            request: time(word >> 42),
        }
    }
}

/// Returns the decaying minimum `known` after one more `time`. A `known` of 0 is empty.
fn decaying_min(known: Ns, time: Ns) -> Ns {
    if known == Ns(0) || time < known {
        return time;
    }
    known + (time - known) / MIN_DECAY
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Ns = Ns(1_000_000_000);

    #[test]
    fn irregular_tenants_have_a_longer_idle_timeout() {
        let ms = |ms: u64| Ns(ms * 1_000_000);
        let request = Ns(25_000);
        let regular = ArrivalStats::default()
            .after(request, ms(8))
            .after(request, ms(8));
        assert_eq!(regular.idle_timeout(), ms(9));
        let random = regular.after(request, ms(1));
        assert!(random.idle_timeout() > ms(14));
    }

    #[test]
    fn arrival_stats_follow_the_extremes_at_once_and_the_rest_slowly() {
        let ms = |ms: u64| Ns(ms * 1_000_000);
        let once = ArrivalStats::default().after(ms(1), ms(2));
        let all = |arrivals: ArrivalStats| (arrivals.longest, arrivals.shortest, arrivals.request);
        assert_eq!(all(once), (ms(2), ms(2), ms(1)));
        // A pause within a request changes nothing; the end of all work changes the request alone.
        assert_eq!(once.after(Ns(9), Ns(3_000)).after(ms(1), LATE), once);
        assert_eq!(once.after(Ns(9_000), LATE).request, Ns(9_000));
        let both = once.after(ms(1), ms(6)).after(ms(1), ms(1));
        assert_eq!(both.shortest, ms(1));
        assert!(both.longest > ms(5));
        let mut steady = both;
        for _ in 0..1000 {
            steady = steady.after(ms(4), ms(3));
        }
        assert_eq!(steady.longest, ms(3));
        assert!(steady.shortest > Ns(2_990_000) && steady.shortest <= ms(3));
        assert!(steady.request > Ns(3_990_000) && steady.request <= ms(4));
        assert_eq!(ArrivalStats::from_word(once.to_word()), once);
        let endless = once.after(Ns(u64::MAX), ms(2));
        assert!(ArrivalStats::from_word(endless.to_word()).request > ms(2_000));
    }
}
