// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Tests of address ranges. The driver keeps a tree of ranges that follows the process's own
 * mappings, and range groups over it. The tests change both from user space and read them back by
 * the test ioctls.
 */
#include <sys/mman.h>

#include "uvm.h"

#define BLOCKS 4
#define BYTES (BLOCKS * BLOCK_BYTES)

/* Looks up one range, so that a check is one line. */
static UVM_TEST_VA_RANGE_INFO_PARAMS range_at(struct session *s, uintptr_t va)
{
	/* static: the structure has some kilobytes. */
	static UVM_TEST_VA_RANGE_INFO_PARAMS params;

	params = (UVM_TEST_VA_RANGE_INFO_PARAMS){ .lookup_address = va };
	UVM_TEST(s->fd, VA_RANGE_INFO, params);
	return params;
}

/* Checks that the range that covers va is exactly [start, start + bytes). */
static int check_range(struct session *s, uintptr_t va, uintptr_t start,
		       size_t bytes)
{
	UVM_TEST_VA_RANGE_INFO_PARAMS range = range_at(s, va);

	CHECK_OK(range.rmStatus);
	CHECK_EQUAL(range.va_range_start, start);
	CHECK_EQUAL(range.va_range_end, start + bytes - 1);
	CHECK_EQUAL(range.type, UVM_TEST_VA_RANGE_TYPE_MANAGED);
	CHECK_EQUAL(range.managed.is_zombie, NV_FALSE);
	CHECK_EQUAL(range.managed.subtype, UVM_TEST_RANGE_SUBTYPE_UVM);
	return 0;
}

/* As above, and checks that the range follows the process's own mapping. */
static int check_mapped(struct session *s, uintptr_t va, uintptr_t start,
			size_t bytes)
{
	UVM_TEST_VA_RANGE_INFO_PARAMS range = range_at(s, va);

	if (check_range(s, va, start, bytes))
		return -1;
	CHECK_EQUAL(range.managed.owned_by_calling_process, NV_TRUE);
	CHECK_EQUAL(range.managed.vma_start, start);
	CHECK_EQUAL(range.managed.vma_end, start + bytes - 1);
	CHECK_EQUAL(range.accessed_by_count, 0);
	CHECK_EQUAL(range.read_duplication, UVM_TEST_READ_DUPLICATION_UNSET);
	return 0;
}

static int va_range_info(struct session *s)
{
	uintptr_t start = (uintptr_t)managed_map(s, BYTES);
	uintptr_t hole = start + BLOCK_BYTES;
	uintptr_t rest = hole + PAGE_BYTES;

	CHECK(start);
	if (check_mapped(s, start, start, BYTES) ||
	    check_mapped(s, start + BYTES - 1, start, BYTES))
		return -1;
	CHECK_STATUS(range_at(s, start - 1).rmStatus, NV_ERR_INVALID_ADDRESS);
	CHECK_STATUS(range_at(s, start + BYTES).rmStatus, NV_ERR_INVALID_ADDRESS);

	/* A hole splits the mapping in two, and the ranges must follow. */
	CHECK(munmap((void *)hole, PAGE_BYTES) == 0);
	CHECK_STATUS(range_at(s, hole).rmStatus, NV_ERR_INVALID_ADDRESS);
	if (check_mapped(s, start, start, BLOCK_BYTES) ||
	    check_mapped(s, rest, rest, start + BYTES - rest))
		return -1;
	CHECK(munmap((void *)start, BYTES) == 0);
	CHECK_STATUS(range_at(s, rest).rmStatus, NV_ERR_INVALID_ADDRESS);
	return 0;
}

/*
 * Only managed ranges can be split. VA_RANGE_INFO does not support other ranges either, but does
 * not refuse them: it reads the policy of a managed range from a union that holds something else,
 * and follows it to NULL.
 */
