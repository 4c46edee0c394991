// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Tests of UVM's own data structures. The kernel does all the checking. We choose the parameters,
 * so that a run takes seconds in an emulated machine.
 */
#include "uvm.h"

/* Any fixed number makes two runs comparable. */
#define SEED 0x6763u

#define RUN_WITHOUT_PARAMETERS(function, NAME) \
	static int function(struct session *s) \
	{ \
		CHECK_OK(UVM_RUN(s->fd, NAME)); \
		return 0; \
	}

RUN_WITHOUT_PARAMETERS(rng_sanity, RNG_SANITY)
RUN_WITHOUT_PARAMETERS(range_tree_directed, RANGE_TREE_DIRECTED)
RUN_WITHOUT_PARAMETERS(rb_tree_directed, RB_TREE_DIRECTED)
RUN_WITHOUT_PARAMETERS(page_tree, PAGE_TREE)
RUN_WITHOUT_PARAMETERS(lock_sanity, LOCK_SANITY)
RUN_WITHOUT_PARAMETERS(perf_utils_sanity, PERF_UTILS_SANITY)
RUN_WITHOUT_PARAMETERS(perf_events_sanity, PERF_EVENTS_SANITY)
RUN_WITHOUT_PARAMETERS(kvmalloc, KVMALLOC)
RUN_WITHOUT_PARAMETERS(nv_kthread_q, NV_KTHREAD_Q)
RUN_WITHOUT_PARAMETERS(cpu_chunk_api, CPU_CHUNK_API)
#ifdef UVM_TEST_FORCE_CPU_TO_CPU_COPY_WITH_CE
/* 535's test reads the first GPU's mode without checking that there is one. */
RUN_WITHOUT_PARAMETERS(mem_sanity, MEM_SANITY)
#endif

static int range_tree_random(struct session *s)
{
	UVM_TEST_RANGE_TREE_RANDOM_PARAMS params = {
		.seed = SEED,
		.main_iterations = rounds(10000),
		.high_probability = 60,
		.add_remove_shrink_group_probability = 60,
		.shrink_probability = 20,
		.collision_checks = 10,
		.iterator_checks = 5,
		/* A small range makes adds collide, which is the purpose. */
		.max_end = 4095,
		.max_ranges = 200,
		.max_batch_count = 10,
		.max_attempts = 5,
	};

	CHECK_OK(UVM_TEST(s->fd, RANGE_TREE_RANDOM, params));
	/* A run that skipped an operation has tested nothing. */
	CHECK(params.stats.total_adds > 0);
	CHECK(params.stats.failed_adds > 0);
	CHECK(params.stats.total_removes > 0);
	CHECK(params.stats.total_splits > 0);
	CHECK(params.stats.total_merges > 0);
	CHECK(params.stats.total_shrinks > 0);
	value("RANGE_TREE_RANDOM adds %llu removes %llu splits %llu merges %llu shrinks %llu",
	      (unsigned long long)params.stats.total_adds,
	      (unsigned long long)params.stats.total_removes,
	      (unsigned long long)params.stats.total_splits,
	      (unsigned long long)params.stats.total_merges,
	      (unsigned long long)params.stats.total_shrinks);
	params.high_probability = 101;
	CHECK_STATUS(UVM_TEST(s->fd, RANGE_TREE_RANDOM, params),
		     NV_ERR_INVALID_PARAMETER);
	return 0;
}

static int rb_tree_random(struct session *s)
{
	CHECK_OK(UVM_RUN(s->fd, RB_TREE_RANDOM, .iterations = rounds(20000),
			 .range_max = 1000, .node_limit = 100, .seed = SEED));
	/* Zero means the whole range of 64 bits. */
	CHECK_OK(UVM_RUN(s->fd, RB_TREE_RANDOM, .iterations = rounds(10000),
			 .range_max = 0, .node_limit = 50, .seed = SEED + 1));
	return 0;
}

