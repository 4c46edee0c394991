// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gctgroup's part of nvidia-uvm.ko: memory for the rings of owned channels, in address
 * spaces whose page tables nvidia-uvm owns. gct_uvm_maps.c reports what tenants map there.
 *
 * The memory is mapped by a VA range of the type that nvidia-uvm has for resources of
 * channels. No ioctl of the tenant maps, frees, migrates or writes such a range. Its
 * addresses come from a window that is reserved in the tenant's mm with PROT_NONE, so
 * that mmap() gives them to nobody else.
 *
 * While there is such memory for a GPU, its address space stays registered. Otherwise
 * a tenant could register it in another file of nvidia-uvm, and map its own memory at
 * the address of a ring that a channel reads.
 *
 * Locks, in this order: the control file's gct_lock, g_uvm_global.pm.lock, a space's
 * lock, the mm's and the VA space's lock.
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
#include "uvm_mem.h"
#include "uvm_va_range.h"
#include "uvm_va_space.h"
#include "uvm_va_space_mm.h"

#include <linux/file.h>
#include <linux/fs.h>
#include <linux/hashtable.h>
#include <linux/kthread.h>
#include <linux/list.h>
#include <linux/mman.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/workqueue.h>

/*
 * Windows begin at a multiple of the step, from the first address on. Channels name
 * addresses with 40 bits. libcuda 580 has nothing here. A window has room for the memory
 * of 31 channels.
 */
#define GCT_WINDOW_BYTES (8ull << 20)
#define GCT_WINDOW_FIRST (512ull << 30)
#define GCT_WINDOW_STEP (1ull << 30)
#define GCT_WINDOW_END (1ull << 40)

/* A GPU's address space that was registered in a VA space. */
struct gct_registered {
	struct list_head list;
	struct gct_uvm_space space;
	/* Its gct_mapped. */
	struct list_head mapped;
};

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

struct gct_known *gct_known_of(struct file *filp)
{
	struct gct_known *known;

	if (!gct_enabled() || READ_ONCE(gct_numbers) == 0)
		return NULL;
	mutex_lock(&gct_table_lock);
	known = gct_find(uvm_va_space_get(filp));
	mutex_unlock(&gct_table_lock);
	return known;
}

/*
 * The same. Makes it if there is none. NULL also where another control file has
 * registered GPU VA spaces there: gctgroup follows the first.
 */
static struct gct_known *gct_known_made(struct file *filp, void *owner)
{
	struct gct_known *made = kzalloc(sizeof(*made), GFP_KERNEL_ACCOUNT);
	struct gct_known *known;

	if (!made)
		return NULL;
	made->va_space = uvm_va_space_get(filp);
	made->filp = filp;
	made->owner = owner;
	made->next = GCT_WINDOW_FIRST;
	mutex_init(&made->lock);
	INIT_LIST_HEAD(&made->registered);
	mutex_lock(&gct_table_lock);
	known = gct_find(made->va_space);
	if (!known) {
		known = made;
		made = NULL;
		WRITE_ONCE(gct_numbers, gct_numbers + 1);
		known->number = gct_numbers;
		known->mm = current->mm;
		mmgrab(known->mm);
		hash_add(gct_table, &known->node, (unsigned long)known->va_space);
	}
	mutex_unlock(&gct_table_lock);
	kfree(made);
	return known->owner == owner ? known : NULL;
}

/* Returns the address space of a GPU. The lock of the space is held. */
static struct gct_registered *gct_registered_of(struct gct_known *known, const NvU8 *uuid)
{
	struct gct_registered *registered;

	list_for_each_entry(registered, &known->registered, list) {
		if (!memcmp(registered->space.uuid, uuid, sizeof(registered->space.uuid)))
			return registered;
	}
	return NULL;
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
	mutex_lock(&known->lock);
	status = uvm_api_register_gpu_va_space(params, filp);
	if (status == NV_OK) {
		list_add(&registered->list, &known->registered);
		gct_uvm_registered(known->owner, &registered->space);
		registered = NULL;
	}
	mutex_unlock(&known->lock);
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
		known = gct_known_made(filp, holder.file);
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

static NV_STATUS gct_unregister(const struct gct_unregister *call, const NvU8 *uuid,
				struct file *filp)
{
	struct gct_known *known = gct_known_of(filp);
	struct gct_registered *registered;
	NV_STATUS status = NV_ERR_IN_USE;

