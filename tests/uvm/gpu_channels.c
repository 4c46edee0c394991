// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Tests of UVM's channels on a GPU: pushes, copies, semaphores, invalidations. Most of them check
 * themselves; the device executes the pushes.
 */
#include <stdio.h>

#include "uvm.h"

/* Each of these tests works on every registered GPU and checks the result. */
#define KERNEL_TEST(function, name) \
	static int function(struct session *s) \
	{ \
		CHECK_OK(UVM_RUN(s->fd, name, 0)); \
		return 0; \
	}

KERNEL_TEST(tracker_sanity, TRACKER_SANITY)
KERNEL_TEST(push_sanity, PUSH_SANITY)
KERNEL_TEST(host_sanity, HOST_SANITY)
KERNEL_TEST(ce_sanity, CE_SANITY)
KERNEL_TEST(channel_sanity, CHANNEL_SANITY)
KERNEL_TEST(gpu_semaphore_sanity, GPU_SEMAPHORE_SANITY)
KERNEL_TEST(mem_sanity, MEM_SANITY)

static int channel_stress(struct session *s)
{
	CHECK_OK(UVM_RUN(s->fd, CHANNEL_STRESS,
			 .mode = UVM_TEST_CHANNEL_STRESS_MODE_NOOP_PUSH,
			 .iterations = rounds(500)));
	CHECK_OK(UVM_RUN(s->fd, CHANNEL_STRESS,
			 .mode = UVM_TEST_CHANNEL_STRESS_MODE_UPDATE_CHANNELS,
			 .iterations = rounds(500), .seed = 1));
	CHECK_OK(UVM_RUN(s->fd, CHANNEL_STRESS,
			 .mode = UVM_TEST_CHANNEL_STRESS_MODE_STREAM,
			 .iterations = rounds(100), .num_streams = 8, .seed = 1));
	CHECK_STATUS(UVM_RUN(s->fd, CHANNEL_STRESS, .mode = 100),
		     NV_ERR_INVALID_PARAMETER);
	return 0;
}

static int invalidate_tlb(struct session *s)
{
	unsigned int level, membar;

	for (level = UvmInvalidatePageTableLevelAll;
	     level <= UvmInvalidatePageTableLevelPde4; level++) {
		for (membar = UvmInvalidateTlbMemBarNone;
		     membar <= UvmInvalidateTlbMemBarLocal; membar++) {
			CHECK_OK(UVM_RUN(s->fd, INVALIDATE_TLB, .gpu_uuid = s->gpu,
					 .va = BLOCK_BYTES, .membar = membar,
					 .target_va_mode = UvmTargetVaModeTargeted,
					 .page_table_level = level));
		}
	}
	CHECK_STATUS(UVM_RUN(s->fd, INVALIDATE_TLB, .gpu_uuid = s->cpu,
			     .target_va_mode = UvmTargetVaModeAll,
			     .page_table_level = UvmInvalidatePageTableLevelAll,
			     .membar = UvmInvalidateTlbMemBarNone),
		     NV_ERR_INVALID_DEVICE);
	return 0;
}

/* The GPU's clock advances. The test reads it through RM. */
static int get_gpu_time(struct session *s)
{
	UVM_TEST_GET_GPU_TIME_PARAMS first = { .gpu_uuid = s->gpu }, second = first;

	CHECK_OK(UVM_TEST(s->fd, GET_GPU_TIME, first));
	CHECK_OK(UVM_TEST(s->fd, GET_GPU_TIME, second));
	CHECK(second.timestamp_ns > first.timestamp_ns);
	return 0;
}

static int fault_buffer_flush(struct session *s)
{
	CHECK_OK(UVM_RUN(s->fd, FAULT_BUFFER_FLUSH, .iterations = rounds(500)));
	return 0;
}

/* No fault has occurred. */
static int drain_replayable_faults(struct session *s)
{
	CHECK_OK(UVM_RUN(s->fd, DRAIN_REPLAYABLE_FAULTS, .gpu_uuid = s->gpu,
			 .timeout_ns = 1000000000));
	CHECK_STATUS(UVM_RUN(s->fd, DRAIN_REPLAYABLE_FAULTS, .gpu_uuid = s->cpu),
		     NV_ERR_INVALID_DEVICE);
	return 0;
}

static int access_counters_enabled_by_default(struct session *s)
{
	UVM_TEST_ACCESS_COUNTERS_ENABLED_BY_DEFAULT_PARAMS params = { .gpu_uuid = s->gpu };

	CHECK_OK(UVM_TEST(s->fd, ACCESS_COUNTERS_ENABLED_BY_DEFAULT, params));
	value("access counters %d", params.enabled);
	return 0;
}

const struct test channel_tests[] = {
	{ "TRACKER_SANITY", tracker_sanity },
	{ "PUSH_SANITY", push_sanity },
	{ "HOST_SANITY", host_sanity },
	{ "CE_SANITY", ce_sanity },
	{ "CHANNEL_STRESS", channel_stress },
	{ "GPU_SEMAPHORE_SANITY", gpu_semaphore_sanity },
	{ "MEM_SANITY", mem_sanity },
	{ "INVALIDATE_TLB", invalidate_tlb },
	{ "GET_GPU_TIME", get_gpu_time },
	{ "FAULT_BUFFER_FLUSH", fault_buffer_flush },
	{ "DRAIN_REPLAYABLE_FAULTS", drain_replayable_faults },
	{ "ACCESS_COUNTERS_ENABLED_BY_DEFAULT", access_counters_enabled_by_default },
	{ NULL, NULL },
};

/* These tests need all other processes to have unregistered the GPU. */
const struct test alone_tests[] = {
	{ "CHANNEL_SANITY", channel_sanity },
	{ NULL, NULL },
};
