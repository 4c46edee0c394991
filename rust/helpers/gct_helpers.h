/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * gct_helpers.h - functions of Linux that the kernel crate does not offer to Rust:
 * the static key, a module's file_operations, identities of processes, and two
 * scheduler tracepoints. It uses fixed-width types and opaque pointers only, so
 * bindgen reads it without Linux headers.
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
struct workqueue_struct;
struct gct_worker;
struct gct_bell_gpu;
struct gct_ear;
struct gct_sheet;
struct gct_turn;

/*
 * A process: the thread group's id in the initial pid namespace, and the leader's
 * start time in ns of CLOCK_BOOTTIME. exec() keeps both.
 */
struct gct_process {
	uint32_t tgid;
	uint32_t reserved;
	uint64_t start_time_ns;
};

_Static_assert(sizeof(struct gct_process) == 16, "struct gct_process is shared with Rust");

/* What the resource manager did with served parameters. */
struct gct_serving {
	uint32_t bytes;
	uint32_t written;	/* 1 if it wrote to them */
	uint64_t file;		/* token of the file that it found by a descriptor, or 0 */
};

_Static_assert(sizeof(struct gct_serving) == 16, "struct gct_serving is shared with Rust");

/* -- Called by Rust ------------------------------------------------------ */

/* Operations of every file of the tree. Their owner is this module. */
extern const struct file_operations gct_debugfs_fops;

/*
 * Returns whether the module's init has succeeded. Linux frees a module whose init
 * fails although its files are open, so none may be opened before. Context: any.
 */
bool gct_helper_is_live(void);

/* Switches all hooks on or off. Context: process, sleeps. */
void gct_helper_enable_hooks(bool on);

/*
 * Make and remove /dev/gctgroup. open returns 0 or a negative errno. From then on
 * gct_door_call() is called; when close returns, it is not running. Context: module
 * init and exit, sleep. No device is open at exit, since one that is keeps the module.
 */
int gct_helper_door_open(void);
void gct_helper_door_close(void);

/* Returns a random number that an attacker cannot guess. */
uint64_t gct_helper_random(void);

/* Writes a task's process to @out. The caller holds a reference. Context: any. */
void gct_helper_process_of(const struct task_struct *task, struct gct_process *out);

/*
 * Returns the task that has this pid in current's pid namespace, with a reference,
 * or NULL. The id of any thread is accepted.
 */
struct task_struct *gct_helper_find_task(uint32_t pid);

/* Returns whether current has a signal that kills it. Context: process. */
bool gct_helper_is_killed(void);

/* Returns whether all threads of the task's process have begun to exit. */
bool gct_helper_process_dead(const struct task_struct *task);

/*
 * Returns a process's id in current's pid namespace; 0 if it is dead or not visible
 * there. Compares the start time, because the id may have been reused.
 */
uint32_t gct_helper_visible_tgid(const struct gct_process *process);

/*
 * Have what the calling thread allocates with __GFP_ACCOUNT charged to the memory cgroup
 * of a process, until the end. begin returns false, and begins nothing, if the process is
 * dead. Writes what the end needs to @payer. Context: a thread of the kernel's.
 */
bool gct_helper_pay_begin(const struct gct_process *process, void **payer);
void gct_helper_pay_end(void *payer);

/*
 * Writes current's path in the cgroup v2 hierarchy, truncated to @size - 1 bytes,
 * and a NUL. Returns the length written, or a negative errno: -EOPNOTSUPP without
 * CONFIG_CGROUPS.
 */
int gct_helper_cgroup_path(char *out, uint32_t size);

/*
 * Returns the user whose share current uses, as a uid of the initial user namespace:
 * current's real uid, or, in another user namespace, the owner of its outermost
 * ancestor below the initial one. So nobody gets further shares by subordinate ids.
 */
uint32_t gct_helper_user(void);

/*
 * Start and stop calling gct_trace_fork() and gct_trace_exit(). The start returns 0
 * or a negative errno: -EOPNOTSUPP if the kernel lacks the tracepoints. When the stop
 * returns, neither function is running. The caller serialises both.
 */
