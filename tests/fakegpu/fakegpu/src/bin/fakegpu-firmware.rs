// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes a firmware file that the driver accepts below FOLDER, a system's `lib/firmware`:
//! `fakegpu-firmware FOLDER`.

use anyhow::Context;
use clap::Parser;
use fakegpu_core::firmware;
use std::fs;
use std::path::PathBuf;

/// Writes the firmware file of the software GPU.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The system's firmware folder, as in /lib/firmware.
    folder: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let path = Args::parse().folder.join(firmware::path());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("Cannot create {}", folder.display()))?;
    }
    fs::write(&path, firmware::image())
        .with_context(|| format!("Cannot write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}
