// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A tenant for demonstrations: it submits one piece of work after the other to a
//! channel of its own, and says in a file how many are done.
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

/// How long it waits between two looks at what it has submitted.
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

/// Nothing: a tenant works until it is killed.
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
