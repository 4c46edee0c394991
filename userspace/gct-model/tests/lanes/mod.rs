// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A tenant whose lanes list the launches of CUDA graphs. The model runs what they publish.
#![allow(dead_code, reason = "each test program uses its own part")]

use super::common::CHANNEL;
use super::rings::Sides;
use gct_core::lane::channel::Lane;
use gct_core::lane::copies::{Copies, Mark};
use gct_core::lane::governor::{Governor, Nobody};
use gct_core::lane::in_flight::InFlightQueue;
use gct_core::lane::limits::LaunchLimits;
use gct_core::lane::ring::RealRing;
use gct_core::lane::split::{AtomRoom, SLOTS_WORDS};
use gct_core::lane::whole::WholeSlots;
use gct_core::lane::words::{Control, Side, Storage, Words};
use gct_core::lane::work::{Round, Stream, Workspace};
use gct_core::mask::TpcMask;
use gct_core::submit::gpfifo::{self, Entry, Fetch};
use gct_core::submit::graph::{Slot, Step};
use gct_core::submit::rewrite::Order as Ordered;
use gct_core::submit::stats::Counters;
use gct_core::submit::tracker::QmdCall;
use gct_core::topology::Topology;
use gct_core::units::Ns;
use gct_model::{Config, Fault, GuestMemory, Machine, Order, Run, SparseMemory};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

/// Where the lane's memory begins: segments of the tenant, copies, slots, and the words that the
/// GPU writes.
const SEGMENT: u64 = 0x20_0000_0000;
const COPIES: u64 = 0x21_0000_0000;
const SLOTS: u64 = 0x22_0000_0000;
const DONE: u64 = 0x23_0000_0000;
const PROGRESS: u64 = 0x24_0000_0000;
const LANE: Range<u64> = SEGMENT..0x25_0000_0000;
/// An address that the lane does not find.
pub(crate) const UNSEEN: u64 = LANE.end;

const ENTRIES: u32 = 64;
/// Bit 8 of an entry's second word. It is reserved, and not among what makes an entry invalid (the
/// manual of GA100's PBDMA): hardware fetches the words.
pub(crate) const RESERVED: u64 = 1 << 40;
pub(crate) const COPIES_WORDS: u32 = 1 << 16;
/// Fewer than a graph has nodes.
pub(crate) const SLOT_COUNT: u32 = 8;
/// The tenant's segments, in words.
const SEGMENTS_WORDS: u64 = 1 << 20;
/// Nodes for which there is room at first and is added at a time, and launches of a list.
pub(crate) const NODES: usize = 512;
pub(crate) const STEPS: usize = 256;
/// Launches of a segment.
pub(crate) const CALLS: usize = 256;
/// TPCs that the tenant keeps, and the mask of disabled ones of its launches.
const KEPT: usize = 4;
pub(crate) const DISABLED: u32 = 0xf0;

#[derive(Debug)]
pub(crate) struct Heap;

impl Storage for Heap {
    type Slots<T: 'static> = Vec<T>;
    type Table<T: 'static> = Vec<T>;
}

/// Memory of which the GPU may only read some.
struct Guarded(SparseMemory);

impl GuestMemory for Guarded {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.0.read(address, into)
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Fault> {
        match (COPIES..DONE).contains(&address) {
            true => Err(Fault { address }),
            false => self.0.write(address, from),
        }
    }
}

/// The GPU, as the lane sees its memory, and how many words of segments the lane has read. A view
/// is an address and a number of words.
struct Gpu(RefCell<Machine<Guarded>>, Cell<usize>);

impl Words for Gpu {
    type View = (u64, usize);

    fn find(&self, va: u64, count: usize) -> Option<(u64, usize)> {
        (va % 4 == 0 && va < 1 << 48 && va != UNSEEN).then_some((va, count))
    }

    fn load(&self, view: &(u64, usize), index: usize) -> Option<u32> {
        let mut word = [0];
        let inside = index < view.1;
        (inside && self.read(&(view.0 + 4 * index as u64, 1), &mut word)).then_some(word[0])
    }

    fn store(&self, view: &(u64, usize), index: usize, word: u32) -> bool {
        self.write(view, index, &[word])
    }

    fn read(&self, view: &(u64, usize), to: &mut [u32]) -> bool {
        if (SEGMENT..SEGMENT + 4 * SEGMENTS_WORDS).contains(&view.0) {
            self.1.set(self.1.get() + to.len());
        }
        let memory = &mut self.0.borrow_mut();
        for (word, at) in to.iter_mut().zip((view.0..).step_by(4)) {
            *word = memory.memory().read_u32(at).expect("all is mapped");
        }
        to.len() <= view.1
    }

