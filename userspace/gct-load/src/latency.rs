// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the latency-critical loop, and defines the window in which loops measure.

use crate::gpu::Gpu;
use anyhow::{ensure, Result};
use cudarc::driver::CudaStream;
use fastrand::Rng;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The latencies of a latency-critical loop, in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    launches: usize,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    max_us: f64,
    /// The times at which pauses began, in nanoseconds of Unix time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stops_ns: Vec<u64>,
}

/// The time to measure. The loop runs before it too, so that it loads its neighbours during all of
/// their measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The begin in seconds of Unix time; 0 for now.
    pub(crate) start_at: f64,
    /// The length in seconds.
    pub(crate) seconds: f64,
}

/// Returns the Unix time in nanoseconds.
pub(crate) fn unix_ns() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_nanos())?)
}

impl Window {
    /// Returns begin and end of the window. If the begin has passed, the end stays.
    pub(crate) fn instants(&self) -> Result<(Instant, Instant)> {
        let now = Instant::now();
        if self.start_at == 0.0 {
            return Ok((now, now + Duration::from_secs_f64(self.seconds)));
        }
        let unix = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let until = |at: f64| Duration::from_secs_f64((at - unix).max(0.0));
        Ok((
            now + until(self.start_at),
            now + until(self.start_at + self.seconds),
        ))
    }
}

/// The arrivals of launches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrivals {
    /// The time between two arrivals; the mean if they are random.
    pub(crate) period: Duration,
    /// The seed of a Poisson process; `None` for periodic arrivals.
    pub(crate) random: Option<u64>,
    pub(crate) bursts: Option<Bursts>,
}

/// Alternating times with and without arrivals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bursts {
    pub(crate) run: Duration,
    pub(crate) pause: Duration,
}

/// The next arrival.
struct Schedule {
    arrivals: Arrivals,
    random: Option<Rng>,
    due: Instant,
    /// The end of the burst.
    until: Option<Instant>,
}

impl Schedule {
    fn new(arrivals: Arrivals, now: Instant) -> Self {
        Self {
            arrivals,
            random: arrivals.random.map(Rng::with_seed),
            due: now,
            until: arrivals.bursts.map(|bursts| now + bursts.run),
        }
    }

    /// Returns from when the latency of a launch at `now` counts. A random arrival has waited since
    /// it was due. A periodic loop launches only when it is free.
    fn since(&self, now: Instant) -> Instant {
        match self.random {
            Some(_) => self.due,
            None => now,
        }
    }

    /// Advances to the next arrival after a launch has ended at `now`. Returns whether a pause
    /// begins.
    fn advance(&mut self, now: Instant) -> bool {
        let period = self.arrivals.period;
        self.due = match &mut self.random {
            Some(random) => self.due + period.mul_f64(-(1.0 - random.f64()).ln()),
            None => (self.due + period).max(now),
        };
        let (Some(bursts), Some(until)) = (self.arrivals.bursts, self.until) else {
            return false;
        };
        if self.due < until {
            return false;
        }
        self.due = now + bursts.pause;
        self.until = Some(self.due + bursts.run);
        true
    }
}

/// Submits work by `launch` at each arrival and waits for its end.
pub(crate) fn critical(
    gpu: &Gpu,
    mut launch: impl FnMut(&Arc<CudaStream>) -> Result<()>,
    arrivals: Arrivals,
    window: Window,
    high_priority: bool,
) -> Result<Latency> {
    let priority = if high_priority { -5 } else { 0 };
    let stream = gpu.context.new_stream_with_priority(priority)?;
    let (begin, end) = window.instants()?;
    // Warm-up launches. Beside others each may take long.
    for _ in 0..20 {
        if Instant::now() >= begin {
            break;
        }
        launch(&stream)?;
        stream.synchronize()?;
    }
    let mut schedule = Schedule::new(arrivals, Instant::now());
    let mut times = Vec::new();
    let mut stops_ns = Vec::new();
    while schedule.due < end {
        while Instant::now() < schedule.due {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        if start >= end {
            // More launches have arrived than could be served.
            break;
        }
        launch(&stream)?;
        stream.synchronize()?;
        let ended = Instant::now();
        if ended >= begin {
            times.push((ended - schedule.since(start)).as_secs_f64() * 1e6);
        }
        if schedule.advance(ended) && ended >= begin {
            stops_ns.push(unix_ns()?);
        }
    }
    ensure!(
        !times.is_empty(),
        "no launch ended in the window: make --seconds longer"
    );
    times.sort_by(f64::total_cmp);
    // CAST: a rank below the number of samples.
    let rank = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
    Ok(Latency {
        launches: times.len(),
        p50_us: rank(0.50),
        p95_us: rank(0.95),
        p99_us: rank(0.99),
        max_us: rank(1.0),
        stops_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_micros(100);

    fn schedule(random: Option<u64>, bursts: Option<Bursts>) -> Schedule {
        let arrivals = Arrivals {
            period: PERIOD,
            random,
            bursts,
        };
        Schedule::new(arrivals, Instant::now())
    }

    #[test]
    fn a_periodic_loop_skips_missed_arrivals_and_random_ones_queue() {
        let mut periodic = schedule(None, None);
        let late = periodic.due + 10 * PERIOD;
        assert_eq!(periodic.since(late), late);
        assert!(!periodic.advance(late));
        assert_eq!(periodic.due, late);
        let mut random = schedule(Some(7), None);
        let (first, late) = (random.due, random.due + 10_000 * PERIOD);
        assert_eq!(random.since(late), first);
        for _ in 0..1000 {
            random.advance(late);
        }
        let mean = (random.due - first) / 1000;
        assert!(
            mean > PERIOD * 9 / 10 && mean < PERIOD * 11 / 10,
            "{mean:?}"
        );
    }

    #[test]
    fn a_late_start_does_not_move_the_end_of_the_window() {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let window = |from: f64| Window {
            start_at: unix.as_secs_f64() + from,
            seconds: 2.0,
        };
        let length = |window: Window| {
            let (begin, end) = window.instants().unwrap();
            (end - begin).as_secs_f64()
        };
        assert!((length(window(3.0)) - 2.0).abs() < 1e-3);
        assert!(length(window(-0.5)) < 1.6);
        assert!(length(window(-5.0)) < 1e-3);
    }

    #[test]
    fn bursts_end_in_pauses() {
        let bursts = Bursts {
            run: 3 * PERIOD,
            pause: 50 * PERIOD,
        };
        let mut schedule = schedule(None, Some(bursts));
        let start = schedule.due;
        assert!(!schedule.advance(start));
        assert!(!schedule.advance(start + PERIOD));
        assert!(schedule.advance(start + 2 * PERIOD));
        assert_eq!(schedule.due, start + 52 * PERIOD);
        assert!(!schedule.advance(schedule.due));
    }
}
