// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the fuzz targets without libFuzzer: `smoke [RUNS [SEED]]`.
//!
//! The inputs are mutations of the captures, texts and arguments built from known pieces, and
//! random bytes. The program is deterministic: a failure prints its run's seed, and `smoke 1 SEED`
//! repeats it.
//!
//! `smoke seeds DIRECTORY` writes the captures as the first inputs of libFuzzer.

use std::fs;
use std::path::Path;

use fastrand::Rng;

/// Number of runs per sequence of events for the engine.
const ENGINE_EVERY: u64 = 16;

/// Returns the segments of the captures as bytes, each after a word that selects the variant.
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
        for record in gct_client::capture::parse(&text).expect("a capture") {
            let mut bytes = vec![0; 4];
            bytes.extend(record.words.iter().flat_map(|word| word.to_le_bytes()));
            corpus.push(bytes);
        }
    }
    corpus
}

/// Writes each segment with two variants: masked and split by uploads, and by written slots.
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

/// Returns a capture's segment with a few words changed, moved, dropped, doubled or spliced with
/// another's.
fn mutate(corpus: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut data = corpus[random.usize(..corpus.len())].clone();
    let choice = random.u32(..).to_le_bytes();
    data[..4].copy_from_slice(&choice);
    for _ in 0..random.usize(..6) {
        let words = data.len() / 4;
        let at = random.usize(..words) * 4;
        match random.usize(..6) {
            0 => data[at] ^= 1 << random.u32(..8),
            1 => data[at + random.usize(..4)] = random.u8(..),
            2 => {
                data.drain(at..at + 4);
            }
            3 => {
                let word: Vec<u8> = data[at..at + 4].to_vec();
                data.splice(at..at, word);
            }
            4 => {
                let other = &corpus[random.usize(..corpus.len())];
                let from = random.usize(..other.len() / 4) * 4;
                let to = from + random.usize(..(other.len() - from) / 4) * 4;
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

/// Returns pieces of valid text in any order, after a byte that selects the format.
fn text(random: &mut Rng) -> Vec<u8> {
    const PIECES: [&str; 24] = [
        "0",
        "7",
        "66",
        "255",
        "256",
        "18446744073709551615",
        "-",
        ",",
        " ",
        "\n",
        "max",
        "default",
        "all",
        "off",
        "K",
        "M",
        "G",
        "us",
        "ms",
        "s",
        "0-31",
        "pid=",
        "/a/b",
        "0x1f",
    ];
    let mut text = vec![random.u8(..)];
    for _ in 0..random.usize(..6) {
        text.extend(PIECES[random.usize(..PIECES.len())].as_bytes());
    }
    text
}

/// Returns an escape of RM with an argument of one of its sizes.
fn ioctl(random: &mut Rng) -> Vec<u8> {
    const SIZES: [usize; 8] = [0, 16, 28, 31, 32, 40, 48, 176];
    let escape = [0x27, 0x29, 0x2b, 0x34, 0x4a, random.u8(..)][random.usize(..6)];
    let mut argument = vec![escape];
    argument.extend((0..SIZES[random.usize(..SIZES.len())]).map(|_| random.u8(..)));
    argument
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
        // Each run has its own seed, so that it can be repeated alone.
        let seed = seed.wrapping_add(run);
        let mut random = Rng::with_seed(seed);
        let data = mutate(&corpus, &mut random);
        let text = text(&mut random);
        let ioctl = ioctl(&mut random);
        let any: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..)).collect();
        let outcome = std::panic::catch_unwind(|| {
            gct_fuzz::scan(&data);
            gct_fuzz::rewrite(&data);
            gct_fuzz::ring(&data);
            gct_fuzz::interface(&text);
            gct_fuzz::interface(&any);
            gct_fuzz::rmapi(&ioctl);
            gct_fuzz::memory(&any);
            // Checking the engine's invariants takes long.
            if run % ENGINE_EVERY == 0 {
                gct_fuzz::engine(&any);
            }
        });
        if outcome.is_err() {
            eprintln!("failed: repeat with `smoke 1 {seed}`");
            std::process::exit(1);
        }
    }
    println!("{runs} runs from seed {seed}: nothing failed");
}