int gct_helper_trace_start(void);
void gct_helper_trace_stop(void);

/*
 * Begin and end a section in which the driver does not suspend GPUs, by holding
 * nv_system_pm_lock for reading as every ioctl does. begin returns 0, or -EINTR if
 * @interruptible and a signal came first. Context: process, may sleep; the caller
 * does not hold nv_system_pm_lock.
 */
int gct_helper_rm_begin(bool interruptible);
void gct_helper_rm_end(void);

/*
 * Sends a control to the resource manager with the kernel's rights, so @client and
 * @object may be any tenant's. @params are read and written. Returns an NV_STATUS, 0
 * for success.
 *
 * Context: process, may sleep. The resource manager takes its own locks; the caller
 * holds none of them. The caller holds nv_system_pm_lock for reading, by
 * gct_helper_rm_begin() or because it is in an ioctl.
 */
uint32_t gct_helper_rm_control(uint32_t client, uint32_t object, uint32_t command, void *params,
			       uint32_t size);

/*
 * Returns the bytes of device memory that the resource manager reports for an
 * object, 0 if it reports none. Context: as gct_helper_rm_control().
 */
uint64_t gct_helper_rm_memory_bytes(uint32_t client, uint32_t memory);

/*
 * Serve parameters of an ioctl to the resource manager.
 *
 * gct_helper_serve() copies @bytes (at least 1) of current's memory at @address (not
 * 0), and what can be read behind them of @most, and returns the copy. Until
 * gct_helper_serve_end() the resource manager reads the copy in place of the memory,
 * and what it writes to the memory also goes to the copy. If the memory cannot be
 * read, or there is no memory for the copy, NULL is returned and the resource manager
 * cannot read the parameters either.
 *
 * gct_helper_serve_end() ends this and fills @out. It returns the copy, which the
 * caller frees with gct_helper_serve_free(), or NULL if nothing was served.
 *
 * @call->served is zero before, @call does not move in between, and the same task
 * calls both. Context: process, may sleep.
 */
const uint8_t *gct_helper_serve(struct gct_call *call, uint64_t address, uint16_t bytes,
				uint16_t most);
uint8_t *gct_helper_serve_end(struct gct_call *call, struct gct_serving *out);
void gct_helper_serve_free(uint8_t *copy);

/*
 * Has the resource manager read @value in the 4 or 8 @bytes at @offset of what is
 * served, and the caller of the ioctl read what it wrote itself. From then on the
 * resource manager reads parameters from the copy alone. Returns false when nothing is
 * served there, or GCT_SWAPS_MAX are served already. Context: as gct_helper_serve(),
 * before the resource manager runs.
 */
#define GCT_SWAPS_MAX 4
bool gct_helper_serve_swap(struct gct_call *call, uint32_t offset, uint32_t bytes,
			   uint64_t value);

/*
 * Serves nothing: what gct_helper_serve_end() fills in names the file that the resource
 * manager has found by a descriptor. Context: as gct_helper_serve().
 */
void gct_helper_serve_watch(struct gct_call *call);

/* Sets gct_owning. */
void gct_helper_own(bool on);

/* As gct_helper_rm_begin(), but returns false where it would wait. */
bool gct_helper_rm_try_begin(void);

/*
 * Keeps a GPU initialised, as an open file does, between hold and release. hold
 * returns 0 or a negative errno: -EOPNOTSUPP if the GPU's memory is the processor's,
 * too. Context: process, may sleep; the driver's
 * ldata_lock is not held. release may shut the GPU down.
 */
int gct_helper_gpu_hold(uint32_t gpu_id);
void gct_helper_gpu_release(uint32_t gpu_id);

/*
 * Further calls of the resource manager, with the kernel's rights. @params has 256
 * bytes, to which the resource manager writes. root allocates a client in a kernel
 * thread, which is its owner as the resource manager sees it, and has its handle in
 * @params. Freeing a client frees all that it has. Each returns an NV_STATUS, 0 for
 * success; map an address of the kernel's, valid until the memory or the client is
 * freed, or NULL. Context: as gct_helper_rm_control().
 */
