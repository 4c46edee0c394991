// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The interface between nvidia.ko and nvidia-uvm.ko. gct.h has the contracts;
 * gct_uvm.c is the other side.
 */
#include "nv-linux.h"

#include <linux/rwsem.h>
#include <linux/workqueue.h>

#include "gct_helpers.h"

/* Held for reading while an operation runs, for writing while they come or go. */
static DECLARE_RWSEM(gct_uvm_lock);
static const struct gct_uvm_operations *gct_uvm_operations;

void gct_uvm_start(const struct gct_uvm_operations *operations)
{
	down_write(&gct_uvm_lock);
	gct_uvm_operations = operations;
	up_write(&gct_uvm_lock);
}
EXPORT_SYMBOL_GPL(gct_uvm_start);

void gct_uvm_stop(void)
{
	down_write(&gct_uvm_lock);
	gct_uvm_operations = NULL;
	up_write(&gct_uvm_lock);
}
EXPORT_SYMBOL_GPL(gct_uvm_stop);

static void gct_shadows_work(struct work_struct *work)
{
	gct_shadows_due();
}

static DECLARE_DELAYED_WORK(gct_shadows, gct_shadows_work);

void gct_helper_shadows_cancel(void)
{
	cancel_delayed_work_sync(&gct_shadows);
}

uint32_t gct_helper_uvm_map(const struct gct_uvm_space *space, uint64_t bytes, uint32_t writes,
			    uint32_t waits, struct gct_uvm_memory *memory)
{
	uint32_t status = NV_ERR_NOT_SUPPORTED;

	down_read(&gct_uvm_lock);
	if (gct_uvm_operations)
		status = gct_uvm_operations->map(space, bytes, writes, waits, memory);
	up_read(&gct_uvm_lock);
	if (status == NV_ERR_BUSY_RETRY)
		queue_delayed_work(system_long_wq, &gct_shadows, HZ);
	return status;
}

void gct_helper_uvm_unmap(const struct gct_uvm_memory *memory)
{
	down_read(&gct_uvm_lock);
	/* The held file keeps nvidia-uvm loaded. */
	if (!WARN_ON_ONCE(!gct_uvm_operations))
		gct_uvm_operations->unmap(memory);
	up_read(&gct_uvm_lock);
}

uint32_t gct_helper_uvm_evict(const uint8_t *uuid, void *gpu, uint32_t victim, uint32_t keeps)
{
	uint32_t status = NV_ERR_NOT_SUPPORTED;

	down_read(&gct_uvm_lock);
	if (gct_uvm_operations)
		status = gct_uvm_operations->evict(uuid, gpu, victim, keeps);
	up_read(&gct_uvm_lock);
	return status;
}

int gct_uvm_hold(int32_t descriptor, struct gct_uvm_holder *holder)
{
	nv_file_private_t *private;
	nv_linux_file_private_t *nvlfp;

	private = nv_get_file_private(descriptor, NV_TRUE, &holder->held);
	if (!private)
		return 0;
	nvlfp = nv_get_nvlfp_from_nvfp(private);
	if (mutex_lock_killable(&nvlfp->gct_lock)) {
		nv_put_file_private(holder->held);
		return 0;
	}
	holder->lock = &nvlfp->gct_lock;
	holder->file = nvlfp->gct_file;
	return 1;
}
EXPORT_SYMBOL_GPL(gct_uvm_hold);

void gct_uvm_release(struct gct_uvm_holder *holder)
{
	mutex_unlock(holder->lock);
	nv_put_file_private(holder->held);
}
EXPORT_SYMBOL_GPL(gct_uvm_release);

EXPORT_SYMBOL_GPL(gct_uvm_registered);
EXPORT_SYMBOL_GPL(gct_uvm_gone);
EXPORT_SYMBOL_GPL(gct_uvm_is_lent);
EXPORT_SYMBOL_GPL(gct_uvm_mapped);
EXPORT_SYMBOL_GPL(gct_uvm_unmapped);
EXPORT_SYMBOL_GPL(gct_uvm_keep);
EXPORT_SYMBOL_GPL(gct_uvm_let_go);
