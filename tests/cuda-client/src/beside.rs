// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs that are stopped, die, fault or find no memory, while others of their group go on.

use crate::limits::{joins_and_runs, member, passed, passes, read, write, Group, NAME};
use gct_ktap::{failed, holds, same, Outcome, Stop};
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take, under emulation beside other work.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until a condition holds.
fn until(what: &str, holds: impl Fn() -> Result<bool, Stop>) -> Outcome {
    let start = Instant::now();
    while !holds()? {
        if start.elapsed() > PATIENCE {
            return Err(failed(format!("waited in vain: {what}")));
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A member of the group that launches in rounds (`steps::rounds`) until it is told to end, killed
/// on drop.
struct Rounds {
    child: Child,
    output: String,
}

impl Rounds {
    /// Starts one, and returns it after its third round.
    fn start(name: &str) -> Result<Self, Stop> {
        let output = format!("/tmp/{name}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &joins_and_runs("rounds")]);
        shell.stdin(Stdio::piped()).stdout(File::create(&output)?);
        let rounds = Self {
            child: shell.spawn()?,
            output,
        };
        until("three rounds", || Ok(rounds.count()? >= 3))?;
        Ok(rounds)
    }

    fn text(&self) -> Result<String, Stop> {
        Ok(fs::read_to_string(&self.output)?)
    }

    /// Returns how many rounds have ended.
    fn count(&self) -> Result<usize, Stop> {
        self.text().map(|text| text.matches("# round").count())
    }

    /// Checks that it goes on, and has no failure until it is told to end.
    fn passes(mut self) -> Outcome {
        let before = self.count()?;
        until("another round", || Ok(self.count()? > before))?;
        drop(self.child.stdin.take());
        self.child.wait()?;
        passed(self.text()?)
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        // A program that has ended needs no signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the group's memory in bytes.
fn memory() -> Result<u64, Stop> {
    let text = read(&format!("{NAME}/0/gmem.current"))?;
    text.trim().parse().map_err(failed)
}

/// A frozen program makes no progress, and goes on where it was.
pub(crate) fn freeze() -> Outcome {
    let _group = Group::new(&[])?;
    let rounds = Rounds::start("freeze")?;
    let switch = |on| write(&format!("{NAME}/0/compute.freeze"), on);
    switch("1")?;
    // The launch of a round may have ended before.
    sleep(Duration::from_millis(500));
    let frozen = rounds.count()?;
    sleep(Duration::from_secs(2));
    same("rounds while frozen", rounds.count()?, frozen)?;
    switch("0")?;
    rounds.passes()
}

/// A killed program leaves no memory charged, and its group serves another.
pub(crate) fn kill() -> Outcome {
    let _group = Group::new(&[("tpc.mask", "0-31")])?;
    let rounds = Rounds::start("kill")?;
    holds("charged", memory()? > 0)?;
    drop(rounds);
    until("nothing is charged", || Ok(memory()? == 0))?;
    let procs = read(&format!("{NAME}/group.procs"))?;
    same("members", procs.as_str(), "")?;
    passes("launch")
}

/// A fault ends the context that made it, and no other.
pub(crate) fn fault() -> Outcome {
    let group = Group::new(&[("channel.owned", "1")])?;
    let rounds = Rounds::start("fault")?;
    passes("wild_store")?;
    holds("counted", group.stat("compute.events", "faults")? > 0)?;
    rounds.passes()
}

/// A context for which a neighbour leaves no memory fails, and the neighbour goes on.
pub(crate) fn no_memory() -> Outcome {
    let _group = Group::new(&[("gmem.limit", "900M")])?;
    let rounds = Rounds::start("no_memory")?;
    let output = member("context")?;
    let expected = "cuCtxCreate_v2: CUDA_ERROR_OUT_OF_MEMORY";
    if !output.contains(expected) {
        return Err(failed(output));
    }
    rounds.passes()
}