    fn write(&self, view: &(u64, usize), index: usize, words: &[u32]) -> bool {
        let memory = &mut self.0.borrow_mut();
        let from = view.0 + 4 * index as u64;
        for (word, at) in words.iter().zip((from..).step_by(4)) {
            memory.memory().0.write_u32(at, *word).expect("room");
        }
        index + words.len() <= view.1
    }
}

/// A channel of the tenant.
pub(crate) struct Channel {
    sides: Sides,
    fetch: Fetch,
    pub(crate) lane: Lane<Heap, (u64, usize)>,
    copies: Copies<Heap, (u64, usize)>,
    slots: WholeSlots<(u64, usize)>,
}

impl Channel {
    fn new(number: u32) -> Self {
        let room = AtomRoom::new(vec![0; SLOTS_WORDS], vec![]);
        let stream = Stream::new(0xc86f, room, vec![QmdCall::NONE; CALLS]);
        let mut lane = Lane::new(
            ENTRIES,
            RealRing::new(vec![0; ENTRIES as usize]),
            InFlightQueue::new(vec![None; 16]),
            stream.with_steps(vec![Step::default(); STEPS], 0, number),
        );
        lane.set_token(1);
        let words = COPIES_WORDS as usize;
        let [copies, slots, done, progress] =
            [COPIES, SLOTS, DONE, PROGRESS].map(|at| at + (u64::from(number) << 24));
        let slots = (
            (slots, (slots, 128 * SLOT_COUNT as usize)),
            (done, (done, SLOT_COUNT as usize)),
        );
        Self {
            sides: Sides::new(ENTRIES),
            fetch: Fetch::new(),
            lane,
            copies: Copies::new(
                (copies, (copies, words), COPIES_WORDS),
                (progress, (progress, 1)),
                vec![Mark::NONE; 8],
            )
            .expect("room"),
            slots: WholeSlots::new(slots.0, slots.1, SLOT_COUNT).expect("aligned"),
        }
    }
}

/// A tenant under a mask, with two channels, one of which is in use.
pub(crate) struct Bench {
    gpu: Gpu,
    pub(crate) governor: Governor<Heap, Nobody>,
    work: Workspace<Heap>,
    pub(crate) channel: Channel,
    other: Channel,
    /// How many words of segments a round may read, and could still have read in the last one.
    pub(crate) turn: u32,
    pub(crate) left: u32,
    now: Ns,
    /// How many nodes the backend still adds room for, behind rounds; `None` if it answers nothing.
    pub(crate) room: Option<usize>,
}

impl Bench {
    pub(crate) fn new(order: Order, strict: bool) -> Self {
        Self::reading(order, strict, COPIES_WORDS as usize)
    }

    /// Reads `longest` words of a segment at once.
    pub(crate) fn reading(order: Order, strict: bool, longest: usize) -> Self {
        let config = Config {
            order,
            ..Config::default()
        };
        let mut governor = Governor::new(limits(strict), vec![], vec![Slot::EMPTY; NODES], vec![]);
        governor.keep_descriptors(vec![[0; 96]; NODES], 7, false);
        governor.set_gpu(Topology::together(TpcMask::first(8)));
        Self {
            gpu: Gpu(
                RefCell::new(Machine::new(Guarded(SparseMemory::new(1 << 12)), config)),
                Cell::new(0),
            ),
            governor,
            work: Workspace::new(
                vec![0; longest],
                vec![Ordered::default(); 256],
                vec![0; COPIES_WORDS as usize],
            ),
            channel: Channel::new(0),
            other: Channel::new(1),
            turn: u32::MAX,
            left: 0,
            now: Ns(1 << 40),
            room: None,
        }
    }

    /// Adds room for so many nodes, if the tenant asks.
    pub(crate) fn growing(room: usize) -> Self {
        let mut bench = Self::new(Order::Eager, true);
        let descriptors = vec![[0; 96]; NODES];
        bench.governor.keep_descriptors(descriptors, 7, true);
        bench.room = Some(room);
        bench
    }

    fn grow(&mut self) {
        let Some(room) = self.room.filter(|_| self.governor.lacks_nodes(CALLS)) else {
            return;
        };
        let left = room.checked_sub(NODES);
        self.governor.grow_nodes(|slots, descriptors| {
            if left.is_some() {
                slots.resize(slots.len() + NODES, Slot::EMPTY);
                descriptors.resize(descriptors.len() + NODES, [0; 96]);
            }
            left.is_some()
        });
        self.room = left.or(Some(0));
    }

