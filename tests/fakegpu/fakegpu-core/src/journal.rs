// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shows recorded events to tests that run in the guest.
//!
//! No GPU has these registers. They lie in the last 64 KiB of BAR0, which the driver does not use.
//! The guest writes the number of an event to GCT_RECORD_SELECT and reads the event as a line of
//! JSON from GCT_RECORD_TEXT. `fakegpu-record` does that.

use crate::recorder::{Event, Recorder};
use crate::regs::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Value of GCT_RECORD_MAGIC: "gctj".
pub const MAGIC: u32 = 0x6a74_6367;
/// Maximum number of events kept.
const EVENTS_MAX: usize = 1 << 14;

/// Forwards events and keeps the most recent ones.
pub struct Journal {
    next: Arc<dyn Recorder>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Number of events so far.
    count: u32,
    /// The most recent of them.
    lines: VecDeque<String>,
    /// The line selected by the guest.
    selected: Vec<u8>,
}

impl Journal {
    /// Creates a journal in front of `next`.
    pub fn new(next: Arc<dyn Recorder>) -> Arc<Self> {
        Arc::new(Self {
            next,
            kept: Mutex::default(),
        })
    }

    /// Reads a register of the journal, if `offset` is one.
    pub(crate) fn read(&self, offset: u32) -> Option<u32> {
        let kept = self.lock();
        match offset {
            GCT_RECORD_MAGIC::OFFSET => Some(MAGIC),
            GCT_RECORD_COUNT::OFFSET => Some(kept.count),
            GCT_RECORD_SELECT::OFFSET => Some(0),
            // A line has some hundred bytes.
            GCT_RECORD_LENGTH::OFFSET => Some(u32::try_from(kept.selected.len()).unwrap_or(0)),
            _ => {
                let start = 4 * GCT_RECORD_TEXT::index(offset)?;
                let mut word = [0; 4];
                for (to, from) in word.iter_mut().zip(kept.selected.iter().skip(start)) {
                    *to = *from;
                }
                Some(u32::from_le_bytes(word))
            }
        }
    }

    /// Writes a register of the journal. Returns whether `offset` is one.
    pub(crate) fn write(&self, offset: u32, value: u32) -> bool {
        if offset == GCT_RECORD_SELECT::OFFSET {
            let mut kept = self.lock();
            // The distance from the newest event, to look up from the end.
            let behind = kept.count.wrapping_sub(value);
            let index = usize::try_from(behind)
                .ok()
                .and_then(|behind| kept.lines.len().checked_sub(behind));
            let line = index.and_then(|index| kept.lines.get(index));
            kept.selected = line.map_or(Vec::new(), |line| line.clone().into_bytes());
        }
        matches!(
            offset,
            GCT_RECORD_MAGIC::OFFSET
                | GCT_RECORD_COUNT::OFFSET
                | GCT_RECORD_SELECT::OFFSET
                | GCT_RECORD_LENGTH::OFFSET
        ) || GCT_RECORD_TEXT::index(offset).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder for Journal {
    fn record(&self, now_ns: u64, event: &Event<'_>) {
        self.next.record(now_ns, event);
        let mut kept = self.lock();
        kept.count = kept.count.wrapping_add(1);
        if kept.lines.len() == EVENTS_MAX {
            kept.lines.pop_front();
        }
        kept.lines.push_back(event.to_json(now_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::Discard;

    fn line(journal: &Journal, number: u32) -> String {
        assert!(journal.write(GCT_RECORD_SELECT::OFFSET, number));
        let length = journal.read(GCT_RECORD_LENGTH::OFFSET).unwrap() as usize;
        let words = (0..length.div_ceil(4) as u32)
            .filter_map(|word| journal.read(GCT_RECORD_TEXT::OFFSET + 4 * word));
        let mut bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        bytes.truncate(length);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn events_are_read_by_their_number() {
        let journal = Journal::new(Arc::new(Discard));
        for ns in 0..3 {
            journal.record(ns, &Event::Boot);
        }
        assert_eq!(journal.read(GCT_RECORD_COUNT::OFFSET), Some(3));
        assert_eq!(line(&journal, 0), "{\"ns\":0,\"kind\":\"boot\"}");
        assert_eq!(line(&journal, 2), "{\"ns\":2,\"kind\":\"boot\"}");
        assert_eq!(line(&journal, 3), "");
        assert_eq!(line(&journal, u32::MAX), "");
        assert_eq!(journal.read(0), None);
        assert!(!journal.write(0, 0));
    }

    #[test]
    fn old_events_are_forgotten() {
        let journal = Journal::new(Arc::new(Discard));
        for ns in 0..EVENTS_MAX as u64 + 2 {
            journal.record(ns, &Event::Boot);
        }
        assert_eq!(
            (line(&journal, 0), line(&journal, 1)),
            (String::new(), String::new())
        );
        assert_eq!(line(&journal, 2), "{\"ns\":2,\"kind\":\"boot\"}");
    }
}
