// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Knows the address spaces whose page tables nvidia-uvm owns.
 *
 * While there is memory for rings for a GPU, its address space stays registered. Otherwise
 * a tenant could register it in another file of nvidia-uvm, and map its own memory at
 * the address of a ring that a channel reads.
 *
 * Locks, in this order: the control file's gct_lock, g_uvm_global.pm.lock, a space's
 * ioctls, the mm's and the VA space's lock, a space's lock.
 */
#define GCT_UVM_IMPLEMENTS
#include "gct-hooks.h"
#include "gct-uvm.h"
#include "gct_uvm.h"

#include "uvm_api.h"
#include "uvm_va_space.h"

#include <linux/file.h>
#include <linux/fs.h>
#include <linux/hashtable.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/workqueue.h>

/* Where a window is looked for. */
#define GCT_WINDOW_FIRST (512ull << 30)
#define GCT_WINDOW_END (1ull << 40)

/* Lock of the table. A leaf. */
static DEFINE_MUTEX(gct_table_lock);
static DEFINE_HASHTABLE(gct_table, 8);
static u64 gct_numbers;

/* Returns what is known of a VA space, or NULL. The lock of the table is held. */
static struct gct_known *gct_find(uvm_va_space_t *va_space)
{
	struct gct_known *known;

	hash_for_each_possible(gct_table, known, node, (unsigned long)va_space) {
		if (known->va_space == va_space)
			return known;
	}
	return NULL;
}

struct gct_known *gct_known_still(struct file *filp)
{
	struct gct_known *known;

	mutex_lock(&gct_table_lock);
	known = gct_find(uvm_va_space_get(filp));
	mutex_unlock(&gct_table_lock);
	return known;
}

struct gct_known *gct_known_of(struct file *filp)
{
	return gct_enabled() && READ_ONCE(gct_numbers) ? gct_known_still(filp) : NULL;
}

struct gct_known *gct_known_made(struct file *filp)
{
	struct gct_known *known = gct_known_still(filp);
	struct gct_known *made;

	if (known)
		return known;
	made = kzalloc(sizeof(*made), GFP_KERNEL_ACCOUNT);
	if (!made)
		return NULL;
	made->va_space = uvm_va_space_get(filp);
	made->filp = filp;
	mutex_init(&made->ioctls);
	mutex_init(&made->lock);
	INIT_LIST_HEAD(&made->registered);
	INIT_LIST_HEAD(&made->leaving);
	INIT_LIST_HEAD(&made->kept);
	INIT_DELAYED_WORK(&made->reaper, gct_reap_later);
	mutex_lock(&gct_table_lock);
	known = gct_find(made->va_space);
	if (!known) {
		known = made;
		made = NULL;
		WRITE_ONCE(gct_numbers, gct_numbers + 1);
		known->number = gct_numbers;
		hash_add(gct_table, &known->node, (unsigned long)known->va_space);
	}
	mutex_unlock(&gct_table_lock);
	kfree(made);
	return known;
}

/*
 * The same, for a control file that registers a GPU VA space. NULL also where another has
 * registered some there: gctgroup follows the first.
 */
static struct gct_known *gct_known_by(struct file *filp, void *owner)
{
	struct gct_known *known = gct_known_made(filp);

	if (!known)
		return NULL;
	mutex_lock(&gct_table_lock);
	if (!known->owner) {
		known->mm = current->mm;
		mmgrab(known->mm);
		WRITE_ONCE(known->owner, owner);
	}
	mutex_unlock(&gct_table_lock);
	return known->owner == owner ? known : NULL;
}

struct gct_registered *gct_registered_of(struct gct_known *known, const NvU8 *uuid)
{
	struct gct_registered *registered;

	list_for_each_entry(registered, &known->registered, list) {
		if (!memcmp(registered->space.uuid, uuid, sizeof(registered->space.uuid)))
			return registered;
	}
	return NULL;
}

/* Reserves the window in current's mm, if that is the space's. */
static void gct_window_reserve(struct gct_known *known)
{
	unsigned long at = GCT_WINDOW_FIRST;

	if (known->window || current->mm != known->mm)
		return;
	for (; at < GCT_WINDOW_END; at += GCT_WINDOW_BYTES) {
		if (vm_mmap(NULL, at, GCT_WINDOW_BYTES, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
			    0) == at) {
			WRITE_ONCE(known->window, at);
			return;
		}
	}
}

/* Registers an address space of the owner's, and reports it. */
static NV_STATUS gct_register(struct gct_known *known, UVM_REGISTER_GPU_VASPACE_PARAMS *params,
			      struct file *filp)
{
	struct gct_registered *registered = kzalloc(sizeof(*registered), GFP_KERNEL_ACCOUNT);
	NV_STATUS status;

