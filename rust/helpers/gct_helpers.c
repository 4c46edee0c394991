// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Wraps functions of Linux that the kernel crate does not offer to Rust. Contracts
 * are in gct_helpers.h.
 */
#include <linux/cgroup.h>
#include <linux/cred.h>
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/jiffies.h>
#include <linux/memcontrol.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/seq_file.h>
#include <linux/timekeeping.h>
#include <linux/tracepoint.h>
#include <linux/uidgid.h>
#include <linux/user_namespace.h>
#include <linux/workqueue.h>
#include <trace/events/sched.h>

#include "gct-hooks.h"
#include "gct_helpers.h"

DEFINE_STATIC_KEY_FALSE(gct_enabled_key);

/* What nvidia-uvm.ko uses. */
EXPORT_SYMBOL_GPL(gct_enabled_key);
EXPORT_SYMBOL_GPL(gct_file_open);
EXPORT_SYMBOL_GPL(gct_file_close);
EXPORT_SYMBOL_GPL(gct_uvm_gpu_add);
EXPORT_SYMBOL_GPL(gct_uvm_gpu_remove);
EXPORT_SYMBOL_GPL(gct_uvm_account_open);
EXPORT_SYMBOL_GPL(gct_uvm_account_close);
EXPORT_SYMBOL_GPL(gct_uvm_settle);
EXPORT_SYMBOL_GPL(gct_uvm_reserve);
EXPORT_SYMBOL_GPL(gct_uvm_reserve_table);
EXPORT_SYMBOL_GPL(gct_uvm_cancel);
EXPORT_SYMBOL_GPL(gct_uvm_evicted);
EXPORT_SYMBOL_GPL(gct_uvm_instead);
EXPORT_SYMBOL_GPL(gct_uvm_shortage);
EXPORT_SYMBOL_GPL(gct_uvm_host_charge);
EXPORT_SYMBOL_GPL(gct_uvm_host_uncharge);
EXPORT_SYMBOL_GPL(gct_uvm_take);
EXPORT_SYMBOL_GPL(gct_uvm_take_table);
EXPORT_SYMBOL_GPL(gct_uvm_drop);
EXPORT_SYMBOL_GPL(gct_uvm_holder);
EXPORT_SYMBOL_GPL(gct_uvm_use);
EXPORT_SYMBOL_GPL(gct_uvm_pick);

struct workqueue_struct *gct_helper_queue_new(const char *name)
{
	return alloc_workqueue("%s", WQ_UNBOUND, 0, name);
}

void gct_helper_queue_drain(struct workqueue_struct *queue)
{
	drain_workqueue(queue);
}

void gct_helper_queue_free(struct workqueue_struct *queue)
{
	destroy_workqueue(queue);
}

void gct_helper_enable_hooks(bool on)
{
	if (on)
		static_branch_enable(&gct_enabled_key);
	else
		static_branch_disable(&gct_enabled_key);
}

static void gct_pauses_work(struct work_struct *work)
{
	gct_pauses_due();
}

static DECLARE_DELAYED_WORK(gct_pauses, gct_pauses_work);

void gct_helper_pauses_in(uint64_t ns)
{
	/* A whole jiffy, at least: who comes early has to come again. */
	mod_delayed_work(system_long_wq, &gct_pauses, nsecs_to_jiffies(ns) + 1);
}

void gct_helper_pauses_cancel(void)
{
	cancel_delayed_work_sync(&gct_pauses);
}

uint64_t gct_helper_now(void)
{
	return ktime_get_ns();
}

bool gct_helper_is_live(void)
{
	return THIS_MODULE->state == MODULE_STATE_LIVE;
}

/* The VFS lets root ignore permission bits, so they are checked here. */
static int gct_fops_open(struct inode *inode, struct file *file)
{
	if (!gct_helper_is_live())
		return -EAGAIN;
	if ((file->f_mode & FMODE_READ) && !(inode->i_mode & 0444))
		return -EACCES;
	if ((file->f_mode & FMODE_WRITE) && !(inode->i_mode & 0222))
		return -EACCES;
	return single_open(file, gct_debugfs_show, inode->i_private);
}

static ssize_t gct_fops_write(struct file *file, const char __user *from, size_t count,
			      loff_t *offset)
{
	return gct_debugfs_write(file, (__force const char *)from, count, offset);
}

/*
 * An open file must pin the module, because debugfs calls ->release even after the
 * file was removed. The kernel crate's debugfs files have no owner, so a module
 * whose files may be open when it is unloaded cannot use them.
 */
const struct file_operations gct_debugfs_fops = {
	.owner = THIS_MODULE,
	.open = gct_fops_open,
	.read = seq_read,
	.write = gct_fops_write,
	.llseek = seq_lseek,
	.release = single_release,
};

uint64_t gct_helper_random(void)
{
	return get_random_u64();
}

bool gct_helper_is_killed(void)
{
	return fatal_signal_pending(current);
}

void gct_helper_process_of(const struct task_struct *task, struct gct_process *out)
{
	const struct task_struct *leader;

	rcu_read_lock();
	leader = READ_ONCE(task->group_leader);
	out->tgid = (uint32_t)task->tgid;
	out->reserved = 0;
	out->start_time_ns = leader->start_boottime;
	rcu_read_unlock();
}

struct task_struct *gct_helper_find_task(uint32_t pid)
{
	struct task_struct *task;

