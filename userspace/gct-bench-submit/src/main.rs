// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the submission path against a plain copy of the same segments, in one run.
//!
//! `gct-bench-submit` prints, for every capture, the median time of a copy of its segments and of three operations on
//! them, and the ratios. `gct-bench-submit callgrind OPERATION` runs one operation on `one_launch` a fixed number of times
//! between two calls of nothing else, for instruction counts.

// The lint mirrors the kernel's; this program never runs there.
#![allow(clippy::float_arithmetic)]

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use gct_core::submit::mask::DisabledTpcs;
use gct_core::submit::rewrite::{self, Cut, Order, Output, Placement};
use gct_core::submit::stats::Counters;
use gct_core::submit::tracker::{Found, Tracker};

/// Hopper's channel class.
const CHANNEL_CLASS: u16 = 0xc86f;
/// How often an operation runs between two looks at the clock.
const BATCH: u32 = 2000;
/// How many batches; their median counts.
const BATCHES: usize = 101;
/// Where the atoms' QMDs go.
const SLOT_VA: u64 = 0x10_0000_0000;

struct Capture {
    name: String,
    segments: Vec<Vec<u32>>,
}

fn captures() -> Vec<Capture> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/captures");
    let mut captures: Vec<Capture> = fs::read_dir(directory)
        .expect("the captures are part of the repository")
        .map(|entry| entry.expect("a readable directory").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "pbcap")
        })
        .map(|path| Capture {
            name: path
                .file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned(),
            segments: segments(&fs::read_to_string(&path).expect("a text file")),
        })
        .collect();
    captures.sort_by(|a, b| a.name.cmp(&b.name));
    captures
}

fn segments(text: &str) -> Vec<Vec<u32>> {
    text.lines()
        .filter_map(|line| line.split_once(" :"))
        .map(|(_, words)| {
            words
                .split_whitespace()
                .map(|word| u32::from_str_radix(word, 16).expect("hexadecimal words"))
                .collect()
        })
        .collect()
}

/// Half of an H200's TPCs.
fn half() -> DisabledTpcs {
    DisabledTpcs::keep_only(66, 0..33).expect("an H200 has 66 TPCs")
}

/// The same order for every launch. What a policy needs to decide is not measured here.
fn orders(mask: &DisabledTpcs, atoms: u32) -> [Order<'_>; 16] {
    [Order {
        mask: Some(mask),
        atoms,
    }; 16]
}

/// Everything that the operations use, made once.
struct Bench {
    tracker: Tracker,
    found: [Found; 16],
    counters: Counters,
    buffer: Vec<u32>,
    output: Vec<u32>,
    cuts: Vec<Cut>,
}

impl Bench {
    fn new() -> Self {
        Self {
            tracker: Tracker::new(CHANNEL_CLASS),
            found: [Found::default(); 16],
            counters: Counters::new(),
            buffer: vec![0; 1 << 14],
            output: vec![0; 1 << 16],
            cuts: vec![Cut::default(); 256],
        }
    }

    /// What everything is compared with.
    fn copy(&mut self, segment: &[u32]) {
        if let Some(buffer) = self.buffer.get_mut(..segment.len()) {
            buffer.copy_from_slice(segment);
        }
        black_box(&mut self.buffer);
    }

    /// Finds the launches, changes nothing.
    fn find(&mut self, segment: &[u32]) {
        let scan = self
            .tracker
            .scan(black_box(segment), &mut self.found, &mut self.counters);
        black_box(scan);
    }

    /// Finds the launches and masks them where they are.
    fn mask(&mut self, segment: &mut [u32], orders: &[Order<'_>]) {
        let scan = self
            .tracker
            .scan(black_box(segment), &mut self.found, &mut self.counters);
        rewrite::in_place(
            segment,
            &self.found[..scan.found],
            orders,
            &mut self.counters,
        );
        black_box(segment);
    }

    /// Finds the launches, masks them and splits them into eight.
    fn split(&mut self, segment: &[u32], orders: &[Order<'_>]) {
        let scan = self
            .tracker
            .scan(black_box(segment), &mut self.found, &mut self.counters);
        let output = Output {
            words: &mut self.output,
            slot_va: SLOT_VA,
            slots: 128,
            placement: Placement::Upload,
            cuts: &mut self.cuts,
            done: None,
        };
        let emitted = rewrite::emit(
            segment,
            &self.found[..scan.found],
            orders,
            output,
            &mut self.counters,
        );
        black_box(emitted.expect("room for every capture"));
        black_box(&mut self.output);
    }
}

/// The median time of one run of `operation` in nanoseconds.
fn time(mut operation: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..BATCH {
                operation();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[BATCHES / 2]
}

fn table() {
    println!("capture                       words  copy ns  find  mask in place  8 atoms   (ratios to the copy)");
    let mask = half();
    let (masks, splits) = (orders(&mask, 1), orders(&mask, 8));
    for capture in captures() {
        let mut bench = Bench::new();
        let mut segments = capture.segments;
        let words: usize = segments.iter().map(Vec::len).sum();
        let copy = time(|| segments.iter().for_each(|segment| bench.copy(segment)));
        let find = time(|| segments.iter().for_each(|segment| bench.find(segment)));
        let split = time(|| {
            segments
                .iter()
                .for_each(|segment| bench.split(segment, &splits))
        });
        let mask = time(|| {
            segments
                .iter_mut()
                .for_each(|segment| bench.mask(segment, &masks))
        });
        println!(
            "{:<28}  {words:>5}  {copy:>7.1}  {:>4.2}  {:>13.2}  {:>7.2}",
            capture.name,
            find / copy,
            mask / copy,
            split / copy
        );
    }
}

/// Runs one operation so often that its instructions can be told from the rest by comparing two counts.
fn callgrind(operation: &str, times: u32) {
    let mut bench = Bench::new();
    let capture = captures()
        .into_iter()
        .find(|capture| capture.name == "one_launch");
    let mut segment = capture.expect("the capture one_launch").segments.remove(0);
    let mask = half();
    let (masks, splits) = (orders(&mask, 1), orders(&mask, 8));
    for _ in 0..times {
        match operation {
            "copy" => bench.copy(&segment),
            "find" => bench.find(&segment),
            "mask" => bench.mask(&mut segment, &masks),
            "split" => bench.split(&segment, &splits),
            other => panic!("no operation {other}: copy, find, mask or split"),
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => table(),
        [command, operation, times] if command == "callgrind" => {
            callgrind(operation, times.parse().expect("a number of times"));
        }
        _ => eprintln!("usage: gct-bench-submit [callgrind copy|find|mask|split TIMES]"),
    }
}
