// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks CUDA graphs under `channel.strict` against the model: a lane with copies and slots lists
//! the launches of replays, and the model runs what the lane has published.

mod common;

use common::{capture, orders, Qmd, Segment, CHANNEL, COPY};
use gct_core::lane::channel::Lane;
use gct_core::lane::copies::{Copies, Mark};
use gct_core::lane::governor::{Governor, Nobody};
use gct_core::lane::in_flight::InFlightQueue;
use gct_core::lane::limits::LaunchLimits;
use gct_core::lane::ring::RealRing;
use gct_core::lane::split::{AtomRoom, SLOTS_WORDS};
use gct_core::lane::whole::WholeSlots;
use gct_core::lane::words::{Control, Rings, Side, Storage, Words};
use gct_core::lane::work::{Round, Stream, Workspace};
use gct_core::mask::TpcMask;
use gct_core::submit::gpfifo::{self, Entry, Fetch};
use gct_core::submit::graph::Step;
use gct_core::submit::rewrite::Order as Ordered;
use gct_core::submit::stats::{Counters, Reason};
use gct_core::submit::tracker::QmdCall;
use gct_core::topology::Topology;
use gct_core::units::Ns;
use gct_model::qmd::V04_00;
use gct_model::{Config, Fault, GuestMemory, Machine, Order, Run, SparseMemory};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Where the lane's memory begins: segments of the tenant, copies, slots, and the words that the
/// GPU writes.
const SEGMENT: u64 = 0x20_0000_0000;
const COPIES: u64 = 0x21_0000_0000;
const SLOTS: u64 = 0x22_0000_0000;
const DONE: u64 = 0x23_0000_0000;
const PROGRESS: u64 = 0x24_0000_0000;
const LANE: Range<u64> = SEGMENT..0x25_0000_0000;

const ENTRIES: u32 = 64;
const COPIES_WORDS: u32 = 1 << 16;
/// Fewer than a graph has nodes.
const SLOT_COUNT: u32 = 8;
/// TPCs that the tenant keeps, and the mask of disabled ones of its launches.
const KEPT: usize = 4;
const DISABLED: u32 = 0xf0;

#[derive(Debug)]
struct Heap;

impl Storage for Heap {
    type Slots<T: 'static> = Vec<T>;
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

/// The GPU, as the lane sees its memory. A view is an address and a number of words.
struct Gpu(RefCell<Machine<Guarded>>);

impl Words for Gpu {
    type View = (u64, usize);

