// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Tests of an address space as a whole: the threads inside the driver, the process that the space
 * belongs to, and its settings.
 */
#include <pthread.h>
#include <unistd.h>

#include "uvm.h"

/* More than the VM has CPUs, so that they also preempt one another. */
#define THREADS 8
/* How long a call holds the process. Long enough under emulation, short for the test. */
#define HOLD_US 200000

struct hammer {
	pthread_t thread;
	int fd;
	NV_STATUS status;
};

static void *hammer_thread_contexts(void *argument)
{
	struct hammer *hammer = argument;

	hammer->status = UVM_RUN(hammer->fd, THREAD_CONTEXT_SANITY,
				 .iterations = rounds(20000));
	return NULL;
}

static int thread_context_sanity(struct session *s)
{
	struct hammer hammers[THREADS];
	int i;

	CHECK_STATUS(UVM_RUN(s->fd, THREAD_CONTEXT_SANITY, .iterations = 0),
		     NV_ERR_INVALID_ARGUMENT);
	for (i = 0; i < THREADS; i++) {
		hammers[i].fd = s->fd;
		CHECK(pthread_create(&hammers[i].thread, NULL,
				     hammer_thread_contexts, &hammers[i]) == 0);
	}
	for (i = 0; i < THREADS; i++)
		CHECK(pthread_join(hammers[i].thread, NULL) == 0);
	for (i = 0; i < THREADS; i++)
		CHECK_OK(hammers[i].status);
	return 0;
}

static int thread_context_perf(struct session *s)
{
	UVM_TEST_THREAD_CONTEXT_PERF_PARAMS params = { .iterations = rounds(20000) };

	CHECK_OK(UVM_TEST(s->fd, THREAD_CONTEXT_PERF, params));
	params.iterations = 100;
	params.delay_us = 10;
	CHECK_OK(UVM_TEST(s->fd, THREAD_CONTEXT_PERF, params));
	params.iterations = 0;
	CHECK_STATUS(UVM_TEST(s->fd, THREAD_CONTEXT_PERF, params),
		     NV_ERR_INVALID_ARGUMENT);
	return 0;
}

/* Fills the table of threads, so that every look-up takes the slow path. */
static int add_dummy_thread_contexts(struct session *s)
{
	CHECK_OK(UVM_RUN(s->fd, VA_SPACE_ADD_DUMMY_THREAD_CONTEXTS,
			 .num_dummy_thread_contexts = 64));
	CHECK_STATUS(UVM_RUN(s->fd, VA_SPACE_ADD_DUMMY_THREAD_CONTEXTS,
			     .num_dummy_thread_contexts = 1),
		     NV_ERR_INVALID_STATE);
	/* Closing the file removes them. */
	return thread_context_sanity(s);
}

static int remove_dummy_thread_contexts(struct session *s)
{
	int i;

	for (i = 0; i < 3; i++) {
		CHECK_OK(UVM_RUN(s->fd, VA_SPACE_ADD_DUMMY_THREAD_CONTEXTS,
				 .num_dummy_thread_contexts = 8));
		CHECK_OK(UVM_RUN(s->fd, VA_SPACE_REMOVE_DUMMY_THREAD_CONTEXTS));
	}
	return thread_context_sanity(s);
}

/* The address must be a kernel pointer, hence in the upper half. */
static int kernel_address(const struct session *s, NvU64 *address)
{
	UVM_TEST_GET_KERNEL_VIRTUAL_ADDRESS_PARAMS params = { 0 };

	CHECK_OK(UVM_TEST(s->fd, GET_KERNEL_VIRTUAL_ADDRESS, params));
	CHECK((NvS64)params.addr < 0);
	*address = params.addr;
	return 0;
}

static int get_kernel_virtual_address(struct session *s)
{
	struct session other;
	NvU64 mine, others;

	if (kernel_address(s, &mine))
		return -1;
	if (session_open(&other) || kernel_address(&other, &others))
		return -1;
	CHECK(mine != others);
	session_close(&other);
	return 0;
}

struct writer {
	pthread_t thread;
	volatile uint64_t *word;
};

static void *write_later(void *argument)
{
	struct writer *writer = argument;

	usleep(HOLD_US / 2);
	*writer->word = 2;
	return NULL;
}

