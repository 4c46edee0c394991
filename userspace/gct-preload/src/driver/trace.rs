// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records what launches use, and how long they take, for [`crate::pager`].
//!
//! A launch appends its function and the words of its arguments that may be addresses of pageable
//! memory. Before it, and after the moves that it waits for, the library records events of its own
//! in its stream. They tell how long launches and moves take, and when the moves have ended.

use super::arguments::each_argument;
use super::calls::Call;
use super::mover::is_capturing;
use super::symbols::{Libcuda, EVENT_RECORD};
use super::{Device, Function, Status, Stream, SUCCESS};
use crate::forks;
use crate::locks::{Guard, Lock};
use crate::pager::Memory;
use core::ffi::{c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use gct_core::units::Ns;
use std::collections::{BTreeMap, VecDeque};
use std::thread;
use std::time::{Duration, Instant};

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: Status = 600;
/// The most words that are kept while another thread moves memory, and the most events. Beyond it
/// launches are not seen.
const WORDS_MAX: usize = 1 << 16;
const MARKS_MAX: usize = 1 << 11;

/// Longest wait for moves that launches wait for: they may wait for work before them.
const PATIENCE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(1);

static EVENT_CREATE: Libcuda = Libcuda::new(c"cuEventCreate");
static EVENT_QUERY: Libcuda = Libcuda::new(c"cuEventQuery");
static EVENT_ELAPSED: Libcuda = Libcuda::new(c"cuEventElapsedTime");

/// Launches between two events; 0 for none.
static EVERY: AtomicU64 = AtomicU64::new(0);
/// The least and the largest address of pageable memory.
static LEAST: AtomicU64 = AtomicU64::new(u64::MAX);
static LARGEST: AtomicU64 = AtomicU64::new(0);
static TRACES: Lock<BTreeMap<Device, Trace>> = Lock::new(BTreeMap::new(), BTreeMap::new);

/// A `CUevent` of the library.
#[derive(Clone, Copy, Debug)]
struct Event(usize);

/// An event before the launch with a number.
#[derive(Clone, Copy, Debug)]
struct Mark {
    number: u64,
    /// Moves since the event before.
    moves: u64,
    event: Event,
}

/// The launches on a GPU that its memory does not know yet, and the events.
#[derive(Debug, Default)]
struct Trace {
    words: Vec<u64>,
    /// Where the words of each launch end.
    ends: Vec<usize>,
    /// The number of the next launch.
    number: u64,
    is_lost: bool,
    marks: VecDeque<Mark>,
    /// The last mark that the GPU has reached.
    reached: Option<Mark>,
    marked: u64,
    /// The last stream that has moved something.
    moves_in: Option<usize>,
    spare: Vec<Event>,
}

fn traces() -> Guard<'static, BTreeMap<Device, Trace>> {
    TRACES.lock()
}

/// Makes the traces usable in a forked child.
///
/// # Safety
///
/// The process has one thread.
pub(super) unsafe fn forked() {
    // SAFETY: passed on.
    unsafe { TRACES.renew() };
}

impl Event {
    fn new() -> Option<Self> {
        type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> Status;
        // SAFETY: the type is that of the function.
        let create = unsafe { EVENT_CREATE.function::<Create>() }?;
        let mut event = ptr::null_mut();
        // SAFETY: `event` is valid for the call.
        (unsafe { create(&mut event, 0) } == SUCCESS).then_some(Self(event as usize))
    }

    /// Records the event in a stream of the program.
    fn record(self, stream: Stream) -> bool {
        type Record = unsafe extern "C" fn(*mut c_void, Stream) -> Status;
        // SAFETY: the type is that of the function.
        let Some(record) = (unsafe { EVENT_RECORD.function::<Record>() }) else {
            return false;
        };
        let _call = Call::begin();
        // SAFETY: the library's own event. The program launches on the stream.
        unsafe { record(self.0 as *mut c_void, stream) == SUCCESS }
    }

    /// Returns whether it has ended.
    ///
    /// # Errors
    ///
    /// libcuda's, if that cannot be known any more.
    fn has_ended(self) -> Result<bool, Status> {
        type Query = unsafe extern "C" fn(*mut c_void) -> Status;
        // SAFETY: the type is that of the function.
        let query = unsafe { EVENT_QUERY.function::<Query>() };
        // SAFETY: the library's own event, whose context exists.
        match query.map(|query| unsafe { query(self.0 as *mut c_void) }) {
            Some(SUCCESS) => Ok(true),
            Some(NOT_READY) => Ok(false),
            status => Err(status.unwrap_or(NOT_READY)),
        }
    }

    /// Returns the time from another event to this one. Both have ended.
    fn since(self, before: Self) -> Option<Ns> {
        type Elapsed = unsafe extern "C" fn(*mut f32, *mut c_void, *mut c_void) -> Status;
        // SAFETY: the type is that of the function.
        let elapsed = unsafe { EVENT_ELAPSED.function::<Elapsed>() }?;
        let mut ms = 0.0;
        // SAFETY: the library's own events, whose context exists, and `ms` is valid for the call.
        let status = unsafe { elapsed(&mut ms, before.0 as *mut c_void, self.0 as *mut c_void) };
        let seconds = Duration::try_from_secs_f32(ms).ok();
        let took = seconds.filter(|_| status == SUCCESS)? / 1000;
        u64::try_from(took.as_nanos()).ok().map(Ns)
    }
}

impl Trace {
    /// Marks the next launch, if one is due.
    fn mark_due(&mut self, stream: Stream) {
        let every = EVERY.load(Ordering::Relaxed);
        if every > 0 && self.number >= self.marked + every && self.mark(self.number, 0, stream) {
            self.marked = self.number;
        }
    }

