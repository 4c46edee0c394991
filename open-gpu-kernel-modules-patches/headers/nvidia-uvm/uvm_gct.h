/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * uvm_gct.h - the calls from nvidia-uvm.ko into gctgroup, which is in nvidia.ko.
 *
 * As with common/inc/nv-gct.h, all hooks are empty without gctgroup's sources.
 */
#ifndef _UVM_GCT_H_
#define _UVM_GCT_H_

#if defined(NV_GCT)

#include "gct-hooks.h"
#include "gct-pmm.h"
#include "uvm_gpu.h"
#include "uvm_kvmalloc.h"
#include "uvm_thread_context.h"
#include "uvm_va_block.h"
#include "uvm_va_space.h"

static inline NV_STATUS uvm_gct_space_open(uvm_va_space_t *va_space)
{
    if (gct_enabled() && gct_file_open(&va_space->gct_file) != 0)
        return NV_ERR_INSUFFICIENT_RESOURCES;
    return NV_OK;
}

static inline void uvm_gct_gpu_add(uvm_pmm_gpu_t *pmm)
{
    uvm_gpu_t *gpu = uvm_pmm_to_gpu(pmm);

    if (!gct_enabled())
        return;

    INIT_LIST_HEAD(&pmm->gct_none);
    pmm->gct_lists = uvm_kvmalloc_zero(2 * GCT_UVM_ACCOUNTS * sizeof(*pmm->gct_lists));
    if (pmm->gct_lists != NULL)
        pmm->gct_gpu = gct_uvm_gpu_add(gpu->parent->uuid.uuid, pmm->root_chunks.count);
}

static inline void uvm_gct_gpu_remove(uvm_pmm_gpu_t *pmm)
{
    NvU32 account;

    if (pmm->gct_gpu != NULL)
        gct_uvm_gpu_remove(pmm->gct_gpu);

    for (account = 0; pmm->gct_lists != NULL && account < 2 * GCT_UVM_ACCOUNTS; account++)
        uvm_kvfree(pmm->gct_lists[account]);

    uvm_kvfree(pmm->gct_lists);
    pmm->gct_gpu = NULL;
    pmm->gct_lists = NULL;
}

// Returns the account's lists of free subchunks, which several address spaces of
// its process may make at the same time. Those for page tables have the number of
// the account and GCT_UVM_ACCOUNTS.
static inline struct uvm_gct_lists *uvm_gct_lists(uvm_pmm_gpu_t *pmm, NvU32 account)
{
    struct uvm_gct_lists *lists = READ_ONCE(pmm->gct_lists[account]);
    NvU32 i, j;

    if (lists != NULL)
        return lists;

    lists = uvm_kvmalloc(sizeof(*lists));
    if (lists == NULL)
        return NULL;

    for (i = 0; i < ARRAY_SIZE(lists->free); i++) {
        for (j = 0; j < ARRAY_SIZE(lists->free[i]); j++)
            INIT_LIST_HEAD(&lists->free[i][j]);
    }

    if (cmpxchg(&pmm->gct_lists[account], NULL, lists) != NULL)
        uvm_kvfree(lists);

    return pmm->gct_lists[account];
}

static inline NV_STATUS uvm_gct_account_open(uvm_va_space_t *va_space, uvm_gpu_t *gpu)
{
    uvm_pmm_gpu_t *pmm = &gpu->pmm;
    NvU32 account;

    if (!gct_enabled())
        return NV_OK;

    account = gct_uvm_account_open(pmm->gct_gpu, va_space->gct_file);
    if (account == GCT_UVM_NO_ACCOUNT)
        return NV_ERR_INSUFFICIENT_RESOURCES;

    if (account != 0 &&
        (uvm_gct_lists(pmm, account) == NULL || uvm_gct_lists(pmm, account + GCT_UVM_ACCOUNTS) == NULL)) {
        gct_uvm_account_close(pmm->gct_gpu, account);
        return NV_ERR_NO_MEMORY;
    }

    va_space->gct_accounts[uvm_id_gpu_index(gpu->id)] = account;
    return NV_OK;
}