/* Reads a word of this process through the address space, twice. */
static int read_across_a_write(NvU64 space, int fd)
{
	static volatile uint64_t word;
	struct writer writer = { .word = &word };
	UVM_TEST_VA_SPACE_MM_RETAIN_PARAMS params = {
		.va_space_ptr = space,
		.addr = (uintptr_t)&word,
		.sleep_us = HOLD_US,
	};

	word = 1;
	CHECK(pthread_create(&writer.thread, NULL, write_later, &writer) == 0);
	CHECK_OK(UVM_TEST(fd, VA_SPACE_MM_RETAIN, params));
	CHECK(pthread_join(writer.thread, NULL) == 0);
	CHECK_EQUAL(params.val_before, 1);
	CHECK_EQUAL(params.val_after, 2);
	return 0;
}

static int va_space_mm_retain(struct session *s)
{
	uint64_t word = 0;
	NvU64 space;

	if (kernel_address(s, &space))
		return -1;
	if (s->mm_status != NV_OK) {
		CHECK_STATUS(UVM_RUN(s->fd, VA_SPACE_MM_RETAIN,
				     .va_space_ptr = space,
				     .addr = (uintptr_t)&word),
			     NV_ERR_PAGE_TABLE_NOT_AVAIL);
		return 0;
	}
	if (read_across_a_write(space, s->fd))
		return -1;
	CHECK_STATUS(UVM_RUN(s->fd, VA_SPACE_MM_RETAIN, .va_space_ptr = 8,
			     .addr = (uintptr_t)&word),
		     NV_ERR_MISSING_TABLE_ENTRY);
	CHECK_STATUS(UVM_RUN(s->fd, VA_SPACE_MM_RETAIN, .va_space_ptr = space,
			     .addr = (uintptr_t)&word + 1),
		     NV_ERR_INVALID_ARGUMENT);
	CHECK_STATUS(UVM_RUN(s->fd, VA_SPACE_MM_RETAIN, .va_space_ptr = space,
			     .addr = 8),
		     NV_ERR_INVALID_ADDRESS);
	/* Without the second file the space no longer has a process. */
	close(s->mm_fd);
	CHECK_STATUS(UVM_RUN(s->fd, VA_SPACE_MM_RETAIN, .va_space_ptr = space,
			     .addr = (uintptr_t)&word),
		     NV_ERR_PAGE_TABLE_NOT_AVAIL);
	return 0;
}

static int va_space_mm_or_current_retain(struct session *s)
{
	uint64_t done = 0;

	CHECK_OK(UVM_RUN(s->fd, VA_SPACE_MM_OR_CURRENT_RETAIN,
			 .retain_done_ptr = (uintptr_t)&done,
			 .sleep_us = 1000));
	CHECK_EQUAL(done, 1);
	CHECK_STATUS(UVM_RUN(s->fd, VA_SPACE_MM_OR_CURRENT_RETAIN,
			     .retain_done_ptr = 8),
		     NV_ERR_INVALID_ARGUMENT);
	if (s->mm_status == NV_OK) {
		close(s->mm_fd);
		CHECK_STATUS(UVM_RUN(s->fd, VA_SPACE_MM_OR_CURRENT_RETAIN),
			     NV_ERR_PAGE_TABLE_NOT_AVAIL);
	}
	return 0;
}

static int get_pageable_mem_access_type(struct session *s)
{
	UVM_TEST_GET_PAGEABLE_MEM_ACCESS_TYPE_PARAMS params = { 0 };

	CHECK_OK(UVM_TEST(s->fd, GET_PAGEABLE_MEM_ACCESS_TYPE, params));
	/* Neither HMM, which the session disables, nor ATS on this platform. */
	CHECK_EQUAL(params.type, s->mm_status == NV_OK ?
		    UVM_TEST_PAGEABLE_MEM_ACCESS_TYPE_MMU_NOTIFIER :
		    UVM_TEST_PAGEABLE_MEM_ACCESS_TYPE_NONE);
	value("GET_PAGEABLE_MEM_ACCESS_TYPE %u", params.type);
	return 0;
}

/* Returns the policy, and the status in *status. */
static UVM_TEST_GET_PAGE_THRASHING_POLICY_PARAMS thrashing(struct session *s)
{
	UVM_TEST_GET_PAGE_THRASHING_POLICY_PARAMS params = { .policy = ~0u };

	UVM_TEST(s->fd, GET_PAGE_THRASHING_POLICY, params);
	return params;
}

static int get_page_thrashing_policy(struct session *s)
{
	UVM_TEST_GET_PAGE_THRASHING_POLICY_PARAMS params = thrashing(s);

	CHECK_OK(params.rmStatus);
	CHECK_EQUAL(params.policy, UVM_TEST_PAGE_THRASHING_POLICY_ENABLE);
	CHECK(params.nap_ns > 0 && params.pin_ns > 0);
	value("GET_PAGE_THRASHING_POLICY nap %llu ns pin %llu ns",
	      (unsigned long long)params.nap_ns,
	      (unsigned long long)params.pin_ns);
	return 0;
}

