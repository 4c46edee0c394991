// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves a software NVIDIA GPU to a virtual machine.
//!
//! The program listens on a vfio-user socket, serves the one virtual machine that connects, and
//! exits with status 0 when that machine goes away. Start one process per GPU.

mod backend;
mod guest_memory;
mod logger;
mod msi;
mod record;
mod shared;

use anyhow::{anyhow, Context};
use backend::Backend;
use clap::Parser;
use fakegpu_core::gsp::refusals::Refusal;
use fakegpu_core::ChipDescription;
use std::path::{Path, PathBuf};
use vfio_user::{Error, IrqInfo, Server, ServerRegion};

/// A software NVIDIA GPU that a virtual machine reaches over vfio-user.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Socket to listen on; it must not exist yet and is removed at the end.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,

    /// Chip to show.
    #[arg(long, value_name = "NAME", default_value = "gh100")]
    chip: String,

    /// Number that distinguishes this GPU from its neighbours, in its UUID and log.
    #[arg(long, value_name = "N", default_value_t = 0)]
    slot_id: u8,

    /// File to log to instead of standard error.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// File to append what the driver does to, one line of JSON per event.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Video memory in MiB, instead of the chip's.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(768..=16384))]
    fb: Option<u64>,

    /// Time that a copy takes at least, in microseconds for each MiB.
    #[arg(long, value_name = "US", default_value_t = 0)]
    copy_us_per_mib: u32,

    /// Let GSP refuse a control: its C name or number, which of its calls (or
    /// "all"), and the status in hexadecimal, as NVA06C_CTRL_CMD_SET_TIMESLICE:2:0x56.
    #[arg(long, value_name = "CONTROL:WHICH:STATUS")]
    refuse: Vec<Refusal>,
}

/// The name of a socket. Dropping it removes the name.
struct SocketName(PathBuf);

impl Drop for SocketName {
    fn drop(&mut self) {
        // A name that is gone already needs no removal.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens on a socket and then gives it the name `path`: whoever waits for the name can connect.
fn listen(
    path: &Path,
    interrupts: Vec<IrqInfo>,
    regions: Vec<ServerRegion>,
) -> anyhow::Result<(Server, SocketName)> {
    // bind(2) makes the file that it names before listen(2), so it names another.
    let mut unready = path.as_os_str().to_owned();
    unready.push(format!(".{}", std::process::id()));
    let unready = SocketName(unready.into());
    let server = Server::new(&unready.0, true, interrupts, regions)?;
    std::fs::hard_link(&unready.0, path)?;
    Ok((server, SocketName(path.to_owned())))
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    logger::install(args.slot_id, args.log.as_deref())?;
    let mut chip = ChipDescription::by_name(&args.chip)
        .ok_or_else(|| anyhow!("unknown chip '{}'", args.chip))?;
    if let Some(mib) = args.fb {
        chip.fb_bytes = mib << 20;
    }

    chip.copy_ns_per_kib = u64::from(args.copy_us_per_mib) * 1000 / 1024;

    let (regions, interrupts) = (backend::regions(&chip), backend::interrupts());
    let recorder = record::open(args.record.as_deref(), args.slot_id)?;
    let mut backend = Backend::new(chip, args.slot_id, recorder);
    let executor = backend.shared();
    executor.access(|gpu| gpu.refuse(args.refuse));
    std::thread::Builder::new()
        .name("executor".into())
        .spawn(move || executor.execute())?;
    let (server, _name) = listen(&args.socket, interrupts, regions)
        .with_context(|| format!("Cannot listen on {}", args.socket.display()))?;
    log::info!("listening on {}", args.socket.display());
    match server.run(&mut backend) {
        Ok(()) => log::info!("the machine has disconnected"),
        // A killed virtual machine appears as one of these errors.
        Err(error @ (Error::StreamRead(_) | Error::StreamWrite(_) | Error::ReceiveWithFd(_))) => {
            log::info!("the machine is gone: {error}");
        }
        Err(error) => return Err(error).context("The vfio-user connection broke"),
    }
    match backend.shared().access(|gpu| gpu.stale_accesses()) {
        0 => Ok(()),
        count => Err(anyhow!(
            "{count} accesses may have used translations that the driver forgot to invalidate"
        )),
    }
}
