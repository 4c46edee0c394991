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
//! `CUDA_MPS_LOG_DIRECTORY`. It starts no server, and is one whose clients are the pids in the file
//! `clients` there. Whom it was told to terminate, and whether that process lived, is in
//! `terminated`; it never answers that while there is a file `hangs`. What is printed to anything
//! but a terminal comes at the end, as with NVIDIA's.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::{self, sleep};
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
                "quit" => return Ok(ExitCode::SUCCESS),
                line => stream.write_all(answer(line)?.as_bytes())?,
            }
        }
    }
    Ok(ExitCode::FAILURE)
}

/// Answers a command of a server's.
fn answer(line: &str) -> io::Result<String> {
    let logs = directory("CUDA_MPS_LOG_DIRECTORY");
    let clients = fs::read_to_string(logs.join("clients")).unwrap_or_default();
    let own = process::id().to_string();
    let words: Vec<&str> = line.split(' ').collect();
    Ok(match words[..] {
        ["get_default_active_thread_percentage"] => "100.0\n".to_owned(),
        ["get_server_list"] if clients.is_empty() => String::new(),
        ["get_server_list"] => format!("{own}\n"),
        ["get_client_list", server] if server == own => clients,
        ["terminate_client", server, client] if server == own => {
            while logs.join("hangs").exists() {
                sleep(Duration::from_millis(50));
            }
            if !clients.lines().any(|line| line == client) {
                return Ok(format!("Invalid process {client}!\n1\n"));
            }
            let state = match Path::new("/proc").join(client).join("exe").exists() {
                true => "lives",
                false => "is gone",
            };
            let mut file = OpenOptions::new()
                .append(true)
                .create(true)
                .open(logs.join("terminated"))?;
            writeln!(file, "{client} {state}")?;
            "0\n".to_owned()
        }
        ["get_client_list" | "terminate_client", server, ..] => {
            format!("Server {server} not found\n")
        }
        _ => format!("Unknown command \"{line}\"\n"),
    })
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
    let mut answers = stream.try_clone()?;
    let prints = thread::spawn(move || {
        let mut stdout = io::stdout();
        if stdout.is_terminal() {
            return io::copy(&mut answers, &mut stdout);
        }
        let mut all = Vec::new();
        answers.read_to_end(&mut all)?;
        stdout.write_all(&all).map(|()| 0)
    });
    io::copy(&mut io::stdin(), &mut stream)?;
    stream.shutdown(Shutdown::Write)?;
    prints.join().unwrap()?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> io::Result<ExitCode> {
    match env::args().nth(1).as_deref() {
        Some("-d") => start(),
        Some("-f") => serve(),
        _ => ask(),
    }
}