uint32_t gct_helper_rm_root(void *params);
uint32_t gct_helper_rm_alloc(uint32_t client, uint32_t parent, uint32_t object,
			     uint32_t class_number, void *params);
uint32_t gct_helper_rm_free(uint32_t client, uint32_t object);
uint32_t gct_helper_rm_dup(uint32_t client, uint32_t parent, uint32_t object,
			   uint32_t source_client, uint32_t source);
void *gct_helper_rm_map(uint32_t client, uint32_t device, uint32_t memory, uint64_t offset,
			uint64_t bytes, bool writes);
uint32_t gct_helper_rm_map_gpu(uint32_t client, uint32_t device, uint32_t range,
			       uint32_t memory, uint64_t bytes, uint32_t flags,
			       uint64_t *address);

/*
 * Call nvidia-uvm's operations (gct.h). map and evict return NV_ERR_NOT_SUPPORTED if
 * nvidia-uvm is not loaded. What was mapped keeps nvidia-uvm loaded. A second after a
 * tenant kept a lock, gct_shadows_due() is called. gct_helper_shadows_cancel() cancels that,
 * and waits for a call that runs. They may sleep.
 */
uint32_t gct_helper_uvm_map(const struct gct_uvm_space *space, uint64_t bytes, uint32_t writes,
			    uint32_t waits, struct gct_uvm_memory *memory);
void gct_helper_shadows_cancel(void);
void gct_helper_uvm_unmap(const struct gct_uvm_memory *memory);
uint32_t gct_helper_uvm_evict(const uint8_t *uuid, void *gpu, uint32_t victim, uint32_t keeps);

/*
 * Makes a work queue, or returns NULL; waits until it is empty, after the last item was
 * queued; and frees it. No thread belongs to it while it is empty. They may sleep.
 */
struct workqueue_struct *gct_helper_queue_new(const char *name);
void gct_helper_queue_drain(struct workqueue_struct *queue);
void gct_helper_queue_free(struct workqueue_struct *queue);

/*
 * Loads and stores of memory that gct_helper_rm_map() has mapped, of host or
 * device: once each, aligned, in program order to one mapping of device memory.
 * gct_helper_ring() stores GP_PUT after all earlier stores, and rings after it.
 */
uint32_t gct_helper_read32(const void *address);
void gct_helper_write32(void *address, uint32_t value);
uint64_t gct_helper_read64(const void *address);
void gct_helper_write64(void *address, uint64_t value);
/*
 * Copies words out of such memory, each read once, and into such memory of the host,
 * which nobody else writes.
 */
void gct_helper_read_words(uint32_t *to, const void *from, uint32_t count);
void gct_helper_write_words(void *to, const uint32_t *from, uint32_t count);
void gct_helper_ring(void *put_address, uint32_t put, void *doorbell, uint32_t token);

/*
 * Starts a kernel thread that calls gct_worker_round(@data) until it is stopped;
 * NULL where there is no memory. wake has the next round begin soon, and may be
 * called in any context. stop waits for the end of a round. Context: process, may
 * sleep.
 */
struct gct_worker *gct_helper_worker_start(uint32_t gpu_id, void *data);
void gct_helper_worker_wake(struct gct_worker *worker);
/* Whether a processor of a list, as "0-3,8", is online. */
int gct_helper_cpus_online(const uint8_t *list, uint32_t length);
/* Lets a worker run on the processors of a list; all but isolated ones if it is
 * empty. If none of them is online, the worker stays where it is. */
void gct_helper_worker_move(struct gct_worker *worker, const uint8_t *list,
			    uint32_t length);
/* Nanoseconds that a worker has run, and how often it went to sleep. */
void gct_helper_worker_cost(struct gct_worker *worker, uint64_t *ran_ns,
			    uint64_t *sleeps);
