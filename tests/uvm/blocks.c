// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Tests of the 2 MiB blocks of a managed range. Without a GPU a block's pages live on the CPU. The
 * code that populates, maps, revokes and splits them is the same.
 */
#include <string.h>

#include "uvm.h"

/* Requests any NUMA node. No node has this number. */
static const NvS32 any_numa_node = -1;

static int va_block_info(struct session *s)
{
	volatile uint8_t *memory = managed_map(s, 2 * BLOCK_BYTES);
	uintptr_t start = (uintptr_t)memory;
	UVM_TEST_VA_BLOCK_INFO_PARAMS params = {
		.lookup_address = start + BLOCK_BYTES + PAGE_BYTES,
	};

	CHECK(memory);
	CHECK_STATUS(UVM_TEST(s->fd, VA_BLOCK_INFO, params),
		     NV_ERR_OBJECT_NOT_FOUND);
	memory[BLOCK_BYTES] = 1;
	CHECK_OK(UVM_TEST(s->fd, VA_BLOCK_INFO, params));
	CHECK_EQUAL(params.va_block_start, start + BLOCK_BYTES);
	CHECK_EQUAL(params.va_block_end, start + 2 * BLOCK_BYTES - 1);
	/* Touching one block does not populate its neighbour. */
	params.lookup_address = start;
	CHECK_STATUS(UVM_TEST(s->fd, VA_BLOCK_INFO, params),
		     NV_ERR_OBJECT_NOT_FOUND);
	params.lookup_address = start - 1;
	CHECK_STATUS(UVM_TEST(s->fd, VA_BLOCK_INFO, params),
		     NV_ERR_INVALID_ADDRESS);
	return 0;
}

/* Reads a page's location and mapping, and checks the invariants. */
static int residency(struct session *s, volatile uint8_t *page,
		     UVM_TEST_VA_RESIDENCY_INFO_PARAMS *info)
{
	memset(info, 0, sizeof(*info));
	info->lookup_address = (uintptr_t)page;
	CHECK_OK(UVM_TEST(s->fd, VA_RESIDENCY_INFO, *info));
	CHECK(info->resident_on_count <= 1 && info->mapped_on_count <= 1);
	if (info->resident_on_count == 1)
		CHECK(memcmp(&info->resident_on[0], &s->cpu, sizeof(s->cpu)) == 0);
	if (info->mapped_on_count == 1)
		CHECK(memcmp(&info->mapped_on[0], &s->cpu, sizeof(s->cpu)) == 0);
	return 0;
}

static int va_residency_info(struct session *s)
{
	static UVM_TEST_VA_RESIDENCY_INFO_PARAMS info;
	volatile uint8_t *memory = managed_map(s, BLOCK_BYTES);

	CHECK(memory);
	if (residency(s, memory, &info))
		return -1;
	CHECK_EQUAL(info.resident_on_count, 0);
	CHECK_EQUAL(info.populated_on_count, 0);
	CHECK_EQUAL(info.mapped_on_count, 0);

	memory[0] = 1;
	if (residency(s, memory, &info))
		return -1;
	CHECK_EQUAL(info.resident_on_count, 1);
	CHECK_EQUAL(info.populated_on_count, 1);
	CHECK_EQUAL(info.mapped_on_count, 1);
	CHECK_EQUAL(info.mapping_type[0], UVM_TEST_PTE_MAPPING_READ_WRITE_ATOMIC);
	CHECK_EQUAL(info.page_size[0], PAGE_BYTES);
	CHECK_EQUAL(info.mapping_physical_address[0] % PAGE_BYTES, 0);
	CHECK(info.resident_physical_size[0] >= PAGE_BYTES);
	CHECK(info.resident_physical_size[0] <= BLOCK_BYTES);

	info.lookup_address = (uintptr_t)memory + BLOCK_BYTES;
	CHECK_STATUS(UVM_TEST(s->fd, VA_RESIDENCY_INFO, info),
		     NV_ERR_INVALID_ADDRESS);
	return 0;
}

/* Changes the CPU's mapping of one page. */
static NV_STATUS change(struct session *s, volatile uint8_t *page, NvU32 mapping)
{
	return UVM_RUN(s->fd, CHANGE_PTE_MAPPING, .uuid = s->cpu,
		       .va = (uintptr_t)page, .mapping = mapping);
}

static int change_pte_mapping(struct session *s)
{
	static UVM_TEST_VA_RESIDENCY_INFO_PARAMS info;
	volatile uint8_t *memory = managed_map(s, BLOCK_BYTES);

	CHECK(memory);
	memory[0] = 1;
	CHECK_OK(change(s, memory, UVM_TEST_PTE_MAPPING_READ_ONLY));
	if (residency(s, memory, &info))
		return -1;
	CHECK_EQUAL(info.mapping_type[0], UVM_TEST_PTE_MAPPING_READ_ONLY);
	/* Only a fault may raise a mapping, and this write faults. */
	CHECK_STATUS(change(s, memory, UVM_TEST_PTE_MAPPING_READ_WRITE),
		     NV_ERR_INVALID_OPERATION);
	memory[0] = 2;
	if (residency(s, memory, &info))
		return -1;
	CHECK_EQUAL(info.mapping_type[0], UVM_TEST_PTE_MAPPING_READ_WRITE_ATOMIC);

	/* The page is unmapped, but still populated. */
	CHECK_OK(change(s, memory, UVM_TEST_PTE_MAPPING_INVALID));
	if (residency(s, memory, &info))
		return -1;
	CHECK_EQUAL(info.mapped_on_count, 0);
	CHECK_EQUAL(info.resident_on_count, 1);
	CHECK_EQUAL(memory[0], 2);
	if (residency(s, memory, &info))
		return -1;
	CHECK_EQUAL(info.mapped_on_count, 1);

	CHECK_STATUS(change(s, memory + 1, UVM_TEST_PTE_MAPPING_INVALID),
		     NV_ERR_INVALID_ADDRESS);
	CHECK_STATUS(change(s, memory, UVM_TEST_PTE_MAPPING_MAX),
		     NV_ERR_INVALID_ARGUMENT);
	CHECK_STATUS(UVM_RUN(s->fd, CHANGE_PTE_MAPPING, .uuid = { { 1 } },
			     .va = (uintptr_t)memory),
		     NV_ERR_INVALID_DEVICE);
	return 0;
}

