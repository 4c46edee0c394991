// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Tests of UVM's memory on a GPU: its allocator, migration, eviction, and RM's page tables. */
#include <string.h>
#include <stdio.h>

#include "uvm.h"

static int pmm_query(struct session *s)
{
	UVM_TEST_PMM_QUERY_PARAMS params = {
		.gpu_uuid = s->gpu,
		.key = UVM_TEST_CHUNK_SIZE_GET_USER_SIZE,
	};

	CHECK_OK(UVM_TEST(s->fd, PMM_QUERY, params));
	value("chunk sizes %#llx", (unsigned long long)params.value);
	CHECK(params.value & BLOCK_BYTES);
	params.key = 100;
	CHECK_STATUS(UVM_TEST(s->fd, PMM_QUERY, params), NV_ERR_INVALID_ARGUMENT);
	return 0;
}

/* The test allocates as many chunks as requested, and frees all. */
static int pmm_check_leak(struct session *s)
{
	UVM_TEST_PMM_CHECK_LEAK_PARAMS params = {
		.gpu_uuid = s->gpu,
		.chunk_size = BLOCK_BYTES,
		.alloc_limit = rounds(1000),
	};

	CHECK_OK(UVM_TEST(s->fd, PMM_CHECK_LEAK, params));
	CHECK_EQUAL(params.allocated, rounds(1000));
	return 0;
}

static int pmm_sanity(struct session *s)
{
	/* The full form takes minutes. */
	CHECK_OK(UVM_RUN(s->fd, PMM_SANITY, .mode = UvmTestPmmSanityModeBasic));
	return 0;
}

static int pmm_async_alloc(struct session *s)
{
	CHECK_OK(UVM_RUN(s->fd, PMM_ASYNC_ALLOC, .gpu_uuid = s->gpu,
			 .num_chunks = 16, .num_work_iterations = 10));
	return 0;
}

static int pma_alloc_free(struct session *s)
{
	const unsigned int page_sizes[] = { 64 << 10, 2 << 20 };
	size_t i;

	for (i = 0; i < 2; i++) {
		CHECK_OK(UVM_RUN(s->fd, PMA_ALLOC_FREE, .gpu_uuid = s->gpu,
				 .page_size = page_sizes[i], .num_pages = 16));
		CHECK_OK(UVM_RUN(s->fd, PMA_ALLOC_FREE, .gpu_uuid = s->gpu,
				 .page_size = page_sizes[i], .num_pages = 16,
				 .contiguous = NV_TRUE));
	}
	return 0;
}

static int pma_get_batch_size(struct session *s)
{
	UVM_TEST_PMA_GET_BATCH_SIZE_PARAMS params = { .gpu_uuid = s->gpu };

	CHECK_OK(UVM_TEST(s->fd, PMA_GET_BATCH_SIZE, params));
	value("PMA batch %#llx", (unsigned long long)params.pma_batch_size);
	CHECK(params.pma_batch_size > 0 && params.pma_batch_size % BLOCK_BYTES == 0);
	return 0;
}

static int pmm_query_pma_stats(struct session *s)
{
	UVM_TEST_PMM_QUERY_PMA_STATS_PARAMS params = { .gpu_uuid = s->gpu };

	CHECK_OK(UVM_TEST(s->fd, PMM_QUERY_PMA_STATS, params));
	CHECK(params.pma_stats.numFreePages64k > 0);
	return 0;
}

static int pmm_alloc_free_root(struct session *s)
{
	CHECK_OK(UVM_RUN(s->fd, PMM_ALLOC_FREE_ROOT, .gpu_uuid = s->gpu));
	return 0;
}

static int pmm_release_free_root_chunks(struct session *s)
{
	CHECK_OK(UVM_RUN(s->fd, PMM_RELEASE_FREE_ROOT_CHUNKS, .gpu_uuid = s->gpu));
	return 0;
}

static int va_block(struct session *s)
{
	CHECK_OK(UVM_RUN(s->fd, VA_BLOCK, 0));
	return 0;
}

static int get_gpu_ref_count(struct session *s)
{
	UVM_TEST_GET_GPU_REF_COUNT_PARAMS params = { .gpu_uuid = s->gpu };

	CHECK_OK(UVM_TEST(s->fd, GET_GPU_REF_COUNT, params));
	CHECK(params.ref_count > 0);
	return 0;
}

