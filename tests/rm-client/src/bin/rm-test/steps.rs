// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts the instructions that an entry of an owned channel costs in the core: its copy, its scan,
//! its mask and its release, as the worker has them done.
//!
//! A process runs the core's code step by step under ptrace. Its memory is an array, so what the
//! glue adds to each access is not counted.

use crate::launch::PROGRAMS;
use gct_core::lane::channel::Lane;
use gct_core::lane::copies::{Copies, Mark};
use gct_core::lane::governor::{Governor, Nobody};
use gct_core::lane::in_flight::InFlightQueue;
use gct_core::lane::limits::LaunchLimits;
use gct_core::lane::ring::RealRing;
use gct_core::lane::split::{AtomRoom, ATOMS_MAX, SLOTS_WORDS};
use gct_core::lane::whole::WholeSlots;
use gct_core::lane::words::{Control, Rings, Side, Storage, Words};
use gct_core::lane::work::{Round, Stream, Workspace};
use gct_core::mask::TpcMask;
use gct_core::owned::{kit, WHOLE_SLOTS};
use gct_core::submit::gpfifo::{Entry, Segment};
use gct_core::submit::graph::Slot;
use gct_core::submit::rewrite::{Cut, Order};
use gct_core::submit::tracker::QmdCall;
use gct_core::topology::Topology;
use gct_core::units::Ns;
use gct_ktap::{failed, same, Outcome, Stop, Test};
use rm_client::Capture;
use std::cell::Cell;
use std::io;

pub(crate) const TESTS: &[Test] = &[("lane_entry_takes_few_instructions", few)];

/// The most instructions that the core may take for an entry: it takes 4162 where the C library
/// copies by AVX2, as the compiler inlines, and less by AVX-512.
const MOST: u64 = 4200;

/// The class of Hopper's channels.
const CHANNEL: u16 = 0xc86f;
/// Addresses of the tenant's segments, of the copies, of the slots, of the words that end launches
/// there, and of the progress word.
const SEGMENTS: u64 = 0x1000_0000;
const COPIES: u64 = SEGMENTS + 4 * WORDS as u64;
const SLOTS: u64 = COPIES + 4 * WORDS as u64;
const ENDS: u64 = SLOTS + 4 * WORDS as u64;
const PROGRESS: u64 = ENDS + 4 * WHOLE_SLOTS as u64;
/// Words of each of the first three.
const WORDS: usize = 1 << 16;
/// Index of the progress word.
const LAST: usize = 3 * WORDS + WHOLE_SLOTS as usize;
/// Entries of both rings.
const ENTRIES: u32 = 512;

#[derive(Debug)]
struct Heap;

impl Storage for Heap {
    type Slots<T: 'static> = Vec<T>;
    type Table<T: 'static> = Vec<T>;
}

/// Segments, copies, slots, and the progress word, which also stands for all other memory.
struct Memory(Vec<Cell<u32>>);

impl Memory {
    fn new() -> Self {
        Self(vec![Cell::new(0); LAST + 1])
    }

    fn run(&self, view: &(usize, usize), index: usize, count: usize) -> Option<&[Cell<u32>]> {
        let run = self.0.get(view.0..)?.get(..view.1)?;
        run.get(index..)?.get(..count)
    }
}

/// Copies words, in a loop that the compiler makes in one way wherever it is called.
#[inline(never)]
fn copy(to: &mut [u32], from: &[Cell<u32>]) {
    to.iter_mut()
        .zip(from)
        .for_each(|(to, from)| *to = from.get());
}

impl Words for Memory {
    type View = (usize, usize);

    fn find(&self, va: u64, count: usize) -> Option<Self::View> {
        let inside = (SEGMENTS..PROGRESS).contains(&va);
        // CAST: far below 2^64.
        let first = va.saturating_sub(SEGMENTS) as usize / 4;
        Some((if inside { first } else { LAST }, count))
    }

    fn load(&self, view: &Self::View, index: usize) -> Option<u32> {
        Some(self.run(view, index, 1)?.first()?.get())
    }

    fn store(&self, view: &Self::View, index: usize, word: u32) -> bool {
        self.write(view, index, &[word])
    }

