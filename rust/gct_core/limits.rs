// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines every maximum of the core, with its reason.
//!
//! A tenant can make the driver allocate objects, so everything that a tenant can multiply has a
//! maximum here. Beyond it, `events` counts; a tenant under a limit is refused, others take the
//! stock path.

/// Maximum length of a list of processors, in bytes.
pub const CPU_LIST_LEN_MAX: usize = 127;

/// Largest number of a processor: Linux has at most 8192 (`CONFIG_NR_CPUS`).
pub const CPU_MAX: u64 = 8191;

/// GPUs of one machine. NVIDIA's driver itself stops at 32 (`NV_MAX_DEVICES`).
pub const GPUS_MAX: usize = 32;

/// Named groups: four times the thousand containers of a large node. Each costs a directory,
/// another per GPU, and about 1 KiB.
pub const GROUPS_MAX: usize = 4096;

/// Processes that have the driver open. Equals the kernel's default `pid_max`
/// of a machine with 64 CPUs.
pub const PROCS_MAX: usize = 65_536;

/// Pools: one for each owner and GPU that can exist, so no tenant can use them up.
pub const POOLS_MAX: usize = (GROUPS_MAX + PROCS_MAX) * GPUS_MAX;

/// Open files of the driver. libcuda opens about 20 per process and GPU.
pub const FILES_MAX: usize = 1 << 20;

/// Objects of the resource manager that are tracked. libcuda makes about 150
/// per process; a tracked object takes about 250 bytes.
pub const OBJECTS_MAX: usize = 1 << 21;

/// Open files, and objects, of one process: an eighth of all. A process that maps the
/// whole of an H200 in pages of 2 MiB has 72,000 objects, each with a name in nvidia-uvm.
pub const FILES_OF_PROC_MAX: usize = FILES_MAX / 8;
/// Objects of one process; see [`FILES_OF_PROC_MAX`].
pub const OBJECTS_OF_PROC_MAX: usize = OBJECTS_MAX / 8;

/// Aliases of one resource: in clients, in files, in dma-bufs. A process that shares a piece of
/// memory by CUDA IPC needs at most two. It bounds what one event costs.
pub const ALIASES_MAX: usize = 1024;

/// Channels of one owner under a limit on one GPU: three quarters of the 2048 that a runlist of an
/// H100 has. A context of libcuda 580 has 20, so they are enough for 76.
pub const CHANNELS_OF_OWNER_MAX: u32 = 1536;

/// Address spaces of one owner under a limit on one GPU. A context of libcuda 580 has two.
pub const SPACES_OF_OWNER_MAX: u32 = 512;

/// Directories shown: one for each group, process, pool and GPU.
pub const DIRS_MAX: usize = POOLS_MAX + GROUPS_MAX + PROCS_MAX + GPUS_MAX;

/// Members of groups by pid, forked children included: all pids of Linux (`PID_MAX_LIMIT`), so no
/// tenant can use them up.
pub const MEMBERS_MAX: usize = 1 << 22;

/// Characters of a group's name: fits `NAME_MAX` of every filesystem and a
/// Kubernetes label value.
pub const NAME_LEN_MAX: usize = 64;

/// Bytes of a path in the tree: a name, the index of a GPU and a file take less.
pub const PATH_LEN_MAX: usize = 128;

/// Bytes of a cgroup path. Kubernetes' longest (systemd driver, pod and
/// container identifiers) is below 300.
pub const CGROUP_LEN_MAX: usize = 511;

/// Bytes of one write: the longest cgroup path with room for blanks around
/// it. A longer write is refused whole.
pub const WRITE_LEN_MAX: usize = 1024;

/// Bytes of the longest file, except `group.procs`.
pub const SHOW_LEN_MAX: usize = 4096;

/// Bytes of the longest answer of `/dev/gctgroup`: `group.procs` with the most members, of seven
/// digits and a newline each.
pub const ANSWER_LEN_MAX: usize = 8 * MEMBERS_MAX;

/// TPCs of one GPU that a mask can name. An H200 has 66, a B200 about 80 per
/// die; the widest mask of a known QMD is 160 bits.
pub const TPCS_MAX: usize = 256;

/// Shortest time slice in microseconds. A bare number below 20 is likely to mean milliseconds. It
/// guarantees no progress: see [`TIMESLICE_PART_US_MIN`].
pub const TIMESLICE_US_MIN: u64 = 20;
/// Longest time slice in microseconds. A longer one looks like a hang.
pub const TIMESLICE_US_MAX: u64 = 1_000_000;

/// Shortest part of a shared time slice in microseconds. On an H100 (580.159.04), four busy
/// processes did 6% of the work of one with 50 us each, 1% with 30 us and nothing with 20 us.
pub const TIMESLICE_PART_US_MIN: u64 = 50;

/// Lowest priority; 0 is the highest.
pub const PRIORITY_MAX: u64 = 15;

/// The smallest weight of cgroup v2.
pub const WEIGHT_MIN: u64 = 1;
/// The largest weight of cgroup v2.
pub const WEIGHT_MAX: u64 = 10_000;

/// Shortest period of a duty cycle in microseconds, that of `cpu.max`.
pub const PERIOD_US_MIN: u64 = 1_000;
/// Longest period of a duty cycle in microseconds, that of `cpu.max`.
pub const PERIOD_US_MAX: u64 = 1_000_000;

/// Shortest quota of a duty cycle in microseconds: one shortest time slice.
pub const QUOTA_US_MIN: u64 = TIMESLICE_US_MIN;

/// Shortest atom in microseconds. Splitting costs about 2 us for each atom on an H200, so shorter
/// atoms would be mostly cost.
pub const ATOM_US_MIN: u64 = 5;
/// Longest atom in microseconds.
pub const ATOM_US_MAX: u64 = 1_000_000;

/// Shortest goal of a p99, in microseconds. Two switches of contexts take longer.
pub const GOAL_US_MIN: u64 = 100;
/// Longest goal of a p99, in microseconds: as long as a window of its requests.
pub const GOAL_US_MAX: u64 = 10_000_000;

/// Largest tolerated slowdown, in percent.
pub const SLIP_PERCENT_MAX: u64 = 100;
