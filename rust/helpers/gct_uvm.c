// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gctgroup's part of nvidia-uvm.ko: memory for the rings of owned channels, in address
 * spaces whose page tables nvidia-uvm owns. gct_uvm_spaces.c knows these spaces,
 * gct_uvm_maps.c reports what tenants map there.
 *
 * The memory is mapped by a VA range of the type that nvidia-uvm has for resources of
 * channels. No ioctl of the tenant maps, frees, migrates or writes such a range. Its
 * addresses come from a window that is reserved in the tenant's mm with PROT_NONE, so
 * that mmap() gives them to nobody else.
 *
 * A tenant may have the locks of its mm and of its VA space held for as long as it likes,
 * for example while a page comes from a file system that it serves itself. Nobody waits
 * for them without an end but the tenant, in its own ioctl. What cannot be mapped soon is
 * not mapped, and what cannot be freed soon is freed later, by a work item.
 */
#define GCT_UVM_IMPLEMENTS
#include "gct-hooks.h"
#include "gct-pmm.h"
#include "gct-uvm.h"
#include "gct_uvm.h"

#include "uvm_api.h"
#include "uvm_forward_decl.h"
#include "uvm_global.h"
#include "uvm_gpu.h"
#include "uvm_kvmalloc.h"
#include "uvm_lock.h"
#include "uvm_mem.h"
#include "uvm_va_range.h"
#include "uvm_va_space.h"
#include "uvm_va_space_mm.h"

#include <linux/delay.h>
#include <linux/file.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/mmap_lock.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/workqueue.h>

/*
 * How long a tenant's locks are waited for while others wait, and how long if that was in
 * vain within the last second.
 */
#define GCT_PATIENCE_NS (100 * NSEC_PER_MSEC)
#define GCT_IMPATIENCE_NS NSEC_PER_MSEC
#define GCT_VAIN_NS NSEC_PER_SEC

/* A VA range of the type for channels. From 565 on each type is a structure of its own. */
#ifdef GCT_UVM_RANGE_TYPES
typedef uvm_va_range_channel_t gct_range_t;
#define gct_base(range) (&(range)->va_range)
#define gct_channel(range) (*(range))
#else
typedef uvm_va_range_t gct_range_t;
#define gct_base(range) (range)
#define gct_channel(range) ((range)->channel)
#endif

/* Memory for a ring. */
struct gct_mapped {
	struct list_head list;
	gct_range_t *range;
	uvm_mem_t *mem;
};

/* What memory is asked for, and whether the caller waits for the tenant's locks. */
struct gct_map_call {
	const struct gct_uvm_space *space;
	u64 bytes;
	bool writes;
	bool waits;
};

/* When a tenant's locks were last waited for in vain. */
static u64 gct_vain_at;

/* Takes the locks of a VA space to change it, and that of its mm, if it has one. */
static bool gct_space_trylock(uvm_va_space_t *va_space, struct mm_struct *mm)
{
	if (mm && !mmap_read_trylock(mm))
		return false;
	if (mm)
		uvm_record_lock_mmap_lock_read(mm);
	if (uvm_mutex_trylock(&va_space->serialize_writers_lock)) {
		if (uvm_mutex_trylock(&va_space->read_acquire_write_release_lock)) {
			if (uvm_down_write_trylock(&va_space->lock))
				return true;
			uvm_mutex_unlock(&va_space->read_acquire_write_release_lock);
		}
		uvm_mutex_unlock(&va_space->serialize_writers_lock);
	}
	if (mm)
		uvm_up_read_mmap_lock(mm);
	return false;
}

/* Does so, soon if the caller does not wait. Returns false if the tenant keeps them. */
static bool gct_space_lock(uvm_va_space_t *va_space, struct mm_struct *mm, bool waits)
{
	const u64 begin = ktime_get_ns(), vain_at = READ_ONCE(gct_vain_at);
	const bool was_vain = vain_at && begin - vain_at < GCT_VAIN_NS;
	const u64 patience = was_vain ? GCT_IMPATIENCE_NS : GCT_PATIENCE_NS;

	if (waits) {
		if (mm)
			uvm_down_read_mmap_lock(mm);
		uvm_va_space_down_write(va_space);
		return true;
	}
	while (!gct_space_trylock(va_space, mm)) {
		if (ktime_get_ns() - begin >= patience) {
			if (!was_vain)
				WRITE_ONCE(gct_vain_at, ktime_get_ns());
			return false;
		}
		usleep_range(100, 500);
	}
	return true;
}

static void gct_space_unlock(uvm_va_space_t *va_space, struct mm_struct *mm)
{
	uvm_va_space_up_write(va_space);
	if (mm)
		uvm_up_read_mmap_lock(mm);
}

