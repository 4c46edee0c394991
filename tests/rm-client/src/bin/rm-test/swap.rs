// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts what moves between GPU and host when managed memory exceeds what fits on the GPU, and
//! prints it for each way to use it.
//!
//! ci/test-gpu.sh runs it on the stock driver, where the GPU is small, and on the patched one,
//! where a limit leaves as much of a large GPU. One thread works, and all its memory is one range,
//! so the numbers follow from what the driver evicts and not from time.

use crate::managed::{uvm, Range, PAGE, ROOT, START};
use crate::oracle::Bound;
use crate::programs::Random;
use crate::replayable::{run, toucher};
use fakegpu_record::{Copied, Recorder};
use gct_ktap::{failed, holds, During, Outcome, Stop};
use rm_client::{Access, Toucher};

/// Roots that fit, and roots that are used.
const FIT: u64 = 8;
const USED: u64 = 16;
/// Uses of a root in one way to use them.
const USES: u64 = 3 * USED;
/// Roots that have all but one of [`TURNS`] uses in `hot`. The others have that one in turn.
const HOT: u64 = 4;
const TURNS: u64 = 5;

/// How a root is brought to the GPU.
#[derive(Clone, Copy)]
enum By {
    Migration,
    Fault,
}

/// An order of uses. It takes the number of the use.
type Order = fn(u64, &mut Random) -> u64;

fn in_turn(number: u64, _: &mut Random) -> u64 {
    number % USED
}

fn at_random(_: u64, random: &mut Random) -> u64 {
    random.below(USED)
}

fn hot(number: u64, random: &mut Random) -> u64 {
    match number % TURNS {
        0 => HOT + number / TURNS % (USED - HOT),
        _ => random.below(HOT),
    }
}

/// The ways to use memory, as the results name them.
const WAYS: &[(&str, By, Order)] = &[
    ("in turn, by migrations", By::Migration, in_turn),
    ("at random, by migrations", By::Migration, at_random),
    ("some often, by migrations", By::Migration, hot),
    ("in turn, by faults", By::Fault, in_turn),
    ("at random, by faults", By::Fault, at_random),
    ("some often, by faults", By::Fault, hot),
];

/// Uses a root on the GPU: all of it is there when this returns, and the GPU has written a word of
/// each page.
fn use_root(toucher: &mut Toucher, root: u64, by: By) -> Outcome {
    let start = START + root as usize * ROOT;
    if matches!(by, By::Migration) {
        uvm(toucher.session())?.migrate(start, ROOT)?;
    }
    let access = Access {
        va: start as u64,
        bytes: (ROOT - PAGE + 8) as u64,
        stride: PAGE as u64,
        store: Some(root),
    };
    run(toucher, &[access])
}

/// Returns what has moved to the GPU and to the host so far.
fn copied() -> Result<[Copied; 2], Stop> {
    let copies = Recorder::open(0).and_then(|recorder| recorder.copies());
    let copies = copies.map_err(failed)?;
    Ok([
        copies.iter().map(|engine| engine.to_gpu).sum(),
        copies.iter().map(|engine| engine.to_host).sum(),
    ])
}

/// Uses memory in one way, and prints what has moved.
fn play(toucher: &mut Toucher, bound: &mut Bound, (name, by, order): (&str, By, Order)) -> Outcome {
    bound.leave(FIT)?;
    let range = Range::new(toucher.session(), START, USED as usize * ROOT)?;
    range.write(1);
    let mut random = Random::new(1);
    let before = copied()?;
    for number in 0..USES {
        let root = order(number, &mut random);
        use_root(toucher, root, by).during(format!("use {number}"))?;
    }
    let after = copied()?;
    let [to_gpu, to_host] = [0, 1].map(|at| after[at].since(before[at]));
    println!(
        "# swap {name}: in {} {} out {} {}",
        to_gpu.operations, to_gpu.bytes, to_host.operations, to_host.bytes
    );
    bound.check()
}

/// Uses memory in all ways.
pub(crate) fn all(mut bound: Bound) -> Outcome {
    let mut toucher = toucher()?;
    for way in WAYS {
        play(&mut toucher, &mut bound, *way).during(way.0)?;
    }
    bound.end()
}

/// Roots that fit and roots that are used where copies take time. Of more than 16 roots some leave
/// ahead.
const STREAM_FIT: u64 = 64;
const STREAM_USED: u64 = 96;

/// Uses memory in turn that does not fit, with a GPU whose copies take time, and prints how many
/// copies of both directions are beside each other once all room is in use.
pub(crate) fn stream(mut bound: Bound) -> Outcome {
    let mut toucher = toucher()?;
    for (name, by) in [("by migrations", By::Migration), ("by faults", By::Fault)] {
        bound.leave(STREAM_FIT)?;
        let range = Range::new(toucher.session(), START, STREAM_USED as usize * ROOT)?;
        range.write(1);
        for root in 0..STREAM_FIT {
            use_root(&mut toucher, root, by).during(format!("use {root}"))?;
        }
        let before = copied()?;
        for number in STREAM_FIT..STREAM_FIT + STREAM_USED {
            use_root(&mut toucher, number % STREAM_USED, by).during(format!("use {number}"))?;
        }
        let after = copied()?;
        let [to_gpu, to_host] = [0, 1].map(|at| after[at].since(before[at]));
        let words = |of: Copied| {
            let Copied {
                operations,
                bytes,
                beside,
                large,
            } = of;
            format!("{operations} {bytes} {beside} {large}")
        };
        println!(
            "# stream {name}: in {} out {}",
            words(to_gpu),
            words(to_host)
        );
        holds("copies out", to_host.operations > 0)?;
        bound.check()?;
    }
    bound.end()
}
