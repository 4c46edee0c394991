// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Reports what tenants map and unmap in address spaces whose page tables nvidia-uvm owns, and
 * has the core follow memory that only nvidia-uvm keeps.
 */
#define GCT_UVM_IMPLEMENTS
#include "gct-hooks.h"
#include "gct-uvm.h"
#include "gct_uvm.h"

#include "uvm_api.h"
#include "uvm_va_range.h"

/* Returns the mapping for one of the GPUs of an ioctl. */
static struct gct_uvm_mapping gct_mapping(const struct gct_known *known,
					  const UVM_MAP_EXTERNAL_ALLOCATION_PARAMS *params, NvU64 gpu)
{
	struct gct_uvm_mapping mapping = {
		.number = known->number,
		.address = params->base,
		.bytes = params->length,
		.offset = params->offset,
		.client = params->hClient,
		.memory = params->hMemory,
	};

	memcpy(mapping.uuid, params->perGpuAttributes[gpu].gpuUuid.uuid, sizeof(mapping.uuid));
	return mapping;
}

/*
 * Maps memory that the core follows from before the mapping on. The ioctls of the space, and
 * those of the client's control file @control, are held: the handle stays the memory's.
 */
static NV_STATUS gct_map_kept(struct gct_known *known, UVM_MAP_EXTERNAL_ALLOCATION_PARAMS *params,
			      void *control, struct gct_spares *spares, struct file *filp)
{
	void *space = known->va_space->gct_file;
	NV_STATUS status;
	u32 name = 0;
	NvU64 i;

	status = gct_uvm_keep(control, space, params->hClient, params->hMemory, &name);
	if (status != NV_OK)
		return status;
	status = uvm_api_map_external_allocation(params, filp);
	if (status != NV_OK || !params->gpuAttributesCount) {
		if (name)
			gct_uvm_let_go(space, name);
		return status;
	}
	gct_kept_begin(spares, name);
	for (i = 0; i < params->gpuAttributesCount; i++) {
		const struct gct_uvm_mapping mapping = gct_mapping(known, params, i);

		gct_kept_mapped(known, &mapping, spares);
	}
	if (name)
		gct_kept_begun(spares);
	return status;
}

NV_STATUS uvm_gct_map_external_allocation(UVM_MAP_EXTERNAL_ALLOCATION_PARAMS *params,
					  struct file *filp)
{
	struct gct_uvm_holder holder = {};
	struct gct_known *known;
	struct gct_spares spares;
	NV_STATUS status;
	bool is_held;
	NvU64 i;

	/* nvidia-uvm refuses as many. */
	if (!gct_enabled() || params->gpuAttributesCount > ARRAY_SIZE(params->perGpuAttributes))
		return uvm_api_map_external_allocation(params, filp);
	if (gct_uvm_is_lent(params->hClient, params->hMemory))
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	known = gct_known_made(filp);
	if (!known || !gct_spares_alloc(&spares, params->gpuAttributesCount))
		return NV_ERR_NO_MEMORY;
	is_held = gct_uvm_hold(params->rmCtrlFd, &holder);
	mutex_lock(&known->ioctls);
	status = gct_map_kept(known, params, holder.file, &spares, filp);
	mutex_unlock(&known->ioctls);
	if (is_held)
		gct_uvm_release(&holder);
	gct_spares_free(&spares);
	for (i = 0; status == NV_OK && i < params->gpuAttributesCount; i++) {
		const struct gct_uvm_mapping mapping = gct_mapping(known, params, i);

		gct_uvm_mapped(known->owner, &mapping);
	}
	return status;
}

NV_STATUS uvm_gct_unmap_external(UVM_UNMAP_EXTERNAL_PARAMS *params, struct file *filp)
{
	struct gct_known *known;
	struct gct_spares spares;
	NV_STATUS status;

	if (!gct_enabled())
		return uvm_api_unmap_external(params, filp);
	known = gct_known_made(filp);
	if (!known || !gct_spares_alloc(&spares, 1))
		return NV_ERR_NO_MEMORY;
	mutex_lock(&known->ioctls);
	status = uvm_api_unmap_external(params, filp);
	if (status == NV_OK && params->length)
		gct_kept_unmapped(known, params->gpuUuid.uuid, params->base,
				  params->base + params->length - 1, &spares);
	mutex_unlock(&known->ioctls);
	gct_spares_free(&spares);
	if (status == NV_OK)
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
	struct gct_known *known;
	NV_STATUS status;
	NvU64 size;

	if (!gct_enabled())
		return uvm_api_free(params, filp);
	/* Made here, too: the first mapping may come while this frees its range. */
	known = gct_known_made(filp);
	if (!known)
		return NV_ERR_NO_MEMORY;
	/* Nothing else frees such a range. From 595 on the parameters do not have its size. */
	mutex_lock(&known->ioctls);
	size = gct_size_at(known->va_space, params->base);
	status = size ? uvm_api_free(params, filp) : NV_ERR_INVALID_ADDRESS;
	if (status == NV_OK)
		gct_kept_unmapped(known, NULL, params->base, params->base + size - 1, NULL);
	mutex_unlock(&known->ioctls);
	if (status == NV_OK)
		gct_uvm_unmapped(known->owner, known->number, params->base, size, NULL);
	return status;
}
