// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * How gctgroup talks to the resource manager: through rm_kernel_rmapi_op(), the
 * way that kernel-open offers to nvidia-modeset, in the name of the kernel.
 */
#include "nv-linux.h"

#include "gct_helpers.h"

/* Operation NV04_CONTROL of rm_kernel_rmapi_op(), with NVOS54_PARAMETERS. Neither
 * is declared in kernel-open; both are the same in 535, 550, 580 and 595. */
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

void gct_helper_rm_end(void)
{
	up_read(&nv_system_pm_lock);
}