static int set_page_thrashing_policy(struct session *s)
{
	const NvU64 pin_ns = 123456789;

	CHECK_OK(UVM_RUN(s->fd, SET_PAGE_THRASHING_POLICY,
			 .policy = UVM_TEST_PAGE_THRASHING_POLICY_DISABLE));
	CHECK_EQUAL(thrashing(s).policy, UVM_TEST_PAGE_THRASHING_POLICY_DISABLE);
	CHECK_OK(UVM_RUN(s->fd, SET_PAGE_THRASHING_POLICY,
			 .policy = UVM_TEST_PAGE_THRASHING_POLICY_ENABLE,
			 .pin_ns = pin_ns));
	CHECK_EQUAL(thrashing(s).policy, UVM_TEST_PAGE_THRASHING_POLICY_ENABLE);
	CHECK_EQUAL(thrashing(s).pin_ns, pin_ns);
	CHECK_STATUS(UVM_RUN(s->fd, SET_PAGE_THRASHING_POLICY,
			     .policy = UVM_TEST_PAGE_THRASHING_POLICY_MAX),
		     NV_ERR_INVALID_ARGUMENT);
	return 0;
}

static NvU32 reenable_lapse_ms(struct session *s)
{
	UVM_TEST_GET_PREFETCH_FAULTS_REENABLE_LAPSE_PARAMS params = { 0 };

	UVM_TEST(s->fd, GET_PREFETCH_FAULTS_REENABLE_LAPSE, params);
	return params.reenable_lapse;
}

static int get_prefetch_faults_reenable_lapse(struct session *s)
{
	CHECK(reenable_lapse_ms(s) > 0);
	value("GET_PREFETCH_FAULTS_REENABLE_LAPSE %u ms", reenable_lapse_ms(s));
	return 0;
}

static int set_prefetch_faults_reenable_lapse(struct session *s)
{
	NvU32 before_ms = reenable_lapse_ms(s);

	CHECK_OK(UVM_RUN(s->fd, SET_PREFETCH_FAULTS_REENABLE_LAPSE,
			 .reenable_lapse = before_ms + 1));
	CHECK_EQUAL(reenable_lapse_ms(s), before_ms + 1);
	/* The setting belongs to the module instead of the session. */
	CHECK_OK(UVM_RUN(s->fd, SET_PREFETCH_FAULTS_REENABLE_LAPSE,
			 .reenable_lapse = before_ms));
	CHECK_EQUAL(reenable_lapse_ms(s), before_ms);
	return 0;
}

static int get_gpu_ref_count(struct session *s)
{
	UVM_TEST_GET_GPU_REF_COUNT_PARAMS params = { .ref_count = ~0ull };

	params.gpu_uuid.uuid[0] = 1;
	CHECK_OK(UVM_TEST(s->fd, GET_GPU_REF_COUNT, params));
	CHECK_EQUAL(params.ref_count, 0);
	return 0;
}

const struct test space_tests[] = {
	{ "THREAD_CONTEXT_SANITY", thread_context_sanity },
	{ "THREAD_CONTEXT_PERF", thread_context_perf },
	{ "VA_SPACE_ADD_DUMMY_THREAD_CONTEXTS", add_dummy_thread_contexts },
	{ "VA_SPACE_REMOVE_DUMMY_THREAD_CONTEXTS", remove_dummy_thread_contexts },
	{ "GET_KERNEL_VIRTUAL_ADDRESS", get_kernel_virtual_address },
	{ "VA_SPACE_MM_RETAIN", va_space_mm_retain },
	{ "VA_SPACE_MM_OR_CURRENT_RETAIN", va_space_mm_or_current_retain },
	{ "GET_PAGEABLE_MEM_ACCESS_TYPE", get_pageable_mem_access_type },
	{ "GET_PAGE_THRASHING_POLICY", get_page_thrashing_policy },
	{ "SET_PAGE_THRASHING_POLICY", set_page_thrashing_policy },
	{ "GET_PREFETCH_FAULTS_REENABLE_LAPSE", get_prefetch_faults_reenable_lapse },
	{ "SET_PREFETCH_FAULTS_REENABLE_LAPSE", set_prefetch_faults_reenable_lapse },
	{ "GET_GPU_REF_COUNT", get_gpu_ref_count },
	{ NULL, NULL },
};
