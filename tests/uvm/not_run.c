// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The built-in tests that are not run, with the reasons. `uvm-tests --list` fails if the driver's
 * header has a test that is neither here nor in a list of tests.
 */
#include "uvm.h"

/* Shared reasons, so that the table uses the same words. */
#define NUMA "needs a machine with several memory nodes"
#define COUNTERS "needs access counter notifications, which the software GPU does not send"
#define FILES "makes a file whose pages a test maps and unmaps under a GPU that reads them"
#define NEWER "came with 595, which the software GPU does not speak"
#define LAUNCHES "needs channels and launches: tests/rm-client runs it (rm-test nvidia_test_*)"
#define PEERS "needs two GPUs that reach each other's memory, which the software GPU cannot"
#define SETTING "only changes a setting, whose effect is a matter of time or chance"

const struct not_run not_run[] = {
	{ "CHECK_CHANNEL_VA_SPACE", LAUNCHES },
	{ "DEAD_CHANNEL", NEWER },
	{ "DESTROY_GPU_VA_SPACE_DELAY", SETTING },
	{ "DISABLE_NVLINK_PEER_ACCESS", PEERS },
	{ "DISABLE_STATIC_PEER_ACCESS", PEERS },
	{ "DUMP_ACCESS_BITS", NEWER },
	{ "ENABLE_NVLINK_PEER_ACCESS", PEERS },
	{ "ENABLE_STATIC_PEER_ACCESS", PEERS },
	{ "FILE_INITIALIZE", FILES },
	{ "FILE_UNMAP", FILES },
	{ "FORCE_CPU_TO_CPU_COPY_WITH_CE", SETTING },
	{ "INJECT_NVLINK_ERROR", "needs an NVLink, which the software GPU has not" },
	{ "INJECT_TOOLS_EVENT_V2", "is INJECT_TOOLS_EVENT with a longer entry" },
	{ "MAKE_CHANNEL_STOPS_IMMEDIATE", SETTING },
	{ "NUMA_CHECK_AFFINITY", NUMA },
	{ "NUMA_GET_CLOSEST_CPU_NODE_TO_GPU", NUMA },
	{ "PEER_IDENTITY_MAPPINGS", PEERS },
	{ "PEER_REF_COUNT", PEERS },
	{ "PMM_CHUNK_WITH_ELEVATED_PAGE", "needs a GPU whose memory is a NUMA node" },
	{ "PMM_GET_ALLOC_LIST", NEWER },
	{ "PMM_INDIRECT_PEERS", PEERS },
	{ "PMM_SYSMEM", "needs a GPU with access counters to keep a reverse map for" },
	{ "QUERY_ACCESS_COUNTERS", COUNTERS },
	{ "RECONFIGURE_ACCESS_COUNTERS", COUNTERS },
	{ "RESET_ACCESS_COUNTERS", COUNTERS },
	{ "RM_MEM_SANITY", "takes minutes on the software GPU: it writes megabytes through BAR1 word by word" },
	{ "SEC2_CPU_GPU_ROUNDTRIP", "needs a GPU in confidential computing mode" },
	{ "SEC2_SANITY", "needs a GPU in confidential computing mode" },
	{ "SET_IGNORE_ACCESS_COUNTERS", COUNTERS },
	{ "SET_NON_REPLAYABLE_DELAY", SETTING },
	{ "SET_P2P_SUSPENDED", PEERS },
	{ "SET_PAGE_PREFETCH_POLICY", LAUNCHES },
	{ "SET_PREFETCH_FILTERING", "needs faults that prefetch, which the software GPU does not report" },
	{ "SKIP_MIGRATE_VMA", SETTING },
	{ "SPLIT_INVALIDATE_DELAY", SETTING },
	{ "TOOLS_FLUSH_REPLAY_EVENTS", "needs a profiler's queue of events with replays in it" },
	{ "VA_RANGE_INJECT_ADD_GPU_VA_SPACE_ERROR", SETTING },
	{ "VA_SPACE_ALLOW_MOVABLE_ALLOCATIONS", SETTING },
	{ NULL, NULL },
};