static int refuse_external_range(struct session *s)
{
	uintptr_t start = (uintptr_t)reserve(BLOCK_BYTES);
	UVM_CREATE_EXTERNAL_RANGE_PARAMS create = {
		.base = start,
		.length = BLOCK_BYTES,
	};

	CHECK(start);
	CHECK_OK(UVM_API(s->fd, UVM_CREATE_EXTERNAL_RANGE, create));
	CHECK_STATUS(UVM_RUN(s->fd, VA_RANGE_SPLIT,
			     .split_address = start + PAGE_BYTES - 1),
		     NV_ERR_INVALID_ADDRESS);
	return 0;
}

/* The new end of the lower half. The driver's ends are inclusive. */
#define SPLIT_AT(start) ((start) + BLOCK_BYTES + PAGE_BYTES - 1)

static int va_range_split(struct session *s)
{
	uintptr_t start = (uintptr_t)managed_map(s, BYTES);
	size_t low = SPLIT_AT(start) + 1 - start;

	CHECK(start);
	/* One block on each side of the cut, and the cut inside one of them. */
	*(volatile uint8_t *)start = 1;
	*(volatile uint8_t *)(start + BLOCK_BYTES) = 2;
	*(volatile uint8_t *)(start + low) = 3;
	CHECK_OK(UVM_RUN(s->fd, VA_RANGE_SPLIT, .split_address = SPLIT_AT(start)));
	if (check_range(s, start, start, low) ||
	    check_range(s, start + low, start + low, BYTES - low))
		return -1;
	CHECK_EQUAL(*(volatile uint8_t *)start, 1);
	CHECK_EQUAL(*(volatile uint8_t *)(start + BLOCK_BYTES), 2);
	CHECK_EQUAL(*(volatile uint8_t *)(start + low), 3);

	/* Not page-aligned, at an existing end, outside. */
	CHECK_STATUS(UVM_RUN(s->fd, VA_RANGE_SPLIT, .split_address = start + 1),
		     NV_ERR_INVALID_ADDRESS);
	CHECK_STATUS(UVM_RUN(s->fd, VA_RANGE_SPLIT, .split_address = SPLIT_AT(start)),
		     NV_ERR_INVALID_ADDRESS);
	CHECK_STATUS(UVM_RUN(s->fd, VA_RANGE_SPLIT, .split_address = start - 1),
		     NV_ERR_INVALID_ADDRESS);
	return refuse_external_range(s);
}

static int va_range_inject_split_error(struct session *s)
{
	uintptr_t start = (uintptr_t)managed_map(s, BYTES);

	CHECK(start);
	CHECK_OK(UVM_RUN(s->fd, VA_RANGE_INJECT_SPLIT_ERROR,
			 .lookup_address = start));
	CHECK_STATUS(UVM_RUN(s->fd, VA_RANGE_SPLIT, .split_address = SPLIT_AT(start)),
		     NV_ERR_NO_MEMORY);
	if (check_mapped(s, start, start, BYTES))
		return -1;
	/* The injected error affects one split only. */
	CHECK_OK(UVM_RUN(s->fd, VA_RANGE_SPLIT, .split_address = SPLIT_AT(start)));
	CHECK_STATUS(UVM_RUN(s->fd, VA_RANGE_INJECT_SPLIT_ERROR,
			     .lookup_address = start - 1),
		     NV_ERR_INVALID_ADDRESS);
	return 0;
}

static int create_group(struct session *s, NvU64 *id)
{
	UVM_CREATE_RANGE_GROUP_PARAMS create = { 0 };

	CHECK_OK(UVM_API(s->fd, UVM_CREATE_RANGE_GROUP, create));
	*id = create.rangeGroupId;
	return 0;
}

static int put_in_group(struct session *s, NvU64 id, uintptr_t start, size_t bytes)
{
	UVM_SET_RANGE_GROUP_PARAMS set = {
		.rangeGroupId = id,
		.requestedBase = start,
		.length = bytes,
	};

	CHECK_OK(UVM_API(s->fd, UVM_SET_RANGE_GROUP, set));
	return 0;
}

