// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the command line. The doc comments are the help texts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use gct_client::{mps, DEFAULT_ROOT};
use gct_model::Order;

const EXIT_CODES: &str = "\
Exit codes:
  0  everything was done
  1  another failure
  2  the command line is wrong
  3  a value is invalid or out of range, or the kernel refused it
  4  there is no such group, process, GPU or file
  5  this GPU or mode does not support it
  6  the value in force after a write is not the written one
  7  there is no gctgroup here, or no permission for it
If one of several actions fails, the others are still done. The exit code is that of the first failure.";

/// Shows the gctgroup tree and sets limits.
///
/// A TARGET is a directory of the tree: NAME for a group, PID for a process, NAME/GPU or PID/GPU
/// for its limits on a GPU, gpus/GPU for a GPU, and `.` for the root. GPU is the index that
/// nvidia-smi shows.
#[derive(Debug, Parser)]
#[command(name = "gctctl", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// Directory of the tree. Where debugfs cannot be used, the default stands for /dev/gctgroup,
    /// and without the patched driver for the daemon of the user-space mode.
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

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check whether gctgroup works here, and say what to do about each problem.
    Doctor(Doctor),
    /// List GPUs, groups and processes.
    Ls(Ls),
    /// Show every file of a target, and of its GPUs.
    Show {
        /// Target to show.
        target: String,
    },
    /// Create groups.
    Create {
        /// Names of the groups: a letter or underscore, then up to 63 letters, digits, '.', '_'
        /// and '-'.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove groups without members.
    Rm {
        /// Names of the groups.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Make processes members of a group, by pid or by cgroup.
    Attach(Attach),
    /// Take the processes of groups from their MPS server, so that they can be killed.
    ///
    /// A client of MPS that is killed while it has work on the GPU may end the other clients of its
    /// server. One that was taken from it does not: its contexts have ended, and its next call of
    /// CUDA fails.
    Drain(Drain),
    /// Write limits, read them back, and fail if another value is in force.
    ///
    /// All values are checked before the first is written.
    Set {
        /// NAME/GPU or PID/GPU for limits, NAME for files of the group. With NAME or PID alone, a
        /// limit is set on each of its GPUs.
        target: String,
        /// FILE=VALUE, such as `gmem.limit=8G` or `compute.max="20000 100000"`.
        #[arg(required = true, value_name = "FILE=VALUE")]
        values: Vec<String>,
    },
    /// Make groups and limits what a file says, all or nothing.
    Apply(Apply),
    /// Print what each group and process uses on each GPU: totals, or with --interval rates.
    Stat(Stat),
    /// Say what limits do to a group or process now, and what its work waits for.
    Explain(Explain),
    /// Show groups and processes on the whole terminal; sort, freeze and set them by keys.
    Top(Top),
    /// Print refused allocations, faults, stalls, and what gctgroup could not follow.
    Events(Events),
    /// Print one file of a target.
    Get {
        /// Target of the file.
        target: String,
        /// Name of the file.
        file: String,
    },
    /// Run a program in a group of the user-space mode; implies --user.
    Run(Run),
    /// Check on each GPU whether masks and atoms are exact, once for each version of the driver.
    ///
    /// gctd announces only what is exact. It reads the results when it starts.
    Selftest(Selftest),
    /// Print the versions of gctctl and of the tree.
    Version,
    /// Print the completions of a shell.
    ///
    /// For bash: `gctctl completions bash > /etc/bash_completion.d/gctctl`.
    Completions {
        /// Shell that reads them.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages, one for each command.
    Man {
        /// Directory for the pages, such as /usr/local/share/man/man1.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Decode, rewrite and check recorded submissions (.pbcap files).
    #[command(subcommand)]
    Capture(Capture),
}

/// The options of `ls`.
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Also list processes that have a GPU open and not the library, so that no limit of the
    /// user-space mode binds them.
    #[arg(long)]
    pub(crate) all: bool,
    /// Look for /proc below this directory.
    #[arg(long, value_name = "DIR", default_value = "/", requires = "all")]
    pub(crate) system_root: PathBuf,
}

/// The options of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Look for /proc, /sys and /boot below this directory.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) system_root: PathBuf,
}

/// The options of `selftest`.
#[derive(Debug, Args)]
pub(crate) struct Selftest {
    /// Also check GPUs that have a result.
    #[arg(long)]
    pub(crate) again: bool,
    /// Library, with gct-load beside it. Default: that of `gctctl run`.
    #[arg(long, value_name = "PATH")]
    pub(crate) preload: Option<PathBuf>,
    /// Directory in which the driver lists its GPUs.
    #[arg(long, value_name = "DIR", default_value = "/proc/driver/nvidia/gpus")]
    pub(crate) gpus: PathBuf,
    /// Seconds until a launch counts as one that never ends. A run takes a second on an idle GPU.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) patience: u64,
}

/// The options of `apply`.
#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// TOML file: [group.NAME] with FILE = VALUE for each GPU, [group.NAME.gpu.N] for GPU N.
    pub(crate) file: PathBuf,
    /// Print the changes and make none.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also remove groups that the file does not name, and return settings that it does not name
    /// to their defaults. Groups of a `gctctl run` stay.
    #[arg(long)]
    pub(crate) prune: bool,
}

