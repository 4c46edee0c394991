// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The built-in tests that are not run, and why. `uvm-tests --list` fails if
 * the driver's header has one that is neither here nor in a list of tests.
 */
#include "uvm.h"

/* Five reasons, so that the table says the same thing in the same words. */
#define NAMED_GPU "acts on a registered GPU, named by its UUID"
#define EACH_GPU "does its work once for each registered GPU; without one it passes idle or refuses"
#define FAULTS "needs faults or access counter notifications from a GPU"
#define PEERS "needs two GPUs that reach each other's memory"
#define SETTING "only changes a setting; what it does shows only with a GPU"

const struct not_run not_run[] = {
	{ "ACCESS_COUNTERS_ENABLED_BY_DEFAULT", NAMED_GPU },
	{ "CE_SANITY", EACH_GPU },
	{ "CHANNEL_SANITY", EACH_GPU },
	{ "CHANNEL_STRESS", "picks a GPU without asking whether there is one" },
	{ "CHECK_CHANNEL_VA_SPACE", NAMED_GPU },
	{ "DESTROY_GPU_VA_SPACE_DELAY", SETTING },
	{ "DISABLE_NVLINK_PEER_ACCESS", PEERS },
	{ "DRAIN_REPLAYABLE_FAULTS", FAULTS },
	{ "ENABLE_NVLINK_PEER_ACCESS", PEERS },
	{ "EVICT_CHUNK", NAMED_GPU },
	{ "FAULT_BUFFER_FLUSH", EACH_GPU },
	{ "FORCE_CPU_TO_CPU_COPY_WITH_CE", SETTING },
	{ "GET_GPU_TIME", NAMED_GPU },
	{ "GET_RM_PTES", NAMED_GPU },
	{ "GPU_SEMAPHORE_SANITY", EACH_GPU },
	{ "HOST_SANITY", EACH_GPU },
	{ "INVALIDATE_TLB", NAMED_GPU },
	{ "MAKE_CHANNEL_STOPS_IMMEDIATE", SETTING },
#ifndef UVM_MAX_PROCESSORS_V2
	{ "MEM_SANITY", "reads the first GPU's mode without asking whether there is one; later versions run it" },
#endif
	{ "NUMA_CHECK_AFFINITY", NAMED_GPU },
	{ "NUMA_GET_CLOSEST_CPU_NODE_TO_GPU", NAMED_GPU },
	{ "PEER_IDENTITY_MAPPINGS", PEERS },
	{ "PEER_REF_COUNT", PEERS },
	{ "PMA_ALLOC_FREE", NAMED_GPU },
	{ "PMA_GET_BATCH_SIZE", NAMED_GPU },
	{ "PMM_ALLOC_FREE_ROOT", NAMED_GPU },
	{ "PMM_ASYNC_ALLOC", NAMED_GPU },
	{ "PMM_CHECK_LEAK", NAMED_GPU },
	{ "PMM_CHUNK_WITH_ELEVATED_PAGE", "needs a GPU whose memory is a NUMA node" },
	{ "PMM_INDIRECT_PEERS", PEERS },
	{ "PMM_INJECT_PMA_EVICT_ERROR", NAMED_GPU },
	{ "PMM_QUERY", NAMED_GPU },
	{ "PMM_QUERY_PMA_STATS", NAMED_GPU },
	{ "PMM_RELEASE_FREE_ROOT_CHUNKS", NAMED_GPU },
	{ "PMM_REVERSE_MAP", NAMED_GPU },
	{ "PMM_SANITY", EACH_GPU },
	{ "PMM_SYSMEM", "needs a GPU with access counters to keep a reverse map for" },
	{ "PUSH_SANITY", EACH_GPU },
	{ "RECONFIGURE_ACCESS_COUNTERS", FAULTS },
	{ "RESET_ACCESS_COUNTERS", FAULTS },
	{ "RM_MEM_SANITY", EACH_GPU },
	{ "SEC2_CPU_GPU_ROUNDTRIP", "needs a GPU in confidential computing mode" },
	{ "SEC2_SANITY", "needs a GPU in confidential computing mode" },
	{ "SET_IGNORE_ACCESS_COUNTERS", FAULTS },
	{ "SET_PAGE_PREFETCH_POLICY", SETTING },
	{ "SET_PREFETCH_FILTERING", FAULTS },
	{ "SKIP_MIGRATE_VMA", SETTING },
	{ "SPLIT_INVALIDATE_DELAY", SETTING },
	{ "TOOLS_FLUSH_REPLAY_EVENTS", FAULTS },
	{ "TRACKER_SANITY", EACH_GPU },
	{ "VA_BLOCK", EACH_GPU },
	{ "VA_RANGE_INJECT_ADD_GPU_VA_SPACE_ERROR", SETTING },
	{ "VA_SPACE_ALLOW_MOVABLE_ALLOCATIONS", SETTING },
	{ NULL, NULL },
};
