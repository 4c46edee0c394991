// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Compares the structures of gct_rmapi.h with a driver's headers: ci/test-rm.sh compiles
 * this with the driver's NV_VERSION_STRING, and runs it.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "nv-kernel-rmapi-ops.h"
#include "nv_escape.h"
#include "nvos.h"

#include "gct_rmapi.h"

static int wrong;

static void same(const char *what, size_t ours, size_t theirs)
{
	if (ours == theirs)
		return;
	printf("%s: gct_rmapi.h has %zu, the driver %zu\n", what, ours, theirs);
	wrong = 1;
}

#define OURS(field) offsetof(struct gct_rm_operation, field)
#define THEIRS(field) offsetof(nvidia_kernel_rmapi_ops_t, params.field)
#define SAME(ours, theirs) same(#theirs, OURS(ours), THEIRS(theirs))
#define SAME_AT(ours, theirs) \
	same(#theirs, (size_t)((char *)(ours) - (char *)&call), THEIRS(theirs))

int main(void)
{
	struct gct_rm_operation call = { 0 };

	same("NV01_FREE", GCT_NV01_FREE, NV01_FREE);
	same("NV04_ALLOC", GCT_NV04_ALLOC, NV04_ALLOC);
	same("NV04_MAP_MEMORY", GCT_NV04_MAP_MEMORY, NV04_MAP_MEMORY);
	same("NV04_MAP_MEMORY_DMA", GCT_NV04_MAP_MEMORY_DMA, NV04_MAP_MEMORY_DMA);
	same("NV04_CONTROL", GCT_NV04_CONTROL, NV04_CONTROL);
	same("NV04_DUP_OBJECT", GCT_NV04_DUP_OBJECT, NV04_DUP_OBJECT);
	/* Bits 1:0. */
	same("NVOS33_FLAGS_ACCESS_READ_ONLY", GCT_MAP_READ_ONLY, NVOS33_FLAGS_ACCESS_READ_ONLY);

	SAME(alloc.root, alloc.hRoot);
	SAME(alloc.parent, alloc.hObjectParent);
	SAME(alloc.object, alloc.hObjectNew);
	SAME(alloc.class_number, alloc.hClass);
	SAME(alloc.params, alloc.pAllocParms);
	SAME_AT(gct_rm_alloc_status(&call), alloc.status);

	SAME(free.root, free.hRoot);
	SAME(free.object, free.hObjectOld);
	SAME(free.status, free.status);

	SAME(control.client, control.hClient);
	SAME(control.object, control.hObject);
	SAME(control.command, control.cmd);
	SAME(control.flags, control.flags);
	SAME(control.params, control.params);
	SAME(control.size, control.paramsSize);
	SAME(control.status, control.status);

	SAME(dup.client, dupObject.hClient);
	SAME(dup.parent, dupObject.hParent);
	SAME(dup.object, dupObject.hObject);
	SAME(dup.source_client, dupObject.hClientSrc);
	SAME(dup.source, dupObject.hObjectSrc);
	SAME(dup.status, dupObject.status);

	SAME(map.client, mapMemory.hClient);
	SAME(map.device, mapMemory.hDevice);
	SAME(map.memory, mapMemory.hMemory);
	SAME(map.offset, mapMemory.offset);
	SAME(map.length, mapMemory.length);
	SAME(map.address, mapMemory.pLinearAddress);
	SAME(map.status, mapMemory.status);

	SAME(map_dma.client, mapMemoryDma.hClient);
	SAME(map_dma.device, mapMemoryDma.hDevice);
	SAME(map_dma.range, mapMemoryDma.hDma);
	SAME(map_dma.memory, mapMemoryDma.hMemory);
	SAME(map_dma.offset, mapMemoryDma.offset);
	SAME(map_dma.length, mapMemoryDma.length);
	SAME(map_dma.flags, mapMemoryDma.flags);
	SAME_AT(gct_rm_map_dma_address(&call), mapMemoryDma.dmaOffset);
	SAME_AT(gct_rm_map_dma_status(&call), mapMemoryDma.status);
	return wrong;
}