static NV_STATUS migrate_to_cpu(struct session *s, volatile uint8_t *memory)
{
	UVM_MIGRATE_PARAMS params = {
		.base = (uintptr_t)memory,
		.length = BLOCK_BYTES,
		.destinationUuid = s->cpu,
		.cpuNumaNode = any_numa_node,
	};

	return UVM_API(s->fd, UVM_MIGRATE, params);
}

UVM_TEST_VA_BLOCK_INJECT_ERROR_PARAMS inject_nothing(volatile uint8_t *memory)
{
	return (UVM_TEST_VA_BLOCK_INJECT_ERROR_PARAMS){
		.lookup_address = (uintptr_t)memory,
#ifdef UVM_TEST_FORCE_CPU_TO_CPU_COPY_WITH_CE
		.cpu_chunk_allocation_target_id = any_numa_node,
		.cpu_chunk_allocation_actual_id = any_numa_node,
#endif
	};
}

UVM_TEST_VA_BLOCK_INJECT_ERROR_PARAMS inject_no_page(volatile uint8_t *memory)
{
	UVM_TEST_VA_BLOCK_INJECT_ERROR_PARAMS inject = inject_nothing(memory);

	/* Pages only, so that there is no smaller size to fall back to. */
	inject.cpu_chunk_allocation_size_mask = PAGE_BYTES;
#ifdef UVM_TEST_SET_P2P_SUSPENDED
	inject.cpu_chunk_allocation_error_count = 1;
#else
	inject.cpu_pages_allocation_error_count = 1;
#endif
	return inject;
}

static int va_block_inject_error(struct session *s)
{
	static UVM_TEST_VA_RESIDENCY_INFO_PARAMS info;
	volatile uint8_t *memory = managed_map(s, BLOCK_BYTES);
	UVM_TEST_VA_BLOCK_INJECT_ERROR_PARAMS inject = inject_no_page(memory);

	CHECK(memory);
	CHECK_OK(UVM_TEST(s->fd, VA_BLOCK_INJECT_ERROR, inject));
	CHECK_STATUS(migrate_to_cpu(s, memory), NV_ERR_NO_MEMORY);
	CHECK_OK(migrate_to_cpu(s, memory));
	if (residency(s, memory + BLOCK_BYTES - PAGE_BYTES, &info))
		return -1;
	CHECK_EQUAL(info.resident_on_count, 1);
	CHECK_EQUAL(info.resident_physical_size[0], PAGE_BYTES);

	/* A mask of sizes must include the page size, and contain only supported sizes. */
	inject.cpu_chunk_allocation_size_mask = BLOCK_BYTES;
	CHECK_STATUS(UVM_TEST(s->fd, VA_BLOCK_INJECT_ERROR, inject),
		     NV_ERR_INVALID_ARGUMENT);
	inject.lookup_address = (uintptr_t)memory + BLOCK_BYTES;
	CHECK_STATUS(UVM_TEST(s->fd, VA_BLOCK_INJECT_ERROR, inject),
		     NV_ERR_INVALID_ADDRESS);
	return 0;
}

static int va_space_inject_error(struct session *s)
{
	volatile uint8_t *memory = managed_map(s, BLOCK_BYTES);

	CHECK(memory);
	CHECK_OK(UVM_RUN(s->fd, VA_SPACE_INJECT_ERROR,
			 .va_block_allocation_fail_nth = 2));
	/* Each of the following calls looks the block up, and creates it if necessary. */
	CHECK_OK(change(s, memory, UVM_TEST_PTE_MAPPING_INVALID));
	CHECK_STATUS(change(s, memory, UVM_TEST_PTE_MAPPING_INVALID),
		     NV_ERR_NO_MEMORY);
	CHECK_OK(change(s, memory, UVM_TEST_PTE_MAPPING_INVALID));
	return 0;
}

/* The kernel's part looks at two blocks, which must exist. */
static int perf_module_sanity(struct session *s)
{
	volatile uint8_t *memory = managed_map(s, 2 * BLOCK_BYTES);

	CHECK(memory);
	memory[0] = 1;
	memory[BLOCK_BYTES] = 1;
	CHECK_OK(UVM_RUN(s->fd, PERF_MODULE_SANITY,
			 .range_address = (uintptr_t)memory,
			 .range_size = 2 * BLOCK_BYTES));
	CHECK_STATUS(UVM_RUN(s->fd, PERF_MODULE_SANITY,
			     .range_address = (uintptr_t)memory,
			     .range_size = BLOCK_BYTES),
		     NV_ERR_INVALID_ARGUMENT);
	return 0;
}

const struct test block_tests[] = {
	{ "VA_BLOCK_INFO", va_block_info },
	{ "VA_RESIDENCY_INFO", va_residency_info },
	{ "CHANGE_PTE_MAPPING", change_pte_mapping },
	{ "VA_BLOCK_INJECT_ERROR", va_block_inject_error },
	{ "VA_SPACE_INJECT_ERROR", va_space_inject_error },
	{ "PERF_MODULE_SANITY", perf_module_sanity },
	{ NULL, NULL },
};