void gct_helper_worker_stop(struct gct_worker *worker);

/*
 * Doorbells that tenants have mapped (gct_bell.c). follow has the device file of
 * current's that the resource manager has found by @descriptor be a bell; @file is its
 * token. If the descriptor names another file by now, or the file has no token, none
 * is. A bell wakes the worker of its GPU when a tenant rings while
 * the bell is closed. close_bells has all bells of the worker's GPU closed, some time
 * later.
 *
 * An ear counts how often a bell of it is followed, mapped or rung while it is closed.
 * It does so while it listens; a new one does not. Bells are closed only meanwhile.
 * It hears, unless the last of these was missed: gct_helper_ear_missed() takes the count
 * before it. What the caller loads behind gct_helper_ear_rings() is at least as new as
 * the count. The maker of an ear puts it once; its bells keep it.
 * Context: process, may sleep, but hears, rings and missed, which do not.
 */
struct gct_ear *gct_helper_ear_new(void);
void gct_helper_ear_put(struct gct_ear *ear);
void gct_helper_ear_listen(struct gct_ear *ear, bool listens);
bool gct_helper_ear_hears(const struct gct_ear *ear);
uint32_t gct_helper_ear_rings(const struct gct_ear *ear);
void gct_helper_ear_missed(struct gct_ear *ear, uint32_t rings);
void gct_helper_bell_follow(int32_t descriptor, uint64_t file, struct gct_ear *ear);

/*
 * Pages of the host that stand for a tenant's memory on a GPU (gct_sheet.c). follow
 * has the device file of current's that the resource manager has found by
 * @descriptor be a pane of the sheet, as for bells. Its mapping begins at page
 * @first of the memory object. Where it cannot, and with give_up, the sheet has a
 * mapping that is none. page adds a page of the host, and returns its address or
 * NULL; forget frees it, after it is no longer shown.
 *
 * From turn_begin to turn_end nobody can fault on the GPU, and nothing of both
 * sheets is mapped. turn_begin returns what turn_end ends, or NULL if a sheet is not
 * ready: a mapping is no pane, or the GPU sleeps or is not @gpu_id. turn_show says
 * whether a page is shown from then on. The GPU is held from turn_begin until all
 * pages are forgotten. Context: process, may sleep.
 */
struct gct_sheet *gct_helper_sheet_new(uint32_t gpu_id);
void gct_helper_sheet_put(struct gct_sheet *sheet);
void gct_helper_pane_follow(int32_t descriptor, uint64_t file, struct gct_sheet *sheet,
			    uint64_t first);
void gct_helper_sheet_give_up(struct gct_sheet *sheet);
void *gct_helper_sheet_page(struct gct_sheet *sheet, uint64_t number);
void gct_helper_sheet_forget(struct gct_sheet *sheet, uint64_t number);
struct gct_turn *gct_helper_turn_begin(struct gct_sheet *one, struct gct_sheet *other,
				       uint32_t gpu_id);
void gct_helper_turn_show(struct gct_sheet *sheet, uint64_t number, bool shown);
void gct_helper_turn_end(struct gct_turn *turn);
void gct_helper_worker_close_bells(struct gct_worker *worker);

/*
 * Has gct_pauses_due() called once in @ns nanoseconds, and not at an earlier time that
 * was asked for before. Context: may hold locks, and must not be in an interrupt.
 */
void gct_helper_pauses_in(uint64_t ns);

/* Cancels that, and waits for a call that runs. Context: may sleep. */
void gct_helper_pauses_cancel(void);

/* Returns the time of the monotonic clock. Context: any. */
uint64_t gct_helper_now(void);

/* Frees what bells have left. Context: module exit, no file is open. */
void gct_helper_bells_exit(void);

/* -- Between gct_bell.c, gct_sheet.c and gct_worker.c ----------------------- */

/*
 * Returns a device file of current's, an nv_linux_file_private_t, if @descriptor names
 * the one with this token, or else NULL. The caller puts @held.
 */
void *gct_file_found(int32_t descriptor, uint64_t file, void **held);