static int get_rm_ptes(struct session *s)
{
	const size_t bytes = 4 * BLOCK_BYTES;
	uint32_t memory = gpu_memory(bytes);

	CHECK(memory);
	CHECK_OK(UVM_RUN(s->fd, GET_RM_PTES, .gpu_uuid = s->gpu, .hMemory = memory,
			 .rmCtrlFd = gpu_control_fd(), .hClient = gpu_client(),
			 .test_mode = UVM_TEST_GET_RM_PTES_SINGLE_GPU, .size = bytes));
	return 0;
}

/* Migrates memory to a processor. */
static int migrate(struct session *s, volatile uint8_t *memory, size_t bytes,
		   NvProcessorUuid to)
{
	UVM_MIGRATE_PARAMS params = {
		.base = (uintptr_t)memory,
		.length = bytes,
		.destinationUuid = to,
	};

	CHECK_OK(UVM_API(s->fd, UVM_MIGRATE, params));
	return 0;
}

/* A page is resident on the given processor only. */
static int resident(struct session *s, volatile uint8_t *page, NvProcessorUuid where)
{
	static UVM_TEST_VA_RESIDENCY_INFO_PARAMS info;

	memset(&info, 0, sizeof(info));
	info.lookup_address = (uintptr_t)page;
	CHECK_OK(UVM_TEST(s->fd, VA_RESIDENCY_INFO, info));
	CHECK_EQUAL(info.resident_on_count, 1);
	CHECK(memcmp(&info.resident_on[0], &where, sizeof(where)) == 0);
	return 0;
}

/* Fills memory with a pattern that depends on the offset. */
static void fill(volatile uint8_t *memory, size_t bytes)
{
	size_t at;

	for (at = 0; at < bytes; at += 512)
		memory[at] = (uint8_t)(at / 512 * 7 + 1);
}

static int filled(volatile uint8_t *memory, size_t bytes)
{
	size_t at;

	for (at = 0; at < bytes; at += 512)
		CHECK_EQUAL(memory[at], (uint8_t)(at / 512 * 7 + 1));
	return 0;
}

/* A copy engine migrates to the GPU, and a fault of the CPU migrates back. */
static int va_residency_info(struct session *s)
{
	volatile uint8_t *memory = managed_map(s, BLOCK_BYTES);

	CHECK(memory);
	fill(memory, BLOCK_BYTES);
	if (resident(s, memory, s->cpu) || migrate(s, memory, BLOCK_BYTES, s->gpu) ||
	    resident(s, memory, s->gpu) || filled(memory, BLOCK_BYTES) ||
	    resident(s, memory, s->cpu) || migrate(s, memory, BLOCK_BYTES, s->gpu))
		return -1;
	return migrate(s, memory, BLOCK_BYTES, s->cpu) || filled(memory, BLOCK_BYTES);
}

/* Evicts the block of an address, with an outcome. */
static int evict(struct session *s, volatile uint8_t *memory, NV_STATUS outcome)
{
	UVM_TEST_EVICT_CHUNK_PARAMS params = {
		.gpu_uuid = s->gpu,
		.eviction_mode = UvmTestEvictModeVirtual,
		.address = (uintptr_t)memory,
	};

	CHECK_STATUS(UVM_TEST(s->fd, EVICT_CHUNK, params), outcome);
	CHECK_EQUAL(params.chunk_was_evicted, outcome == NV_OK);
	CHECK_EQUAL(params.chunk_size_backing_virtual, BLOCK_BYTES);
	return resident(s, memory, outcome == NV_OK ? s->cpu : s->gpu);
}

/* Evicted memory moves to the CPU with its contents. */
static int evict_chunk(struct session *s)
{
	volatile uint8_t *memory = managed_map(s, BLOCK_BYTES);

	CHECK(memory);
	fill(memory, BLOCK_BYTES);
	return migrate(s, memory, BLOCK_BYTES, s->gpu) || evict(s, memory, NV_OK) ||
	       filled(memory, BLOCK_BYTES);
}

