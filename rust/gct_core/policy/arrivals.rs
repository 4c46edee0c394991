// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Learns when a tenant usually comes back.

use crate::units::Ns;

/// A shorter pause is part of a request: its launches follow each other like that.
pub const PAUSE_MIN: Ns = Ns(50_000);
/// An owner is never taken for silent before.
pub const IDLE_TIMEOUT_MIN: Ns = Ns(500_000);
/// An owner that has been idle for so long is silent, however it usually works.
pub const IDLE_TIMEOUT_MAX: Ns = Ns(20_000_000);
/// An owner waits for a sixteenth of its request at most: 6%, of the 10% that p99 may grow by.
const TOLERANCE: u64 = 16;
/// The part of the longest pause that is forgotten at each one, as a divisor. Of pauses that are random (exponential), 0.3%
/// then last until their owner is taken for silent; with 16 it would be 2%, more than p99 lets through.
const LONGEST_DECAY: u64 = 64;
/// The part of its distance to a longer time by which a decaying minimum grows, as a divisor.
const MIN_DECAY: u64 = 64;
/// Microseconds that a word has room for, three times: 2.1 s.
const MICROS_MAX: u64 = (1 << 21) - 1;

/// What a tenant's requests and the pauses between them usually are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrivalStats {
    /// A pause is hardly ever longer.
    pub longest: Ns,
    /// A pause is hardly ever shorter; 0 where nothing is known.
    pub shortest: Ns,
    /// A request hardly ever takes less; 0 where nothing is known.
    pub request: Ns,
}

impl ArrivalStats {
    /// The statistics after a request that took so long and the pause behind it. What is out of the ordinary counts at once, what
    /// is ordinary little by little. A pause within a request is none. One after which the TPCs are lent in any case says
    /// nothing of the next.
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

    /// By how much its pauses differ: what they were says little of the next one.
    fn spread(&self) -> Ns {
        self.longest - self.shortest
    }

    /// After how long without work a tenant is silent: later than its longest pause, by more if its pauses differ.
    pub(super) fn idle_timeout(&self) -> Ns {
        let late = self.spread() + self.longest / 8;
        (self.longest + late).clamp(IDLE_TIMEOUT_MIN, IDLE_TIMEOUT_MAX)
    }

    /// Before which idle time it hardly ever comes back: earlier than its shortest pause, by more if its pauses differ. Of
    /// one that comes at random nothing is foreseen.
    pub(super) fn early(&self) -> Ns {
        self.shortest - (self.spread() + self.shortest / 8)
    }

    /// For how long it may wait at the start of a request.
    pub(super) fn tolerance(&self) -> Ns {
        self.request / TOLERANCE
    }

    /// All in one word, in microseconds, for neighbours to read at once.
    pub fn to_word(self) -> u64 {
        let micros = |time: Ns| (time / 1_000).get().min(MICROS_MAX);
        micros(self.request) << 42 | micros(self.longest) << 21 | micros(self.shortest)
    }

    /// What [`to_word`](Self::to_word) made; whatever the word is, it is some value.
    pub fn from_word(word: u64) -> Self {
        let time = |micros: u64| Ns(micros & MICROS_MAX) * 1_000;
        Self {
            longest: time(word >> 21),
            shortest: time(word),
            request: time(word >> 42),
        }
    }
}

/// What a time is hardly ever less than, after one more of them; 0 knows nothing.
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
    fn who_is_irregular_is_taken_for_silent_later() {
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
        // Neither a pause within a request nor the end of all work counts.
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
