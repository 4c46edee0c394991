// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Keeps GPUs initialised, and loads and stores memory that is mapped for the kernel.
 * See gct_helpers.h for the contracts.
 */
#include "nv-linux.h"

#include <linux/io.h>

#include "gct_helpers.h"
#include "gct_rmapi.h"

/* From 595 on a caller may say that it need not keep the GPU from a reset. */
#ifdef GCT_RESETS
#define gct_dev_get(gpu_id, stack) nvidia_dev_get(gpu_id, stack, NV_FALSE)
#define gct_dev_put(gpu_id, stack) nvidia_dev_put(gpu_id, stack, NV_FALSE)
#else
#define gct_dev_get nvidia_dev_get
#define gct_dev_put nvidia_dev_put
#endif

/*
 * Returns whether the processor uses the GPU's memory as its own, as on Grace Hopper. Such
 * memory has pages, and is not mapped as the GPU's. The GPU is initialised.
 */
static bool gct_gpu_is_coherent(uint32_t gpu_id)
{
	nv_linux_state_t *nvl;
	bool coherent = false;

	LOCK_NV_LINUX_DEVICES();
	for (nvl = nv_linux_devices; nvl; nvl = nvl->next) {
		const nv_state_t *nv = NV_STATE_PTR(nvl);

		if (nv->gpu_id == gpu_id)
			coherent = nv->coherent ||
				   nv_get_numa_status(nvl) == NV_IOCTL_NUMA_STATUS_ONLINE;
	}
	UNLOCK_NV_LINUX_DEVICES();
	return coherent;
}

int gct_helper_gpu_hold(uint32_t gpu_id)
{
	nvidia_stack_t *stack = NULL;
	int error;

	if (nv_kmem_cache_alloc_stack(&stack) != 0)
		return -ENOMEM;
	error = gct_dev_get(gpu_id, stack);
	if (!error && gct_gpu_is_coherent(gpu_id)) {
		gct_dev_put(gpu_id, stack);
		error = -EOPNOTSUPP;
	}
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
