// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Processes that a test makes, and how they talk.

use gct_ktap::{failed, Outcome, Stop};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A forked child that stops at each of its steps until it is told to go on.
pub(crate) struct Child {
    pid: libc::pid_t,
    said: File,
    told: File,
    reaped: bool,
}

/// The child's side.
pub(crate) struct Parent {
    say: File,
    hear: File,
}

impl Parent {
    /// Says that a step is done, and waits. The parent's death ends the child.
    pub(crate) fn step(&mut self) -> Outcome {
        self.say.write_all(&[1])?;
        let mut byte = [0];
        Ok(self.hear.read_exact(&mut byte)?)
    }
}

impl Child {
    /// Forks. This program has one thread whenever it does, so that the child may
    /// do anything.
    pub(crate) fn fork(work: impl FnOnce(&mut Parent) -> Outcome) -> Result<Self, Stop> {
        let (said, say) = pipe()?;
        let (hear, told) = pipe()?;
        // SAFETY: the process has one thread: no lock is held by another.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error().into()),
            0 => {
                drop((said, told));
                let code = match work(&mut Parent { say, hear }) {
                    Ok(()) => 0,
                    Err(why) => {
                        eprintln!("# child: {why:?}");
                        1
                    }
                };
                // SAFETY: ends the child without the parent's destructors.
                unsafe { libc::_exit(code) }
            }
            pid => Ok(Self {
                pid,
                said,
                told,
                reaped: false,
            }),
        }
    }

    /// Its pid.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Waits until it has done a step; fails if it ended instead.
    pub(crate) fn at_step(&mut self) -> Outcome {
        let ended = |_| failed(format!("process {} ended early", self.pid));
        let mut byte = [0];
        self.said.read_exact(&mut byte).map_err(ended)
    }

    /// Lets it go on.
    pub(crate) fn go(&mut self) -> Outcome {
        Ok(self.told.write_all(&[1])?)
    }

    /// Lets it go on and waits for its next step.
    pub(crate) fn next(&mut self) -> Outcome {
        self.go()?;
        self.at_step()
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(&mut self) {
        if !self.reaped {
            // SAFETY: our own child, which was not waited for.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            let _ = self.wait();
        }
    }

    /// Waits for its end, which must be a good one.
    pub(crate) fn finish(&mut self) -> Outcome {
        match self.wait()? {
            0 => Ok(()),
            status => Err(failed(format!("process {}: status {status:#x}", self.pid))),
        }
    }

    fn wait(&mut self) -> io::Result<i32> {
        let mut status = 0;
        self.reaped = true;
        // SAFETY: `status` is writable.
        match unsafe { libc::waitpid(self.pid, &mut status, 0) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(status),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn pipe() -> io::Result<(File, File)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: two descriptors that were just opened and are nobody else's.
    Ok(unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) })
}

/// Takes a copy of another process's descriptor.
pub(crate) fn take_descriptor(pid: u32, descriptor: RawFd) -> io::Result<File> {
    // SAFETY: plain numbers; the result is checked before it is used.
    let process = own(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: as above.
    let copy =
        own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) })?;
    Ok(copy.into())
}

/// A descriptor that a system call has returned.
fn own(result: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(result) {
        // SAFETY: a descriptor that was just opened and is nobody else's.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets a descriptor survive exec.
pub(crate) fn keep_over_exec(file: &File) -> io::Result<()> {
    // SAFETY: plain numbers and an open descriptor.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
