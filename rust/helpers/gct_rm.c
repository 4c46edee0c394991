// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Calls the resource manager through rm_kernel_rmapi_op(), the interface that
 * kernel-open has for nvidia-modeset. gct_rm_operate() is its only caller. The calls
 * run with the kernel's rights: what each accepts is said in rust/gct_kernel/rm.rs,
 * their only caller.
 */
#include "nv-linux.h"

#include <linux/workqueue.h>

#include "gct_helpers.h"
#include "gct_rmapi.h"

/* Returns what stopped the operation before it began; otherwise its own status counts. */
static uint32_t gct_rm_operate(struct gct_rm_operation *operation)
{
	nvidia_stack_t *stack = NULL;

	if (nv_kmem_cache_alloc_stack(&stack) != 0)
		return NV_ERR_NO_MEMORY;
	rm_kernel_rmapi_op(stack, operation);
	nv_kmem_cache_free_stack(stack);
	return NV_OK;
}

uint32_t gct_helper_rm_control(uint32_t client, uint32_t object, uint32_t command, void *params,
			       uint32_t size)
{
	struct gct_rm_operation call = {
		.operation = GCT_NV04_CONTROL,
		.control = {
			.client = client,
			.object = object,
			.command = command,
			.params = (uintptr_t)params,
			.size = size,
		},
	};
	const uint32_t failed = gct_rm_operate(&call);

	return failed ? failed : call.control.status;
}

int gct_helper_rm_begin(bool interruptible)
{
	if (interruptible)
		return down_read_interruptible(&nv_system_pm_lock);
	down_read(&nv_system_pm_lock);
	return 0;
}

bool gct_helper_rm_try_begin(void)
{
	return down_read_trylock(&nv_system_pm_lock);
}

void gct_helper_rm_end(void)
{
	up_read(&nv_system_pm_lock);
}

/* NV0041_CTRL_CMD_GET_SURFACE_INFO, here with one NV0041_CTRL_SURFACE_INFO. */
#define GCT_GET_SURFACE_INFO 0x410110
#define GCT_SURFACE_PHYS_SIZE 7
#define GCT_SURFACE_SIZE_UNIT 0x1000

uint64_t gct_helper_rm_memory_bytes(uint32_t client, uint32_t memory)
{
	struct {
		uint32_t index;
		uint32_t data;
	} info = { .index = GCT_SURFACE_PHYS_SIZE };
	struct {
		uint32_t count;
		uint64_t list __aligned(8);
	} params = { .count = 1, .list = (uintptr_t)&info };

	_Static_assert(sizeof(params) == 16, "NV0041_CTRL_GET_SURFACE_INFO_PARAMS");
	if (gct_helper_rm_control(client, memory, GCT_GET_SURFACE_INFO, &params, sizeof(params)) != 0)
		return 0;
	return (uint64_t)info.data * GCT_SURFACE_SIZE_UNIT;
}

/* An allocation, for a kernel thread. */
struct gct_rm_root {
	struct work_struct work;
	struct gct_rm_operation call;
	uint32_t failed;
};

static void gct_rm_root_work(struct work_struct *work)
{
	struct gct_rm_root *root = container_of(work, struct gct_rm_root, work);

	root->failed = gct_rm_operate(&root->call);
}

/*
 * The resource manager takes current's process for the owner of a client, and lets it
 * duplicate what the client has. No tenant runs a kernel thread.
 */
uint32_t gct_helper_rm_root(void *params)
{
	struct gct_rm_root root = {
		.call = {
			.operation = GCT_NV04_ALLOC,
			.alloc = { .params = (uintptr_t)params },
		},
	};

	INIT_WORK_ONSTACK(&root.work, gct_rm_root_work);
	queue_work(system_dfl_wq, &root.work);
	flush_work(&root.work);
	destroy_work_on_stack(&root.work);
	return root.failed ? root.failed : *gct_rm_alloc_status(&root.call);
}

uint32_t gct_helper_rm_alloc(uint32_t client, uint32_t parent, uint32_t object,
				 uint32_t class_number, void *params)
{
	struct gct_rm_operation call = {
		.operation = GCT_NV04_ALLOC,
		.alloc = {
			.root = client,
			.parent = parent,
			.object = object,
			.class_number = class_number,
			.params = (uintptr_t)params,
		},
	};
	const uint32_t failed = gct_rm_operate(&call);

	return failed ? failed : *gct_rm_alloc_status(&call);
}

uint32_t gct_helper_rm_free(uint32_t client, uint32_t object)
{
	struct gct_rm_operation call = {
		.operation = GCT_NV01_FREE,
		.free = { .root = client, .object = object },
	};
	const uint32_t failed = gct_rm_operate(&call);

	return failed ? failed : call.free.status;
}

uint32_t gct_helper_rm_dup(uint32_t client, uint32_t parent, uint32_t object,
			       uint32_t source_client, uint32_t source)
{
	struct gct_rm_operation call = {
		.operation = GCT_NV04_DUP_OBJECT,
		.dup = {
			.client = client,
			.parent = parent,
			.object = object,
			.source_client = source_client,
			.source = source,
		},
	};
	const uint32_t failed = gct_rm_operate(&call);

	return failed ? failed : call.dup.status;
}

void *gct_helper_rm_map(uint32_t client, uint32_t device, uint32_t memory, uint64_t offset,
			uint64_t bytes, bool writes)
{
	struct gct_rm_operation call = {
		.operation = GCT_NV04_MAP_MEMORY,
		.map = {
			.client = client,
			.device = device,
			.memory = memory,
			.offset = offset,
			.length = bytes,
			.flags = writes ? 0 : GCT_MAP_READ_ONLY,
		},
	};

	if (gct_rm_operate(&call) != NV_OK || call.map.status != NV_OK)
		return NULL;
	return (void *)(uintptr_t)call.map.address;
}

uint32_t gct_helper_rm_map_gpu(uint32_t client, uint32_t device, uint32_t range,
				   uint32_t memory, uint64_t bytes, uint32_t flags,
				   uint64_t *address)
{
	struct gct_rm_operation call = {
		.operation = GCT_NV04_MAP_MEMORY_DMA,
		.map_dma = {
			.client = client,
			.device = device,
			.range = range,
			.memory = memory,
			.length = bytes,
			.flags = flags,
		},
	};
	const uint32_t failed = gct_rm_operate(&call);

	*address = *gct_rm_map_dma_address(&call);
	return failed ? failed : *gct_rm_map_dma_status(&call);
}