static inline void uvm_gct_account_close(uvm_va_space_t *va_space, uvm_gpu_t *gpu)
{
    NvU32 *account = &va_space->gct_accounts[uvm_id_gpu_index(gpu->id)];

    if (*account != 0)
        gct_uvm_account_close(gpu->pmm.gct_gpu, *account);

    *account = 0;
    uvm_gct_audit(&gpu->pmm);
}

// Notes for whom this thread allocates user chunks from now on.
static inline void uvm_gct_alloc_for(uvm_va_block_t *block, uvm_gpu_t *gpu)
{
    if (gct_enabled())
        uvm_thread_context()->gct_account =
            uvm_va_block_get_va_space(block)->gct_accounts[uvm_id_gpu_index(gpu->id)];
}

static inline bool uvm_gct_is_root(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
    return pmm->gct_gpu != NULL && uvm_gpu_chunk_get_size(chunk) == UVM_CHUNK_SIZE_MAX;
}

// Returns whether this thread allocates a chunk that an account is charged for: a
// user chunk, or page tables if it allocates those.
static inline bool uvm_gct_is_charged(uvm_pmm_gpu_t *pmm, uvm_pmm_gpu_memory_type_t type)
{
    uvm_thread_context_t *context;

    if (!gct_enabled() || pmm->gct_gpu == NULL)
        return false;

    context = uvm_thread_context();
    if (type != (context->gct_table ? UVM_PMM_GPU_MEMORY_TYPE_KERNEL : UVM_PMM_GPU_MEMORY_TYPE_USER))
        return false;

    return context->gct_account != 0;
}

// Charges a root chunk before this thread takes one, if its limits allow that.
static inline void uvm_gct_reserve(uvm_pmm_gpu_t *pmm,
                                   uvm_pmm_gpu_memory_type_t type,
                                   uvm_chunk_size_t size)
{
    uvm_thread_context_t *context;

    if (size != UVM_CHUNK_SIZE_MAX || !uvm_gct_is_charged(pmm, type))
        return;

    context = uvm_thread_context();
    if (context->gct_reserved)
        return;

    if (context->gct_table)
        context->gct_reserved = gct_uvm_reserve_table(pmm->gct_gpu, context->gct_account, 0, NULL);
    else
        context->gct_reserved = gct_uvm_reserve(pmm->gct_gpu, context->gct_account, 0, NULL);
}

// Refuses a root chunk that this thread has not reserved.
static inline NV_STATUS uvm_gct_admit(uvm_pmm_gpu_t *pmm, uvm_pmm_gpu_memory_type_t type)
{
    if (uvm_gct_is_charged(pmm, type) && !uvm_thread_context()->gct_reserved)
        return NV_ERR_NO_MEMORY;
    return NV_OK;
}

// Notes whether a root chunk was used, or is cold.
static inline void uvm_gct_use(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk, bool used)
{
    if (gct_enabled() && pmm->gct_gpu != NULL)
        gct_uvm_use(pmm->gct_gpu, chunk->address / UVM_CHUNK_SIZE_MAX, used);
}

// Evicts root chunks of whoever is at its limit, for the root chunk that this
// thread is about to allocate. No lock of a block or of PMM is held.
static inline void uvm_gct_make_room(uvm_gpu_t *gpu)
{
    if (uvm_gct_is_charged(&gpu->pmm, UVM_PMM_GPU_MEMORY_TYPE_USER))
        uvm_gct_evict_for_thread(gpu);
}

// Has PMM evict used root chunks of owners within their limits last.
static inline void uvm_gct_spare(uvm_pmm_gpu_t *pmm, struct list_head *unused, struct list_head *used)
{
    if (gct_enabled() && pmm->gct_gpu != NULL)
        uvm_gct_order_used(pmm, unused, used);
}