/*
 * gct_bell_gpu() returns the bells of a GPU, or NULL without memory; they last as
 * long as the module. begin and end bound the time in which they may wake a worker:
 * any bell may start its thread. A worker may begin before the former one of its GPU
 * has ended; the bells wake the one that began last. gct_bells_closed() returns
 * whether all are closed: then what a tenant submitted before is visible, and the
 * next ring wakes the worker.
 */
struct gct_bell_gpu *gct_bell_gpu(uint32_t id);
void gct_bells_begin(struct gct_bell_gpu *gpu, struct gct_worker *worker);
void gct_bells_end(struct gct_bell_gpu *gpu, struct gct_worker *worker);
bool gct_bells_closed(const struct gct_bell_gpu *gpu);
void gct_bells_close(struct gct_bell_gpu *gpu);

/* -- Device files that map the GPU's memory (gct_map.c) --------------------- */

struct gct_map;

/*
 * What becomes of the device file that the resource manager finds by a descriptor. new() may
 * fail; put() gives back its reference, or one of get().
 *
 * is_found() returns whether there is such a file, is_closed() whether it was closed. change()
 * says whether its memory may be mapped, and unmaps it if it may not any more. Callers of
 * change() exclude each other. Context: may sleep.
 */
#define GCT_MAP_LIVE 0u
#define GCT_MAP_HELD 1u		/* an ioctl may be ending it: faults wait */
#define GCT_MAP_OVER 2u		/* its memory is gone; it stays so */
struct gct_map *gct_helper_map_new(bool governed);
void gct_helper_map_get(struct gct_map *map);
void gct_helper_map_put(struct gct_map *map);
bool gct_helper_map_is_found(const struct gct_map *map);
bool gct_helper_map_is_closed(const struct gct_map *map);
void gct_helper_map_change(struct gct_map *map, uint32_t state);

/*
 * gct_serve_offer() has the file that the resource manager finds by a descriptor during @call
 * be @map, or none any more if that is NULL. It returns false if nobody looks for the file.
 * gct_map_attach() returns an errno if the resource manager must not use the file: it is a map
 * already.
 */
bool gct_serve_offer(struct gct_call *call, struct gct_map *map);
int gct_map_attach(struct gct_map *map, void *file);

/* -- Implemented in Rust (rust/gct_kernel/ffi.rs) -------------------------- */

/* Read and write a file of the tree. debugfs holds off the file's removal. */
int gct_debugfs_show(struct seq_file *seq, void *unused);
ssize_t gct_debugfs_write(struct file *file, const char *from, size_t count, int64_t *offset);

/*
 * Serves an ioctl of /dev/gctgroup: @request is an address of user space, @rights say
 * how the device was opened. Returns 0 or a negative errno. Context: as a write of a
 * file of the tree.
 */
#define GCT_DOOR_READ 1u
#define GCT_DOOR_WRITE 2u
int gct_door_call(uint32_t command, size_t request, uint32_t rights);

/*
 * Report that a process forked, before the child can run, and that the last thread
 * of a process exits. gct_trace_fork() returns false if the child must not run: it
 * cannot be followed, and its group has a limit. Context: must not sleep.
 */
bool gct_trace_fork(const struct gct_process *parent, const struct gct_process *child);
void gct_trace_exit(const struct gct_process *process);

/*
 * One round of a worker over the channels of its GPU. Returns the nanoseconds to
 * sleep, or 0. Context: the worker's thread, may sleep.
 */
#define GCT_WORKER_WOKEN 1u	/* it was woken since the last round began */
#define GCT_WORKER_CLOSED 2u	/* all bells of its GPU are closed */
uint64_t gct_worker_round(void *data, uint64_t now_ns, uint32_t signs);

/* Decides which owners pause. Context: a work item, may sleep. */
void gct_pauses_due(void);

/* Shadows the channels that a limit binds and that are native. Context: as above. */
void gct_shadows_due(void);

#endif /* GCT_HELPERS_H */