/// The options of `stat`.
#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// NAME, PID, NAME/GPU or PID/GPU. Default: all.
    pub(crate) target: Option<String>,
    /// Print the rates of each interval, until interrupted: seconds, or `500ms`.
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(crate) interval: Option<Duration>,
    /// End after so many intervals.
    #[arg(long, value_name = "N", requires = "interval")]
    pub(crate) count: Option<u32>,
}

/// The options of `explain`.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// NAME, PID, NAME/GPU or PID/GPU.
    pub(crate) target: String,
    /// Time to watch: seconds, or `500ms`.
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub(crate) interval: Duration,
}

/// The options of `top`.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Time between two looks: seconds, or `500ms`.
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "2s")]
    pub(crate) interval: Duration,
}

/// The options of `events`.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Print each new event, until interrupted.
    #[arg(long)]
    pub(crate) follow: bool,
    /// Time between two looks: seconds, or `500ms`.
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s", requires = "follow")]
    pub(crate) interval: Duration,
}

/// The options of `attach`.
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// Group that the processes join.
    pub(crate) group: String,
    /// Process, with its future children; 0 is gctctl itself. May be repeated.
    #[arg(long, value_name = "PID", required_unless_present = "cgroup")]
    pub(crate) pid: Vec<u32>,
    /// Absolute cgroup v2 path, for all processes in it or below, now and later; `none` ends it.
    #[arg(long, value_name = "PATH", value_parser = cgroup)]
    pub(crate) cgroup: Option<String>,
}

/// Takes a cgroup's path as it is. The tree would take it without blanks at its ends, which name
/// another cgroup.
fn cgroup(path: &str) -> Result<String, &'static str> {
    match path.trim() == path {
        true => Ok(path.to_owned()),
        false => Err("a path with blanks at its ends cannot be written to the tree"),
    }
}

/// The options of `drain`.
#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// Names of the groups.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Directory of the MPS control daemon. Default: CUDA_MPS_PIPE_DIRECTORY, else
    /// /tmp/nvidia-mps.
    #[arg(long, value_name = "DIR")]
    pub(crate) pipe: Option<PathBuf>,
    /// The program that asks the daemon.
    #[arg(long, value_name = "PATH", default_value = mps::CONTROL)]
    pub(crate) control: PathBuf,
    /// Most seconds for all of them.
    #[arg(long, value_name = "SECONDS", default_value_t = 8)]
    pub(crate) patience: u64,
}

