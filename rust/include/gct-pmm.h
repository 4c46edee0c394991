/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * gct-pmm.h - eviction of managed memory for an owner's limit, and an audit of what it
 * is charged by. gct-pmm-evict.h, which uvm_pmm_gpu.c includes, implements both.
 */
#ifndef GCT_PMM_H
#define GCT_PMM_H

#include "uvm_gpu.h"
#include "uvm_pmm_gpu.h"

/* Evicts until this thread has reserved a root chunk, or nothing can leave. */
void uvm_gct_evict_for_thread(uvm_gpu_t *gpu);

/* The same for a root chunk of page tables. It waits for nobody: these can go to the host. */
void uvm_gct_evict_for_table(uvm_gpu_t *gpu);

/*
 * Makes the root chunk the first of @used that a full GPU evicts next. @unused ones and
 * free ones leave before. PMM's lock is held.
 */
void uvm_gct_order_used(uvm_pmm_gpu_t *pmm, struct list_head *unused, struct list_head *used);

/*
 * Marks the chunks of a root chunk that an eviction has pinned. PMM's list_lock is held,
 * and the root chunk is in eviction, so nobody else has pinned one.
 */
void uvm_gct_mark_evicted(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *root);

/* Returns whether a chunk is marked, and takes the mark away. PMM's lock is held. */
bool uvm_gct_take_evicted(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk);

/*
 * Evicts a root chunk of a victim on a GPU: gct_uvm_operations.evict. No lock of UVM is
 * held.
 */
NV_STATUS uvm_gct_evict_on(const NvU8 *uuid, void *gct_gpu, NvU32 victim, NvU32 keeps);

/*
 * Asserts that each root chunk is charged to the account whose memory is in it. In a
 * debug build of nvidia-uvm only. Takes PMM's lock.
 */
#if UVM_IS_DEBUG()
void uvm_gct_audit(uvm_pmm_gpu_t *pmm);
#else
static inline void uvm_gct_audit(uvm_pmm_gpu_t *pmm) {}
#endif

#endif /* GCT_PMM_H */
