/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * gct-pmm-evict.h - implements gct-pmm.h by functions that are static in
 * uvm_pmm_gpu.c, which includes this last.
 */
#ifndef GCT_PMM_EVICT_H
#define GCT_PMM_EVICT_H

#include <linux/delay.h>
#include <linux/sched/signal.h>

#include "uvm_global.h"

/*
 * How often, and how long each time, a thread waits for root chunks that other threads
 * of its owner have pinned. They unpin them when they have mapped them.
 */
#define GCT_WAITS_MAX 100
#define GCT_WAIT_US 1000

/*
 * How many root chunks a thread that serves faults of all tenants, or that allocates page
 * tables, evicts for one. An owner's other threads may take each of them first.
 */
#define GCT_EVICTIONS_MAX 16

/* Returns whether a root chunk can be evicted now. list_lock is held. */
static uint32_t gct_can_leave(void *void_pmm, uint32_t root)
{
	uvm_pmm_gpu_t *pmm = void_pmm;

	return root < pmm->root_chunks.count &&
	       chunk_is_evictable(pmm, &pmm->root_chunks.array[root].chunk);
}

/* Chooses a root chunk of the victim, and begins to evict it. */
static uvm_gpu_root_chunk_t *gct_start_eviction(uvm_pmm_gpu_t *pmm, NvU32 victim)
{
	uvm_gpu_root_chunk_t *root_chunk = NULL;
	NvU32 root;

	uvm_spin_lock(&pmm->list_lock);
	root = gct_uvm_pick(pmm->gct_gpu, victim, gct_can_leave, pmm);
	if (root < pmm->root_chunks.count) {
		root_chunk = &pmm->root_chunks.array[root];
		chunk_start_eviction(pmm, &root_chunk->chunk);
	}
	uvm_spin_unlock(&pmm->list_lock);
	return root_chunk;
}

/* Makes a root chunk of the victim the first of @used. Returns false if none can leave. */
static bool gct_move_first(uvm_pmm_gpu_t *pmm, NvU32 victim, struct list_head *used)
{
	NvU32 root;

	uvm_spin_lock(&pmm->list_lock);
	root = gct_uvm_pick(pmm->gct_gpu, victim, gct_can_leave, pmm);
	if (root < pmm->root_chunks.count)
		list_move(&pmm->root_chunks.array[root].chunk.list, used);
	uvm_spin_unlock(&pmm->list_lock);
	return root < pmm->root_chunks.count;
}

/* Returns the used root chunk that PMM evicts next, or GCT_UVM_NO_ROOT. */
static NvU32 gct_next_used(uvm_pmm_gpu_t *pmm, struct list_head *unused, struct list_head *used)
{
	uvm_gpu_chunk_t *first;
	NvU32 root = GCT_UVM_NO_ROOT;
	int zero;

	uvm_spin_lock(&pmm->list_lock);
	first = list_first_chunk(unused);
	for (zero = 0; zero < UVM_PMM_LIST_ZERO_COUNT && !first; zero++)
		first = list_first_chunk(find_free_list(pmm, UVM_PMM_GPU_MEMORY_TYPE_USER,
							UVM_CHUNK_SIZE_MAX, zero));
	if (!first && (first = list_first_chunk(used)))
		root = root_chunk_index(pmm, root_chunk_from_chunk(pmm, first));
	uvm_spin_unlock(&pmm->list_lock);
	return root;
}

void uvm_gct_order_used(uvm_pmm_gpu_t *pmm, struct list_head *unused, struct list_head *used)
{
	const NvU32 root = gct_next_used(pmm, unused, used);
	NvU32 victim, tried = 0;

	do {
		victim = root == GCT_UVM_NO_ROOT ? 0 : gct_uvm_instead(pmm->gct_gpu, root, tried++);
	} while (victim != 0 && !gct_move_first(pmm, victim, used));
}

static NV_STATUS gct_mark_pinned(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk, void *unused)
{
	chunk->gct_evicted = chunk->state == UVM_PMM_GPU_CHUNK_STATE_TEMP_PINNED;
	return NV_OK;
}