// Notes which chunks of a root chunk an eviction has pinned that cannot go on.
// PMM's list_lock is held, and the root chunk is still in eviction.
static inline void uvm_gct_give_up(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *root)
{
    if (gct_enabled())
        uvm_gct_mark_evicted(pmm, root);
}

// Returns whether the eviction that cannot go on has pinned the chunk, and has to
// free it. Another thread may have pinned it instead.
static inline bool uvm_gct_is_evicted(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
    return !gct_enabled() || uvm_gct_take_evicted(pmm, chunk);
}

// Charges a root chunk that this thread has allocated, if it is one, and notes
// that a part of one was used.
static inline void uvm_gct_take(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
    NvU32 root = chunk->address / UVM_CHUNK_SIZE_MAX;
    NvU32 account = 0;

    if (!gct_enabled() || !uvm_gct_is_root(pmm, chunk)) {
        uvm_gct_use(pmm, chunk, true);
        return;
    }

    if (uvm_gct_is_charged(pmm, chunk->type)) {
        account = uvm_thread_context()->gct_account;
        uvm_thread_context()->gct_reserved = false;
    }

    if (account != 0 && uvm_thread_context()->gct_table)
        gct_uvm_take_table(pmm->gct_gpu, root, account);
    else
        gct_uvm_take(pmm->gct_gpu, root, account);
}

static inline void uvm_gct_drop(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
    if (gct_enabled() && uvm_gct_is_root(pmm, chunk))
        gct_uvm_drop(pmm->gct_gpu, chunk->address / UVM_CHUNK_SIZE_MAX);
}

static inline struct list_head *uvm_gct_free_list(uvm_pmm_gpu_t *pmm,
                                                  NvU32 account,
                                                  uvm_pmm_gpu_memory_type_t type,
                                                  uvm_chunk_size_t size,
                                                  uvm_pmm_list_zero_t zero_type)
{
    uvm_chunk_sizes_mask_t sizes = pmm->chunk_sizes[type];

    if (type == UVM_PMM_GPU_MEMORY_TYPE_KERNEL)
        account += GCT_UVM_ACCOUNTS;

    return &pmm->gct_lists[account]->free[hweight_long(sizes & (size - 1))][zero_type];
}

// Replaces the list of free subchunks by that of the account for which this
// thread allocates, and the list of free root chunks by an empty one if this
// thread has reserved none.
static inline void uvm_gct_own_list(uvm_pmm_gpu_t *pmm,
                                    uvm_pmm_gpu_memory_type_t type,
                                    uvm_chunk_size_t size,
                                    uvm_pmm_list_zero_t zero_type,
                                    struct list_head **list)
{
    if (!uvm_gct_is_charged(pmm, type))
        return;

    if (size != UVM_CHUNK_SIZE_MAX)
        *list = uvm_gct_free_list(pmm, uvm_thread_context()->gct_account, type, size, zero_type);
    else if (!uvm_thread_context()->gct_reserved)
        *list = &pmm->gct_none;
}

// Returns the list of free subchunks where a free subchunk belongs if an account
// holds its root chunk, else NULL.
static inline struct list_head *uvm_gct_list_of(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
    NvU32 account;

    if (!gct_enabled() || pmm->gct_gpu == NULL || uvm_gct_is_root(pmm, chunk))
        return NULL;

    account = gct_uvm_holder(pmm->gct_gpu, chunk->address / UVM_CHUNK_SIZE_MAX);
    if (account == 0)
        return NULL;

    return uvm_gct_free_list(pmm,
                             account,
                             chunk->type,
                             uvm_gpu_chunk_get_size(chunk),
                             chunk->is_zero ? UVM_PMM_LIST_ZERO : UVM_PMM_LIST_NO_ZERO);
}

// Charges the process for what this thread has allocated, and not for what it
// has only reserved.
static inline void uvm_gct_settle(uvm_gpu_t *gpu)
{
    uvm_thread_context_t *context;

    if (!gct_enabled() || gpu->pmm.gct_gpu == NULL || uvm_thread_context()->gct_account == 0)
        return;

    context = uvm_thread_context();
    if (context->gct_reserved)
        gct_uvm_cancel(gpu->pmm.gct_gpu, context->gct_account);

    context->gct_reserved = false;
    gct_uvm_settle(gpu->pmm.gct_gpu, context->gct_account);
}

