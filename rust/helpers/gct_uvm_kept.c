// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Follows memory of the resource manager that nvidia-uvm maps: each mapping keeps the whole
 * memory object, also when the tenant has freed it.
 *
 * A range here is a mapping of nvidia-uvm, or what is left of one. Nothing is uncharged that
 * is still mapped. What nvidia-uvm unmaps for other reasons (a mapping that failed, a sparse
 * one, peers that part) stays charged until its addresses are mapped again, unmapped or freed.
 *
 * All of it is under the ioctls of its space.
 */
#define GCT_UVM_IMPLEMENTS
#include "gct-hooks.h"
#include "gct_uvm.h"

#include "uvm_range_tree.h"

/* Memory that is kept, by its name in the core. It goes with its last range. */
struct gct_kept {
	u32 name;
	u32 ranges;
};

struct gct_kept_range {
	uvm_range_tree_node_t node;
	struct gct_kept *kept;
};

/* What a GPU maps. */
struct gct_kept_gpu {
	struct list_head list;
	NvU8 uuid[GCT_GPU_UUID_BYTES];
	uvm_range_tree_t ranges;
};

bool gct_spares_alloc(struct gct_spares *spares, NvU64 gpus)
{
	struct gct_kept_range *range;
	struct gct_kept_gpu *gpu;
	NvU64 i;

	INIT_LIST_HEAD(&spares->ranges);
	INIT_LIST_HEAD(&spares->gpus);
	/* A range that is new, and one for the end of another that it divides. */
	for (i = 0; i < 2 * gpus; i++) {
		range = kzalloc(sizeof(*range), GFP_KERNEL_ACCOUNT);
		if (!range)
			goto fail;
		list_add(&range->node.list, &spares->ranges);
	}
	for (i = 0; i < gpus; i++) {
		gpu = kzalloc(sizeof(*gpu), GFP_KERNEL_ACCOUNT);
		if (!gpu)
			goto fail;
		list_add(&gpu->list, &spares->gpus);
	}
	spares->kept = kzalloc(sizeof(*spares->kept), GFP_KERNEL_ACCOUNT);
	if (spares->kept)
		return true;
fail:
	gct_spares_free(spares);
	return false;
}

void gct_spares_free(struct gct_spares *spares)
{
	struct gct_kept_range *range, *next_range;
	struct gct_kept_gpu *gpu, *next_gpu;

	list_for_each_entry_safe(range, next_range, &spares->ranges, node.list)
		kfree(range);
	list_for_each_entry_safe(gpu, next_gpu, &spares->gpus, list)
		kfree(gpu);
	kfree(spares->kept);
	spares->kept = NULL;
}

static struct gct_kept_range *gct_spare_range(struct gct_spares *spares)
{
	struct gct_kept_range *range;

	range = list_first_entry(&spares->ranges, struct gct_kept_range, node.list);
	list_del(&range->node.list);
	return range;
}

static struct gct_kept_gpu *gct_kept_gpu_of(struct gct_known *known, const NvU8 *uuid)
{
	struct gct_kept_gpu *gpu;

	list_for_each_entry(gpu, &known->kept, list) {
		if (!memcmp(gpu->uuid, uuid, sizeof(gpu->uuid)))
			return gpu;
	}
	return NULL;
}

static void gct_range_free(struct gct_known *known, struct gct_kept_gpu *gpu,
			   struct gct_kept_range *range)
{
	struct gct_kept *kept = range->kept;

	uvm_range_tree_remove(&gpu->ranges, &range->node);
	kfree(range);
	if (--kept->ranges)
		return;
	gct_uvm_let_go(known->va_space->gct_file, kept->name);
	kfree(kept);
}

/*
 * Takes addresses away from what is there. Divides at most one range, for which there is a spare.
 * Without one it stays whole.
 */
static void gct_cut(struct gct_known *known, struct gct_kept_gpu *gpu, NvU64 first, NvU64 last,
		    struct gct_spares *spares)
{
	uvm_range_tree_node_t *node;

	while ((node = uvm_range_tree_iter_first(&gpu->ranges, first, last))) {
		struct gct_kept_range *range = container_of(node, struct gct_kept_range, node);

		if (node->start < first && node->end > last) {
			struct gct_kept_range *end;

			if (WARN_ON_ONCE(!spares || list_empty(&spares->ranges)))
				return;
			end = gct_spare_range(spares);
			end->kept = range->kept;
			end->kept->ranges++;
			end->node.start = last + 1;
			uvm_range_tree_split(&gpu->ranges, node, &end->node);
		}
		if (node->start < first)
			uvm_range_tree_shrink_node(&gpu->ranges, node, node->start, first - 1);
		else if (node->end > last)
			uvm_range_tree_shrink_node(&gpu->ranges, node, last + 1, node->end);
		else
			gct_range_free(known, gpu, range);
	}
}

void gct_kept_begin(struct gct_spares *spares, u32 name)
{
	spares->kept->name = name;
	spares->kept->ranges = 1;
}

void gct_kept_begun(struct gct_spares *spares)
{
	/* A GPU may be named twice, but the last mapping is there. */
	spares->kept->ranges--;
	spares->kept = NULL;
}

void gct_kept_mapped(struct gct_known *known, const struct gct_uvm_mapping *mapping,
		     struct gct_spares *spares)
{
	struct gct_kept_gpu *gpu = gct_kept_gpu_of(known, mapping->uuid);
	const NvU64 last = mapping->address + mapping->bytes - 1;
	struct gct_kept_range *range;

	if (gpu)
		gct_cut(known, gpu, mapping->address, last, spares);
	if (!spares->kept->name)
		return;
	if (!gpu) {
		gpu = list_first_entry(&spares->gpus, struct gct_kept_gpu, list);
		memcpy(gpu->uuid, mapping->uuid, sizeof(gpu->uuid));
		uvm_range_tree_init(&gpu->ranges);
		list_move(&gpu->list, &known->kept);
	}
	range = gct_spare_range(spares);
	range->kept = spares->kept;
	range->kept->ranges++;
	range->node.start = mapping->address;
	range->node.end = last;
	WARN_ON_ONCE(uvm_range_tree_add(&gpu->ranges, &range->node) != NV_OK);
}

void gct_kept_unmapped(struct gct_known *known, const NvU8 *uuid, NvU64 first, NvU64 last,
		       struct gct_spares *spares)
{
	struct gct_kept_gpu *gpu;

	list_for_each_entry(gpu, &known->kept, list) {
		if (!uuid || !memcmp(gpu->uuid, uuid, sizeof(gpu->uuid)))
			gct_cut(known, gpu, first, last, spares);
	}
}

void gct_kept_gone(struct gct_known *known, const NvU8 *uuid)
{
	struct gct_kept_gpu *gpu = gct_kept_gpu_of(known, uuid);

	if (!gpu)
		return;
	/* It divides none. */
	gct_cut(known, gpu, 0, ~0ull, NULL);
	list_del(&gpu->list);
	kfree(gpu);
}

void gct_kept_end(struct gct_known *known)
{
	struct gct_kept_gpu *gpu, *next_gpu;
	uvm_range_tree_node_t *node, *next;

	list_for_each_entry_safe(gpu, next_gpu, &known->kept, list) {
		uvm_range_tree_for_each_safe(node, next, &gpu->ranges) {
			struct gct_kept_range *range;

			range = container_of(node, struct gct_kept_range, node);
			if (!--range->kept->ranges)
				kfree(range->kept);
			kfree(range);
		}
		kfree(gpu);
	}
}