    fn find(&self, va: u64, count: usize) -> Option<(u64, usize)> {
        (va % 4 == 0 && va < 1 << 48).then_some((va, count))
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

/// Both sides of the channel.
struct Sides {
    rings: [Vec<Cell<u64>>; 2],
    userd: [[Cell<u32>; 2]; 2],
}

impl Sides {
    fn control(&self, side: Side, control: Control) -> &Cell<u32> {
        &self.userd[side as usize][control as usize]
    }
}

impl Rings for Sides {
    fn entry(&self, index: u32) -> Option<u64> {
        let entry = self.rings[Side::Tenant as usize].get(index as usize);
        entry.map(Cell::get)
    }

    fn set_entry(&self, index: u32, entry: u64) {
        self.rings[Side::Real as usize][index as usize].set(entry);
    }

    fn load(&self, side: Side, control: Control) -> Option<u32> {
        Some(self.control(side, control).get())
    }

    fn store_get(&self, get: u32) {
        self.control(Side::Tenant, Control::Get).set(get);
    }

    fn publish(&self, put: u32, _token: u32) {
        self.control(Side::Real, Control::Put).set(put);
    }
}

/// A tenant under a mask, with one channel.
struct Bench {
    gpu: Gpu,
    sides: Sides,
    fetch: Fetch,
    lane: Lane<Heap, (u64, usize)>,
    governor: Governor<Heap, Nobody>,
    copies: Copies<Heap, (u64, usize)>,
    slots: WholeSlots<(u64, usize)>,
    work: Workspace<Heap>,
}

impl Bench {
    fn new(order: Order, strict: bool) -> Self {
        let config = Config {
            order,
            ..Config::default()
        };
        let ring = || (0..ENTRIES).map(|_| Cell::new(0)).collect();
        let room = AtomRoom::new(vec![0; SLOTS_WORDS], vec![]);
        let stream = Stream::new(0xc86f, room, vec![QmdCall::NONE; 256]);
        let mut lane = Lane::new(
            ENTRIES,
            RealRing::new(vec![0; ENTRIES as usize]),
            InFlightQueue::new(vec![None; 16]),
            stream.with_steps(vec![Step::default(); 256], 0),
        );
        lane.set_token(1);
        let mut governor = Governor::new(limits(strict), vec![], vec![None; 512], vec![]);
        governor.keep_descriptors(vec![[0; 96]; 512]);
        governor.set_gpu(Topology::together(TpcMask::first(8)));
        let words = COPIES_WORDS as usize;
        let slots = (
            (SLOTS, (SLOTS, 128 * SLOT_COUNT as usize)),
            (DONE, (DONE, SLOT_COUNT as usize)),
        );
        Self {
            gpu: Gpu(RefCell::new(Machine::new(
                Guarded(SparseMemory::new(1 << 12)),
                config,
            ))),
            sides: Sides {
                rings: [ring(), ring()],
                userd: Default::default(),
            },
            fetch: Fetch::new(),
            lane,
            governor,
            copies: Copies::new(
                (COPIES, (COPIES, words), COPIES_WORDS),
                (PROGRESS, (PROGRESS, 1)),
                vec![Mark::NONE; 8],
            )
            .expect("room"),
            slots: WholeSlots::new(slots.0, slots.1, SLOT_COUNT).expect("aligned"),
            work: Workspace::new(
                vec![0; words],
                vec![Ordered::default(); 256],
                vec![0; words],
            ),
        }
    }

    /// Submits a segment as the tenant.
    fn submit(&self, words: &[u32]) {
        assert!(self.gpu.write(&(SEGMENT, words.len()), 0, words));
        let put = self.sides.control(Side::Tenant, Control::Put);
        let segment = gpfifo::Segment {
            va: SEGMENT,
            words: u32::try_from(words.len()).expect("short"),
            subroutine: false,
            wait: false,
            conditional: false,
        };
        let ring = &self.sides.rings[Side::Tenant as usize];
        ring[put.get() as usize].set(Entry::Segment(segment).encode());
        put.set((put.get() + 1) % ENTRIES);
    }

    /// Publishes what it can, once.
    fn publish(&mut self) -> u32 {
        let mut round = Round {
            memory: &self.gpu,
            scratch: None,
            copies: Some(&mut self.copies),
            slots: Some(&mut self.slots),
            turn: 16,
            words: u32::MAX,
            work: &mut self.work,
            now: Ns(1 << 40),
        };
        let count = self
            .lane
            .publish(&self.sides, &mut self.governor, &mut round);
        self.lane.follow_get(&self.sides);
        count
    }

    /// Runs what was published.
    fn execute(&mut self) {
        let get = self.sides.control(Side::Real, Control::Get);
        while get.get() != self.sides.control(Side::Real, Control::Put).get() {
            let entry = self.sides.rings[Side::Real as usize][get.get() as usize].get();
            get.set((get.get() + 1) % ENTRIES);
            if let Entry::Segment(segment) = self.fetch.decode(entry) {
                let mut words = vec![0; segment.words as usize];
                assert!(self.gpu.read(&(segment.va, words.len()), &mut words));
                self.gpu.0.borrow_mut().submit(CHANNEL, &words);
            }
        }
        self.gpu.0.borrow_mut().run();
    }

    /// Submits a segment and runs it to its end. Returns whether it was not refused.
    fn run(&mut self, words: &[u32]) -> bool {
        self.submit(words);
        for _ in 0..1000 {
            self.publish();
            self.execute();
            if self.lane.is_refused() {
                return false;
            }
            if self.lane.is_quiet() {
                return true;
            }
        }
        panic!("it goes on and on");
    }

    fn runs(&self) -> Vec<Run> {
        self.gpu.0.borrow().report().runs.clone()
    }

    fn counters(&self) -> Counters {
        *self.governor.counters()
    }

    /// Checks that nothing ran but from slots, under the mask.
    fn is_bound(&self) {
        for run in self.runs() {
            assert!((SLOTS..DONE).contains(&run.qmd), "{:x}", run.qmd);
            assert_eq!(run.mask.0[0] & 0xff, DISABLED, "{:x}", run.qmd);
        }
    }

    /// Returns the words of the tenant that are not 0.
    fn memory(&self) -> BTreeMap<u64, u32> {
        let mut machine = self.gpu.0.borrow_mut();
        let words = machine.memory().0.words();
        words.filter(|(at, _)| !LANE.contains(at)).collect()
    }
}

fn limits(strict: bool) -> LaunchLimits {
    LaunchLimits {
        tpcs: Some(TpcMask::first(KEPT)),
        strict,
        ..LaunchLimits::NONE
    }
}

/// A run with blocks: its grid, and how many with this grid ran before it.
type Which = ([u32; 3], usize);

/// Returns the runs with blocks, and which of them ended before which began.
fn order_of(runs: &[Run]) -> (Vec<Which>, BTreeSet<(Which, Which)>) {
    let mut counts = BTreeMap::new();
    let runs: Vec<_> = runs.iter().filter(|run| run.count() > 0).collect();
    let which = |run: &&Run| {
        let count = counts.entry(run.grid).or_insert(0);
        *count += 1;
        (run.grid, *count)
    };
    let mut all: Vec<_> = runs.iter().map(which).collect();
    let mut pairs = BTreeSet::new();
    for (first, a) in runs.iter().zip(&all) {
        let ended = first.ended.expect("each run ends");
        let later = runs
            .iter()
            .zip(&all)
            .filter(|(run, _)| run.started >= ended);
        pairs.extend(later.map(|(_, b)| (*a, *b)));
    }
    all.sort_unstable();
    (all, pairs)
}

fn word(memory: &BTreeMap<u64, u32>, at: u64) -> u32 {
    memory.get(&at).copied().unwrap_or(0)
}

/// Checks that segments have the same effects under the limit as without it: the same runs, the
/// order that the program relies on, and the words that they leave in memory.
fn check(name: &str, segments: &[Vec<u32>]) -> Counters {
    let mut counters = Counters::new();
    let natives: Vec<_> = orders().map(|order| native(segments, order)).collect();
    let (runs, mut relied) = order_of(&natives[0].0);
    for (others, _) in &natives {
        relied = &relied & &order_of(others).1;
    }
    for (order, (_, memory)) in orders().zip(&natives) {
        let mut bench = Bench::new(order, true);
        for words in segments {
            assert!(bench.run(words), "{name}: {:?}", bench.counters());
        }
        bench.is_bound();
        let (found, pairs) = order_of(&bench.runs());
        assert_eq!(found, runs, "{name}");
        assert_eq!(relied.difference(&pairs).next(), None, "{name}");
        let left = bench.memory();
        // An ordinary launch is uploaded with the mask.
        let masks = |at: &u64| match at % 0x200 {
            0 => 1 << 31,
            0x130 => DISABLED,
            _ => 0,
        };
        let differs = |at: &&u64| (word(memory, **at) ^ word(&left, **at)) & !masks(at) != 0;
        let all = memory.keys().chain(left.keys());
        assert_eq!(all.filter(differs).collect::<Vec<_>>(), [&0; 0], "{name}");
        counters = bench.counters();
    }
    counters
}

/// Runs segments as the tenant submits them, each to its end.
fn native(segments: &[Vec<u32>], order: Order) -> (Vec<Run>, BTreeMap<u64, u32>) {
    let config = Config {
        order,
        ..Config::default()
    };
    let mut machine = Machine::new(SparseMemory::new(1 << 12), config);
    for words in segments {
        machine.submit(CHANNEL, words);
        machine.run();
    }
    let (report, memory) = machine.into_parts();
    assert_eq!(report.anomalies, []);
    (report.runs, memory.words().collect())
}

fn segments(names: &[&str]) -> Vec<Vec<u32>> {
    let all = names.iter().flat_map(|name| capture(name));
    all.map(|(_, words)| words).collect()
}

/// CUDA's graphs run each node once, as without the limit.
#[test]
fn captured_graphs_run_from_slots() {
    let graphs: &[&[&str]] = &[
        &["graph4_upload", "graph4", "graph4"],
        &["graph_fork_upload", "graph_fork", "graph_fork"],
        &["graph_tails_upload", "graph_tails"],
        &["graph_single_first", "graph_single"],
        &["graph_chains_first", "graph_chains", "graph_chains"],
    ];
    for names in graphs {
        let counters = check(names[0], &segments(names));
        let replays = counters.kept(Reason::NotHere);
        assert_eq!(counters.kept_total(), replays, "{names:?}");
        assert_eq!(counters.replays, replays, "{names:?}");
    }
}

/// Graphs with clusters and with fills by a macro.
#[test]
fn captured_graphs_with_clusters_run_from_slots() {
    let mut bench = Bench::new(Order::Eager, true);
    for words in segments(&["graph_clusters_first", "graph_clusters"]) {
        assert!(bench.run(&words));
    }
    bench.is_bound();
    assert_eq!(order_of(&bench.runs()).0.len(), 8);
}

/// A random graph: of each node but the first the ones that it waits for, and whether a call of the
/// replay decrements it, too.
fn graph() -> impl Strategy<Value = Vec<(Vec<usize>, bool)>> {
    let node = |number: usize| {
        let before = prop::collection::btree_set(0..number.max(1), 0..3);
        (before, prop::bool::weighted(0.2)).prop_map(|(before, called)| {
            let before: Vec<_> = before.into_iter().collect();
            let called = called || before.is_empty();
            (before, called)
        })
    };
    (1..30usize).prop_flat_map(move |count| (0..count).map(node).collect::<Vec<_>>())
}

const HEAD: u64 = 0x1000_0000;

/// Returns the upload of a graph as CUDA has it, last node first, and its replay.
fn submitted(graph: &[(Vec<usize>, bool)]) -> Vec<Vec<u32>> {
    let va = |number: usize| HEAD + 0x200 * number as u64;
    let mut left = vec![2; graph.len()];
    let mut qmds: Vec<_> = (1u32..)
        .take(graph.len())
        .map(|width| Qmd::grid(7, [width, 1, 1]))
        .collect();
    let mut called = vec![];
    for (number, (before, is_called)) in graph.iter().enumerate().skip(1) {
        let before: Vec<_> = before
            .iter()
            .filter(|node| left[**node] > 0)
            .copied()
            .collect();
        let is_called = *is_called || before.is_empty();
        let counter = match (before.len(), is_called) {
            (1, false) => 0,
            (count, is_called) => count as u32 + u32::from(is_called),
        };
        for node in before {
            left[node] -= 1;
            let action = if counter == 0 { 1 } else { 4 };
            qmds[node].dependent(left[node], action, va(number));
        }
        qmds[number]
            .put(V04_00.counter, counter)
            .put(V04_00.require_scheduling, 1)
            .put(V04_00.self_copy, 1);
        called.extend(is_called.then_some(number));
    }
    let (mut upload, mut replay) = (Segment::default(), Segment::default());
    for (number, qmd) in qmds.iter().enumerate().skip(1).rev() {
        upload.launch(va(number), qmd, COPY);
    }
    upload.upload(HEAD, &qmds[0].0);
    replay.pcas(HEAD, COPY);
    for number in called {
        replay.pcas(va(number), 7);
    }
    vec![upload.0, replay.0.clone(), replay.0]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn random_graphs_run_from_slots(graph in graph()) {
        check("random", &submitted(&graph));
    }

    /// Whatever a tenant writes, what runs is bound, or the channel is refused.
    #[test]
    fn hostile_graphs_run_from_slots_or_not_at_all(
        graph in graph(),
        changes in prop::collection::vec((0usize..3, any::<prop::sample::Index>(), any::<u32>(), 0u32..32), 1..8),
        whole: bool,
        name in prop::sample::select(vec![["graph4_upload", "graph4"], ["graph_fork_upload", "graph_fork"]]),
        captured: bool,
        toggles: bool,
    ) {
        let mut segments = if captured { segments(&name) } else { submitted(&graph) };
        for (segment, at, word, bit) in changes {
            let count = segments.len();
            let words = &mut segments[segment % count];
            let at = at.index(words.len());
            words[at] = if whole { word } else { words[at] ^ 1 << bit };
        }
        let mut bench = Bench::new(Order::Random(7), true);
        for words in &segments {
            if !bench.run(words) {
                break;
            }
            if toggles {
                // Launches run where they are then.
                bench.governor.set_limits(limits(false));
            } else {
                bench.is_bound();
            }
        }
    }
}
