// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The kernel's own client of the resource manager, as nvidia-modeset has one: it
 * allocates what owned channels are made of. See gct_helpers.h for the contracts.
 */
#include "nv-linux.h"

#include <linux/io.h>

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

uint32_t gct_helper_client_alloc(uint32_t client, uint32_t parent, uint32_t object,
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

uint32_t gct_helper_client_free(uint32_t client, uint32_t object)
{
	struct gct_rm_operation call = {
		.operation = GCT_NV01_FREE,
		.free = { .root = client, .object = object },
	};
	const uint32_t failed = gct_rm_operate(&call);

	return failed ? failed : call.free.status;
}

uint32_t gct_helper_client_dup(uint32_t client, uint32_t parent, uint32_t object,
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

void *gct_helper_client_map(uint32_t client, uint32_t device, uint32_t memory, uint64_t offset,
			    uint64_t bytes)
{
	struct gct_rm_operation call = {
		.operation = GCT_NV04_MAP_MEMORY,
		.map = {
			.client = client,
			.device = device,
			.memory = memory,
			.offset = offset,
			.length = bytes,
		},
	};

	if (gct_rm_operate(&call) != NV_OK || call.map.status != NV_OK)
		return NULL;
	return (void *)(uintptr_t)call.map.address;
}

uint32_t gct_helper_client_map_gpu(uint32_t client, uint32_t device, uint32_t range,
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

/* From 595 on a caller may say that it need not keep the GPU from a reset. */
#ifdef GCT_RESETS
#define gct_dev_get(gpu_id, stack) nvidia_dev_get(gpu_id, stack, NV_FALSE)
#define gct_dev_put(gpu_id, stack) nvidia_dev_put(gpu_id, stack, NV_FALSE)
#else
#define gct_dev_get nvidia_dev_get
#define gct_dev_put nvidia_dev_put
#endif

int gct_helper_gpu_hold(uint32_t gpu_id)
{
	nvidia_stack_t *stack = NULL;
	int error;

	if (nv_kmem_cache_alloc_stack(&stack) != 0)
		return -ENOMEM;
	error = gct_dev_get(gpu_id, stack);
	nv_kmem_cache_free_stack(stack);
	return error;
}

void gct_helper_gpu_release(uint32_t gpu_id)
{
	nvidia_stack_t *stack = NULL;

	/* Without a stack of its own, the resource manager runs on the caller's. */
	if (nv_kmem_cache_alloc_stack(&stack) != 0)
		stack = NULL;
	gct_dev_put(gpu_id, stack);
	if (stack)
		nv_kmem_cache_free_stack(stack);
}

uint32_t gct_helper_read32(const void *address)
{
	return readl((const void __iomem *)address);
}

void gct_helper_write32(void *address, uint32_t value)
{
	writel(value, (void __iomem *)address);
}

uint64_t gct_helper_read64(const void *address)
{
	return readq((const void __iomem *)address);
}

void gct_helper_write64(void *address, uint64_t value)
{
	writeq(value, (void __iomem *)address);
}

void gct_helper_read_words(uint32_t *to, const void *from, uint32_t count)
{
	const uint32_t __iomem *words = from;
	uint32_t at = 0;

	if (!IS_ALIGNED((uintptr_t)from, sizeof(uint64_t)) && count)
		to[at++] = __raw_readl(words);
	for (; at + 1 < count; at += 2) {
		const uint64_t pair = __raw_readq(&words[at]);

		to[at] = lower_32_bits(pair);
		to[at + 1] = upper_32_bits(pair);
	}
	if (at < count)
		to[at] = __raw_readl(&words[at]);
}

void gct_helper_write_words(void *to, const uint32_t *from, uint32_t count)
{
	memcpy(to, from, count * sizeof(*from));
}

void gct_helper_ring(void *put_address, uint32_t put, void *doorbell, uint32_t token)
{
	/* The entries are in memory before the hardware can see their number. */
	wmb();
	writel(put, (void __iomem *)put_address);
	wmb();
	writel(token, (void __iomem *)doorbell);
}
