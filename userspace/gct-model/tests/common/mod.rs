// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Builds segments and descriptors by hand, as CUDA does on Hopper.
#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod launches;
pub(crate) mod rewriter;

use gct_model::qmd::{self, Bits, Layout, V04_00};
use gct_model::{ChannelId, Config, Machine, Order, Report, SparseMemory};

pub(crate) const CHANNEL: ChannelId = ChannelId(0);
pub(crate) const COPY: u32 = 0xa;
pub(crate) const SCHEDULE: u32 = 2;

/// A V04_00 descriptor under construction.
#[derive(Clone)]
pub(crate) struct Qmd(pub(crate) [u32; 96]);

impl Qmd {
    /// Returns a grid of blocks that runs `program`, without effects.
    pub(crate) fn grid(program: u32, grid: [u32; 3]) -> Self {
        let mut qmd = Self([0; 96]);
        qmd.put(V04_00.version_bits, 0x40)
            .put(V04_00.kind, 2)
            .put(V04_00.program[0], program);
        for (field, value) in V04_00.grid.into_iter().zip(grid) {
            qmd.put(field, value);
        }
        for field in V04_00.threads {
            qmd.put(field, 1);
        }
        qmd
    }

    /// Returns a descriptor without blocks.
    pub(crate) fn null() -> Self {
        let mut qmd = Self::grid(0, [0; 3]);
        qmd.put(V04_00.kind, 1);
        qmd
    }

    pub(crate) fn put(&mut self, field: Option<Bits>, value: u32) -> &mut Self {
        assert!(field.is_some(), "the layout has this field");
        qmd::set(&mut self.0, field, value);
        self
    }

    pub(crate) fn resume(&mut self, resume: [u32; 3]) -> &mut Self {
        for (field, value) in V04_00.resume.into_iter().zip(resume) {
            self.put(field, value);
        }
        self
    }

    /// Adds release number `i`: `payload` to `address`, one word.
    pub(crate) fn release(&mut self, i: usize, address: u32, payload: u32) -> &mut Self {
        let release = V04_00.releases[i].expect("three releases");
        self.put(release.enable, 1)
            .put(release.size, 1)
            .put(release.address[0], address)
            .put(release.payload[0], payload)
    }

    /// Adds dependent number `i`: completion applies `action` to the descriptor at `target`.
    pub(crate) fn dependent(&mut self, i: usize, action: u32, target: u64) -> &mut Self {
        let dependent = V04_00.dependents[i];
        let pointer = u32::try_from(target >> 8).expect("below 2^40");
        self.put(dependent.enable, 1)
            .put(dependent.action, action)
            .put(dependent.pointer, pointer)
    }

    pub(crate) fn arrive(&mut self, latch: u32) -> &mut Self {
        self.put(V04_00.arrive[0], 1).put(V04_00.arrive[1], latch)
    }

    pub(crate) fn wait(&mut self, latch: u32) -> &mut Self {
        self.put(V04_00.wait[0], 1).put(V04_00.wait[1], latch)
    }
}

/// A segment under construction.
#[derive(Clone, Default)]
pub(crate) struct Segment(pub(crate) Vec<u32>);

impl Segment {
    pub(crate) fn upload(&mut self, address: u64, words: &[u32]) -> &mut Self {
        let count = u32::try_from(words.len()).expect("a short upload");
        let [low, high] = [address & 0xffff_ffff, address >> 32]
            .map(|half| u32::try_from(half).expect("32 bits"));
        self.0
            .extend([0x2002_2062, high, low, 0x2002_2060, count * 4, 1]);
        self.0.extend([0x2001_206c, 0x41]);
        self.0.push(0x6000_206d | count << 16);
        self.0.extend(words);
        self
    }

    pub(crate) fn pcas(&mut self, qmd: u64, action: u32) -> &mut Self {
        let shifted = u32::try_from(qmd >> 8).expect("below 2^40");
        self.0.extend([0x2001_20ad, shifted, 0x2001_20b0, action]);
        self
    }

    /// Schedules an inline descriptor, as CUDA does on Ampere.
    pub(crate) fn inline(&mut self, address: u64, words: &[u32]) -> &mut Self {
        let size = if words.len() == 96 { 1 << 30 } else { 0 };
        let low = u32::try_from(address >> 8).expect("below 2^40");
        let count = u32::try_from(words.len() + 2).expect("few words");
        self.0
            .extend([1 << 29 | count << 16 | 1 << 13 | 0x318 >> 2, size, low]);
        self.0.extend(words);
        self
    }

    /// Uploads a descriptor and schedules it by a PCAS.
    pub(crate) fn launch(&mut self, address: u64, qmd: &Qmd, action: u32) -> &mut Self {
        self.upload(address, &qmd.0).pcas(address, action)
    }
}

/// Returns the channel class of the version's GPUs.
pub(crate) fn channel_class(layout: &Layout) -> u16 {
    match layout.version {
        (4, 0) => 0xc86f,
        (4, 1) | (5, 0) => 0xc96f,
        _ => 0xc56f,
    }
}

/// Runs segments on one channel. Returns the report and the memory.
pub(crate) fn execute(segments: &[&[u32]], order: Order) -> (Report, SparseMemory) {
    let config = Config {
        order,
        ..Config::default()
    };
    let mut machine = Machine::new(SparseMemory::new(1 << 12), config);
    for segment in segments {
        machine.submit(CHANNEL, segment);
    }
    machine.run();
    machine.into_parts()
}

/// Returns every fixed order and some random ones.
pub(crate) fn orders() -> impl Iterator<Item = Order> {
    [Order::Eager, Order::Late]
        .into_iter()
        .chain((0..16).map(Order::Random))
}

/// Returns the segments of a capture in the fixtures.
pub(crate) fn capture(name: &str) -> Vec<(ChannelId, Vec<u32>)> {
    let path = format!(
        "{}/../../tests/fixtures/captures/{name}.pbcap",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).expect("the fixture exists");
    gct_client::capture::parse(&text)
        .expect("a capture")
        .into_iter()
        .map(|record| (ChannelId(record.channel), record.words))
        .collect()
}
