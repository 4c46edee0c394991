// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Sends controls to the resource manager through rm_kernel_rmapi_op(), the interface
 * that kernel-open has for nvidia-modeset. They run with the kernel's rights.
 */
#include "nv-linux.h"

#include "gct_helpers.h"

/*
 * Operation NV04_CONTROL of rm_kernel_rmapi_op(), and its NVOS54_PARAMETERS.
 * kernel-open declares neither; both are the same in 535, 550, 580 and 595.
 */
#define GCT_RM_CONTROL 0x36

struct gct_rm_control {
	uint32_t operation;
	uint32_t client __aligned(8);
	uint32_t object;
	uint32_t command;
	uint32_t flags;
	uint64_t params;
	uint32_t size;
	uint32_t status;
};

_Static_assert(offsetof(struct gct_rm_control, client) == 8, "NVOS54_PARAMETERS");
_Static_assert(offsetof(struct gct_rm_control, params) == 24, "NVOS54_PARAMETERS");
_Static_assert(sizeof(struct gct_rm_control) == 40, "NVOS54_PARAMETERS");

uint32_t gct_helper_rm_control(uint32_t client, uint32_t object, uint32_t command, void *params,
			       uint32_t size)
{
	struct gct_rm_control call = {
		.operation = GCT_RM_CONTROL,
		.client = client,
		.object = object,
		.command = command,
		.params = (uintptr_t)params,
		.size = size,
	};
	nvidia_stack_t *stack = NULL;

	if (nv_kmem_cache_alloc_stack(&stack) != 0)
		return NV_ERR_NO_MEMORY;
	rm_kernel_rmapi_op(stack, &call);
	nv_kmem_cache_free_stack(stack);
	return call.status;
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