/// The options of `run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Group of the program, created if necessary. Default: a new group
    /// `run-PID-START`, which a later `gctctl run` removes after the program has ended.
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// tpc.mask of the group on each GPU, such as `0-31,40`.
    #[arg(long, value_name = "LIST")]
    pub(crate) tpc: Option<String>,
    /// tpc.quota of the group on each GPU.
    #[arg(long, value_name = "TPCS")]
    pub(crate) quota: Option<String>,
    /// atom.duration of the group on each GPU, such as `300us`.
    #[arg(long, value_name = "TIME")]
    pub(crate) atom: Option<String>,
    /// gmem.limit of the group on each GPU, such as `20G`.
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory: Option<String>,
    /// compute.priority of the group on each GPU; 0 is first.
    #[arg(long, value_name = "0-15")]
    pub(crate) priority: Option<String>,
    /// compute.weight of the group on each GPU.
    #[arg(long, value_name = "WEIGHT")]
    pub(crate) weight: Option<String>,
    /// compute.timeslice of the group on each GPU, such as `500us`.
    #[arg(long, value_name = "TIME")]
    pub(crate) slice: Option<String>,
    /// Any other limit of the group on each GPU, such as `tpc.steal=0`. May be repeated.
    #[arg(short = 'o', long = "option", value_name = "FILE=VALUE")]
    pub(crate) options: Vec<String>,
    /// SMs that the program sees: those that its limits leave at its first query (granted), or all
    /// of the GPU (all). Its launches use only those that the limits leave in either case.
    #[arg(long, value_name = "COUNT", value_parser = ["granted", "all"])]
    pub(crate) sm_count: Option<String>,
    /// Run the program even if its limits cannot be set, now or at its first use of the GPU.
    #[arg(long)]
    pub(crate) optional: bool,
    /// Library to preload. Default: libgct_preload.so beside gctctl, else in ../lib/gctgroup, else
    /// in ../lib.
    #[arg(long, value_name = "PATH")]
    pub(crate) preload: Option<PathBuf>,
    /// Program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

/// The commands on recorded submissions.
#[derive(Debug, Subcommand)]
pub(crate) enum Capture {
    /// Print every entry, method, launch and QMD field by name.
    Show {
        /// Capture to print.
        file: PathBuf,
    },
    /// Mask and split the launches as the submission path would.
    Rewrite(Rewrite),
    /// Run a capture on the model of the launch hardware, and print its blocks and effects.
    Check(Check),
}

/// The TPCs that launches may use.
#[derive(Debug, Args)]
pub(crate) struct Mask {
    /// TPCs that launches may use, as bits of the hardware's mask, such as `0-31,40`, or `all`.
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub(crate) tpc_mask: String,
    /// Bits of the hardware's mask. All that the list does not name are disabled. A Hopper has 128,
    /// with holes: the 66 TPCs of an H200 use bits from 0 to 83.
    #[arg(long, value_name = "COUNT", default_value_t = 128)]
    pub(crate) tpcs: u16,
}

/// The options of `capture rewrite`.
#[derive(Debug, Args)]
pub(crate) struct Rewrite {
    /// Capture to rewrite.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) mask: Mask,
    /// Atoms into which each launch is split if it can be split.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) atoms: u32,
    /// Address of the QMDs of the atoms, 512 bytes each: a multiple of 256, below 2^40.
    #[arg(long, value_name = "ADDR", default_value = "0x1000000000", value_parser = address)]
    pub(crate) qmd_base: u64,
    /// File for the rewritten capture.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// The options of `capture check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Capture to run.
    pub(crate) file: PathBuf,
    /// Order in which grids start and end: eager (before the next method), late (after the last),
    /// or the seed of a random order.
    #[arg(long, value_name = "ORDER", default_value = "eager", value_parser = order)]
    pub(crate) order: Order,
    /// Original of the capture. Compare both in many orders, and fail on a difference.
    #[arg(long, value_name = "FILE")]
    pub(crate) original: Option<PathBuf>,
    /// With --original: address of the QMDs of the atoms.
    #[arg(long, value_name = "ADDR", default_value = "0x1000000000", value_parser = address)]
    pub(crate) qmd_base: u64,
    /// With --original: the mask of the rewrite.
    #[command(flatten)]
    pub(crate) mask: Mask,
}

/// Parses a number of seconds, or of milliseconds with the suffix `ms`.
fn interval(text: &str) -> Result<Duration, String> {
    let parsed = match text.strip_suffix("ms") {
        Some(ms) => ms.parse().ok().map(Duration::from_millis),
        None => text
            .strip_suffix('s')
            .unwrap_or(text)
            .parse()
            .ok()
            .map(Duration::from_secs),
    };
    let least = Duration::from_millis(100);
    parsed
        .filter(|time| (least..=Duration::from_secs(86400)).contains(time))
        .ok_or_else(|| "write seconds, as 5 or 5s, or 500ms: from 100ms to a day".to_owned())
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
            .map_err(|_| "write eager, late or a number".to_owned()),
    }
}
