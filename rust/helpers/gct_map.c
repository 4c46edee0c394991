// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Ends a tenant's mappings of the GPU's memory with the memory.
 *
 * The driver takes nothing out of page tables when memory is freed or unmapped, and gives
 * its addresses in the aperture to the next mapping. So before the resource manager ends a
 * mapping of a governed tenant's, its pages are unmapped here, and a fault no longer maps
 * them. A device file maps one piece of memory until it is closed.
 *
 * Terminology
 *   map    what one device file maps
 *   maps   all maps that were made through one client file
 *   held   an ioctl may be ending it: nothing of it is mapped, and faults wait
 *   over   its memory is gone. It stays so until the file is closed
 *
 * A mapping is not in its file's tree before mmap() returns, where it would not be found,
 * and other threads reach what is in the page tables meanwhile. So mmap() of a governed
 * tenant maps nothing of the GPU's memory: each page is mapped by a fault, below the
 * driver's mmap_lock. The processor's memory, as Grace Hopper has it, is mapped by mmap().
 */
#include "nv-linux.h"

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/slab.h>

#include "gct_helpers.h"

/* Structures of ioctls, in words of 32 bits. */
#define GCT_MAP_WORDS 14	/* nv_ioctl_nvos33_parameters_with_fd */
#define GCT_UNMAP_WORDS 8	/* NVOS34_PARAMETERS */
#define GCT_UPDATE_WORDS 10	/* NVOS56_PARAMETERS */

enum gct_map_state { GCT_MAP_LIVE, GCT_MAP_HELD, GCT_MAP_OVER };

/* Used by the client file, and by each map. */
struct gct_maps {
	struct kref users;
	/* Protects the list, and what changes of its maps. Taken above the driver's mmap_lock. */
	struct mutex lock;
	struct list_head list;
};

/* Used by the device file, and by the ioctl that makes it. */
struct gct_map {
	struct kref users;
	struct list_head node;
	struct gct_maps *maps;
	nv_linux_file_private_t *nvlfp;	/* the device file, valid until it is closed */
	bool closed;
	bool governed;		/* when it was made */
	bool leaf;		/* it goes with its memory and with what that is below, alone */
	bool renamed;		/* the resource manager has known it by another address */
	bool unknown;		/* the resource manager may know it by any address */
	enum gct_map_state state;
	/* What the resource manager calls it. */
	u32 client;
	u32 device;
	u32 memory;
	u64 address;
	u64 offset;
	u64 bytes;
	u32 count;		/* mappings that are alike there, whose files may be closed */
};

static struct gct_maps *gct_maps_new(void)
{
	struct gct_maps *maps = kzalloc(sizeof(*maps), GFP_KERNEL_ACCOUNT);

	if (maps) {
		kref_init(&maps->users);
		mutex_init(&maps->lock);
		INIT_LIST_HEAD(&maps->list);
	}
	return maps;
}

static void gct_maps_free(struct kref *users)
{
	kfree(container_of(users, struct gct_maps, users));
}

static struct gct_map *gct_map_new(struct gct_maps *maps, bool governed)
{
	struct gct_map *map = kzalloc(sizeof(*map), GFP_KERNEL_ACCOUNT);

	if (map) {
		kref_init(&map->users);
		INIT_LIST_HEAD(&map->node);
		kref_get(&maps->users);
		map->maps = maps;
		map->governed = governed;
	}
	return map;
}

