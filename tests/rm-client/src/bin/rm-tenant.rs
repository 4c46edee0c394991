// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Submits work to its own channel without pause, for demonstrations. Writes the number of
//! completed pieces to a file.
//!
//! ```text
//! rm-tenant FILE     on the first GPU, until it is killed
//! ```

use rm_client::{Client, Engine, Gpu, Session};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs, thread};

/// Polling interval for completed work.
const PAUSE: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let Some(file) = env::args_os().nth(1) else {
        eprintln!("usage: rm-tenant FILE");
        return ExitCode::FAILURE;
    };
    match run(Path::new(&file)) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("rm-tenant: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The result of a tenant that works until it is killed: none.
enum Never {}

fn run(file: &Path) -> Result<Never, Box<dyn Error>> {
    let engine = Engine::Copy(2);
    let client = Client::open()?;
    let session = Session::new(Gpu::open(&client, 0)?)?;
    let group = session.group(engine)?;
    let mut queue = session.queue(group, engine)?;
    session.copy_object(queue.channel(), engine)?;
    session.schedule(group, true)?;
    for number in 1.. {
        queue.submit_release(0, number);
        while queue.payload(0) != number {
            thread::sleep(PAUSE);
        }
        fs::write(file, format!("{number}\n"))?;
        thread::sleep(PAUSE);
    }
    Err("32 bits are used up".into())
}