static int range_group_tree(struct session *s)
{
	UVM_TEST_RANGE_GROUP_TREE_PARAMS params = { 0 };
	int i;

	for (i = 0; i < 4; i++) {
		if (create_group(s, &params.rangeGroupIds[i]))
			return -1;
	}
	CHECK_OK(UVM_TEST(s->fd, RANGE_GROUP_TREE, params));
	params.rangeGroupIds[3] += 1;
	CHECK_STATUS(UVM_TEST(s->fd, RANGE_GROUP_TREE, params),
		     NV_ERR_INVALID_PARAMETER);
	return 0;
}

static int check_group(struct session *s, uintptr_t va, NvU64 id,
		       uintptr_t start, uintptr_t end)
{
	UVM_TEST_RANGE_GROUP_RANGE_INFO_PARAMS params = { .lookup_address = va };

	CHECK_OK(UVM_TEST(s->fd, RANGE_GROUP_RANGE_INFO, params));
	CHECK_EQUAL(params.range_group_present, id != UVM_RANGE_GROUP_ID_NONE);
	CHECK_EQUAL(params.range_group_id, id);
	CHECK_EQUAL(params.range_group_range_start, start);
	CHECK_EQUAL(params.range_group_range_end, end);
	return 0;
}

static int range_group_range_info(struct session *s)
{
	uintptr_t start = (uintptr_t)managed_map(s, BYTES);
	uintptr_t middle = start + 2 * BLOCK_BYTES;
	NvU64 id;

	CHECK(start);
	if (check_group(s, start, UVM_RANGE_GROUP_ID_NONE, 0, ~0ull) ||
	    create_group(s, &id) ||
	    put_in_group(s, id, start, BYTES) ||
	    check_group(s, middle, id, start, start + BYTES - 1))
		return -1;
	/* A page is taken out of the group again. */
	if (put_in_group(s, UVM_RANGE_GROUP_ID_NONE, middle, PAGE_BYTES) ||
	    check_group(s, middle, UVM_RANGE_GROUP_ID_NONE, middle,
			middle + PAGE_BYTES - 1) ||
	    check_group(s, start, id, start, middle - 1) ||
	    check_group(s, middle + PAGE_BYTES, id, middle + PAGE_BYTES,
			start + BYTES - 1))
		return -1;
	return 0;
}

static int check_count(struct session *s, NvU64 id, NvU64 expected)
{
	UVM_TEST_RANGE_GROUP_RANGE_COUNT_PARAMS params = { .rangeGroupId = id };

	CHECK_OK(UVM_TEST(s->fd, RANGE_GROUP_RANGE_COUNT, params));
	CHECK_EQUAL(params.count, expected);
	return 0;
}

static int range_group_range_count(struct session *s)
{
	uintptr_t start = (uintptr_t)managed_map(s, BYTES);
	NvU64 id;

	CHECK(start);
	if (create_group(s, &id) || check_count(s, id, 0) ||
	    put_in_group(s, id, start, BYTES) || check_count(s, id, 1) ||
	    put_in_group(s, UVM_RANGE_GROUP_ID_NONE, start + BLOCK_BYTES,
			 PAGE_BYTES) ||
	    check_count(s, id, 2))
		return -1;
	CHECK_STATUS(UVM_RUN(s->fd, RANGE_GROUP_RANGE_COUNT, .rangeGroupId = id + 1),
		     NV_ERR_OBJECT_NOT_FOUND);
	return 0;
}

const struct test range_tests[] = {
	{ "VA_RANGE_INFO", va_range_info },
	{ "VA_RANGE_SPLIT", va_range_split },
	{ "VA_RANGE_INJECT_SPLIT_ERROR", va_range_inject_split_error },
	{ "RANGE_GROUP_TREE", range_group_tree },
	{ "RANGE_GROUP_RANGE_INFO", range_group_range_info },
	{ "RANGE_GROUP_RANGE_COUNT", range_group_range_count },
	{ NULL, NULL },
};