// Charges host memory that this thread allocates from now on to whom it evicts
// from the GPU.
static inline void uvm_gct_evict_begin(uvm_va_space_t *va_space, uvm_gpu_t *gpu)
{
    if (!gct_enabled())
        return;

    uvm_thread_context()->gct_evicts_from = gpu->pmm.gct_gpu;
    uvm_thread_context()->gct_evicts_of = va_space->gct_accounts[uvm_id_gpu_index(gpu->id)];
}

static inline void uvm_gct_evict_end(void)
{
    if (gct_enabled())
        uvm_thread_context()->gct_evicts_from = NULL;
}

// Charges host memory if this thread evicts. Refuses it beyond a limit, if the
// eviction is for the owner's own limit.
static inline NV_STATUS uvm_gct_host_charge(uvm_cpu_physical_chunk_t *chunk)
{
    uvm_thread_context_t *context;

    if (!gct_enabled() || uvm_thread_context()->gct_evicts_from == NULL)
        return NV_OK;

    context = uvm_thread_context();
    chunk->gct_charge = gct_uvm_host_charge(context->gct_evicts_from,
                                            context->gct_evicts_of,
                                            uvm_cpu_chunk_get_size(&chunk->common),
                                            context->gct_for_owner);
    return chunk->gct_charge == GCT_UVM_REFUSED ? NV_ERR_NO_MEMORY : NV_OK;
}

static inline void uvm_gct_host_uncharge(uvm_cpu_physical_chunk_t *chunk)
{
    if (chunk->gct_charge != 0)
        gct_uvm_host_uncharge(chunk->gct_charge, uvm_cpu_chunk_get_size(&chunk->common));
}

// Frees host memory that was refused.
static inline NV_STATUS uvm_gct_host_refuse(uvm_cpu_physical_chunk_t *chunk)
{
    chunk->gct_charge = 0;
    uvm_cpu_chunk_free(&chunk->common);
    return NV_ERR_NO_MEMORY;
}

// Returns the account that pays for a page table in device memory, or 0.
static inline NvU32 uvm_gct_table_account(uvm_page_tree_t *tree, uvm_aperture_t location)
{
    if (!gct_enabled() || location != UVM_APERTURE_VID || tree->gpu_va_space == NULL)
        return 0;

    if (tree->gpu->pmm.gct_gpu == NULL)
        return 0;

    return tree->gpu_va_space->va_space->gct_accounts[uvm_id_gpu_index(tree->gpu->id)];
}

typedef NV_STATUS (*uvm_gct_vidmem_t)(uvm_page_tree_t *tree,
                                      NvLength size,
                                      uvm_pmm_alloc_flags_t pmm_flags,
                                      uvm_mmu_page_table_alloc_t *out);

// Allocates a page table in a root chunk of the account that pays for it. At a limit
// the owner's root chunks give way if the caller may evict. Without room the caller
// uses host memory, as on a full GPU. An eviction evicts nothing for its page tables.
static inline NV_STATUS uvm_gct_alloc_table(uvm_page_tree_t *tree,
                                            NvLength size,
                                            uvm_pmm_alloc_flags_t pmm_flags,
                                            uvm_mmu_page_table_alloc_t *out,
                                            uvm_gct_vidmem_t vidmem)
{
    uvm_thread_context_t *context = uvm_thread_context();
    const NvU32 account = context->gct_account;
    const bool reserved = context->gct_reserved;
    const bool table = context->gct_table;
    NV_STATUS status;

    context->gct_account = uvm_gct_table_account(tree, UVM_APERTURE_VID);
    context->gct_reserved = false;
    context->gct_table = true;

    status = vidmem(tree, size, pmm_flags & ~UVM_PMM_ALLOC_FLAGS_EVICT, out);
    uvm_gct_settle(tree->gpu);
    if (status == NV_ERR_NO_MEMORY && (pmm_flags & UVM_PMM_ALLOC_FLAGS_EVICT)) {
        if (context->gct_evicts_from == NULL)
            uvm_gct_evict_for_table(tree->gpu);
        status = vidmem(tree, size, pmm_flags, out);
        uvm_gct_settle(tree->gpu);
    }

    context->gct_account = account;
    context->gct_reserved = reserved;
    context->gct_table = table;
    return status;
}

