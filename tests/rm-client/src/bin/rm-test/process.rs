// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Forks the processes of a test, and synchronises with them.

use gct_ktap::{failed, Outcome, Stop};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A forked child that pauses at each of its steps until the parent lets it continue.
pub(crate) struct Child {
    pid: libc::pid_t,
    from_child: File,
    to_child: File,
    reaped: bool,
}

/// The child's side.
pub(crate) struct Parent {
    to_parent: File,
    from_parent: File,
}

/// What a child sends at each step. Why it failed begins with another byte.
const STEP: [u8; 1] = [1];

impl Parent {
    /// Says why the child ends. The parent may have ended before.
    fn tell(&mut self, why: &Stop) {
        eprintln!("# child: {why:?}");
        let _ = self.to_parent.write_all(format!(" {why:?}").as_bytes());
    }

    /// Reports a step as done, and waits. The parent's death ends the child.
    pub(crate) fn step(&mut self) -> Outcome {
        self.to_parent.write_all(&STEP)?;
        self.wait()
    }

    /// Reports a step as done, and works until the child may continue.
    pub(crate) fn work(&mut self, mut work: impl FnMut() -> Outcome) -> Outcome {
        self.to_parent.write_all(&STEP)?;
        while !self.is_called()? {
            work()?;
        }
        self.wait()
    }

    fn wait(&mut self) -> Outcome {
        let mut byte = [0];
        Ok(self.from_parent.read_exact(&mut byte)?)
    }

    /// Returns whether the child may continue, or has no parent any more.
    fn is_called(&self) -> io::Result<bool> {
        let mut poll = libc::pollfd {
            fd: self.from_parent.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `poll` is one structure, and writable.
        match unsafe { libc::poll(&mut poll, 1, 0) } {
            -1 => Err(io::Error::last_os_error()),
            count => Ok(count > 0),
        }
    }
}

impl Child {
    /// Forks. This program has one thread whenever it forks, so the child may do anything.
    pub(crate) fn fork(work: impl FnOnce(&mut Parent) -> Outcome) -> Result<Self, Stop> {
        let (from_child, to_parent) = pipe()?;
        let (from_parent, to_child) = pipe()?;
        // SAFETY: the process has one thread, so no other thread holds a lock.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error().into()),
            0 => {
                drop((from_child, to_child));
                let mut parent = Parent {
                    to_parent,
                    from_parent,
                };
                let code = match work(&mut parent) {
                    Ok(()) => 0,
                    Err(why) => {
                        parent.tell(&why);
                        1
                    }
                };
                // SAFETY: exits the child without the parent's destructors.
                unsafe { libc::_exit(code) }
            }
            pid => Ok(Self {
                pid,
                from_child,
                to_child,
                reaped: false,
            }),
        }
    }

    /// Returns the child's pid.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Waits until the child has completed a step. Fails if it has exited.
    pub(crate) fn at_step(&mut self) -> Outcome {
        let mut byte = [0];
        if self.from_child.read_exact(&mut byte).is_ok() && byte == STEP {
            return Ok(());
        }
        let why = self.why();
        Err(failed(format!("process {} ended early: {why}", self.pid)))
    }

    /// Returns why the child has failed, as it said itself.
    fn why(&mut self) -> String {
        let mut why = String::new();
        match self.from_child.read_to_string(&mut why) {
            Ok(0) | Err(_) => "it said nothing".into(),
            Ok(_) => why,
        }
    }

    /// Lets the child continue.
    pub(crate) fn go(&mut self) -> Outcome {
        Ok(self.to_child.write_all(&[1])?)
    }

    /// Lets the child continue, and waits for its next step.
    pub(crate) fn next(&mut self) -> Outcome {
        self.go()?;
        self.at_step()
    }

    /// Sends the child a signal. It is pending when this returns.
    pub(crate) fn signal(&self, signal: libc::c_int) -> Outcome {
        // SAFETY: signals our own child, which was not waited for.
        match unsafe { libc::kill(self.pid, signal) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().into()),
        }
    }

    /// Kills the child and waits for it.
    pub(crate) fn kill(&mut self) {
        if !self.reaped {
            // SAFETY: signals our own child, which was not waited for.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            let _ = self.wait();
        }
    }

    /// Waits for the child, which must succeed.
    pub(crate) fn finish(&mut self) -> Outcome {
        match self.wait()? {
            0 => Ok(()),
            status => {
                let why = self.why();
                let pid = self.pid;
                Err(failed(format!("process {pid}: status {status:#x}: {why}")))
            }
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

/// Makes a pipe. Returns the end that is read, and the one that is written.
pub(crate) fn pipe() -> io::Result<(File, File)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors were just opened, and nothing else owns them.
    Ok(unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) })
}

/// Duplicates a descriptor of another process.
pub(crate) fn take_descriptor(pid: u32, descriptor: RawFd) -> io::Result<File> {
    // SAFETY: the arguments are numbers, and the result is checked before use.
    let process = own(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: as above.
    let copy =
        own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) })?;
    Ok(copy.into())
}

/// Takes ownership of a descriptor that a system call has returned.
fn own(result: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(result) {
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Keeps a descriptor open over exec.
pub(crate) fn keep_over_exec(file: &File) -> io::Result<()> {
    // SAFETY: the arguments are numbers and an open descriptor.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
