// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Wraps the system calls that the standard library lacks.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// Turns the result of a system call into an error if it is -1.
fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Returns the errno of an error, 0 if it has none.
pub(crate) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// Loads a module.
pub(crate) fn insmod(path: &Path, parameters: &str) -> io::Result<()> {
    let file = File::open(path)?;
    let parameters = CString::new(parameters)?;
    // SAFETY: the descriptor is open and the parameters end with a NUL.
    checked(unsafe {
        libc::syscall(
            libc::SYS_finit_module,
            file.as_raw_fd(),
            parameters.as_ptr(),
            0,
        )
    })
    .map(drop)
}

/// Unloads a module without waiting for its users.
pub(crate) fn rmmod(name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the name ends with a NUL.
    checked(unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), libc::O_NONBLOCK) })
        .map(drop)
}

/// Creates a character device node unless it exists.
pub(crate) fn mknod_char(path: &str, major: u32, minor: u32) -> io::Result<()> {
    if Path::new(path).exists() {
        return Ok(());
    }
    let path = CString::new(path)?;
    let device = libc::makedev(major, minor);
    // SAFETY: the path ends with a NUL.
    let result = unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, device) };
    checked(result.into()).map(drop)
}

/// Mounts a file system on a directory that exists.
pub(crate) fn mount(kind: &str, target: &str) -> io::Result<()> {
    let kind = CString::new(kind)?;
    let target = CString::new(target)?;
    // SAFETY: three strings that end with a NUL, and no data.
    let result = unsafe {
        libc::mount(
            kind.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    checked(result.into()).map(drop)
}

/// A child process, forked without exec.
pub(crate) struct Child(pub(crate) libc::pid_t);

impl Child {
    /// Forks. The child runs `work` and exits with its value. The program has one thread here, so
    /// the child may do anything.
    pub(crate) fn fork(work: impl FnOnce() -> i32) -> io::Result<Self> {
        // SAFETY: this process has one thread, so the child inherits no held lock.
        match checked(unsafe { libc::fork() }.into())? {
            0 => {
                let code = work();
                // SAFETY: ends the child without running the parent's destructors.
                unsafe { libc::_exit(code) }
            }
            pid => Ok(Self(libc::pid_t::try_from(pid).unwrap_or(-1))),
        }
    }

    /// Kills the child, which may have exited.
    pub(crate) fn kill(&self) {
        // SAFETY: signals our own child. It was not waited for, so its pid is not reused.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }

    /// Waits for the child and returns its exit status; a negative signal number if it was killed.
    pub(crate) fn wait(self) -> io::Result<i32> {
        let mut status = 0;
        // SAFETY: `status` is writable.
        checked(unsafe { libc::waitpid(self.0, &mut status, 0) }.into())?;
        Ok(if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            -libc::WTERMSIG(status)
        })
    }
}

/// Kills and waits for every child in the list.
pub(crate) fn reap(children: Vec<Child>) {
    for child in &children {
        child.kill();
    }
    for child in children {
        let _ = child.wait();
    }
}

/// Creates a pipe whose ends close on drop.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has room for two descriptors.
    checked(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
    // SAFETY: both descriptors are open, and nothing else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Waits until the other end closes or writes.
pub(crate) fn wait_for(end: &OwnedFd) {
    let mut byte = 0u8;
    // SAFETY: the buffer is one writable byte.
    unsafe { libc::read(end.as_raw_fd(), (&raw mut byte).cast(), 1) };
}

/// Wakes the process that waits at the other end.
pub(crate) fn tell(end: &OwnedFd) -> io::Result<()> {
    File::from(end.try_clone()?).write_all(&[1])
}

/// Sends a number to the other end.
pub(crate) fn tell_number(end: &OwnedFd, number: RawFd) -> io::Result<()> {
    File::from(end.try_clone()?).write_all(&number.to_ne_bytes())
}

/// Waits for a number from the other end.
pub(crate) fn read_number(end: &OwnedFd) -> io::Result<RawFd> {
    let mut bytes = [0; size_of::<RawFd>()];
    File::from(end.try_clone()?).read_exact(&mut bytes)?;
    Ok(RawFd::from_ne_bytes(bytes))
}

/// Duplicates a descriptor of another process.
pub(crate) fn take_fd(pid: libc::pid_t, descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the arguments are numbers.
    let process = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let process = RawFd::try_from(process).unwrap_or(-1);
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    let process = unsafe { OwnedFd::from_raw_fd(process) };
    // SAFETY: the arguments are numbers.
    let copy = checked(unsafe {
        libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0)
    })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(copy).unwrap_or(-1)) })
}

/// Makes future children of this process start a new pid namespace.
pub(crate) fn unshare_pids() -> io::Result<()> {
    // SAFETY: the argument is a number.
    checked(unsafe { libc::unshare(libc::CLONE_NEWPID) }.into()).map(drop)
}

/// Makes this process a process of user 65534 without capabilities.
pub(crate) fn become_nobody() -> io::Result<()> {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: the arguments are numbers, and no groups are read.
    checked(unsafe { libc::setgroups(0, std::ptr::null()) }.into())?;
    // SAFETY: the argument is a number.
    checked(unsafe { libc::setgid(NOBODY) }.into())?;
    // SAFETY: as above.
    checked(unsafe { libc::setuid(NOBODY) }.into()).map(drop)
}

/// Moves this process into a user namespace of its own, in which its user is root.
pub(crate) fn unshare_users() -> io::Result<()> {
    // SAFETY: the argument is a number.
    checked(unsafe { libc::unshare(libc::CLONE_NEWUSER) }.into())?;
    std::fs::write("/proc/self/uid_map", "0 0 1")
}

/// Takes CAP_SYS_ADMIN from this process.
pub(crate) fn drop_admin() -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_SYS_ADMIN: u32 = 21;
    let header = [VERSION_3, 0];
    // Effective, permitted and inheritable, of capabilities 0 to 31 and then of the others.
    let mut sets = [0u32; 6];
    // SAFETY: header and sets have the sizes of this version.
    checked(unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) })?;
    for set in &mut sets[..3] {
        *set &= !(1 << CAP_SYS_ADMIN);
    }
    // SAFETY: as above.
    checked(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) }).map(drop)
}

/// Raises the maximum of this process's open files.
pub(crate) fn allow_files(count: usize) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: count as libc::rlim_t,
        rlim_max: count as libc::rlim_t,
    };
    // SAFETY: the structure is initialised.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }.into()).map(drop)
}

/// Issues an ioctl with a structure that the kernel reads and writes.
///
/// # Safety
///
/// `argument` is what the driver expects for `request`, and pointers in it are valid or null.
pub(crate) unsafe fn ioctl<T>(file: &File, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: the caller guarantees it.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    checked(result.into()).map(drop)
}
