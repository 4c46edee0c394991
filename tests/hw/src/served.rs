// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs a child that serves requests one after another, each with a line of JSON.

use crate::kit::{parse, Kit, RunEnv};
use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a child to start: PyTorch takes ten seconds, and longer beside other programs.
const START: Duration = Duration::from_secs(60);
/// Time limit for a child to exit by itself.
const END: Duration = Duration::from_secs(10);

/// The child, stopped on drop.
#[derive(Debug)]
pub struct Served {
    child: Child,
    requests: Option<ChildStdin>,
    answers: Receiver<String>,
    /// Requests whose replies were not received.
    due: usize,
    what: String,
}

impl Kit {
    /// Starts `gct-load serve`. It takes requests once [`Served::ready`] returns.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn serve(&self, env: &RunEnv) -> Result<Served> {
        self.serve_by(env, &self.path("gct-load"), &["serve"])
    }

    /// Starts another program that serves requests.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn serve_by(&self, env: &RunEnv, program: &Path, arguments: &[&str]) -> Result<Served> {
        let mut command = self.command(program, env);
        command.args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let what = program.display().to_string();
        let mut child = command
            .spawn()
            .with_context(|| format!("{what} cannot be started"))?;
        let output = child.stdout.take().context("its output is piped")?;
        let (send, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Served {
            requests: child.stdin.take(),
            child,
            answers,
            due: 0,
            what,
        })
    }
}

impl Served {
    /// Waits until the child takes requests.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub fn ready(&mut self) -> Result<()> {
        let line = self.line(START)?;
        ensure!(line.get("ready").is_some(), "{}: {line}", self.what);
        Ok(())
    }

    /// Sends a request.
    ///
    /// # Errors
    ///
    /// If the child has exited.
    pub fn ask(&mut self, request: &str) -> Result<()> {
        let requests = self.requests.as_mut().context("it is asked no more")?;
        writeln!(requests, "{request}")?;
        requests.flush()?;
        self.due += 1;
        Ok(())
    }

    /// Returns the reply, within `patience`.
    ///
    /// # Errors
    ///
    /// If there is no reply, or it reports a failure.
    pub fn answer(&mut self, patience: Duration) -> Result<Value> {
        let line = self.line(patience)?;
        self.due = self.due.saturating_sub(1);
        if let Some(error) = line.get("error") {
            bail!("{}: {error}", self.what);
        }
        Ok(line)
    }

    /// Receives the replies that are still due, so that none is taken for that of a later request.
    ///
    /// # Errors
    ///
    /// If one does not come within `patience`.
    pub fn settle(&mut self, patience: Duration) -> Result<()> {
        while self.due > 0 {
            self.line(patience)?;
            self.due -= 1;
        }
        Ok(())
    }

    fn line(&mut self, patience: Duration) -> Result<Value> {
        match self.answers.recv_timeout(patience) {
            Ok(line) => parse(&line),
            Err(RecvTimeoutError::Timeout) => bail!("{} does not answer", self.what),
            Err(RecvTimeoutError::Disconnected) => bail!("{} has ended", self.what),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The child exits at the end of its input. Killing a client of MPS in the middle of its
        // work would end other clients, too.
        drop(self.requests.take());
        let start = Instant::now();
        while start.elapsed() < END {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(2)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Returns a kit whose programs are shells.
    fn kit() -> (Kit, std::path::PathBuf) {
        let folder = std::env::temp_dir().join(format!("gct-served-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for file in ["gct-load", "libgct_preload.so"] {
            let _ = symlink("/bin/sh", folder.join(file));
        }
        (Kit::new(Some(folder.clone())).unwrap(), folder)
    }

    #[test]
    fn requests_are_answered_one_by_one() {
        let (kit, folder) = kit();
        let script = r#"echo '{"ready": true}'; while read n; do [ $n = 9 ] &&
            echo '{"error": "nine"}' || echo "{\"n\": $n}"; done"#;
        let shell = Path::new("/bin/sh");
        let mut served = kit
            .serve_by(&RunEnv::native(), shell, &["-c", script])
            .unwrap();
        served.ready().unwrap();
        let patience = Duration::from_secs(20);
        for n in 1..4 {
            served.ask(&n.to_string()).unwrap();
            assert_eq!(served.answer(patience).unwrap()["n"], n);
        }
        served.ask("9").unwrap();
        assert!(served.answer(patience).is_err());
        for n in ["4", "9", "5"] {
            served.ask(n).unwrap();
        }
        served.settle(patience).unwrap();
        served.ask("6").unwrap();
        assert_eq!(served.answer(patience).unwrap()["n"], 6);
        served.settle(Duration::ZERO).unwrap();
        assert!(served.answer(Duration::from_millis(10)).is_err());
        drop(served);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
