// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Reports what tenants map and unmap in address spaces whose page tables nvidia-uvm owns.
 */
#define GCT_UVM_IMPLEMENTS
#include "gct-hooks.h"
#include "gct-uvm.h"
#include "gct_uvm.h"

#include "uvm_api.h"
#include "uvm_va_range.h"

NV_STATUS uvm_gct_map_external_allocation(UVM_MAP_EXTERNAL_ALLOCATION_PARAMS *params,
					  struct file *filp)
{
	const struct gct_known *known;
	NV_STATUS status;
	NvU64 i;

	if (gct_uvm_is_lent(params->hClient, params->hMemory))
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	status = uvm_api_map_external_allocation(params, filp);
	known = status == NV_OK ? gct_known_of(filp) : NULL;
	for (i = 0; known && i < params->gpuAttributesCount; i++) {
		struct gct_uvm_mapping mapping = {
			.number = known->number,
			.address = params->base,
			.bytes = params->length,
			.offset = params->offset,
			.client = params->hClient,
			.memory = params->hMemory,
		};

		memcpy(mapping.uuid, params->perGpuAttributes[i].gpuUuid.uuid,
		       sizeof(mapping.uuid));
		gct_uvm_mapped(known->owner, &mapping);
	}
	return status;
}

NV_STATUS uvm_gct_unmap_external(UVM_UNMAP_EXTERNAL_PARAMS *params, struct file *filp)
{
	const NV_STATUS status = uvm_api_unmap_external(params, filp);
	const struct gct_known *known = status == NV_OK ? gct_known_of(filp) : NULL;

	if (known)
		gct_uvm_unmapped(known->owner, known->number, params->base, params->length,
				 params->gpuUuid.uuid);
	return status;
}

/* Returns the size of the VA range that UVM_FREE frees at an address, 0 if there is none. */
static NvU64 gct_size_at(uvm_va_space_t *va_space, NvU64 base)
{
	uvm_va_range_t *range;
	NvU64 size;

	uvm_va_space_down_read(va_space);
	range = uvm_va_range_find(va_space, base);
	/* Two types go with their mapping and with their channel. UVM_FREE refuses them. */
	size = !range || range->node.start != base || range->type == UVM_VA_RANGE_TYPE_MANAGED ||
	       range->type == UVM_VA_RANGE_TYPE_CHANNEL ? 0 : uvm_va_range_size(range);
	uvm_va_space_up_read(va_space);
	return size;
}

NV_STATUS uvm_gct_free(UVM_FREE_PARAMS *params, struct file *filp)
{
	struct gct_known *known = gct_known_of(filp);
	NV_STATUS status;
	NvU64 size;

	if (!known)
		return uvm_api_free(params, filp);
	/* Nothing else frees such a range. From 595 on the parameters do not have its size. */
	mutex_lock(&known->ioctls);
	size = gct_size_at(known->va_space, params->base);
	status = size ? uvm_api_free(params, filp) : NV_ERR_INVALID_ADDRESS;
	mutex_unlock(&known->ioctls);
	if (status == NV_OK)
		gct_uvm_unmapped(known->owner, known->number, params->base, size, NULL);
	return status;
}