    fn read(&self, view: &Self::View, to: &mut [u32]) -> bool {
        let from = self.run(view, 0, to.len());
        from.is_some_and(|from| {
            copy(to, from);
            true
        })
    }

    fn write(&self, view: &Self::View, index: usize, words: &[u32]) -> bool {
        let to = self.run(view, index, words.len());
        to.is_some_and(|to| {
            to.iter().zip(words).for_each(|(to, word)| to.set(*word));
            true
        })
    }
}

/// Both rings, and GP_GET and GP_PUT of both.
struct Sides {
    tenant: Vec<Cell<u64>>,
    real: Vec<Cell<u64>>,
    positions: [[Cell<u32>; 2]; 2],
}

impl Sides {
    fn new() -> Self {
        let ring = || vec![Cell::new(0); ENTRIES as usize];
        Self {
            tenant: ring(),
            real: ring(),
            positions: Default::default(),
        }
    }

    fn at(&self, side: Side, control: Control) -> &Cell<u32> {
        &self.positions[usize::from(side == Side::Real)][usize::from(control == Control::Put)]
    }
}

impl Rings for Sides {
    fn entry(&self, index: u32) -> Option<u64> {
        Some(self.tenant.get(index as usize)?.get())
    }

    fn set_entry(&self, index: u32, entry: u64) {
        if let Some(slot) = self.real.get(index as usize) {
            slot.set(entry);
        }
    }

    fn load(&self, side: Side, control: Control) -> Option<u32> {
        Some(self.at(side, control).get())
    }

    fn store_get(&self, get: u32) {
        self.at(Side::Tenant, Control::Get).set(get);
    }

    fn publish(&self, put: u32, _token: u32) {
        self.at(Side::Real, Control::Put).set(put);
    }
}

/// A channel of a tenant with a mask, under which what it cannot bind is refused.
struct Channel {
    lane: Lane<Heap, (usize, usize)>,
    governor: Governor<Heap, Nobody>,
    work: Workspace<Heap>,
    copies: Copies<Heap, (usize, usize)>,
    slots: WholeSlots<(usize, usize)>,
    memory: Memory,
    sides: Sides,
}

impl Channel {
    fn new() -> Result<Self, Stop> {
        let limits = LaunchLimits {
            tpcs: Some(TpcMask::first(32)),
            strict: true,
            ..LaunchLimits::NONE
        };
        let nodes = vec![Slot::EMPTY; 64];
        let mut governor = Governor::new(limits, vec![None; 64], nodes, vec![None; 64]);
        governor.keep_descriptors(vec![[0; 96]; 64], 0, true);
        governor.set_gpu(Topology::together(TpcMask::first(66)));
        let room = AtomRoom::new(vec![0; SLOTS_WORDS], vec![Cut::NONE; ATOMS_MAX as usize]);
        let mut lane = Lane::new(
            ENTRIES,
            RealRing::new(vec![0; ENTRIES as usize]),
            InFlightQueue::new(vec![None; 64]),
            Stream::new(CHANNEL, room, vec![QmdCall::NONE; 64]),
        );
        lane.set_token(1);
        let memory = (COPIES, (WORDS, WORDS), WORDS as u32);
        let progress = (PROGRESS, (LAST, 1));
        // CAST: small constants.
        let ends = (ENDS, (3 * WORDS, WHOLE_SLOTS as usize));
        let slots = WholeSlots::new((SLOTS, (2 * WORDS, kit::WHOLE_WORDS)), ends, WHOLE_SLOTS);
        let copies = Copies::new(memory, progress, vec![Mark::NONE; 64]);
        Ok(Self {
            lane,
            governor,
            work: Workspace::new(vec![0; WORDS], vec![Order::default(); 64], vec![0; WORDS]),
            copies: copies.ok_or_else(|| failed("copies"))?,
            slots: slots.ok_or_else(|| failed("slots"))?,
            memory: Memory::new(),
            sides: Sides::new(),
        })
    }

    /// Submits the words of a segment, as the tenant.
    fn submit(&self, words: &[u32]) {
        for (to, word) in self.memory.0.iter().zip(words) {
            to.set(*word);
        }
        let entry = Entry::Segment(Segment {
            va: SEGMENTS,
            // CAST: a segment of a capture.
            words: words.len() as u32,
            subroutine: false,
            wait: false,
            conditional: false,
        });
        let put = self.sides.at(Side::Tenant, Control::Put);
        self.sides.tenant[put.get() as usize].set(entry.encode());
        put.set((put.get() + 1) % ENTRIES);
    }

