// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a container's program asks of the GPU, without CUDA: work on a channel, and memory. Prints
//! what it got, and keeps it until it is killed.
//!
//! ```text
//! rm-pod MIB...     on the first GPU; each size is one allocation
//! ```

use rm_client::{numbers, Client, Engine, Gpu, Memory, Session};
use std::env;
use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

/// Pieces of work, each submitted when the one before has completed.
const PIECES: u32 = 10;
/// Polling interval for completed work.
const PAUSE: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::Copy(2);
    let client = Client::open()?;
    let session = Session::new(Gpu::open(&client, 0)?)?;
    let group = session.group(engine)?;
    let mut queue = session.queue(group, engine)?;
    session.copy_object(queue.channel(), engine)?;
    session.schedule(group, true)?;
    for number in 1..=PIECES {
        queue.submit_release(0, number);
        while queue.payload(0) != number {
            sleep(PAUSE);
        }
    }
    println!("{PIECES} pieces of work done");
    println!("time slice {} us", session.timeslice(group)?);
    for size in env::args().skip(1) {
        let bytes = size.parse::<u64>()? << 20;
        match session.gpu().alloc_memory(Memory::Device, bytes) {
            Ok(_) => println!("{size} MiB granted"),
            Err(rm_client::Error::Status(numbers::NO_MEMORY)) => println!("{size} MiB refused"),
            Err(error) => return Err(error.into()),
        }
    }
    loop {
        sleep(Duration::from_secs(1));
    }
}