/* Frees memory, or what there is of it. The VA space lock is held for writing. */
static void gct_free(struct gct_mapped *mapped)
{
	uvm_mem_free(mapped->mem);
	if (mapped->range)
		uvm_va_range_destroy(gct_base(mapped->range), NULL);
	kfree(mapped);
}

bool gct_reap(struct gct_known *known, bool waits)
{
	struct file *filp = known->filp;
	struct gct_mapped *mapped, *next;
	unsigned int count = 0;

	if (list_empty_careful(&known->leaving))
		return true;
	if (!gct_space_lock(known->va_space, NULL, waits))
		return false;
	mutex_lock(&known->lock);
	list_for_each_entry_safe(mapped, next, &known->leaving, list) {
		list_del(&mapped->list);
		gct_free(mapped);
		count++;
	}
	mutex_unlock(&known->lock);
	gct_space_unlock(known->va_space, NULL);
	while (count--)
		fput(filp);
	return true;
}

/* Does so soon, or has the work item try it again. */
static void gct_reap_soon(struct gct_known *known)
{
	bool is_done = false;

	if (uvm_down_read_trylock(&g_uvm_global.pm.lock)) {
		is_done = gct_reap(known, false);
		uvm_up_read(&g_uvm_global.pm.lock);
	}
	if (!is_done)
		queue_delayed_work(system_dfl_wq, &known->reaper, HZ / 10);
}

void gct_reap_later(struct work_struct *work)
{
	/* The end of the file waits for this call, and ends it. */
	UVM_ENTRY_VOID(gct_reap_soon(container_of(to_delayed_work(work), struct gct_known,
						  reaper)));
}

/* Returns the first free address in the window for so many bytes, or 0. */
static u64 gct_address(const struct gct_known *known, u64 bytes)
{
	u64 at = READ_ONCE(known->window);
	const u64 end = at ? at + GCT_WINDOW_BYTES : 0;

	while (at < end && bytes <= end - at) {
		uvm_va_range_t *range =
			uvm_va_space_iter_first(known->va_space, at, at + bytes - 1);

		if (!range)
			return at;
		at = range->node.end + 1;
	}
	return 0;
}

/* Makes and maps memory. The locks of gct_space_lock() are held. */
static NV_STATUS gct_map_at(uvm_gpu_va_space_t *gpu_va_space, struct mm_struct *mm, u64 address,
			    u64 bytes, bool writes, struct gct_mapped **out)
{
	const uvm_mem_gpu_mapping_attrs_t attrs = {
		.protection = writes ? UVM_PROT_READ_WRITE_ATOMIC : UVM_PROT_READ_ONLY,
	};
	const uvm_mem_alloc_params_t params = {
		.page_size = UVM_PAGE_SIZE_DEFAULT,
		.size = bytes,
		.zero = true,
		.mm = mm,
	};
	struct gct_mapped *mapped = kzalloc(sizeof(*mapped), GFP_KERNEL_ACCOUNT);
	uvm_va_space_t *va_space = gpu_va_space->va_space;
	NV_STATUS status;

	if (!mapped)
		return NV_ERR_NO_MEMORY;
	status = uvm_va_range_create_channel(va_space, mm, address, address + bytes - 1,
					     &mapped->range);
	if (status == NV_OK) {
		gct_channel(mapped->range).gpu_va_space = gpu_va_space;
		status = uvm_mem_alloc((uvm_mem_alloc_params_t *)&params, &mapped->mem);
	}
	if (status == NV_OK)
		status = uvm_mem_map_cpu_kernel(mapped->mem);
	if (status == NV_OK)
		status = uvm_mem_map_gpu_user(mapped->mem, gpu_va_space->gpu, va_space,
					      (void *)(uintptr_t)address, &attrs);
	if (status == NV_OK)
		*out = mapped;
	else
		gct_free(mapped);
	return status;
}

/* Maps memory in the window. The space's lock is held, and those of gct_space_lock(). */
static NV_STATUS gct_map_in(struct gct_known *known, struct mm_struct *mm,
			    const struct gct_map_call *call, struct gct_uvm_memory *memory)
{
	struct gct_registered *registered = gct_registered_of(known, call->space->uuid);
	uvm_va_space_t *va_space = known->va_space;
	const u64 address = gct_address(known, call->bytes);
	struct gct_mapped *mapped;
	NvProcessorUuid uuid;
	NV_STATUS status;
	uvm_gpu_t *gpu;

	if (!registered || memcmp(&registered->space, call->space, sizeof(*call->space)))
		return NV_ERR_INVALID_STATE;
	memcpy(uuid.uuid, registered->space.uuid, sizeof(uuid.uuid));
	gpu = uvm_va_space_get_gpu_by_uuid_with_gpu_va_space(va_space, &uuid);
	if (!gpu)
		return NV_ERR_INVALID_STATE;
	if (!address)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	status = gct_map_at(uvm_gpu_va_space_get(va_space, gpu), mm, address, call->bytes,
			    call->writes, &mapped);
	if (status != NV_OK)
		return status;
	list_add(&mapped->list, &registered->mapped);
	memory->file = known->filp;
	memory->words = uvm_mem_get_cpu_addr_kernel(mapped->mem);
	memory->address = gct_base(mapped->range)->node.start;
	return NV_OK;
}