    fn mark(&mut self, number: u64, moves: u64, stream: Stream) -> bool {
        let event = self.spare.pop().or_else(Event::new);
        let event = event.filter(|event| self.marks.len() < MARKS_MAX && event.record(stream));
        let mark = event.map(|event| Mark {
            number,
            moves,
            event,
        });
        self.marks.extend(mark);
        mark.is_some()
    }

    /// Returns whether a move has not ended, as the GPU says now.
    fn has_unended(&self) -> bool {
        let moves = self.marks.iter().rev().find(|mark| mark.moves > 0);
        moves.is_some_and(|mark| mark.event.has_ended() == Ok(false))
    }

    fn is_moving(&self) -> bool {
        self.marks.iter().any(|mark| mark.moves > 0)
    }

    fn end_launch(&mut self) {
        self.ends.push(self.words.len());
        self.number += 1;
        if self.words.len() + self.ends.len() > WORDS_MAX {
            self.words.clear();
            self.ends.clear();
            self.is_lost = true;
        }
    }
}

/// Says which addresses are pageable memory, at most.
pub(super) fn bound(bounds: impl Iterator<Item = (u64, u64)>) {
    let (least, largest) = bounds.fold((u64::MAX, 0), |(least, largest), (from, to)| {
        (least.min(from), largest.max(to))
    });
    LEAST.store(least, Ordering::Relaxed);
    LARGEST.store(largest, Ordering::Relaxed);
}

/// Records a launch. Returns false if it is not to be seen.
///
/// # Safety
///
/// The program launches `function` in this stream with these arguments.
pub(super) unsafe fn record(
    device: Device,
    function: Function,
    stream: Stream,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> bool {
    // What is captured runs later, and unseen.
    if forks::is_inert() || is_capturing(stream) {
        return false;
    }
    let (least, largest) = (
        LEAST.load(Ordering::Relaxed),
        LARGEST.load(Ordering::Relaxed),
    );
    let mut traces = traces();
    let trace = traces.entry(device).or_default();
    trace.mark_due(stream);
    let words = &mut trace.words;
    // CAST: an address.
    words.push(function as u64);
    let mut push = |word| {
        if least <= word && word < largest {
            words.push(word);
        }
    };
    // SAFETY: the contract is the same.
    unsafe { each_argument(function, arguments, extra, &mut push) };
    trace.end_launch();
    true
}

/// Records that the last launch, which is not made yet, waits for moves in its stream. Returns
/// false if nobody can tell when they have ended.
pub(super) fn mark_moves(device: Device, stream: Stream, moves: u64) -> bool {
    let mut traces = traces();
    let trace = traces.entry(device).or_default();
    trace.moves_in = Some(stream as usize);
    trace.mark(trace.number.saturating_sub(1), moves, stream)
}

/// Returns whether there are moves that launches wait for.
pub(super) fn is_moving(device: Device) -> bool {
    traces().get(&device).is_some_and(Trace::is_moving)
}

/// Returns whether there are such moves in another stream.
pub(super) fn is_moving_beside(device: Device, stream: Stream) -> bool {
    let traces = traces();
    let others = traces
        .get(&device)
        .filter(|trace| trace.moves_in != Some(stream as usize));
    others.is_some_and(Trace::is_moving)
}

/// Waits for the moves that launches wait for. Returns whether they have ended.
pub(super) fn wait(device: Device) -> bool {
    let begun = Instant::now();
    loop {
        if !traces().get(&device).is_some_and(Trace::has_unended) {
            return true;
        }
        if begun.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(PAUSE);
    }
}

/// Tells the memory of a GPU what was launched and where the GPU is. A context in which the program
/// launched is the current one.
pub(super) fn tell(device: Device, memory: &mut Memory) {
    let (words, ends, lost) = {
        let mut traces = traces();
        let trace = traces.entry(device).or_default();
        let ends = core::mem::take(&mut trace.ends);
        // CAST: widening.
        let first = trace.number - ends.len() as u64;
        let lost = core::mem::take(&mut trace.is_lost).then_some(first);
        (core::mem::take(&mut trace.words), ends, lost)
    };
    if let Some(first) = lost {
        memory.lost(first);
    }
    let begins = core::iter::once(0).chain(ends.iter().copied());
    memory.launched(begins.zip(&ends).map(|(begin, end)| &words[begin..*end]));
    while let Some(mark) = next_mark(device) {
        let mut traces = traces();
        let trace = traces.entry(device).or_default();
        if let Some(before) = trace.reached.replace(mark) {
            if let Some(took) = mark.event.since(before.event) {
                memory.reached(before.number..mark.number, mark.moves, took);
            }
            trace.spare.push(before.event);
        }
    }
    EVERY.store(memory.marks_every(), Ordering::Relaxed);
}

/// Takes the next mark that the GPU has reached.
fn next_mark(device: Device) -> Option<Mark> {
    let mut traces = traces();
    let trace = traces.get_mut(&device)?;
    let first = *trace.marks.front()?;
    match first.event.has_ended() {
        Ok(true) => trace.marks.pop_front(),
        Ok(false) => None,
        Err(_) => {
            trace.forget_events();
            None
        }
    }
}

impl Trace {
    fn forget_events(&mut self) {
        self.marks.clear();
        self.spare.clear();
        self.reached = None;
    }
}

/// Forgets the events on a GPU, before a context ends that may have them.
pub(super) fn forget(device: Device) {
    if forks::is_inert() {
        return;
    }
    if let Some(trace) = traces().get_mut(&device) {
        trace.forget_events();
    }
}
