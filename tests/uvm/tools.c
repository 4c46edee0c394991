// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Tests of UVM's reports to profilers: a queue of events and an array of counters. Both lie in our
 * own memory, which the driver maps and writes.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "uvm.h"

/* A power of two. The driver keeps one entry free to distinguish full from empty. */
#define QUEUE_ENTRIES 8
#define QUEUE_HOLDS (QUEUE_ENTRIES - 1)

static void *shared_page(void)
{
	void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED) {
		fail(__FILE__, __LINE__, "mmap of a page: %m");
		return NULL;
	}
	return page;
}

/* Opens the second device and attaches it to the session. */
static int attach(struct session *s, UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS params)
{
	int fd = uvm_open(UVM_MINOR_TOOLS);

	if (fd < 0)
		return -1;
	params.uvmFd = s->fd;
#ifdef UVM_MAX_PROCESSORS_V2
	params.requestedVersion = UvmToolsEventQueueVersion_V1;
#endif
	CHECK_OK(UVM_API(fd, UVM_TOOLS_INIT_EVENT_TRACKER, params));
	return fd;
}

/* Returns an event that no part of the driver reports without a GPU. */
static UVM_TEST_INJECT_TOOLS_EVENT_PARAMS event(NvU8 type)
{
	UVM_TEST_INJECT_TOOLS_EVENT_PARAMS params = { .count = 1 };
#ifdef UVM_MAX_PROCESSORS_V2
	UvmEventEntry *entry = &params.entry_v1;

	params.version = UvmToolsEventQueueVersion_V1;
#else
	UvmEventEntry *entry = &params.entry;
#endif
	entry->eventData.eventType = type;
	return params;
}

static int inject_tools_event(struct session *s)
{
	const NvU8 type = UvmEventTypeFaultBufferOverflow;
	UvmToolsEventControlData *control = shared_page();
	UvmEventEntry *queue = shared_page();
	UVM_TEST_INJECT_TOOLS_EVENT_PARAMS inject = event(type);
	UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS_PARAMS enable = {
		.eventTypeFlags = UVM_EVENT_ENABLE_FAULT_BUFFER_OVERFLOW,
	};
	int i, fd;

	CHECK(control && queue);
	CHECK(QUEUE_ENTRIES * sizeof(*queue) <= PAGE_BYTES);
	fd = attach(s, (UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS){
		.queueBuffer = (uintptr_t)queue,
		.queueBufferSize = QUEUE_ENTRIES,
		.controlBuffer = (uintptr_t)control,
	});
	if (fd < 0)
		return -1;
	/* No caller has enabled this event yet. */
	CHECK_OK(UVM_TEST(s->fd, INJECT_TOOLS_EVENT, inject));
	CHECK_EQUAL(control->put_ahead, 0);

	CHECK_OK(UVM_API(fd, UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS, enable));
	inject.count = QUEUE_HOLDS + 3;
	CHECK_OK(UVM_TEST(s->fd, INJECT_TOOLS_EVENT, inject));
	CHECK_EQUAL(control->put_ahead, QUEUE_HOLDS);
	CHECK_EQUAL(control->put_behind, QUEUE_HOLDS);
	CHECK_EQUAL(control->dropped[type], 3);
	for (i = 0; i < QUEUE_HOLDS; i++)
		CHECK_EQUAL(queue[i].eventData.eventType, type);
	CHECK_EQUAL(queue[QUEUE_HOLDS].eventData.eventType, 0);

	inject = event(UvmEventNumTypesAll);
	CHECK_STATUS(UVM_TEST(s->fd, INJECT_TOOLS_EVENT, inject),
		     NV_ERR_INVALID_ARGUMENT);
	close(fd);
	return 0;
}

static int increment_tools_counter(struct session *s)
{
	const NvU32 counter = UvmCounterNameCpuPageFaultCount;
	volatile NvU64 *counters = shared_page();
	UVM_TOOLS_ENABLE_COUNTERS_PARAMS enable = {
		.counterTypeFlags = 1ull << counter,
	};
	UVM_TEST_INCREMENT_TOOLS_COUNTER_PARAMS increment = {
		.amount = 5,
		.counter = counter,
		.processor = s->cpu,
		.count = 3,
	};
	int i, fd;

	CHECK(counters);
	fd = attach(s, (UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS){
		.controlBuffer = (uintptr_t)counters,
		.processor = s->cpu,
	});
	if (fd < 0)
		return -1;
	CHECK_OK(UVM_TEST(s->fd, INCREMENT_TOOLS_COUNTER, increment));
	CHECK_EQUAL(counters[counter], 0);
	CHECK_OK(UVM_API(fd, UVM_TOOLS_ENABLE_COUNTERS, enable));
	CHECK_OK(UVM_TEST(s->fd, INCREMENT_TOOLS_COUNTER, increment));
	for (i = 0; i < UVM_TOTAL_COUNTERS; i++)
		CHECK_EQUAL(counters[i], i == (int)counter ? 3 * 5 : 0);

	increment.counter = UVM_TOTAL_COUNTERS;
	CHECK_STATUS(UVM_TEST(s->fd, INCREMENT_TOOLS_COUNTER, increment),
		     NV_ERR_INVALID_ARGUMENT);
	close(fd);
	return 0;
}

const struct test tools_tests[] = {
	{ "INJECT_TOOLS_EVENT", inject_tools_event },
	{ "INCREMENT_TOOLS_COUNTER", increment_tools_counter },
	{ NULL, NULL },
};
