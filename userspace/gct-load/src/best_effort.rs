// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the best-effort loop.

use crate::copies::Copy;
use crate::gpu::{Gpu, Stamp};
use crate::latency::Window;
use crate::timeline::{self, Timeline};
use anyhow::Result;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::CudaStream;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// The throughput of a best-effort loop.
#[derive(Debug, Serialize)]
pub(crate) struct Throughput {
    launches: u64,
    launches_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<timeline::Report>,
}

/// Keeps `queued` copies in flight until the window ends, one after the other.
pub(crate) fn copies(
    gpu: &Gpu,
    copy: &mut Copy,
    queued: usize,
    window: Window,
) -> Result<Throughput> {
    let stream = gpu.context.new_stream()?;
    let ends = series(&stream, queued, window, || copy.submit(&stream))?;
    Ok(ends.throughput(None))
}

/// Keeps `queued` launches in flight until the window ends.
pub(crate) fn run(
    gpu: &Gpu,
    stamp: &mut Stamp,
    queued: usize,
    window: Window,
    timeline: bool,
) -> Result<Throughput> {
    let stream = gpu.context.new_stream()?;
    let mut timeline = match timeline {
        true => Some(Timeline::new(gpu, &stream, window)?),
        false => None,
    };
    let ends = series(&stream, queued, window, || match &mut timeline {
        Some(timeline) => timeline.launch(gpu, &stream, stamp),
        None => gpu.launch_stamp(&stream, stamp),
    })?;
    let timeline = match timeline {
        Some(timeline) => Some(timeline.report(&stream)?),
        None => None,
    };
    Ok(ends.throughput(timeline))
}

/// Keeps `queued` pieces of work in flight, which `launch` submits to `stream`.
fn series(
    stream: &Arc<CudaStream>,
    queued: usize,
    window: Window,
    mut launch: impl FnMut() -> Result<()>,
) -> Result<Ends> {
    let (begin, end) = window.instants()?;
    let mut events = VecDeque::new();
    let mut ends = Ends::new(begin, end);
    while !ends.over() {
        launch()?;
        events.push_back(stream.record_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING))?);
        if events.len() > queued {
            if let Some(oldest) = events.pop_front() {
                oldest.synchronize()?;
            }
            ends.ended(Instant::now());
        }
    }
    stream.synchronize()?;
    Ok(ends)
}

/// Counts the launches in a window, from the first end to the last, so that only whole launches
/// count.
struct Ends {
    begin: Instant,
    end: Instant,
    first: Option<Instant>,
    last: Instant,
    over: bool,
    launches: u64,
}

impl Ends {
    fn new(begin: Instant, end: Instant) -> Self {
        Self {
            begin,
            end,
            first: None,
            last: begin,
            over: false,
            launches: 0,
        }
    }

    fn ended(&mut self, now: Instant) {
        self.over |= now >= self.end;
        if now < self.begin || self.over {
            return;
        }
        match self.first {
            None => self.first = Some(now),
            Some(_) => {
                self.launches += 1;
                self.last = now;
            }
        }
    }

    fn throughput(&self, timeline: Option<timeline::Report>) -> Throughput {
        Throughput {
            launches: self.launches,
            launches_per_second: self.rate(),
            timeline,
        }
    }

    fn over(&self) -> bool {
        self.over
    }

    /// Returns launches per second; 0 unless two ended in the window.
    fn rate(&self) -> f64 {
        let Some(first) = self.first.filter(|_| self.launches > 0) else {
            return 0.0;
        };
        // CAST: far fewer than 2^52.
        self.launches as f64 / (self.last - first).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_whole_launches_in_the_window_count() {
        let begin = Instant::now() + Duration::from_secs(1);
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut ends = Ends::new(begin, at(100));
        ends.ended(begin - Duration::from_millis(3));
        assert!(ends.rate().abs() < 1e-9);
        for ms in [7, 17, 27, 107] {
            assert!(!ends.over());
            ends.ended(at(ms));
        }
        assert!(ends.over());
        assert_eq!(ends.launches, 2);
        assert!((ends.rate() - 100.0).abs() < 1e-6);
    }
}