	if (!known)
		return gct_unregister_run(call, filp);
	mutex_lock(&known->lock);
	registered = gct_registered_of(known, uuid);
	if (!registered || list_empty(&registered->mapped))
		status = gct_unregister_run(call, filp);
	if (registered && status == NV_OK)
		list_del(&registered->list);
	mutex_unlock(&known->lock);
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
	list_for_each_entry_safe(registered, next, &known->registered, list)
		kfree(registered);
	gct_uvm_gone(known->owner, known->number, NULL);
	mmdrop(known->mm);
	kfree(known);
}

/* Returns what is known of a VA space by its number, with its file held, or NULL. */
static struct gct_known *gct_hold(u64 number)
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

/* Reserves the next window in current's mm. */
static bool gct_window_reserve(struct gct_known *known)
{
	while (known->count < GCT_WINDOWS_MAX && known->next < GCT_WINDOW_END) {
		const unsigned long at = known->next;

		known->next += GCT_WINDOW_STEP;
		if (vm_mmap(NULL, at, GCT_WINDOW_BYTES, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
			    0) == at) {
			known->windows[known->count++] = at;
			return true;
		}
	}
	return false;
}

/* Returns the first free address in a window for so many bytes, or 0. */
static u64 gct_address_in(uvm_va_space_t *va_space, u64 window, u64 bytes)
{
	const u64 end = window + GCT_WINDOW_BYTES;
	u64 at = window;

	while (at < end && bytes <= end - at) {
		uvm_va_range_t *range = uvm_va_space_iter_first(va_space, at, at + bytes - 1);

		if (!range)
			return at;
		at = range->node.end + 1;
	}
	return 0;
}

/* The same in any window. */
static u64 gct_address(struct gct_known *known, u64 bytes)
{
	unsigned int i;
	u64 address = 0;

	for (i = 0; i < known->count && !address; i++)
		address = gct_address_in(known->va_space, known->windows[i], bytes);
	return address;
}

/* Frees memory, or what there is of it. The VA space lock is held for writing. */
static void gct_free(struct gct_mapped *mapped)
{
	uvm_mem_free(mapped->mem);
	if (mapped->range)
		uvm_va_range_destroy(gct_base(mapped->range), NULL);
	kfree(mapped);
}

/* Makes and maps memory. The VA space lock is held for writing, and that of the mm. */
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

/* Maps memory in a window, if there is room. The lock of the space is held. */
static NV_STATUS gct_map_in(struct gct_known *known, struct gct_registered *registered, u64 bytes,
			    bool writes, struct gct_mapped **out)
{
	uvm_va_space_t *va_space = known->va_space;
	NV_STATUS status = NV_ERR_INVALID_STATE;
	NvProcessorUuid uuid;
	struct mm_struct *mm;
	uvm_gpu_t *gpu;

	memcpy(uuid.uuid, registered->space.uuid, sizeof(uuid.uuid));
	mm = uvm_va_space_mm_or_current_retain_lock(va_space);
	uvm_va_space_down_write(va_space);
	gpu = uvm_va_space_get_gpu_by_uuid_with_gpu_va_space(va_space, &uuid);
	if (gpu) {
		const u64 address = gct_address(known, bytes);

		status = NV_ERR_INSUFFICIENT_RESOURCES;
		if (address)
			status = gct_map_at(uvm_gpu_va_space_get(va_space, gpu), mm, address, bytes,
					    writes, out);
	}
	uvm_va_space_up_write(va_space);
	uvm_va_space_mm_or_current_release_unlock(va_space, mm);
	return status;
}

/* Maps memory, in a window or in a new one. The lock of the space is held. */
static NV_STATUS gct_map_known(struct gct_known *known, const struct gct_uvm_space *space,
			       u64 bytes, bool writes, struct gct_uvm_memory *memory)
{
	struct gct_registered *registered = gct_registered_of(known, space->uuid);
	struct gct_mapped *mapped = NULL;
	NV_STATUS status;

	if (!registered || memcmp(&registered->space, space, sizeof(*space)))
		return NV_ERR_INVALID_STATE;
	status = gct_map_in(known, registered, bytes, writes, &mapped);
	if (status == NV_ERR_INSUFFICIENT_RESOURCES && gct_window_reserve(known))
		status = gct_map_in(known, registered, bytes, writes, &mapped);
	if (status != NV_OK)
		return status;
	list_add(&mapped->list, &registered->mapped);
	memory->file = known->filp;
	memory->words = uvm_mem_get_cpu_addr_kernel(mapped->mem);
	memory->address = gct_base(mapped->range)->node.start;
	return NV_OK;
}

/* Returns whether addresses that are reserved in the space's mm are those that the GPU uses. */
static bool gct_is_mm(const struct gct_known *known)
{
	return !uvm_va_space_mm_enabled(known->va_space) ||
	       known->va_space->va_space_mm.mm == known->mm;
}

/* A call of gct_map(). */
struct gct_map_call {
	struct work_struct work;
	struct gct_known *known;
	const struct gct_uvm_space *space;
	u64 bytes;
	bool writes;
	struct gct_uvm_memory *memory;
	NV_STATUS status;
};

/* Maps memory. current's mm is the space's. */
static NV_STATUS gct_map_here(const struct gct_map_call *call)
{
	struct gct_known *known = call->known;
	NV_STATUS status;

	/*
	 * The caller holds nv_system_pm_lock, so no suspension waits for this lock.
	 * UVM_REGISTER_GPU_VASPACE takes it before gct_lock, hence no plain read.
	 */
	if (!uvm_down_read_trylock(&g_uvm_global.pm.lock))
		return NV_ERR_NOT_SUPPORTED;
	mutex_lock(&known->lock);
	status = gct_map_known(known, call->space, call->bytes, call->writes, call->memory);
	mutex_unlock(&known->lock);
	uvm_up_read(&g_uvm_global.pm.lock);
	return status;
}

static void gct_map_there(struct work_struct *work)
{
	struct gct_map_call *call = container_of(work, struct gct_map_call, work);

	kthread_use_mm(call->known->mm);
	UVM_ENTRY_VOID(call->status = gct_map_here(call));
	kthread_unuse_mm(call->known->mm);
}

static uint32_t gct_map(const struct gct_uvm_space *space, uint64_t bytes, uint32_t writes,
			struct gct_uvm_memory *memory)
{
	struct gct_known *known = gct_hold(space->number);
	struct gct_map_call call = {
		.known = known,
		.space = space,
		.bytes = bytes,
		.writes = writes,
		.memory = memory,
		.status = NV_ERR_NOT_SUPPORTED,
	};