/* Injected errors happen once each, and no contents are lost. */
static int va_block_inject_error(struct session *s)
{
	volatile uint8_t *memory = managed_map(s, BLOCK_BYTES);
	volatile uint8_t *untouched = managed_map(s, BLOCK_BYTES);
	UVM_TEST_VA_BLOCK_INJECT_ERROR_PARAMS inject = inject_nothing(memory);

	CHECK(memory && untouched);
	fill(memory, BLOCK_BYTES);
	/* UVM tries each of these allocations again, with evictions. */
	inject.user_pages_allocation_retry_force_count = 3;
	inject.page_table_allocation_retry_force_count = 2;
	inject.populate_error = NV_TRUE;
	CHECK_OK(UVM_TEST(s->fd, VA_BLOCK_INJECT_ERROR, inject));
	if (migrate(s, memory, BLOCK_BYTES, s->gpu) || resident(s, memory, s->gpu))
		return -1;
	inject = inject_nothing(memory);
	inject.eviction_error = NV_TRUE;
	CHECK_OK(UVM_TEST(s->fd, VA_BLOCK_INJECT_ERROR, inject));
	if (evict(s, memory, NV_ERR_NO_MEMORY) || evict(s, memory, NV_OK) ||
	    filled(memory, BLOCK_BYTES))
		return -1;
	/* An eviction of what the CPU never had takes host memory. */
	inject = inject_no_page(untouched);
	CHECK_OK(UVM_TEST(s->fd, VA_BLOCK_INJECT_ERROR, inject));
	return migrate(s, untouched, BLOCK_BYTES, s->gpu) ||
	       evict(s, untouched, NV_ERR_NO_MEMORY) || evict(s, untouched, NV_OK);
}

#ifdef UVM_TEST_PMM_REVERSE_MAP
static int pmm_reverse_map(struct session *s)
{
	volatile uint8_t *memory = managed_map(s, 2 * BLOCK_BYTES);

	CHECK(memory);
	fill(memory, 2 * BLOCK_BYTES);
	if (migrate(s, memory, 2 * BLOCK_BYTES, s->gpu))
		return -1;
	CHECK_OK(UVM_RUN(s->fd, PMM_REVERSE_MAP, .gpu_uuid = s->gpu,
			 .range_address1 = (uintptr_t)memory,
			 .range_address2 = (uintptr_t)memory + BLOCK_BYTES,
			 .range_size2 = BLOCK_BYTES));
	return 0;
}
#endif

/* The error is set and cleared. No eviction fails. */
static int pmm_inject_pma_evict_error(struct session *s)
{
	CHECK_OK(UVM_RUN(s->fd, PMM_INJECT_PMA_EVICT_ERROR, .gpu_uuid = s->gpu,
			 .error_after_num_chunks = 1));
	CHECK_OK(UVM_RUN(s->fd, PMM_INJECT_PMA_EVICT_ERROR, .gpu_uuid = s->gpu));
	CHECK_STATUS(UVM_RUN(s->fd, PMM_INJECT_PMA_EVICT_ERROR, .gpu_uuid = s->cpu),
		     NV_ERR_INVALID_DEVICE);
	return 0;
}

#ifdef UVM_DISCARD
/* Fills a block on the GPU, whose contents are then of no use any more. */
static volatile uint8_t *discarded_block(struct session *s, NvU64 flags)
{
	volatile uint8_t *memory = managed_map(s, BLOCK_BYTES);
	UVM_DISCARD_PARAMS discard = {
		.base = (uintptr_t)memory,
		.length = BLOCK_BYTES,
		.flags = flags,
	};

	if (!memory)
		return NULL;
	fill(memory, BLOCK_BYTES);
	if (migrate(s, memory, BLOCK_BYTES, s->gpu) ||
	    UVM_API(s->fd, UVM_DISCARD, discard) != NV_OK)
		return NULL;
	return memory;
}

static int is_discarded(struct session *s, volatile uint8_t *page, bool expected)
{
	UVM_TEST_VA_BLOCK_DISCARD_STATUS_PARAMS params = {
		.lookup_address = (uintptr_t)page,
	};

	CHECK_OK(UVM_TEST(s->fd, VA_BLOCK_DISCARD_STATUS, params));
	CHECK_EQUAL(params.discarded, expected);
	return 0;
}