typedef void (*uvm_gct_fatal_t)(uvm_gpu_t *gpu,
                                uvm_fault_service_batch_context_t *batch_context,
                                NvU32 fault_index,
                                NV_STATUS status,
                                uvm_fault_cancel_va_mode_t cancel_va_mode,
                                NvU32 *block_faults);

// Keeps a shortage of memory from the rest of the batch, whose faults may be those
// of other address spaces: only the faults of the block that needs the memory are
// fatal.
static inline void uvm_gct_keep_shortage(uvm_gpu_t *gpu,
                                         uvm_fault_service_batch_context_t *batch_context,
                                         NvU32 fault_index,
                                         NvU32 *block_faults,
                                         uvm_gct_fatal_t fatal,
                                         NV_STATUS *status)
{
    const NvU32 count = *block_faults;

    if (!gct_enabled() || *status != NV_ERR_NO_MEMORY)
        return;

    *block_faults = 0;
    do {
        fatal(gpu,
              batch_context,
              fault_index + *block_faults,
              *status,
              UVM_FAULT_CANCEL_VA_MODE_ALL,
              block_faults);
    } while (*block_faults < count);

    *status = NV_OK;
}

static inline void uvm_gct_space_close(uvm_va_space_t *va_space)
{
    if (va_space->gct_file != NULL)
        gct_file_close(va_space->gct_file);
}

#else

#define uvm_gct_gpu_add(pmm) do { } while (0)
#define uvm_gct_gpu_remove(pmm) do { } while (0)
#define uvm_gct_account_open(va_space, gpu) NV_OK
#define uvm_gct_account_close(va_space, gpu) do { } while (0)
#define uvm_gct_alloc_for(block, gpu) do { } while (0)
#define uvm_gct_reserve(pmm, type, size) do { } while (0)
#define uvm_gct_admit(pmm, type) NV_OK
#define uvm_gct_use(pmm, chunk, used) do { } while (0)
#define uvm_gct_make_room(gpu) do { } while (0)
#define uvm_gct_spare(pmm, unused, used) do { } while (0)
#define uvm_gct_give_up(pmm, root) do { } while (0)
#define uvm_gct_is_evicted(pmm, chunk) true
#define uvm_gct_take(pmm, chunk) do { } while (0)
#define uvm_gct_drop(pmm, chunk) do { } while (0)
#define uvm_gct_evict_begin(va_space, gpu) do { } while (0)
#define uvm_gct_evict_end() do { } while (0)
#define uvm_gct_host_charge(chunk) NV_OK
#define uvm_gct_host_uncharge(chunk) do { } while (0)
#define uvm_gct_host_refuse(chunk) NV_ERR_NO_MEMORY
#define uvm_gct_settle(gpu) do { } while (0)
#define uvm_gct_table_account(tree, location) 0
#define uvm_gct_alloc_table(tree, size, flags, out, vidmem) NV_ERR_NO_MEMORY
#define uvm_gct_keep_shortage(gpu, context, index, faults, fatal, status) do { } while (0)
#define uvm_gct_own_list(pmm, type, size, zero_type, list) do { } while (0)
#define uvm_gct_list_of(pmm, chunk) NULL
#define uvm_gct_space_open(va_space) NV_OK
#define uvm_gct_space_close(va_space) do { } while (0)

#endif /* NV_GCT */

#endif /* _UVM_GCT_H_ */