static void gct_map_free(struct kref *users)
{
	struct gct_map *map = container_of(users, struct gct_map, users);

	kref_put(&map->maps->users, gct_maps_free);
	kfree(map);
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

/* Unmaps a map. Its state has changed before: a fault that began earlier is over then. */
static void gct_map_revoke(struct gct_map *map)
{
	nv_linux_state_t *nvl = map->nvlfp->nvptr;

	down(&nvl->mmap_lock);
	unmap_mapping_range(&map->nvlfp->mapping, 0, 0, 1);
	up(&nvl->mmap_lock);
	cond_resched();
}

/* Holds a map. The lock of its maps is held. */
static void gct_map_hold(struct gct_map *map)
{
	WRITE_ONCE(map->state, GCT_MAP_HELD);
	gct_map_revoke(map);
}

/* Ends a map that is held or revoked. The lock of its maps is held. */
static void gct_map_end(struct gct_map *map)
{
	WRITE_ONCE(map->state, GCT_MAP_OVER);
	list_del_init(&map->node);
}

/* Returns a 64-bit number at a word of a structure. */
static u64 gct_map_long(const u32 *words, u32 at)
{
	return words[at] | (u64)words[at + 1] << 32;
}

/* Holds what may go with a freed object. */
static void gct_maps_hold_freed(struct gct_maps *maps, bool governed, u32 client, u32 object)
{
	const u32 kind = gct_kind(client, object);
	struct gct_map *map;

	mutex_lock(&maps->lock);
	list_for_each_entry(map, &maps->list, node) {
		bool goes = map->memory == object || kind == GCT_KIND_ABOVE ||
			    kind == GCT_KIND_GONE || (kind == GCT_KIND_OTHER && !map->leaf);

		if (map->client == client && goes && (governed || map->governed))
			gct_map_hold(map);
	}
	mutex_unlock(&maps->lock);
}

/* Returns whether a map is of the memory that an ioctl names in its first words. */
static bool gct_map_is_of(const struct gct_map *map, const u32 *words)
{
	return map->client == words[0] && map->memory == words[2];
}

/* Returns whether the resource manager may end one of two mappings for the other. */
static bool gct_map_is_alike(const struct gct_map *map, const struct gct_map *other)
{
	return map->client == other->client && map->device == other->device &&
	       map->memory == other->memory && map->address == other->address &&
	       map->offset == other->offset && map->bytes == other->bytes && !map->renamed &&
	       !other->renamed && map->governed && other->governed;
}

/*
 * Returns a map with an unmapping's address, if all that it may end are alike and one of
 * them stays: newer drivers give mappings of the same memory the same addresses. The lock of
 * the maps is held.
 */
static struct gct_map *gct_maps_shared(struct gct_maps *maps, const u32 *words)
{
	const u64 address = gct_map_long(words, 4);
	struct gct_map *map, *first = NULL;

	list_for_each_entry(map, &maps->list, node) {
		if (!gct_map_is_of(map, words) || (map->address != address && !map->unknown))
			continue;
		first = first ?: map;
		if (!gct_map_is_alike(map, first))
			return NULL;
	}
	return first && first->count > 1 ? first : NULL;
}

/* Counts the mappings that are like one. The lock of the maps is held. */
static void gct_maps_count(struct gct_maps *maps, const struct gct_map *like, u32 count)
{
	struct gct_map *map;

	list_for_each_entry(map, &maps->list, node) {
		if (gct_map_is_alike(map, like))
			map->count = count;
	}
}

/* Holds what an unmapping may end: if nothing has its address, all of its memory. */
static void gct_maps_hold_unmapped(struct gct_maps *maps, bool governed, const u32 *words)
{
	const u64 address = gct_map_long(words, 4);
	bool found = false, shared;
	struct gct_map *map;

	mutex_lock(&maps->lock);
	shared = gct_maps_shared(maps, words);
	list_for_each_entry(map, &maps->list, node)
		found |= gct_map_is_of(map, words) && map->address == address && !map->unknown;
	list_for_each_entry(map, &maps->list, node) {
		bool goes = !found || map->unknown || map->address == address;

		if (!shared && gct_map_is_of(map, words) && goes && (governed || map->governed))
			gct_map_hold(map);
	}
	mutex_unlock(&maps->lock);
}

/* Takes note of an unmapping after which a mapping that is alike stays, if it was one. */
static void gct_maps_unmapped(struct gct_maps *maps, const u32 *words)
{
	struct gct_map *shared;

	mutex_lock(&maps->lock);
	shared = gct_maps_shared(maps, words);
	if (shared)
		gct_maps_count(maps, shared, shared->count - 1);
	mutex_unlock(&maps->lock);
}

/*
 * Ends the maps that are held and have gone, and lets the others be mapped again. Returns
 * whether any was held.
 */
static bool gct_maps_settle(struct gct_maps *maps, bool unmapped)
{
	struct gct_map *map, *next;
	bool held = false;

	mutex_lock(&maps->lock);
	list_for_each_entry_safe(map, next, &maps->list, node) {
		if (map->state != GCT_MAP_HELD)
			continue;
		held = true;
		if (unmapped || gct_kind(map->client, map->memory) == GCT_KIND_GONE ||
		    gct_kind(map->client, map->device) == GCT_KIND_GONE)
			gct_map_end(map);
		else
			WRITE_ONCE(map->state, GCT_MAP_LIVE);
	}
	mutex_unlock(&maps->lock);
	return held;
}

/* Takes note of another address by which the resource manager knows a mapping. */
static void gct_maps_rename(struct gct_maps *maps, const u32 *words)
{
	const u64 from = gct_map_long(words, 4), to = gct_map_long(words, 6);
	struct gct_map *map, *only = NULL;
	u32 count = 0;

	mutex_lock(&maps->lock);
	list_for_each_entry(map, &maps->list, node) {
		if (gct_map_is_of(map, words) && (map->unknown || map->address == from)) {
			count += map->count;
			only = map;
		}
	}
	if (count == 1 && !only->unknown) {
		only->address = to;
		only->renamed = true;
	} else {
		/* The resource manager has chosen one. */
		list_for_each_entry(map, &maps->list, node) {
			if (gct_map_is_of(map, words))
				map->renamed = map->unknown = true;
		}
	}
	mutex_unlock(&maps->lock);
}

/* Adds a map whose memory the resource manager has prepared to be mapped. */
static void gct_map_made(struct gct_map *map, const u32 *words)
{
	struct gct_map *other;

	map->client = words[0];
	map->device = words[1];
	map->memory = words[2];
	map->offset = gct_map_long(words, 4);
	map->bytes = gct_map_long(words, 6);
	map->address = gct_map_long(words, 8);
	map->count = 1;
	map->leaf = gct_kind(map->client, map->memory) == GCT_KIND_LEAF;
	mutex_lock(&map->maps->lock);
	list_for_each_entry(other, &map->maps->list, node) {
		if (gct_map_is_alike(map, other))
			map->count = other->count + 1;
	}
	gct_maps_count(map->maps, map, map->count);
	if (!map->closed)
		list_add_tail(&map->node, &map->maps->list);
	mutex_unlock(&map->maps->lock);
}

/* Prepares for an ioctl that maps memory. */
static int gct_map_begin(void **slot, bool governed, struct gct_call *call)
{
	struct gct_maps *maps = *slot ?: gct_maps_new();
	struct gct_map *map;

	if (!maps)
		return governed ? -ENOMEM : 0;
	*slot = maps;
	map = gct_map_new(maps, governed);
	if (!map)
		return governed ? -ENOMEM : 0;
	if (!gct_serve_offer(call, map))
		kref_put(&map->users, gct_map_free);
	return 0;
}

int gct_maps_enter(void **slot, void *file, uint32_t escape, const void *arg, uint32_t size,
		   struct gct_call *call)
{
	struct gct_maps *maps = *slot;
	uint32_t freed[2];

	if (escape == GCT_ESCAPE_MAP_MEMORY)
		return gct_map_begin(slot, gct_governs(file), call);
	/* Only this file's ioctls, one after the other, add to the list. */
	if (!maps || list_empty(&maps->list))
		return 0;
	if (escape == GCT_ESCAPE_UNMAP_MEMORY && size == GCT_UNMAP_WORDS * sizeof(u32))
		gct_maps_hold_unmapped(maps, gct_governs(file), arg);
	else if (gct_frees(escape, arg, size, freed))
		gct_maps_hold_freed(maps, gct_governs(file), freed[0], freed[1]);
	return 0;
}

void gct_maps_leave(void *data, uint32_t escape, const void *arg, uint32_t size,
		    struct gct_call *call, uint32_t result)
{
	const u32 *words = arg;
	struct gct_maps *maps = data;
	uint32_t freed[2];

	if (escape == GCT_ESCAPE_MAP_MEMORY) {
		struct gct_map *map = gct_serve_offered(call);

		if (!map)
			return;
		if (map->nvlfp && result == 0 && size == GCT_MAP_WORDS * sizeof(u32) &&
		    words[10] == 0)
			gct_map_made(map, words);
		kref_put(&map->users, gct_map_free);
		return;
	}
	if (!maps)
		return;
	if (escape == GCT_ESCAPE_UNMAP_MEMORY && size == GCT_UNMAP_WORDS * sizeof(u32)) {
		const bool unmapped = result == 0 && words[6] == 0;

		if (!gct_maps_settle(maps, unmapped) && unmapped)
			gct_maps_unmapped(maps, words);
	} else if (escape == GCT_ESCAPE_UPDATE_MAPPING && size == GCT_UPDATE_WORDS * sizeof(u32)) {
		if (result == 0 && words[8] == 0)
			gct_maps_rename(maps, words);
	} else if (gct_frees(escape, arg, size, freed)) {
		gct_maps_settle(maps, false);
	}
}

void gct_maps_close(void *data, void *file)
{
	const bool governed = gct_governs(file);
	struct gct_maps *maps = data;
	struct gct_map *map, *next;

	mutex_lock(&maps->lock);
	list_for_each_entry_safe(map, next, &maps->list, node) {
		if (governed || map->governed) {
			gct_map_end(map);
			gct_map_revoke(map);
		} else {
			list_del_init(&map->node);
		}
	}
	mutex_unlock(&maps->lock);
	kref_put(&maps->users, gct_maps_free);
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

	mutex_lock(&map->maps->lock);
	map->closed = true;
	list_del_init(&map->node);
	mutex_unlock(&map->maps->lock);
	kref_put(&map->users, gct_map_free);
}