	if (pid > INT_MAX)
		return NULL;
	rcu_read_lock();
	task = pid_task(find_vpid((int)pid), PIDTYPE_PID);
	if (task)
		get_task_struct(task);
	rcu_read_unlock();
	return task;
}

bool gct_helper_process_dead(const struct task_struct *task)
{
	/* task->signal lives as long as the task; do_exit() decrements ->live. */
	return atomic_read(&task->signal->live) == 0;
}

/* Returns the leader of a process that is not dead, or NULL. The caller holds the RCU read lock. */
static struct task_struct *gct_leader_of(const struct gct_process *process)
{
	struct task_struct *leader;

	if (process->tgid > INT_MAX)
		return NULL;
	/* NULL if the id is now that of another process's thread. */
	leader = pid_task(find_pid_ns((int)process->tgid, &init_pid_ns), PIDTYPE_TGID);
	if (leader && leader->start_boottime == process->start_time_ns &&
	    !gct_helper_process_dead(leader))
		return leader;
	return NULL;
}

uint32_t gct_helper_visible_tgid(const struct gct_process *process)
{
	struct task_struct *leader;
	pid_t visible = 0;

	rcu_read_lock();
	leader = gct_leader_of(process);
	if (leader)
		visible = pid_vnr(task_tgid(leader));
	rcu_read_unlock();
	return (uint32_t)visible;
}

bool gct_helper_pay_begin(const struct gct_process *process, void **payer)
{
	struct mem_cgroup *memcg = NULL;
	struct task_struct *leader;
	bool found = false;

	rcu_read_lock();
	leader = gct_leader_of(process);
	if (leader) {
#ifdef CONFIG_MEMCG
		memcg = mem_cgroup_from_task(leader);
#endif
		found = mem_cgroup_tryget(memcg);
	}
	rcu_read_unlock();
	if (found)
		set_active_memcg(memcg);
	*payer = memcg;
	return found;
}

void gct_helper_pay_end(void *payer)
{
	set_active_memcg(NULL);
	mem_cgroup_put(payer);
}

uint32_t gct_helper_user(void)
{
	const struct cred *cred = current_cred();
	const struct user_namespace *ns = cred->user_ns;
	kuid_t user = cred->uid;

	/* Anybody may create a namespace and have its ids: its owner counts. */
	for (; ns != &init_user_ns; ns = ns->parent)
		user = ns->owner;
	return (uint32_t)__kuid_val(user);
}

#ifdef CONFIG_CGROUPS
int gct_helper_cgroup_path(char *out, uint32_t size)
{
	int length;

	/* RCU keeps the css_set alive, and with it the cgroup and its kernfs node. */
	rcu_read_lock();
	length = cgroup_path(task_dfl_cgroup(current), out, size);
	rcu_read_unlock();
	/*
	 * A path that does not fit is truncated. Since Linux 6.10 cgroup_path() returns
	 * the length written, before that the length of the whole path or -E2BIG.
	 */
	if (length == -E2BIG || (length >= 0 && (uint32_t)length >= size))
		return (int)size - 1;
	return length;
}
#else
int gct_helper_cgroup_path(char *out, uint32_t size)
{
	return -EOPNOTSUPP;
}
#endif

#ifdef CONFIG_TRACEPOINTS
static struct tracepoint *gct_fork_point;
static struct tracepoint *gct_exit_point;

static void gct_probe_fork(void *data, struct task_struct *parent, struct task_struct *child)
{
	struct gct_process from, to;

	/* A new thread belongs to a process that is known. */
	if (parent->tgid == child->tgid)
		return;
	gct_helper_process_of(parent, &from);
	gct_helper_process_of(child, &to);
	/* The kernel kills a process in the same way if it is out of memory. */
	if (!gct_trace_fork(&from, &to))
		send_sig(SIGKILL, child, 1);
}

static void gct_probe_exit(void *data, struct task_struct *task, bool group_dead)
{
	struct gct_process process;

	if (!group_dead)
		return;
	gct_helper_process_of(task, &process);
	gct_trace_exit(&process);
}

static void gct_find_points(struct tracepoint *point, void *unused)
{
	if (!strcmp(point->name, "sched_process_fork"))
		gct_fork_point = point;
	else if (!strcmp(point->name, "sched_process_exit"))
		gct_exit_point = point;
}

int gct_helper_trace_start(void)
{
	int error;

	/*
	 * The scheduler does not export its tracepoints, so they are looked up by
	 * name. These two calls have the compiler check the probes' types.
	 */
	check_trace_callback_type_sched_process_fork(gct_probe_fork);
	check_trace_callback_type_sched_process_exit(gct_probe_exit);

	for_each_kernel_tracepoint(gct_find_points, NULL);
	if (!gct_fork_point || !gct_exit_point)
		return -EOPNOTSUPP;
	error = tracepoint_probe_register(gct_exit_point, gct_probe_exit, NULL);
	if (error)
		return error;
	error = tracepoint_probe_register(gct_fork_point, gct_probe_fork, NULL);
	if (error) {
		tracepoint_probe_unregister(gct_exit_point, gct_probe_exit, NULL);
		tracepoint_synchronize_unregister();
	}
	return error;
}

void gct_helper_trace_stop(void)
{
	tracepoint_probe_unregister(gct_fork_point, gct_probe_fork, NULL);
	tracepoint_probe_unregister(gct_exit_point, gct_probe_exit, NULL);
	tracepoint_synchronize_unregister();
}
#else
int gct_helper_trace_start(void)
{
	return -EOPNOTSUPP;
}

void gct_helper_trace_stop(void)
{
}
#endif