/* Maps memory. The caller holds the users of the space's mm, which need not be current's. */
static NV_STATUS gct_map_known(struct gct_known *known, const struct gct_map_call *call,
			       struct gct_uvm_memory *memory)
{
	uvm_va_space_t *va_space = known->va_space;
	const bool has_mm = uvm_va_space_mm_enabled(va_space);
	struct mm_struct *mm = has_mm ? uvm_va_space_mm_retain(va_space) : known->mm;
	NV_STATUS status = NV_ERR_BUSY_RETRY;

	if (gct_space_lock(va_space, mm, call->waits)) {
		mutex_lock(&known->lock);
		status = gct_map_in(known, mm, call, memory);
		mutex_unlock(&known->lock);
		gct_space_unlock(va_space, mm);
	}
	if (has_mm && mm)
		uvm_va_space_mm_release(va_space);
	return status;
}

/* Returns whether addresses that are reserved in the space's mm are those that the GPU uses. */
static bool gct_is_mm(const struct gct_known *known)
{
	return !uvm_va_space_mm_enabled(known->va_space) ||
	       known->va_space->va_space_mm.mm == known->mm;
}

static NV_STATUS gct_map(const struct gct_map_call *call, struct gct_uvm_memory *memory)
{
	struct gct_known *known = gct_hold(call->space->number);
	NV_STATUS status = NV_ERR_NOT_SUPPORTED;

	if (!known)
		return NV_ERR_INVALID_STATE;
	/*
	 * The caller holds nv_system_pm_lock, so no suspension waits for this lock.
	 * UVM_REGISTER_GPU_VASPACE takes it before gct_lock, hence no plain read.
	 */
	if (!g_uvm_global.conf_computing_enabled && gct_is_mm(known) &&
	    uvm_down_read_trylock(&g_uvm_global.pm.lock)) {
		if (mmget_not_zero(known->mm)) {
			status = gct_map_known(known, call, memory);
			mmput_async(known->mm);
		}
		uvm_up_read(&g_uvm_global.pm.lock);
	}
	if (status != NV_OK)
		fput(known->filp);
	return status;
}

/* Returns memory by its address. The lock of the space is held. */
static struct gct_mapped *gct_mapped_at(struct gct_known *known, u64 address)
{
	struct gct_registered *registered;
	struct gct_mapped *mapped;

	list_for_each_entry(registered, &known->registered, list) {
		list_for_each_entry(mapped, &registered->mapped, list) {
			if (gct_base(mapped->range)->node.start == address)
				return mapped;
		}
	}
	return NULL;
}

static void gct_unmap(const struct gct_uvm_memory *memory)
{
	struct file *filp = memory->file;
	struct gct_known *known = gct_known_still(filp);
	struct gct_mapped *mapped;

	/* Somebody else may free the memory, and let the file that it holds go. */
	get_file(filp);
	mutex_lock(&known->lock);
	mapped = gct_mapped_at(known, memory->address);
	if (!WARN_ON_ONCE(!mapped))
		list_move(&mapped->list, &known->leaving);
	mutex_unlock(&known->lock);
	gct_reap_soon(known);
	fput(filp);
}

static uint32_t gct_map_entry(const struct gct_uvm_space *space, uint64_t bytes, uint32_t writes,
			      uint32_t waits, struct gct_uvm_memory *memory)
{
	const struct gct_map_call call = {
		.space = space,
		.bytes = bytes,
		.writes = writes,
		.waits = waits,
	};

	UVM_ENTRY_RET(gct_map(&call, memory));
}

static void gct_unmap_entry(const struct gct_uvm_memory *memory)
{
	UVM_ENTRY_VOID(gct_unmap(memory));
}

static uint32_t gct_evict_entry(const uint8_t *uuid, void *gct_gpu, uint32_t victim, uint32_t keeps)
{
	UVM_ENTRY_RET(uvm_gct_evict_on(uuid, gct_gpu, victim, keeps));
}

static const struct gct_uvm_operations gct_operations = {
	.map = gct_map_entry,
	.unmap = gct_unmap_entry,
	.evict = gct_evict_entry,
};

void uvm_gct_start(void)
{
	gct_uvm_start(&gct_operations);
}

void uvm_gct_stop(void)
{
	gct_uvm_stop();
}