    /// Uses the other channel.
    pub(crate) fn switch(&mut self) {
        std::mem::swap(&mut self.channel, &mut self.other);
    }

    /// Submits a segment as the tenant.
    pub(crate) fn submit(&self, words: &[u32]) {
        self.store(SEGMENT, words);
        self.submit_at(SEGMENT, u32::try_from(words.len()).expect("short"));
    }

    /// Submits words of the tenant's memory.
    pub(crate) fn submit_at(&self, va: u64, words: u32) {
        let segment = gpfifo::Segment {
            va,
            words,
            subroutine: false,
            wait: false,
            conditional: false,
        };
        self.submit_entry(Entry::Segment(segment).encode());
    }

    /// Stores words in the tenant's memory.
    pub(crate) fn store(&self, va: u64, words: &[u32]) {
        assert!(self.gpu.write(&(va, words.len()), 0, words));
    }

    /// Submits any entry.
    pub(crate) fn submit_entry(&self, entry: u64) {
        let put = self.channel.sides.control(Side::Tenant, Control::Put);
        let ring = &self.channel.sides.rings[Side::Tenant as usize];
        ring[put.get() as usize].set(entry);
        put.set((put.get() + 1) % ENTRIES);
    }

    /// Publishes what it can, once.
    pub(crate) fn publish(&mut self) -> u32 {
        self.now += Ns(1_500_000);
        let Channel {
            lane,
            sides,
            copies,
            slots,
            ..
        } = &mut self.channel;
        let mut round = Round {
            memory: &self.gpu,
            scratch: None,
            copies: Some(copies),
            slots: Some(slots),
            turn: 16,
            words: self.turn,
            work: &mut self.work,
            now: self.now,
            ahead: None,
        };
        let count = lane.publish(sides, &mut self.governor, &mut round);
        self.left = round.words;
        lane.follow_get(sides);
        self.grow();
        count
    }

    /// Runs what was published.
    pub(crate) fn execute(&mut self) {
        let Channel { sides, fetch, .. } = &mut self.channel;
        let get = sides.control(Side::Real, Control::Get);
        while get.get() != sides.control(Side::Real, Control::Put).get() {
            let entry = sides.rings[Side::Real as usize][get.get() as usize].get();
            get.set((get.get() + 1) % ENTRIES);
            if let Entry::Segment(segment) = fetch.decode(entry & !RESERVED) {
                let mut words = vec![0; segment.words as usize];
                assert!(self.gpu.read(&(segment.va, words.len()), &mut words));
                self.gpu.0.borrow_mut().submit(CHANNEL, &words);
            }
        }
        self.gpu.0.borrow_mut().run();
    }

    /// Submits a segment and runs it to its end. Returns whether it was not refused.
    pub(crate) fn run(&mut self, words: &[u32]) -> bool {
        self.submit(words);
        self.finish()
    }

    pub(crate) fn finish(&mut self) -> bool {
        for _ in 0..1000 {
            self.publish();
            self.execute();
            if self.channel.lane.is_refused() {
                return false;
            }
            if self.channel.lane.is_quiet() {
                return true;
            }
        }
        panic!("it goes on and on");
    }

    /// Returns how many words of the tenant's segments were read, and how many entries of the
    /// tenant count as read.
    pub(crate) fn read(&self) -> (usize, u32) {
        let get = self.channel.sides.control(Side::Tenant, Control::Get);
        (self.gpu.1.get(), get.get())
    }

    pub(crate) fn runs(&self) -> Vec<Run> {
        self.gpu.0.borrow().report().runs.clone()
    }

    pub(crate) fn counters(&self) -> Counters {
        *self.governor.counters()
    }

    /// Checks that nothing ran but from slots, under the mask.
    pub(crate) fn is_bound(&self) {
        for run in self.runs() {
            assert!((SLOTS..DONE).contains(&run.qmd), "{:x}", run.qmd);
            assert_eq!(run.mask.0[0] & 0xff, DISABLED, "{:x}", run.qmd);
        }
    }

    /// Returns the words of the tenant that are not 0.
    pub(crate) fn memory(&self) -> BTreeMap<u64, u32> {
        let mut machine = self.gpu.0.borrow_mut();
        let words = machine.memory().0.words();
        words.filter(|(at, _)| !LANE.contains(at)).collect()
    }
}

pub(crate) fn limits(strict: bool) -> LaunchLimits {
    LaunchLimits {
        tpcs: Some(TpcMask::first(KEPT)),
        strict,
        ..LaunchLimits::NONE
    }
}