void uvm_gct_mark_evicted(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *root)
{
	(void)chunk_walk_pre_order(pmm, root, gct_mark_pinned, NULL);
}

bool uvm_gct_take_evicted(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
	bool evicted;

	uvm_spin_lock(&pmm->list_lock);
	evicted = chunk->gct_evicted;
	chunk->gct_evicted = false;
	uvm_spin_unlock(&pmm->list_lock);
	return evicted;
}

/*
 * Evicts a root chunk of the victim (gct_uvm_reserve), which then is free. Returns
 * NV_ERR_BUSY_RETRY if none can leave now, and NV_ERR_NO_MEMORY if the host has no
 * room, within hmem.limit. No lock of a block or of PMM is held.
 */
static NV_STATUS gct_evict(uvm_pmm_gpu_t *pmm, NvU32 victim)
{
	NV_STATUS status = NV_ERR_BUSY_RETRY;
	uvm_gpu_root_chunk_t *root_chunk;

	uvm_mutex_lock(&pmm->lock);
	root_chunk = gct_start_eviction(pmm, victim);
	uvm_thread_context()->gct_for_owner = true;
	if (root_chunk)
		status = evict_root_chunk(pmm, root_chunk, PMM_CONTEXT_DEFAULT);
	uvm_thread_context()->gct_for_owner = false;
	if (status == NV_OK) {
		gct_uvm_evicted(pmm->gct_gpu, root_chunk_index(pmm, root_chunk));
		/* It is pinned and whole. Its holder pays until it is free. */
		(void)try_chunk_free(pmm, &root_chunk->chunk);
	}
	/* Somebody else has a reference to one of its pages. It has gone to PMA. */
	if (status == NV_ERR_IN_USE)
		status = NV_OK;
	uvm_mutex_unlock(&pmm->lock);
	return status;
}

/* Returns the GPU that gctgroup knows as @gct_gpu, which cannot go until it is released. */
static uvm_gpu_t *gct_retain_gpu(const NvU8 *uuid, void *gct_gpu)
{
	NvProcessorUuid processor;
	uvm_gpu_t *gpu;

	memcpy(processor.uuid, uuid, sizeof(processor.uuid));
	uvm_mutex_lock(&g_uvm_global.global_lock);
	gpu = uvm_gpu_get_by_uuid(&processor);
	if (gpu && gpu->pmm.gct_gpu == gct_gpu)
		uvm_gpu_retain(gpu);
	else
		gpu = NULL;
	uvm_mutex_unlock(&g_uvm_global.global_lock);
	return gpu;
}

NV_STATUS uvm_gct_evict_on(const NvU8 *uuid, void *gct_gpu, NvU32 victim, NvU32 keeps)
{
	uvm_gpu_t *gpu = gct_retain_gpu(uuid, gct_gpu);
	NV_STATUS status;

	if (!gpu)
		return NV_ERR_INVALID_DEVICE;

	status = gct_evict(&gpu->pmm, victim);
	if (status == NV_OK && !keeps)
		(void)free_next_available_root_chunk(&gpu->pmm, UVM_PMM_GPU_MEMORY_TYPE_USER);
	uvm_gpu_release(gpu);
	return status;
}

/*
 * Waits a little for the owner's other threads, and has all victims tried again. Returns
 * false if that is of no use any more.
 */
static bool gct_wait(unsigned int *waits, uint32_t *tried)
{
	*tried = 0;
	if (++*waits > GCT_WAITS_MAX)
		return false;
	usleep_range(GCT_WAIT_US, 2 * GCT_WAIT_US);
	return true;
}

/*
 * Returns whether a thread of the kernel goes on when no victim has more to give, and
 * what it tries next. It serves faults of all tenants, so it does not wait for one. A
 * root chunk beyond gmem.limit is the first to leave at the next fault. If it does not
 * go on, uvm_gct_keep_shortage() has the fault end its owner's channel alone.
 */
static bool gct_goes_on(uvm_pmm_gpu_t *pmm, NvU32 account, uint32_t *failed, uint32_t *tried)
{
	const uint32_t shortage = gct_uvm_shortage(pmm->gct_gpu, account, *failed);

	/* Counted, so that it ends also where all others are pinned. */
	*failed += 1;
	*tried = shortage == GCT_UVM_PASSING ? GCT_UVM_ANYWAY : 0;
	return shortage != GCT_UVM_LASTING;
}

