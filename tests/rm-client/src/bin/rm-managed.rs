// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Uses managed memory on the first GPU, for demonstrations.
//!
//! ```text
//! rm-managed FILE MIB    writes a word into each page of so many MiB, moves them to the GPU, and
//!                        checks each word; again with other words, until it is killed. Writes the
//!                        number of complete rounds to FILE
//! ```

use rm_client::{Client, Engine, Gpu, Mapping, Session};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{env, fs, thread};

/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(50);
/// Where the memory begins: nothing of this process is mapped there.
const START: usize = 0x40_0000_0000;
const PAGE: usize = 4096;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let outcome = match &arguments[..] {
        [file, mib] => match mib.parse() {
            Ok(mib) => run(Path::new(file), mib),
            Err(_) => Err("MIB is decimal".into()),
        },
        _ => Err("usage: rm-managed FILE MIB".into()),
    };
    match outcome {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("rm-managed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The result of a tenant that works until it is killed: none.
enum Never {}

fn run(file: &Path, mib: u16) -> Result<Never, Box<dyn Error>> {
    let length = usize::from(mib) << 20;
    let client = Client::open()?;
    let session = Session::with_uvm(Gpu::open(&client, 0)?)?;
    // A process has a directory in the tree while it has a channel group.
    session.group(Engine::Compute)?;
    let uvm = session.uvm().ok_or("a session without UVM")?;
    let memory = uvm.managed(START, length)?;
    for round in 1u64.. {
        write(&memory, length, round);
        uvm.migrate(START, length)?;
        check(&memory, length, round)?;
        fs::write(file, format!("{round}\n"))?;
        thread::sleep(PAUSE);
    }
    Err("64 bits are used up".into())
}

/// Returns the word of a page in a round.
fn word(page: usize, round: u64) -> u64 {
    // CAST: an offset of less than 2^36.
    round << 36 | page as u64
}

fn write(memory: &Mapping, length: usize, round: u64) {
    for page in (0..length).step_by(PAGE) {
        memory.u64(page).store(word(page, round), Ordering::Relaxed);
    }
}

fn check(memory: &Mapping, length: usize, round: u64) -> Result<(), Box<dyn Error>> {
    for page in (0..length).step_by(PAGE) {
        let found = memory.u64(page).load(Ordering::Relaxed);
        if found != word(page, round) {
            return Err(format!("round {round}: {found:#x} at {page:#x}").into());
        }
    }
    Ok(())
}