	if (!registered)
		return uvm_api_register_gpu_va_space(params, filp);
	registered->space.number = known->number;
	registered->space.client = params->hClient;
	registered->space.object = params->hVaSpace;
	memcpy(registered->space.uuid, params->gpuUuid.uuid, sizeof(registered->space.uuid));
	INIT_LIST_HEAD(&registered->mapped);
	mutex_lock(&known->ioctls);
	status = uvm_api_register_gpu_va_space(params, filp);
	if (status == NV_OK) {
		mutex_lock(&known->lock);
		list_add(&registered->list, &known->registered);
		mutex_unlock(&known->lock);
		if (gct_uvm_registered(known->owner, &registered->space))
			gct_window_reserve(known);
		registered = NULL;
	}
	mutex_unlock(&known->ioctls);
	kfree(registered);
	return status;
}

NV_STATUS uvm_gct_register_gpu_va_space(UVM_REGISTER_GPU_VASPACE_PARAMS *params, struct file *filp)
{
	struct gct_known *known = NULL;
	struct gct_uvm_holder holder;
	NV_STATUS status;

	if (!gct_enabled() || !gct_uvm_hold(params->rmCtrlFd, &holder))
		return uvm_api_register_gpu_va_space(params, filp);
	if (holder.file)
		known = gct_known_by(filp, holder.file);
	status = known ? gct_register(known, params, filp) :
			 uvm_api_register_gpu_va_space(params, filp);
	gct_uvm_release(&holder);
	return status;
}

/* Which of two ioctls unregisters a GPU's address space. */
struct gct_unregister {
	UVM_UNREGISTER_GPU_VASPACE_PARAMS *space;
	UVM_UNREGISTER_GPU_PARAMS *gpu;
};

static NV_STATUS gct_unregister_run(const struct gct_unregister *call, struct file *filp)
{
	return call->space ? uvm_api_unregister_gpu_va_space(call->space, filp) :
			     uvm_api_unregister_gpu(call->gpu, filp);
}

/*
 * Takes the address space of a GPU out of the list, if there is one. Returns whether it may
 * be unregistered. The space's ioctls are held.
 */
static bool gct_take(struct gct_known *known, const NvU8 *uuid, struct gct_registered **out)
{
	struct gct_registered *registered;
	bool is_free;

	mutex_lock(&known->lock);
	registered = gct_registered_of(known, uuid);
	is_free = !registered || (list_empty(&registered->mapped) && list_empty(&known->leaving));
	if (registered && is_free) {
		list_del(&registered->list);
		*out = registered;
	}
	mutex_unlock(&known->lock);
	return is_free;
}

static NV_STATUS gct_unregister(const struct gct_unregister *call, const NvU8 *uuid,
				struct file *filp)
{
	struct gct_known *known = gct_known_of(filp);
	struct gct_registered *registered = NULL;
	NV_STATUS status = NV_ERR_IN_USE;

	if (!known)
		return gct_unregister_run(call, filp);
	mutex_lock(&known->ioctls);
	gct_reap(known, true);
	if (gct_take(known, uuid, &registered))
		status = gct_unregister_run(call, filp);
	if (status == NV_OK)
		gct_kept_gone(known, uuid);
	if (registered && status != NV_OK) {
		mutex_lock(&known->lock);
		list_add(&registered->list, &known->registered);
		mutex_unlock(&known->lock);
	}
	mutex_unlock(&known->ioctls);
	if (registered && status == NV_OK) {
		gct_uvm_gone(known->owner, known->number, registered->space.uuid);
		kfree(registered);
	}
	return status;
}

NV_STATUS uvm_gct_unregister_gpu_va_space(UVM_UNREGISTER_GPU_VASPACE_PARAMS *params,
					  struct file *filp)
{
	const struct gct_unregister call = { .space = params };

	return gct_unregister(&call, params->gpuUuid.uuid, filp);
}

NV_STATUS uvm_gct_unregister_gpu(UVM_UNREGISTER_GPU_PARAMS *params, struct file *filp)
{
	const struct gct_unregister call = { .gpu = params };

	return gct_unregister(&call, params->gpu_uuid.uuid, filp);
}

void uvm_gct_release(uvm_va_space_t *va_space)
{
	struct gct_registered *registered, *next;
	struct gct_known *known;

	if (READ_ONCE(gct_numbers) == 0)
		return;
	mutex_lock(&gct_table_lock);
	known = gct_find(va_space);
	if (known)
		hash_del(&known->node);
	mutex_unlock(&gct_table_lock);
	if (!known)
		return;
	/* No memory is left: it holds the file. */
	cancel_delayed_work_sync(&known->reaper);
	list_for_each_entry_safe(registered, next, &known->registered, list)
		kfree(registered);
	gct_uvm_gone(known->owner, known->number, NULL);
	gct_kept_end(known);
	if (known->mm)
		mmdrop(known->mm);
	kfree(known);
}

struct gct_known *gct_hold(u64 number)
{
	struct gct_known *known, *found = NULL;
	int bucket;

	mutex_lock(&gct_table_lock);
	hash_for_each(gct_table, bucket, known, node) {
		/* The last reference may be gone, but not the file: it leaves the table first. */
		if (known->number == number && file_ref_get(&known->filp->f_ref))
			found = known;
	}
	mutex_unlock(&gct_table_lock);
	return found;
}
