/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * gct_rmapi.h - operations of rm_kernel_rmapi_op() and their structures, which kernel-open
 * does not declare. tests/patches/rmapi.c compares them with the headers of each driver
 * whose source is at hand.
 */
#ifndef GCT_RMAPI_H
#define GCT_RMAPI_H

#include "gct.h"

#define GCT_NV01_FREE 0x00
#define GCT_NV04_ALLOC 0x15
#define GCT_NV04_MAP_MEMORY 0x21
#define GCT_NV04_MAP_MEMORY_DMA 0x2e
#define GCT_NV04_CONTROL 0x36
#define GCT_NV04_DUP_OBJECT 0x37

/* A flag of GCT_NV04_MAP_MEMORY: NVOS33_FLAGS_ACCESS_READ_ONLY. */
#define GCT_MAP_READ_ONLY 1

/* The first release that allocates by NVOS64_PARAMETERS. */
#define GCT_RELEASE_NVOS64 575
/* The first release whose NVOS46_PARAMETERS has flags2 and kindOverride. */
#define GCT_RELEASE_KIND 580
/* The first release whose device files have a fileVaLock. */
#define GCT_RELEASE_FILE_VA_LOCK 595

struct gct_rm_operation {
	uint32_t operation;
	union {
		struct {
			uint32_t root, parent, object, class_number;
			uint64_t params;
			uint32_t size, status;
		} alloc;	/* NVOS21_PARAMETERS */
		struct {
			uint32_t root, parent, object, class_number;
			uint64_t params, rights;
			uint32_t size, flags, status;
		} alloc_rights;	/* NVOS64_PARAMETERS */
		struct {
			uint32_t root, parent, object, status;
		} free;		/* NVOS00_PARAMETERS */
		struct {
			uint32_t client, object, command, flags;
			uint64_t params;
			uint32_t size, status;
		} control;	/* NVOS54_PARAMETERS */
		struct {
			uint32_t client, parent, object, source_client, source, flags, status;
		} dup;		/* NVOS55_PARAMETERS */
		struct {
			uint32_t client, device, memory;
			uint64_t offset, length, address;
			uint32_t status, flags;
		} map;		/* NVOS33_PARAMETERS */
		struct {
			uint32_t client, device, range, memory;
			uint64_t offset, length;
			uint32_t flags;
			uint64_t address;
			uint32_t status;
		} map_dma;	/* NVOS46_PARAMETERS */
		struct {
			uint32_t client, device, range, memory;
			uint64_t offset, length;
			uint32_t flags, flags2, kind;
			uint64_t address;
			uint32_t status;
		} map_dma_kind;	/* the same from GCT_RELEASE_KIND on */
	} __attribute__((aligned(8)));
};

/* Fields that newer releases have elsewhere. Those before them are where they were. */

static inline uint32_t *gct_rm_alloc_status(struct gct_rm_operation *call)
{
	return GCT_DRIVER_RELEASE < GCT_RELEASE_NVOS64 ? &call->alloc.status :
							 &call->alloc_rights.status;
}

static inline uint64_t *gct_rm_map_dma_address(struct gct_rm_operation *call)
{
	return GCT_DRIVER_RELEASE < GCT_RELEASE_KIND ? &call->map_dma.address :
						       &call->map_dma_kind.address;
}

static inline uint32_t *gct_rm_map_dma_status(struct gct_rm_operation *call)
{
	return GCT_DRIVER_RELEASE < GCT_RELEASE_KIND ? &call->map_dma.status :
						       &call->map_dma_kind.status;
}

#endif /* GCT_RMAPI_H */