static int range_allocator_sanity(struct session *s)
{
	CHECK_OK(UVM_RUN(s->fd, RANGE_ALLOCATOR_SANITY, .seed = SEED,
			 .iters = rounds(3000)));
	return 0;
}

static int get_cpu_chunk_alloc_sizes(struct session *s)
{
	UVM_TEST_GET_CPU_CHUNK_ALLOC_SIZES_PARAMS params = { 0 };

	CHECK_OK(UVM_TEST(s->fd, GET_CPU_CHUNK_ALLOC_SIZES, params));
	CHECK(params.alloc_size_mask & PAGE_BYTES);
	/* A chunk is never larger than a block nor smaller than a page. */
	CHECK_EQUAL(params.alloc_size_mask & (PAGE_BYTES - 1), 0);
	CHECK(params.alloc_size_mask < 2 * BLOCK_BYTES);
	value("GET_CPU_CHUNK_ALLOC_SIZES %#llx", (unsigned long long)params.alloc_size_mask);
	return 0;
}

static int get_user_space_end_address(struct session *s)
{
	UVM_TEST_GET_USER_SPACE_END_ADDRESS_PARAMS params = { 0 };

	CHECK_OK(UVM_TEST(s->fd, GET_USER_SPACE_END_ADDRESS, params));
	/* Our stack is our highest mapping. */
	CHECK(params.user_space_end_address > (uintptr_t)&params);
	CHECK_EQUAL(params.user_space_end_address % PAGE_BYTES, 0);
	value("GET_USER_SPACE_END_ADDRESS %#llx",
	      (unsigned long long)params.user_space_end_address);
	return 0;
}

static int cgroup_accounting_supported(struct session *s)
{
	NV_STATUS status = UVM_RUN(s->fd, CGROUP_ACCOUNTING_SUPPORTED);

	/* The kernel's configuration decides this when the module is built. */
	CHECK(status == NV_OK || status == NV_ERR_NOT_SUPPORTED);
	value("CGROUP_ACCOUNTING_SUPPORTED %s", status_name(status));
	return 0;
}

static int flush_deferred_work(struct session *s)
{
	CHECK_OK(UVM_RUN(s->fd, FLUSH_DEFERRED_WORK,
			 .work_type = UvmTestDeferredWorkTypeAcessedByMappings));
	CHECK_STATUS(UVM_RUN(s->fd, FLUSH_DEFERRED_WORK, .work_type = 0),
		     NV_ERR_INVALID_ARGUMENT);
	return 0;
}

const struct test pure_tests[] = {
	{ "RNG_SANITY", rng_sanity },
	{ "RANGE_TREE_DIRECTED", range_tree_directed },
	{ "RANGE_TREE_RANDOM", range_tree_random },
	{ "RB_TREE_DIRECTED", rb_tree_directed },
	{ "RB_TREE_RANDOM", rb_tree_random },
	{ "RANGE_ALLOCATOR_SANITY", range_allocator_sanity },
	{ "PAGE_TREE", page_tree },
	{ "LOCK_SANITY", lock_sanity },
	{ "PERF_UTILS_SANITY", perf_utils_sanity },
	{ "PERF_EVENTS_SANITY", perf_events_sanity },
	{ "KVMALLOC", kvmalloc },
	{ "NV_KTHREAD_Q", nv_kthread_q },
	{ "CPU_CHUNK_API", cpu_chunk_api },
#ifdef UVM_TEST_FORCE_CPU_TO_CPU_COPY_WITH_CE
	{ "MEM_SANITY", mem_sanity },
#endif
	{ "GET_CPU_CHUNK_ALLOC_SIZES", get_cpu_chunk_alloc_sizes },
	{ "GET_USER_SPACE_END_ADDRESS", get_user_space_end_address },
	{ "CGROUP_ACCOUNTING_SUPPORTED", cgroup_accounting_supported },
	{ "FLUSH_DEFERRED_WORK", flush_deferred_work },
	{ NULL, NULL },
};