    /// Runs one turn, as the worker does.
    fn serve(&mut self) -> u32 {
        self.lane.follow_get(&self.sides);
        let mut round = Round {
            memory: &self.memory,
            scratch: None,
            copies: Some(&mut self.copies),
            slots: Some(&mut self.slots),
            turn: 16,
            words: u32::MAX,
            work: &mut self.work,
            now: Ns(1),
            ahead: None,
        };
        self.lane
            .publish(&self.sides, &mut self.governor, &mut round)
    }

    /// Executes everything, as the GPU.
    fn execute(&self) {
        let put = self.sides.at(Side::Real, Control::Put).get();
        self.sides.at(Side::Real, Control::Get).set(put);
    }
}

/// Stops this process, for its tracer.
fn stop() {
    // SAFETY: a signal to this thread, which stops until its tracer lets it continue.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Counts the instructions of a captured launch's segments, one entry at a time.
fn few() -> Outcome {
    let (_, texts, _) = PROGRAMS[0];
    let capture = Capture::parse(texts)?;
    let segments: Vec<&[u32]> = capture
        .segments()
        .iter()
        .map(|(_, words)| &words[..])
        .collect();
    let mut channel = Channel::new()?;
    // The process has one thread, so the child may do anything.
    // SAFETY: as above.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error().into()),
        0 => {
            // SAFETY: asks to be traced by the parent; takes no pointers.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME) };
            // Nothing, to be subtracted.
            stop();
            stop();
            let mut published = 0;
            for words in &segments {
                channel.submit(words);
                stop();
                published += channel.serve();
                stop();
                channel.execute();
            }
            let masked = channel.governor.counters().sums.rewritten;
            println!("# {published} entries, {masked} launches with a mask");
            let all = published as usize == segments.len() && masked > 0;
            // SAFETY: exits the child without the parent's destructors.
            unsafe { libc::_exit(i32::from(!all)) }
        }
        child => child,
    };
    let outcome = count_all(child, &segments);
    if outcome.is_err() {
        // SAFETY: our own child, which was not waited for to its end.
        unsafe { libc::kill(child, libc::SIGKILL) };
    }
    outcome
}

fn count_all(child: libc::pid_t, segments: &[&[u32]]) -> Outcome {
    same("its beginning", is_stop(wait(child)?), true)?;
    let empty = steps(child)?;
    for words in segments {
        same(
            "a segment",
            is_stop(resume(child, libc::PTRACE_CONT)?),
            true,
        )?;
        let count = steps(child)? - empty;
        println!("# {} words: {count} instructions", words.len());
        same("few", count < MOST, true)?;
    }
    same("its end", resume(child, libc::PTRACE_CONT)?, 0)
}

/// Lets a stopped child continue to its next stop, or its end. Returns the status.
fn resume(child: libc::pid_t, request: libc::c_uint) -> Result<i32, Stop> {
    // SAFETY: numbers alone; the child is ours and stopped.
    match unsafe { libc::ptrace(request, child, 0, 0) } {
        0 => wait(child),
        _ => Err(io::Error::last_os_error().into()),
    }
}

fn wait(child: libc::pid_t) -> Result<i32, Stop> {
    let mut status = 0;
    // SAFETY: `status` is writable.
    match unsafe { libc::waitpid(child, &mut status, 0) } {
        -1 => Err(io::Error::last_os_error().into()),
        _ => Ok(status),
    }
}

/// Returns whether the child has called [`stop`].
fn is_stop(status: i32) -> bool {
    libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGSTOP
}

/// Counts the instructions to the child's next stop.
fn steps(child: libc::pid_t) -> Result<u64, Stop> {
    for count in 0.. {
        let status = resume(child, libc::PTRACE_SINGLESTEP)?;
        if is_stop(status) {
            return Ok(count);
        }
        let is_step = libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP;
        same(&format!("a step: {status:#x}"), is_step, true)?;
    }
    Err(failed("no end"))
}
