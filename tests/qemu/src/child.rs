// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Starts processes that must not outlive this one.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{io, thread};

/// A process that is killed when this value is dropped or this process dies.
#[derive(Debug)]
pub(crate) struct OwnedChild(Child);

impl OwnedChild {
    /// Starts the command.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        // SAFETY: between fork and exec the child calls only prctl(), which is async-signal-safe
        // and touches no memory.
        unsafe {
            command.pre_exec(|| {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == -1 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        command.spawn().map(Self)
    }

    /// Waits until the process exits or `limit` has passed.
    pub(crate) fn wait_for(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            if start.elapsed() >= limit {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        // This fails only if the process has already exited.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Drop for OwnedChild {
    fn drop(&mut self) {
        self.kill();
    }
}
