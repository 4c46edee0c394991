// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `smoke [RUNS [SEED]]`: the fuzz targets over mutations of the captures, without libFuzzer. It is deterministic: a failure
//! prints its run's seed, and `smoke 1 SEED` repeats it.
//!
//! `smoke seeds DIRECTORY` writes the captures as the first inputs of libFuzzer.

use std::fs;
use std::path::Path;

/// A generator of the xorshift family; not for secrets.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end.max(1)
    }
}

/// The segments of the captures as bytes, each behind a word that chooses.
fn corpus() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/captures");
    let mut paths: Vec<_> = fs::read_dir(directory)
        .expect("the captures are part of the repository")
        .map(|entry| entry.expect("a readable directory").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "pbcap")
        })
        .collect();
    paths.sort();
    let mut corpus = Vec::new();
    for path in paths {
        let text = fs::read_to_string(path).expect("a text file");
        for (_, words) in text.lines().filter_map(|line| line.split_once(" :")) {
            let mut bytes = vec![0; 4];
            for word in words.split_whitespace() {
                let word = u32::from_str_radix(word, 16).expect("hexadecimal words");
                bytes.extend(word.to_le_bytes());
            }
            corpus.push(bytes);
        }
    }
    corpus
}

/// Writes each segment with two choices: masked and split by uploads, and by written slots.
fn seeds(directory: &Path) {
    fs::create_dir_all(directory).expect("a directory to write to");
    for (index, mut data) in corpus().into_iter().enumerate() {
        for (name, choice) in [
            ("upload", 1 << 28 | 8 << 19 | 1 << 18 | 65 << 2),
            ("written", 3 << 19 | 65 << 2),
        ] {
            data[..4].copy_from_slice(&u32::to_le_bytes(choice));
            let path = directory.join(format!("{index:02}-{name}"));
            fs::write(path, &data).expect("a file to write to");
        }
    }
}

/// A capture's segment with a few words changed, moved, dropped, doubled or spliced with another's.
fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut data = corpus[random.below(corpus.len())].clone();
    let choice = (random.next() as u32).to_le_bytes();
    data[..4].copy_from_slice(&choice);
    for _ in 0..random.below(6) {
        let words = data.len() / 4;
        let at = random.below(words) * 4;
        match random.below(6) {
            0 => data[at] ^= 1 << random.below(8),
            1 => data[at + random.below(4)] = random.next() as u8,
            2 => {
                data.drain(at..at + 4);
            }
            3 => {
                let word: Vec<u8> = data[at..at + 4].to_vec();
                data.splice(at..at, word);
            }
            4 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() / 4) * 4;
                let to = from + random.below((other.len() - from) / 4) * 4;
                data.splice(at..at, other[from..to].iter().copied());
            }
            _ => data.truncate(at.max(4)),
        }
        if data.len() < 4 {
            data.resize(4, 0);
        }
    }
    data
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, directory] = arguments.as_slice() {
        if command == "seeds" {
            return seeds(Path::new(directory));
        }
    }
    let mut arguments = arguments.iter().map(|argument| argument.parse::<u64>());
    let runs = arguments
        .next()
        .map_or(100_000, |runs| runs.expect("a number of runs"));
    let seed = arguments.next().map_or(1, |seed| seed.expect("a seed"));
    let corpus = corpus();
    for run in 0..runs {
        // Each run has a seed of its own, so that it can be repeated alone.
        let seed = seed.wrapping_add(run);
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let data = mutate(&corpus, &mut random);
        let outcome = std::panic::catch_unwind(|| {
            gct_fuzz::scan(&data);
            gct_fuzz::rewrite(&data);
            gct_fuzz::ring(&data);
        });
        if outcome.is_err() {
            eprintln!("failed: repeat with `smoke 1 {seed}`");
            std::process::exit(1);
        }
    }
    println!("{runs} runs from seed {seed}: nothing failed");
}
