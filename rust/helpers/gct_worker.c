// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * One kernel thread for each GPU that has owned channels. What it does is
 * gct_worker_round()'s business; here it sleeps and ends.
 */
#include <linux/cpumask.h>
#include <linux/err.h>
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/rcupdate.h>
#include <linux/rwsem.h>
#include <linux/sched.h>
#include <linux/sched/isolation.h>
#include <linux/slab.h>

#include "gct_helpers.h"

struct gct_worker {
	struct task_struct *task;
	struct gct_bell_gpu *bells;
	void *data;
	int woken;
};

static void gct_worker_sleep(struct gct_worker *worker, uint64_t ns)
{
	ktime_t timeout = ns_to_ktime(ns);

	set_current_state(TASK_IDLE);
	if (!READ_ONCE(worker->woken) && !kthread_should_stop())
		schedule_hrtimeout_range(&timeout, ns / 8, HRTIMER_MODE_REL);
	__set_current_state(TASK_RUNNING);
}

static int gct_worker_main(void *argument)
{
	struct gct_worker *worker = argument;

	while (!kthread_should_stop()) {
		uint64_t ns;
		uint32_t signs = 0;

		/* In this order: a bell that opens later wakes the worker. */
		if (xchg(&worker->woken, 0))
			signs |= GCT_WORKER_WOKEN;
		if (gct_bells_closed(worker->bells))
			signs |= GCT_WORKER_CLOSED;
		ns = gct_worker_round(worker->data, ktime_get_ns(), signs);
		if (ns)
			gct_worker_sleep(worker, ns);
		else
			cond_resched();
	}
	return 0;
}

void gct_helper_worker_wake(struct gct_worker *worker)
{
	/* Full order: what the caller has written is seen by the round that follows. */
	xchg(&worker->woken, 1);
	wake_up_process(worker->task);
}

/* Parses a list of processors. An empty one names those that are not isolated. */
static int gct_worker_parse(const uint8_t *list, uint32_t length,
			    struct cpumask *cpus)
{
	char text[128];

	if (!length) {
		rcu_read_lock();
		cpumask_copy(cpus, housekeeping_cpumask(HK_TYPE_KTHREAD));
		rcu_read_unlock();
		return 0;
	}
	if (length >= sizeof(text))
		return -ERANGE;
	memcpy(text, list, length);
	text[length] = 0;
	return cpulist_parse(text, cpus);
}

int gct_helper_cpus_online(const uint8_t *list, uint32_t length)
{
	cpumask_var_t cpus;
	int online;

	if (!zalloc_cpumask_var(&cpus, GFP_KERNEL))
		return 0;
	online = !gct_worker_parse(list, length, cpus) &&
		 cpumask_intersects(cpus, cpu_online_mask);
	free_cpumask_var(cpus);
	return online;
}

void gct_helper_worker_move(struct gct_worker *worker, const uint8_t *list,
			    uint32_t length)
{
	cpumask_var_t cpus;

	if (!zalloc_cpumask_var(&cpus, GFP_KERNEL))
		return;
	if (!gct_worker_parse(list, length, cpus))
		set_cpus_allowed_ptr(worker->task, cpus);
	free_cpumask_var(cpus);
}

struct gct_worker *gct_helper_worker_start(uint32_t gpu_id, void *data)
{
	struct gct_worker *worker = kzalloc(sizeof(*worker), GFP_KERNEL);

	if (!worker)
		return NULL;
	worker->data = data;
	worker->bells = gct_bell_gpu(gpu_id);
	if (!worker->bells) {
		kfree(worker);
		return NULL;
	}
	worker->task = kthread_create(gct_worker_main, worker, "gct/%x", gpu_id);
	if (IS_ERR(worker->task)) {
		kfree(worker);
		return NULL;
	}
	/*
	 * Neither a processor that comes online nor sched_setaffinity() moves a
	 * bound thread.
	 */
	kthread_bind(worker->task, cpumask_any(cpu_online_mask));
	gct_helper_worker_move(worker, NULL, 0);
	gct_bells_begin(worker->bells, worker);
	wake_up_process(worker->task);
	return worker;
}

void gct_helper_worker_cost(struct gct_worker *worker, uint64_t *ran_ns,
			    uint64_t *sleeps)
{
	*ran_ns = READ_ONCE(worker->task->se.sum_exec_runtime);
	*sleeps = READ_ONCE(worker->task->nvcsw);
}

void gct_helper_worker_close_bells(struct gct_worker *worker)
{
	gct_bells_close(worker->bells);
}

void gct_helper_worker_stop(struct gct_worker *worker)
{
	gct_bells_end(worker->bells, worker);
	kthread_stop(worker->task);
	kfree(worker);
}
