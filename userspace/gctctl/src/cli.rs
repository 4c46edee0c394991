// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line; its comments are the help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use gct_client::DEFAULT_ROOT;
use gct_model::Order;

const EXIT_CODES: &str = "\
Exit codes:
  0  everything was done
  1  something failed that is none of the following
  2  the command line is wrong
  3  a value is not of the form or out of range, or the kernel refused it
  4  there is no such group, process, GPU or file
  5  this GPU or mode cannot do it
  6  what is in force after a write is not what was written
  7  there is no gctgroup here, or no permission for it
When several things were asked for and one fails, the others are still done and the first failure counts.";

/// Looks at gctgroup and sets its limits.
///
/// A TARGET is a directory of the tree: NAME for a group, PID for a process, NAME/GPU or PID/GPU for one on a GPU,
/// gpus/GPU for a GPU, and `.` for the root. GPU is the index that nvidia-smi shows.
#[derive(Debug, Parser)]
#[command(name = "gctctl", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// The directory that shows the tree.
    #[arg(long, global = true, value_name = "DIR", default_value = DEFAULT_ROOT)]
    pub(crate) root: PathBuf,

    /// Use the daemon of the user-space mode instead of the kernel's tree.
    #[arg(long, global = true, conflicts_with = "root")]
    pub(crate) user: bool,

    /// The daemon's directory; implies --user.
    #[arg(long, global = true, value_name = "DIR", conflicts_with = "root")]
    pub(crate) dir: Option<PathBuf>,

    /// Print one JSON document instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check whether gctgroup works here, and say what to do where it does not.
    Doctor(Doctor),
    /// List GPUs, groups and processes.
    Ls,
    /// Show every file of a target, and of its GPUs.
    Show {
        /// What to show.
        target: String,
    },
    /// Make groups.
    Create {
        /// Their names: a letter or underscore, then up to 63 letters, digits, '.', '_' and '-'.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove groups; a group that has members is refused.
    Rm {
        /// Their names.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Make processes members of a group, by pid or by cgroup.
    Attach(Attach),
    /// Write limits, read them back, and fail if another value is in force.
    ///
    /// All values are checked before the first is written.
    Set {
        /// Where: NAME/GPU or PID/GPU for limits, NAME for its own files. With NAME or PID alone a limit is set on
        /// each GPU that it has a directory for.
        target: String,
        /// FILE=VALUE, as `gmem.limit=8G` or `compute.max="20000 100000"`.
        #[arg(required = true, value_name = "FILE=VALUE")]
        values: Vec<String>,
    },
    /// Print one file of a target.
    Get {
        /// Which directory.
        target: String,
        /// Which file.
        file: String,
    },
    /// Run a program in a group of the user-space mode; implies --user.
    Run(Run),
    /// Print the versions of gctctl and of the tree.
    Version,
    /// Look at recorded submissions (.pbcap files).
    #[command(subcommand)]
    Capture(Capture),
}

/// Where doctor looks beside the tree.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Look for /proc, /sys and /boot below this directory.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) system_root: PathBuf,
}

/// Who joins which group.
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// The group.
    pub(crate) group: String,
    /// A process: it and the children that it will have; 0 is gctctl itself. May be repeated.
    #[arg(long, value_name = "PID", required_unless_present = "cgroup")]
    pub(crate) pid: Vec<u32>,
    /// An absolute cgroup-v2 path: whoever is in it or below it, now and later; `none` ends that.
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<String>,
}

/// A program and its limits.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The group that it joins, which is made if there is none; without it a new one, `run-PID`, that is removed by a
    /// later `gctctl run` when its process is gone.
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// The group's tpc.mask, as `0-31,40`, on each GPU.
    #[arg(long, value_name = "LIST")]
    pub(crate) tpc: Option<String>,
    /// The group's tpc.quota on each GPU.
    #[arg(long, value_name = "TPCS")]
    pub(crate) quota: Option<String>,
    /// The group's atom.duration on each GPU, as `300us`.
    #[arg(long, value_name = "TIME")]
    pub(crate) atom: Option<String>,
    /// How many SMs the program sees: those that its limits leave when it asks first (granted), or all of the GPU
    /// (all), of which its launches still use no others than its limits leave.
    #[arg(long, value_name = "COUNT", value_parser = ["granted", "all"])]
    pub(crate) sm_count: Option<String>,
    /// Run the program also where its limits cannot be set, now or when it first uses the GPU.
    #[arg(long)]
    pub(crate) optional: bool,
    /// The library to preload; else libgct_preload.so beside gctctl or in ../lib.
    #[arg(long, value_name = "PATH")]
    pub(crate) preload: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

/// What to do with a recorded submission.
#[derive(Debug, Subcommand)]
pub(crate) enum Capture {
    /// Print every entry, method, launch and QMD field by name.
    Show {
        /// The capture.
        file: PathBuf,
    },
    /// Mask and split the launches, as the submission path would.
    Rewrite(Rewrite),
    /// Run it on the model of the launch hardware and print which blocks ran and which effects happened.
    Check(Check),
}

/// Which TPCs launches may use.
#[derive(Debug, Args)]
pub(crate) struct Mask {
    /// Keep launches on the TPCs of these bits of the hardware's mask, as `0-31,40`, or `all`.
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub(crate) tpc_mask: String,
    /// How many bits of the hardware's mask there are; all that the list does not name are disabled. A Hopper has 128,
    /// and its TPCs are not at the first of them without holes: an H200 uses bits from 0 to 83 for 66 TPCs.
    #[arg(long, value_name = "COUNT", default_value_t = 128)]
    pub(crate) tpcs: u16,
}

/// How to rewrite.
#[derive(Debug, Args)]
pub(crate) struct Rewrite {
    /// The capture.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) mask: Mask,
    /// Split each launch into so many atoms where it can be split.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) atoms: u32,
    /// Where the QMDs of the atoms go: 512 bytes each, a multiple of 256, below 2^40.
    #[arg(long, value_name = "ADDR", default_value = "0x1000000000", value_parser = address)]
    pub(crate) qmd_base: u64,
    /// Write the rewritten capture to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// How to check.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The capture.
    pub(crate) file: PathBuf,
    /// In which order grids start and end: eager (before the next method), late (after the last), or the seed of a random order.
    #[arg(long, value_name = "ORDER", default_value = "eager", value_parser = order)]
    pub(crate) order: Order,
    /// Compare with this capture, of which the first is a rewrite, in many orders; a difference is a failure.
    #[arg(long, value_name = "FILE")]
    pub(crate) original: Option<PathBuf>,
    /// With --original: where the rewrite has the QMDs of its atoms.
    #[arg(long, value_name = "ADDR", default_value = "0x1000000000", value_parser = address)]
    pub(crate) qmd_base: u64,
    /// With --original: what the rewrite was asked for.
    #[command(flatten)]
    pub(crate) mask: Mask,
}

fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x");
    digits
        .map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16))
        .map_err(|error| format!("{error}; write it as 0x1000000000 or in decimal"))
}

fn order(text: &str) -> Result<Order, String> {
    match text {
        "eager" => Ok(Order::Eager),
        "late" => Ok(Order::Late),
        seed => seed
            .parse()
            .map(Order::Random)
            .map_err(|_| "it is eager, late or a number".to_owned()),
    }
}
