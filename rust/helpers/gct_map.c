// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Unmaps a tenant's mappings of the GPU's memory when Rust says that they end
 * (rust/gct_core/owned/cpu_maps.rs).
 *
 * The driver takes nothing out of page tables when memory is freed or unmapped, and gives
 * its addresses in the aperture to the next mapping. So before the resource manager ends a
 * mapping of a governed tenant's, its pages are unmapped here, and a fault no longer maps
 * them. A device file maps one piece of memory until it is closed: it is a map.
 *
 * A mapping is not in its file's tree before mmap() returns, where it would not be found,
 * and other threads reach what is in the page tables meanwhile. So mmap() of a governed
 * tenant maps nothing of the GPU's memory: each page is mapped by a fault, below the
 * driver's mmap_lock. The processor's memory, as Grace Hopper has it, is mapped by mmap().
 */
#include "nv-linux.h"

#include <linux/kref.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/slab.h>

#include "gct_helpers.h"

/* Used by the device file, by the ioctl that prepares it, and by what Rust knows of it. */
struct gct_map {
	struct kref users;
	/* Protects the device file from being closed while it is unmapped. */
	struct mutex lock;
	nv_linux_file_private_t *nvlfp;	/* the device file, or NULL before it is found */
	bool closed;
	bool governed;			/* when it was made */
	u32 state;			/* GCT_MAP_* */
};

struct gct_map *gct_helper_map_new(bool governed)
{
	struct gct_map *map = kzalloc(sizeof(*map), GFP_KERNEL_ACCOUNT);

	if (map) {
		kref_init(&map->users);
		mutex_init(&map->lock);
		map->governed = governed;
	}
	return map;
}

void gct_helper_map_get(struct gct_map *map)
{
	kref_get(&map->users);
}

static void gct_map_free(struct kref *users)
{
	kfree(container_of(users, struct gct_map, users));
}

void gct_helper_map_put(struct gct_map *map)
{
	kref_put(&map->users, gct_map_free);
}

bool gct_helper_map_is_found(const struct gct_map *map)
{
	return READ_ONCE(map->nvlfp) != NULL;
}

bool gct_helper_map_is_closed(const struct gct_map *map)
{
	return READ_ONCE(map->closed);
}

void gct_helper_map_change(struct gct_map *map, uint32_t state)
{
	const u32 before = map->state;
	nv_linux_state_t *nvl;

	WRITE_ONCE(map->state, state);
	if (before != GCT_MAP_LIVE || state == GCT_MAP_LIVE)
		return;
	mutex_lock(&map->lock);
	if (map->nvlfp && !map->closed) {
		nvl = map->nvlfp->nvptr;
		/*
		 * Faults that began before are over then, and others see the state. Faults of
		 * neighbours need not wait until all is unmapped, in however many processes.
		 */
		down(&nvl->mmap_lock);
		up(&nvl->mmap_lock);
		unmap_mapping_range(&map->nvlfp->mapping, 0, 0, 1);
	}
	mutex_unlock(&map->lock);
	cond_resched();
}

/* Returns what a file is prepared to map, or NULL. It does not change. */
static const nv_alloc_mapping_context_t *gct_map_context(nv_linux_file_private_t *nvlfp)
{
#ifdef GCT_FILE_MAPPING_LIST
	/* mmap() takes its fileVaLock above mmap_lock, a fault below it. Only the first writes. */
	const nv_alloc_mapping_list_node_t *node = smp_load_acquire(&nvlfp->file_mapping_list);

	return node ? &node->context : NULL;
#else
	return smp_load_acquire(&nvlfp->mmap_context.valid) ? &nvlfp->mmap_context : NULL;
#endif
}

/* Returns whether a map is of registers, whose addresses stay what they are. */
static bool gct_map_is_of_registers(const struct gct_map *map)
{
	const nv_alloc_mapping_context_t *context = gct_map_context(map->nvlfp);
	nv_state_t *nv = NV_STATE_PTR(map->nvlfp->nvptr);

	return context && IS_REG_OFFSET(nv, context->access_start, context->access_size);
}

int gct_map_attach(struct gct_map *map, void *file)
{
	nv_linux_file_private_t *nvlfp = file;
	struct gct_map *other = READ_ONCE(nvlfp->gct_map);

	if (nvlfp->nvptr && NV_IS_CTL_DEVICE(NV_STATE_PTR(nvlfp->nvptr)))
		return 0;
	if (!other && !map->nvlfp && nvlfp->nvptr && !gct_map_context(nvlfp)) {
		map->nvlfp = nvlfp;
		kref_get(&map->users);
		/* Faults look at it without a lock. */
		other = cmpxchg_release(&nvlfp->gct_map, NULL, map);
		if (!other)
			return 0;
		map->nvlfp = NULL;
		kref_put(&map->users, gct_map_free);
	}
	return map->governed || (other && other->governed) ? -EBUSY : 0;
}

uint32_t gct_map_fault(void *data, uint32_t flags)
{
	const struct gct_map *map = data;

	switch (READ_ONCE(map->state)) {
	case GCT_MAP_LIVE:
		return VM_FAULT_NOPAGE;
	case GCT_MAP_HELD:
		/*
		 * The thread tries again. The kernel must not: it may have a lock that the
		 * ioctl waits for.
		 */
		return flags & FAULT_FLAG_USER ? VM_FAULT_NOPAGE | VM_FAULT_MAJOR :
						 VM_FAULT_SIGBUS;
	default:
		return VM_FAULT_SIGBUS;
	}
}

int gct_map_by_fault(void *data)
{
	const struct gct_map *map = data;

	if (READ_ONCE(map->state) != GCT_MAP_LIVE)
		return true;
	return map->governed && !gct_map_is_of_registers(map);
}

int gct_map_mapped(void *data, void *area)
{
	const struct gct_map *map = data;
	const struct vm_area_struct *vma = area;

	if (READ_ONCE(map->state) == GCT_MAP_OVER)
		return -EINVAL;
	/* The driver cannot map the pages of a private mapping by a fault. */
	return gct_map_by_fault(data) && is_cow_mapping(vma->vm_flags) ? -EINVAL : 0;
}

int gct_map_hides(void *data)
{
	const struct gct_map *map = data;

	return map->governed || READ_ONCE(map->state) != GCT_MAP_LIVE;
}

void gct_map_close(void *data)
{
	struct gct_map *map = data;

	mutex_lock(&map->lock);
	WRITE_ONCE(map->closed, true);
	mutex_unlock(&map->lock);
	kref_put(&map->users, gct_map_free);
}