void uvm_gct_evict_for_thread(uvm_gpu_t *gpu)
{
	const bool serves_all = current->flags & PF_KTHREAD;
	uvm_pmm_gpu_t *pmm = &gpu->pmm;
	uvm_thread_context_t *context = uvm_thread_context();
	uint32_t victim, tried = 0, failed = 0, evicted = 0;
	unsigned int waits = 0;

	while (!gct_uvm_reserve(pmm->gct_gpu, context->gct_account, tried, &victim)) {
		NV_STATUS status = NV_ERR_BUSY_RETRY;

		if (fatal_signal_pending(current))
			return;
		if (victim != 0)
			status = gct_evict(pmm, victim);
		failed += status == NV_ERR_NO_MEMORY;
		tried++;
		if (status == NV_OK)
			tried = serves_all && ++evicted == GCT_EVICTIONS_MAX ? GCT_UVM_ANYWAY : 0;
		else if (victim == 0 && serves_all &&
			 !gct_goes_on(pmm, context->gct_account, &failed, &tried))
			return;
		else if (victim == 0 && !serves_all && !gct_wait(&waits, &tried))
			return;
	}
	context->gct_reserved = true;
}

void uvm_gct_evict_for_table(uvm_gpu_t *gpu)
{
	uvm_pmm_gpu_t *pmm = &gpu->pmm;
	uvm_thread_context_t *context = uvm_thread_context();
	uint32_t victim, tried = 0, evicted = 0;

	while (!gct_uvm_reserve_table(pmm->gct_gpu, context->gct_account, tried, &victim)) {
		if (victim == 0 || evicted == GCT_EVICTIONS_MAX || fatal_signal_pending(current))
			return;
		tried++;
		if (gct_evict(pmm, victim) == NV_OK) {
			tried = 0;
			evicted++;
		}
	}
	context->gct_reserved = true;
}

#if UVM_IS_DEBUG()
/*
 * Asserts what is known of the holder of a root chunk by one of its chunks. A chunk that
 * is pinned is on its way from one holder to the next.
 */
static NV_STATUS gct_audit_chunk(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk, void *root_chunk)
{
	const size_t root = root_chunk_index(pmm, root_chunk);
	uvm_va_space_t *va_space = NULL;
	bool is_known = false;
	NvU32 account = 0;

	uvm_spin_lock(&pmm->list_lock);
	if (chunk->state == UVM_PMM_GPU_CHUNK_STATE_ALLOCATED && chunk->va_block)
		va_space = uvm_va_block_get_va_space_maybe_dead(chunk->va_block);
	if (va_space) {
		account = va_space->gct_accounts[uvm_id_gpu_index(uvm_pmm_to_gpu(pmm)->id)];
		is_known = true;
	} else if (chunk_is_root_chunk(chunk)) {
		is_known = chunk->state == UVM_PMM_GPU_CHUNK_STATE_PMA_OWNED ||
			   chunk->state == UVM_PMM_GPU_CHUNK_STATE_FREE;
	}
	UVM_ASSERT_MSG(!is_known || gct_uvm_holder(pmm->gct_gpu, root) == account,
		       "root chunk %zu is charged to account %u, and is of account %u\n", root,
		       gct_uvm_holder(pmm->gct_gpu, root), account);
	uvm_spin_unlock(&pmm->list_lock);
	return NV_OK;
}

void uvm_gct_audit(uvm_pmm_gpu_t *pmm)
{
	size_t root;

	if (!pmm->gct_gpu)
		return;

	uvm_mutex_lock(&pmm->lock);
	for (root = 0; root < pmm->root_chunks.count; root++) {
		uvm_gpu_root_chunk_t *root_chunk = &pmm->root_chunks.array[root];

		(void)chunk_walk_pre_order(pmm, &root_chunk->chunk, gct_audit_chunk, root_chunk);
	}
	uvm_mutex_unlock(&pmm->lock);
}
#endif

#endif /* GCT_PMM_EVICT_H */
