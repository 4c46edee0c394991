// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Builds launches of grids without a program, as short as the hardware allows.

use gct_core::submit::method::{incr, non_incr};
use gct_model::qmd::{self, Bits, V04_00};

/// The subchannel of compute, as libcuda uses it.
const SUBCHANNEL: u8 = 1;
/// `V04_00`, and `GRID_NULL` and `GRID_CTA`, in a descriptor.
const VERSION: u32 = 0x40;
const NULL: u32 = 1;
const KIND: u32 = 2;
/// The action of a dependent: its dependence counter is decremented.
const DECREMENT: u32 = 4;
/// Bytes between the descriptor of a launch and that of its companion.
const COMPANION: u64 = 0x800;
/// `RELEASE_STRUCTURE_SIZE` of one word.
const ONE_WORD: u32 = 1;
/// The action of a PCAS: invalidate, prefetch, copy and schedule.
const SCHEDULE: u32 = 0xa;

/// A launch of one grid.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Where the launch puts its descriptor: 256-aligned, below 2^40.
    pub descriptor: u64,
    /// The address of its program. None is there.
    pub program: u32,
    /// Blocks.
    pub size: [u32; 3],
    /// The TPCs below 32 that it disables by itself.
    pub disabled: u32,
    /// The word that it releases when it ends, by address and payload.
    pub release: Option<(u64, u32)>,
}

impl Grid {
    /// Returns the segment: it uploads the descriptor and schedules it.
    pub fn words(&self) -> Vec<u32> {
        self.words_adding(None)
    }

    /// The same. The launch also adds 1 to a word when it ends.
    pub fn words_adding(&self, counter: Option<u64>) -> Vec<u32> {
        upload_and_schedule(self.descriptor, &self.words_of(counter))
    }

    /// The same as [`words`](Self::words), for a launch as CUDA makes it: behind the descriptor it
    /// has a companion, which waits for its end and for a programmatic dependent. None comes.
    pub fn words_beside_companion(&self) -> Vec<u32> {
        let at = self.descriptor + COMPANION;
        let mut companion = [0; qmd::WORDS_MAX];
        qmd::set(&mut companion, V04_00.version_bits, VERSION);
        qmd::set(&mut companion, V04_00.kind, NULL);
        qmd::set(&mut companion, V04_00.counter, 2);
        let mut launch = self.words_of(None);
        let [dependent, _] = V04_00.dependents;
        qmd::set(&mut launch, dependent.enable, 1);
        qmd::set(&mut launch, dependent.action, DECREMENT);
        // CAST: an address below 2^40.
        qmd::set(&mut launch, dependent.pointer, (at >> 8) as u32);
        let companion = upload_and_schedule(at, &companion);
        [companion, upload_and_schedule(self.descriptor, &launch)].concat()
    }

    fn words_of(&self, counter: Option<u64>) -> [u32; qmd::WORDS_MAX] {
        let mut words = [0; qmd::WORDS_MAX];
        let mut put = |field: Option<Bits>, value: u32| qmd::set(&mut words, field, value);
        put(V04_00.version_bits, VERSION);
        put(V04_00.kind, KIND);
        put(V04_00.program[0], self.program);
        for (field, value) in V04_00.grid.into_iter().zip(self.size) {
            put(field, value);
        }
        for field in V04_00.threads {
            put(field, 1);
        }
        put(V04_00.mask_valid, u32::from(self.disabled != 0));
        put(V04_00.mask[0], self.disabled);
        let counts = counter.map(|address| (address, 1));
        let releases = [(self.release, 0), (counts, 1)];
        for ((release, reduction), bits) in releases.into_iter().zip(V04_00.releases) {
            let (Some((address, payload)), Some(bits)) = (release, bits) else {
                continue;
            };
            put(bits.enable, 1);
            put(bits.size, ONE_WORD);
            // The operation 0 adds.
            put(bits.reduction, reduction);
            // CAST: the halves of an address below 2^40.
            put(bits.address[0], address as u32);
            put(bits.address[1], (address >> 32) as u32);
            put(bits.payload[0], payload);
        }
        words
    }
}

/// Returns the words that upload a descriptor to an address and schedule it.
fn upload_and_schedule(at: u64, descriptor: &[u32]) -> Vec<u32> {
    // CAST: the halves of an address below 2^40, and a few hundred bytes.
    let [low, high] = [at as u32, (at >> 32) as u32];
    let (shifted, count) = ((at >> 8) as u32, descriptor.len() as u32);
    let upload = [incr(SUBCHANNEL, 0x188, 2), high, low];
    let length = [incr(SUBCHANNEL, 0x180, 2), 4 * count, 1];
    let launch = [incr(SUBCHANNEL, 0x1b0, 1), 0x41];
    let pcas = [incr(SUBCHANNEL, 0x2b4, 1), shifted];
    let action = [incr(SUBCHANNEL, 0x2c0, 1), SCHEDULE];
    let data = [&[non_incr(SUBCHANNEL, 0x1b4, count)], descriptor].concat();
    let before = [&upload[..], &length, &launch].concat();
    [before, data, pcas.to_vec(), action.to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_model::{ChannelId, Config, Machine, Report, SparseMemory};

    const GRID: Grid = Grid {
        descriptor: 0x12_3456_7800,
        program: 0x1000,
        size: [7, 3, 2],
        disabled: 0x8000_0001,
        release: Some((0x12_3456_9000, 77)),
    };

    fn run(segments: &[Vec<u32>]) -> Report {
        let mut machine = Machine::new(SparseMemory::new(16), Config::default());
        for words in segments {
            machine.submit(ChannelId(0), words);
        }
        machine.run().clone()
    }

    #[test]
    fn the_grid_runs_under_its_mask() {
        let report = run(&[GRID.words()]);
        assert_eq!(report.anomalies, []);
        let [run] = &report.runs[..] else {
            panic!("one run: {report:?}");
        };
        assert_eq!((run.grid, run.count()), ([7, 3, 2], 42));
        assert_eq!((run.kernel.program, run.mask.0[0]), (0x1000, 0x8000_0001));
    }

    #[test]
    fn its_companion_waits_for_one_more() {
        let report = run(&[GRID.words_beside_companion(), GRID.words_beside_companion()]);
        assert_eq!(report.anomalies, []);
        let counts: Vec<_> = report.runs.iter().map(|run| run.count()).collect();
        assert_eq!(counts, [42, 42]);
        let waiting: Vec<_> = report.waiting.iter().map(|it| it.counter).collect();
        assert_eq!(waiting, [1]);
    }
}