	if (!known)
		return NV_ERR_INVALID_STATE;
	if (g_uvm_global.conf_computing_enabled || !gct_is_mm(known)) {
		/* Nothing is mapped there. */
	} else if (current->mm == known->mm) {
		call.status = gct_map_here(&call);
	} else if (mmget_not_zero(known->mm)) {
		/* The caller writes a limit, or a child of the tenant makes a channel. */
		INIT_WORK_ONSTACK(&call.work, gct_map_there);
		queue_work(system_dfl_wq, &call.work);
		flush_work(&call.work);
		destroy_work_on_stack(&call.work);
		mmput_async(known->mm);
	}
	if (call.status != NV_OK)
		fput(known->filp);
	return call.status;
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
	struct gct_mapped *mapped;
	struct gct_known *known;

	mutex_lock(&gct_table_lock);
	known = gct_find(uvm_va_space_get(filp));
	mutex_unlock(&gct_table_lock);
	/* In an ioctl this succeeds at once, see gct_map(). Elsewhere no gct_lock is held. */
	if (!uvm_down_read_trylock(&g_uvm_global.pm.lock))
		uvm_down_read(&g_uvm_global.pm.lock);
	mutex_lock(&known->lock);
	mapped = gct_mapped_at(known, memory->address);
	if (!WARN_ON_ONCE(!mapped)) {
		list_del(&mapped->list);
		uvm_va_space_down_write(known->va_space);
		gct_free(mapped);
		uvm_va_space_up_write(known->va_space);
	}
	mutex_unlock(&known->lock);
	uvm_up_read(&g_uvm_global.pm.lock);
	fput(filp);
}

static uint32_t gct_map_entry(const struct gct_uvm_space *space, uint64_t bytes, uint32_t writes,
			      struct gct_uvm_memory *memory)
{
	UVM_ENTRY_RET(gct_map(space, bytes, writes, memory));
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
