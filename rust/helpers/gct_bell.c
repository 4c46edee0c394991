// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Notices that tenants with owned channels ring.
 *
 * A doorbell is a page of the GPU that a tenant maps through a device file. While the
 * worker of the GPU has nothing to do, those mappings are revoked, as the driver
 * revokes mappings of a GPU that it suspends: the tenant's next store faults, the
 * driver's fault handler maps the page again, and the worker wakes.
 *
 * Terminology
 *   bell    a device file through which a tenant maps a doorbell
 *   open    it may be mapped: the tenant rings without a fault
 *   ear     what one tenant's bells have told its channels: how often they were opened
 *   listen  the tenant has channels that the worker serves. The bells of an ear that does
 *           not listen are never revoked: nobody waits for them
 *
 * A tenant can map a bell as often as it likes, and fork. So mappings are revoked by a
 * work item, and no thread but that of a closing bell waits for it.
 */
#include "nv-linux.h"

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "gct_helpers.h"
#include "gct_rmapi.h"

/* Most bells of an ear. Those of further files ring unheard. A context of CUDA has two. */
#define GCT_BELLS_MAX 256

struct gct_ear {
	struct kref users;
	struct list_head bells;
	uint32_t count;
	bool listens;
	uint32_t rings;			/* how often a bell was followed, mapped or rung */
	uint32_t missed;		/* rings before the one that was missed last */
};

struct gct_bell_gpu {
	struct list_head node;
	struct list_head bells;		/* open ones */
	struct gct_worker *worker;	/* or NULL */
	uint32_t id;
	uint32_t open;			/* bells that are open, or being revoked */
	bool revoke;
};

struct gct_bell {
	struct list_head node;		/* in a GPU's list while open and listened for, else empty */
	struct list_head of_ear;
	struct gct_bell_gpu *gpu;
	struct address_space *mapping;
	struct gct_ear *ear;
};

/* Protects everything here. A leaf: only a run queue's lock is taken below it. */
static DEFINE_SPINLOCK(gct_bell_lock);
/* One for each GPU that had a bell or a worker, until the module is unloaded. */
static LIST_HEAD(gct_bell_gpus);
/* The bell whose mappings are being revoked. */
static struct gct_bell *gct_bell_revoking;
static DECLARE_WAIT_QUEUE_HEAD(gct_bell_wait);

static void gct_bells_revoke(struct work_struct *work);
static DECLARE_WORK(gct_bell_work, gct_bells_revoke);

static struct gct_bell_gpu *gct_bell_gpu_find(uint32_t id)
{
	struct gct_bell_gpu *gpu;

	list_for_each_entry(gpu, &gct_bell_gpus, node) {
		if (gpu->id == id)
			return gpu;
	}
	return NULL;
}

struct gct_bell_gpu *gct_bell_gpu(uint32_t id)
{
	struct gct_bell_gpu *made = kzalloc(sizeof(*made), GFP_KERNEL);
	struct gct_bell_gpu *gpu;

	spin_lock(&gct_bell_lock);
	gpu = gct_bell_gpu_find(id);
	if (!gpu && made) {
		gpu = made;
		made = NULL;
		INIT_LIST_HEAD(&gpu->bells);
		gpu->id = id;
		list_add_tail(&gpu->node, &gct_bell_gpus);
	}
	spin_unlock(&gct_bell_lock);
	kfree(made);
	return gpu;
}

struct gct_ear *gct_helper_ear_new(void)
{
	struct gct_ear *ear = kzalloc(sizeof(*ear), GFP_KERNEL_ACCOUNT);

	if (ear) {
		kref_init(&ear->users);
		INIT_LIST_HEAD(&ear->bells);
	}
	return ear;
}

static void gct_ear_free(struct kref *users)
{
	kfree(container_of(users, struct gct_ear, users));
}

void gct_helper_ear_put(struct gct_ear *ear)
{
	kref_put(&ear->users, gct_ear_free);
}

bool gct_helper_ear_hears(const struct gct_ear *ear)
{
	return READ_ONCE(ear->rings) != READ_ONCE(ear->missed);
}

uint32_t gct_helper_ear_rings(const struct gct_ear *ear)
{
	return smp_load_acquire(&ear->rings);
}

void gct_helper_ear_missed(struct gct_ear *ear, uint32_t rings)
{
	WRITE_ONCE(ear->missed, rings);
}

/* Marks a bell as open and wakes the worker, if the ear listens. The lock is held. */
static void gct_bell_open(struct gct_bell *bell)
{
	struct gct_bell_gpu *gpu = bell->gpu;

	if (!bell->ear->listens)
		return;
	if (list_empty(&bell->node)) {
		list_add_tail(&bell->node, &gpu->bells);
		WRITE_ONCE(gpu->open, gpu->open + 1);
	}
	WRITE_ONCE(bell->ear->rings, bell->ear->rings + 1);
	if (gpu->worker)
		gct_helper_worker_wake(gpu->worker);
}

/* Takes a bell off its GPU's list, so that it is not revoked. The lock is held. */
static void gct_bell_ignore(struct gct_bell *bell)
{
	if (list_empty(&bell->node))
		return;
	list_del_init(&bell->node);
	WRITE_ONCE(bell->gpu->open, bell->gpu->open - 1);
}

void gct_helper_ear_listen(struct gct_ear *ear, bool listens)
{
	struct gct_bell *bell;

	spin_lock(&gct_bell_lock);
	ear->listens = listens;
	list_for_each_entry(bell, &ear->bells, of_ear) {
		if (listens)
			gct_bell_open(bell);
		else
			gct_bell_ignore(bell);
	}
	spin_unlock(&gct_bell_lock);
}