/* A write takes back what is discarded and unmapped, and a migration what is only discarded. */
static int va_block_discard_status(struct session *s)
{
	volatile uint8_t *unmapped = discarded_block(s, UVM_DISCARD_FLAGS_UNMAP);
	volatile uint8_t *mapped = discarded_block(s, 0);

	CHECK(unmapped && mapped);
	if (is_discarded(s, unmapped, true) || is_discarded(s, mapped, true))
		return -1;
	fill(unmapped, BLOCK_BYTES);
	if (is_discarded(s, unmapped, false) || filled(unmapped, BLOCK_BYTES) ||
	    migrate(s, mapped, BLOCK_BYTES, s->gpu) || is_discarded(s, mapped, false))
		return -1;
	fill(mapped, BLOCK_BYTES);
	return filled(mapped, BLOCK_BYTES);
}
#endif

#ifdef UVM_TEST_VA_BLOCK_DISCARD_CHECK_PMM_STATE
static int root_chunk_is(struct session *s, volatile uint8_t *memory, int expected)
{
	UVM_TEST_VA_BLOCK_DISCARD_CHECK_PMM_STATE_PARAMS params = {
		.address = (uintptr_t)memory,
		.gpu_uuid = s->gpu,
	};

	CHECK_OK(UVM_TEST(s->fd, VA_BLOCK_DISCARD_CHECK_PMM_STATE, params));
	CHECK_EQUAL(params.state, expected);
	return 0;
}

/* The root chunk of discarded memory is in a list of its own, until it is used again. */
static int va_block_discard_check_pmm_state(struct session *s)
{
	volatile uint8_t *memory = discarded_block(s, 0);
	UVM_TEST_EVICT_CHUNK_PARAMS evict = {
		.gpu_uuid = s->gpu,
		.eviction_mode = UvmTestEvictModeVirtual,
		.address = (uintptr_t)memory,
	};

	CHECK(memory);
	if (root_chunk_is(s, memory, UVM_TEST_VA_BLOCK_DISCARD_PMM_STATE_DISCARDED) ||
	    migrate(s, memory, BLOCK_BYTES, s->gpu) ||
	    root_chunk_is(s, memory, UVM_TEST_VA_BLOCK_DISCARD_PMM_STATE_USED))
		return -1;
	/* Its memory is evicted like any other. */
	memory = discarded_block(s, 0);
	CHECK(memory);
	evict.address = (uintptr_t)memory;
	CHECK_OK(UVM_TEST(s->fd, EVICT_CHUNK, evict));
	CHECK(evict.chunk_was_evicted);
	return root_chunk_is(s, memory, UVM_TEST_VA_BLOCK_DISCARD_PMM_STATE_INVALID);
}
#endif

const struct test memory_tests[] = {
	{ "PMM_QUERY", pmm_query },
	{ "PMM_QUERY_PMA_STATS", pmm_query_pma_stats },
	{ "PMM_CHECK_LEAK", pmm_check_leak },
	{ "PMM_SANITY", pmm_sanity },
	{ "PMM_ASYNC_ALLOC", pmm_async_alloc },
	{ "PMM_ALLOC_FREE_ROOT", pmm_alloc_free_root },
	{ "PMM_RELEASE_FREE_ROOT_CHUNKS", pmm_release_free_root_chunks },
#ifdef UVM_TEST_PMM_REVERSE_MAP
	{ "PMM_REVERSE_MAP", pmm_reverse_map },
#endif
	{ "PMM_INJECT_PMA_EVICT_ERROR", pmm_inject_pma_evict_error },
	{ "PMA_ALLOC_FREE", pma_alloc_free },
	{ "PMA_GET_BATCH_SIZE", pma_get_batch_size },
	{ "EVICT_CHUNK", evict_chunk },
	{ "VA_BLOCK", va_block },
	{ "VA_BLOCK_INJECT_ERROR", va_block_inject_error },
#ifdef UVM_DISCARD
	{ "VA_BLOCK_DISCARD_STATUS", va_block_discard_status },
#endif
#ifdef UVM_TEST_VA_BLOCK_DISCARD_CHECK_PMM_STATE
	{ "VA_BLOCK_DISCARD_CHECK_PMM_STATE", va_block_discard_check_pmm_state },
#endif
	{ "VA_RESIDENCY_INFO", va_residency_info },
	{ "GET_RM_PTES", get_rm_ptes },
	{ "GET_GPU_REF_COUNT", get_gpu_ref_count },
	{ NULL, NULL },
};
