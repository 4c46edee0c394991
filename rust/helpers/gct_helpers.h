/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * gct_helpers.h - what the Rust glue needs from Linux and the kernel crate does
 * not offer: the static key, a module's file_operations, identities of
 * processes, and the two scheduler tracepoints. Fixed-width types and opaque
 * pointers only, so that bindgen reads it without Linux headers.
 */
#ifndef GCT_HELPERS_H
#define GCT_HELPERS_H

#include "gct.h"

#ifndef __KERNEL__
#include <stdbool.h>
#include <sys/types.h>
#endif

struct file;
struct file_operations;
struct seq_file;
struct task_struct;

/*
 * A process: its thread group's id in the first pid namespace and the start
 * time of the group's leader in ns of CLOCK_BOOTTIME, which exec() keeps.
 */
struct gct_process {
	uint32_t tgid;
	uint32_t reserved;
	uint64_t start_time_ns;
};

_Static_assert(sizeof(struct gct_process) == 16, "struct gct_process is shared with Rust");

/* What became of parameters that were served. */
struct gct_serving {
	uint32_t bytes;
	uint32_t written;	/* the resource manager wrote to them */
	uint64_t file;		/* token of the file that it has found by a descriptor, or 0 */
};

_Static_assert(sizeof(struct gct_serving) == 16, "struct gct_serving is shared with Rust");

/* -- Given to Rust ------------------------------------------------------- */

/* What every file of the tree is opened with. Its owner is this module. */
extern const struct file_operations gct_debugfs_fops;

/* Turns the guard of all hooks on or off. Context: process, sleeps. */
void gct_helper_enable_hooks(bool on);

/* A seed that an attacker cannot guess. */
uint64_t gct_helper_random(void);

/* Who a task is. Context: any; the caller holds a reference to the task. */
void gct_helper_process_of(const struct task_struct *task, struct gct_process *out);

/*
 * The task with this pid in current's pid namespace, with a reference, or NULL.
 * Any thread of a process names the process.
 */
struct task_struct *gct_helper_find_task(uint32_t pid);

/* Have all threads of the task's process begun to exit? */
bool gct_helper_process_dead(const struct task_struct *task);

/*
 * The id that a process has in current's pid namespace; 0 when it is dead or not
 * visible there. The start time is compared: its id may be another's by now.
 */
uint32_t gct_helper_visible_tgid(const struct gct_process *process);

/*
 * Writes current's path in the cgroup v2 hierarchy and a NUL, cut to @size - 1
 * bytes. Returns the length of what was written, or a negative errno:
 * -EOPNOTSUPP without cgroups.
 */
int gct_helper_cgroup_path(char *out, uint32_t size);

/*
 * Who answers for current, as a number that cannot be multiplied for nothing: its
 * real uid, or the owner of the topmost user namespace above it but the first.
 * Both are numbers of the first user namespace.
 */
uint32_t gct_helper_user(void);

/*
 * Starts or stops the calls of gct_trace_fork() and gct_trace_exit(). After the
 * stop none of them is running. Not to be called from two threads at once.
 * -EOPNOTSUPP in a kernel without these tracepoints.
 */
int gct_helper_trace_start(void);
void gct_helper_trace_stop(void);

/*
 * Holds off the GPU's suspension, as every ioctl does, between begin and end.
 * begin returns 0, or -EINTR when a signal came first and @interruptible.
 * Context: process, may sleep; nv_system_pm_lock is not held.
 */
int gct_helper_rm_begin(bool interruptible);
void gct_helper_rm_end(void);

/*
 * Sends a control to the resource manager, which takes its locks for it, in the
 * name of the kernel: a tenant's client and object will do. @params are read and
 * written. Returns an NV_STATUS, 0 for success.
 *
 * Context: process, may sleep; no lock of the resource manager held. The caller
 * holds nv_system_pm_lock for reading (gct_helper_rm_begin(), or the ioctl's
 * own), and sees to it that the client is not freed meanwhile.
 */
uint32_t gct_helper_rm_control(uint32_t client, uint32_t object, uint32_t command, void *params,
			       uint32_t size);

/*
 * Bytes of device memory that an object has, by the resource manager's word; 0 when
 * it does not say. Context: as gct_helper_rm_control().
 */
uint64_t gct_helper_rm_memory_bytes(uint32_t client, uint32_t memory);

/*
 * Reads @bytes (at least 1) of current's memory at @address (not 0) and has the
 * resource manager read the same, until gct_helper_serve_end(). Where they cannot
 * be read, or memory for them is short, the resource manager cannot read them
 * either, and NULL is returned. The copy takes what the resource manager writes
 * there; it is the caller's to free after gct_helper_serve_end(), which returns it
 * with what else is known, or NULL where there is none. @call stays where it is in
 * between, is passed to the same task's calls only, and was zero before.
 *
 * Context: process, may sleep.
 */
const uint8_t *gct_helper_serve(struct gct_call *call, uint64_t address, uint32_t bytes);
uint8_t *gct_helper_serve_end(struct gct_call *call, struct gct_serving *out);
void gct_helper_serve_free(uint8_t *copy);

/* -- Taken from Rust (rust/gct_kernel/ffi.rs) ------------------------------ */

/* A file of the tree is read, or written by its ->write. debugfs guards both
 * against the file's removal. */
int gct_debugfs_show(struct seq_file *seq, void *unused);
ssize_t gct_debugfs_write(struct file *file, const char *from, size_t count, int64_t *offset);

/*
 * A process forked another one, before the child can run; the last thread of a
 * process exits. Context: must not sleep. gct_trace_fork() returns false when the
 * child must not run, because it cannot be followed and its group has a limit.
 */
bool gct_trace_fork(const struct gct_process *parent, const struct gct_process *child);
void gct_trace_exit(const struct gct_process *process);

#endif /* GCT_HELPERS_H */