void *gct_file_found(int32_t descriptor, uint64_t file, void **held)
{
	nv_file_private_t *private;
	nv_linux_file_private_t *nvlfp;

	/*
	 * From 595 on mmap() takes mmap_lock below the file's fileVaLock, and a fault the reverse.
	 * With a writer between them both wait for ever. So no mapping is revoked there.
	 */
	if (GCT_DRIVER_RELEASE >= GCT_RELEASE_FILE_VA_LOCK)
		return NULL;
	private = nv_get_file_private(descriptor, NV_FALSE, held);
	if (!private)
		return NULL;
	nvlfp = nv_get_nvlfp_from_nvfp(private);
	/* Tokens are not reused. A file without one may be any. */
	if (file && (uintptr_t)nvlfp->gct_file == file && nvlfp->nvptr)
		return nvlfp;
	nv_put_file_private(*held);
	return NULL;
}

void gct_helper_bell_follow(int32_t descriptor, uint64_t file, struct gct_ear *ear)
{
	void *held;
	nv_linux_file_private_t *nvlfp = gct_file_found(descriptor, file, &held);
	struct gct_bell *bell = NULL;
	struct gct_bell_gpu *gpu;

	if (!nvlfp)
		return;
	gpu = gct_bell_gpu(((nv_state_t *)NV_STATE_PTR(nvlfp->nvptr))->gpu_id);
	if (gpu)
		bell = kzalloc(sizeof(*bell), GFP_KERNEL_ACCOUNT);
	if (bell) {
		INIT_LIST_HEAD(&bell->node);
		bell->gpu = gpu;
		bell->mapping = &nvlfp->mapping;
		bell->ear = ear;
		spin_lock(&gct_bell_lock);
		if (!nvlfp->gct_bell && ear->count < GCT_BELLS_MAX) {
			kref_get(&ear->users);
			ear->count++;
			list_add_tail(&bell->of_ear, &ear->bells);
			/* Faults look at it without the lock. */
			smp_store_release(&nvlfp->gct_bell, bell);
			gct_bell_open(bell);
			bell = NULL;
		}
		spin_unlock(&gct_bell_lock);
		kfree(bell);
	}
	nv_put_file_private(held);
}

void gct_bell_mapped(void *data)
{
	spin_lock(&gct_bell_lock);
	gct_bell_open(data);
	spin_unlock(&gct_bell_lock);
}

void gct_bell_close(void *data)
{
	struct gct_bell *bell = data;

	spin_lock(&gct_bell_lock);
	gct_bell_ignore(bell);
	list_del(&bell->of_ear);
	bell->ear->count--;
	spin_unlock(&gct_bell_lock);
	/* The file has no mapping any more, so this is soon over, and nobody opens the bell. */
	wait_event(gct_bell_wait, smp_load_acquire(&gct_bell_revoking) != bell);
	gct_helper_ear_put(bell->ear);
	kfree(bell);
}

/* Revokes the mappings of those bells of a GPU that are open now. The lock is held. */
static void gct_bells_revoke_of(struct gct_bell_gpu *gpu)
{
	uint32_t count = gpu->open;

	while (count-- && !list_empty(&gpu->bells)) {
		struct gct_bell *bell = list_first_entry(&gpu->bells, struct gct_bell, node);

		/* Not open any more before, not behind: a fault meanwhile opens it again. */
		list_del_init(&bell->node);
		WRITE_ONCE(gct_bell_revoking, bell);
		spin_unlock(&gct_bell_lock);
		unmap_mapping_range(bell->mapping, 0, 0, 1);
		cond_resched();
		spin_lock(&gct_bell_lock);
		smp_store_release(&gct_bell_revoking, NULL);
		/* Order: the worker that sees the number sees what was submitted before. */
		smp_store_release(&gpu->open, gpu->open - 1);
		wake_up_all(&gct_bell_wait);
	}
}

static void gct_bells_revoke(struct work_struct *work)
{
	struct gct_bell_gpu *gpu;

	spin_lock(&gct_bell_lock);
	list_for_each_entry(gpu, &gct_bell_gpus, node) {
		if (gpu->revoke) {
			gpu->revoke = false;
			gct_bells_revoke_of(gpu);
		}
	}
	spin_unlock(&gct_bell_lock);
}

void gct_bells_begin(struct gct_bell_gpu *gpu, struct gct_worker *worker)
{
	spin_lock(&gct_bell_lock);
	gpu->worker = worker;
	spin_unlock(&gct_bell_lock);
}

void gct_bells_end(struct gct_bell_gpu *gpu, struct gct_worker *worker)
{
	spin_lock(&gct_bell_lock);
	/* The next channel of the GPU may have brought a worker of its own meanwhile. */
	if (gpu->worker == worker)
		gpu->worker = NULL;
	spin_unlock(&gct_bell_lock);
}

bool gct_bells_closed(const struct gct_bell_gpu *gpu)
{
	return smp_load_acquire(&gpu->open) == 0;
}

void gct_bells_close(struct gct_bell_gpu *gpu)
{
	spin_lock(&gct_bell_lock);
	gpu->revoke = true;
	spin_unlock(&gct_bell_lock);
	queue_work(system_dfl_wq, &gct_bell_work);
}

void gct_helper_bells_exit(void)
{
	struct gct_bell_gpu *gpu, *next;

	/* No file is open, so there is no bell, and no worker. */
	flush_work(&gct_bell_work);
	list_for_each_entry_safe(gpu, next, &gct_bell_gpus, node)
		kfree(gpu);
	INIT_LIST_HEAD(&gct_bell_gpus);
}

#ifdef GCT_KUNIT
#include "gct_bell_kunit.c"
#endif
