// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Stands in for `nvidia-cuda-mps-control` where there is no GPU.
//!
//! ```text
//! -d          starts a daemon in the background; fails if one runs
//! -f          the same in the foreground
//! (nothing)   reads commands, and prints what the daemon answers
//! ```
//!
//! It has the daemon's files: the socket `control`, `control_lock` and the pid in
//! `CUDA_MPS_PIPE_DIRECTORY`, an object in a `/dev/shm` of its own, and its environment in
//! `CUDA_MPS_LOG_DIRECTORY`. It knows two commands, and starts no server.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;
use std::{env, io, process};

use rustix::fs::{flock, FlockOperation};

fn directory(variable: &str) -> PathBuf {
    env::var_os(variable).expect(variable).into()
}

/// Serves until `quit`, or until it is killed.
fn serve() -> io::Result<ExitCode> {
    let pipe = directory("CUDA_MPS_PIPE_DIRECTORY");
    let lock = File::create(pipe.join("control_lock"))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        eprintln!("An instance of this daemon is already running");
        return Ok(ExitCode::FAILURE);
    }
    let (socket, new) = (pipe.join("control"), pipe.join("control.new"));
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    let devices = env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    fs::write(directory("CUDA_MPS_LOG_DIRECTORY").join("devices"), devices)?;
    // Not in a folder that other programs of the machine share.
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    if mounts
        .lines()
        .any(|line| line.starts_with("gct-mps /dev/shm "))
    {
        fs::write("/dev/shm/cuda.shm.stand-in", "")?;
    }
    fs::write(
        pipe.join("nvidia-cuda-mps-control.pid"),
        process::id().to_string(),
    )?;
    fs::rename(&new, &socket)?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        let lines = BufReader::new(stream.try_clone()?).lines();
        for line in lines.map_while(Result::ok) {
            match line.as_str() {
                "get_default_active_thread_percentage" => stream.write_all(b"100.0\n")?,
                "quit" => return Ok(ExitCode::SUCCESS),
                _ => stream.write_all(b"Invalid command\n")?,
            }
        }
    }
    Ok(ExitCode::FAILURE)
}

/// Starts the daemon and waits until it serves.
fn start() -> io::Result<ExitCode> {
    let mut daemon = Command::new(env::current_exe()?)
        .arg("-f")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    let pipe = directory("CUDA_MPS_PIPE_DIRECTORY");
    let own = daemon.id().to_string();
    loop {
        if daemon.try_wait()?.is_some() {
            return Ok(ExitCode::FAILURE);
        }
        let pid = fs::read_to_string(pipe.join("nvidia-cuda-mps-control.pid"));
        if pid.is_ok_and(|pid| pid == own) && UnixStream::connect(pipe.join("control")).is_ok() {
            return Ok(ExitCode::SUCCESS);
        }
        sleep(Duration::from_millis(5));
    }
}

fn ask() -> io::Result<ExitCode> {
    let socket = directory("CUDA_MPS_PIPE_DIRECTORY").join("control");
    let Ok(mut stream) = UnixStream::connect(socket) else {
        eprintln!("Cannot find MPS control daemon process");
        return Ok(ExitCode::FAILURE);
    };
    let mut commands = Vec::new();
    io::stdin().read_to_end(&mut commands)?;
    stream.write_all(&commands)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    io::copy(&mut stream, &mut io::stdout())?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> io::Result<ExitCode> {
    match env::args().nth(1).as_deref() {
        Some("-d") => start(),
        Some("-f") => serve(),
        _ => ask(),
    }
}
