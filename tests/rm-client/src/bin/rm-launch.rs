// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Launches grids on a channel of its own on the first GPU, for demonstrations.
//!
//! ```text
//! rm-launch FILE PROGRAM BLOCKS       one launch after the other, four at a time, until it is
//!                                     killed; writes the number of ended launches to FILE
//! rm-launch rewrites PROGRAM BLOCKS   submits one launch, makes its words those of another with
//!                                     twice the blocks, and lets the channel run
//! ```

use rm_client::{Client, Engine, Gpu, Grid, Handle, Launcher, Mapping, Memory, Session};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Polling interval for completed work.
const PAUSE: Duration = Duration::from_millis(1);
/// Longest wait for an end.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Launches in flight.
const AHEAD: u32 = 4;
/// Bytes of memory for descriptors, and the offset of the word that launches release.
const BYTES: u64 = 0x1_0000;
const RELEASE: u64 = 0x8000;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let numbers = |program: &str, blocks: &str| {
        let program = u32::from_str_radix(program.trim_start_matches("0x"), 16).ok()?;
        Some((program, blocks.parse().ok()?))
    };
    let outcome = match &arguments[..] {
        [what, program, blocks] => match numbers(program, blocks) {
            Some((program, blocks)) if what == "rewrites" => rewrite(program, blocks),
            Some((program, blocks)) => launch(Path::new(what), program, blocks),
            None => Err("PROGRAM is hexadecimal, BLOCKS decimal".into()),
        },
        _ => Err("usage: rm-launch FILE|rewrites PROGRAM BLOCKS".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rm-launch: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A tenant with a compute channel that is not scheduled yet.
struct Tenant {
    session: Session,
    group: Handle,
    launcher: Launcher,
    words: Mapping,
    grid: Grid,
}

impl Tenant {
    fn new(program: u32, blocks: u32) -> Result<Self, Box<dyn Error>> {
        let client = Client::open()?;
        let session = Session::new(Gpu::open(&client, 0)?)?;
        let group = session.group(Engine::Compute)?;
        let share = session.context_share(group)?;
        let launcher = session.launcher(group, share)?;
        let memory = session.gpu().alloc_memory(Memory::Host, BYTES)?;
        let address = session.map_on_gpu(memory, BYTES)?;
        let bytes = usize::try_from(BYTES)?;
        let words = session.gpu().map_memory(Memory::Host, memory, bytes)?;
        Ok(Self {
            session,
            group,
            launcher,
            words,
            grid: Grid {
                descriptor: address,
                program,
                size: [blocks, 1, 1],
                disabled: 0,
                release: None,
            },
        })
    }

    /// Submits launch `number`, which releases its number.
    fn submit(&mut self, number: u32) {
        self.grid.release = Some((self.grid.descriptor + RELEASE, number));
        self.launcher.submit(&self.grid.words());
    }

    /// Waits for the end of launch `number`.
    fn wait(&self, number: u32) -> Result<(), Box<dyn Error>> {
        let start = Instant::now();
        let at = usize::try_from(RELEASE)?;
        loop {
            // Taken first: whoever stopped this program meanwhile has not made the launch late.
            let late = start.elapsed() > WAIT_MAX;
            if self.words.u32(at).load(Ordering::Acquire) >= number {
                return Ok(());
            }
            if late {
                return Err(format!("launch {number} does not end").into());
            }
            thread::sleep(PAUSE);
        }
    }
}

fn launch(file: &Path, program: u32, blocks: u32) -> Result<(), Box<dyn Error>> {
    let mut tenant = Tenant::new(program, blocks)?;
    tenant.session.schedule(tenant.group, true)?;
    for number in 1.. {
        tenant.submit(number);
        let ended = number.saturating_sub(AHEAD);
        tenant.wait(ended)?;
        fs::write(file, format!("{ended}\n"))?;
    }
    Err("32 bits are used up".into())
}

fn rewrite(program: u32, blocks: u32) -> Result<(), Box<dyn Error>> {
    let mut tenant = Tenant::new(program, blocks)?;
    // The segment with the engine's object comes first.
    let first = tenant.launcher.submitted_words();
    tenant.submit(1);
    // The driver looks at new work every 2 ms.
    thread::sleep(Duration::from_millis(100));
    tenant.grid.size[0] = 2 * blocks;
    let memory = tenant.launcher.memory();
    for (at, word) in (first..).zip(tenant.grid.words()) {
        memory.u32(4 * at).store(word, Ordering::SeqCst);
    }
    tenant.session.schedule(tenant.group, true)?;
    tenant.wait(1)
}
