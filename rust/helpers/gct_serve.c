// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Serves a tenant's parameters to the resource manager from gctgroup's copy.
 *
 * gctgroup reads parameters before an ioctl, and the resource manager reads them
 * again in it, perhaps several times. Other threads may write to them at any time.
 * The resource manager gets the copy, so both see the same. What the resource
 * manager writes to the parameters also goes to the copy.
 *
 * The resource manager runs an ioctl in the task that issued it. So only current
 * adds, finds and removes its entry. gct_served_lock protects the lists.
 */
#include <linux/hash.h>
#include <linux/list.h>
#include <linux/minmax.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "gct_helpers.h"

struct gct_served {
	struct hlist_node node;
	struct task_struct *task;
	uint64_t address;	/* of the tenant's bytes; 0 for no entry */
	uint8_t *copy;		/* NULL if the bytes cannot be read */
	uint32_t bytes;		/* of the copy */
	uint8_t written;	/* 1 if the resource manager wrote to them */
	uint8_t swaps;		/* number of struct gct_swap behind the copy */
	uint16_t asked;		/* the first bytes of the copy, which the caller asked for */
	uint64_t file;		/* token of the file that it found last, or 0 */
	struct gct_map *map;	/* for the device file that it finds, or NULL */
};

_Static_assert(sizeof(struct gct_served) == sizeof(((struct gct_call *)0)->served),
	       "struct gct_served lives in struct gct_call");

/* What the tenant wrote where the resource manager reads something else. */
struct gct_swap {
	uint32_t offset;
	uint32_t bytes;
	uint8_t tenant[8];
};

#define GCT_SERVED_BITS 6

static struct hlist_head gct_served_lists[1 << GCT_SERVED_BITS];
static DEFINE_SPINLOCK(gct_served_lock);
uint32_t gct_servings;
uint32_t gct_owning;

void gct_helper_own(bool on)
{
	WRITE_ONCE(gct_owning, on);
}

static struct gct_served *gct_served_of(struct gct_call *call)
{
	return (struct gct_served *)call->served;
}

static struct gct_swap *gct_swaps_of(const struct gct_served *served)
{
	return (struct gct_swap *)(served->copy + round_up(served->bytes, sizeof(uint64_t)));
}

static struct hlist_head *gct_served_list(void)
{
	return &gct_served_lists[hash_ptr(current, GCT_SERVED_BITS)];
}

/* Returns the entry of current, or NULL. */
static struct gct_served *gct_served_current(void)
{
	struct gct_served *served, *found = NULL;

	spin_lock(&gct_served_lock);
	hlist_for_each_entry(served, gct_served_list(), node) {
		if (served->task == current) {
			found = served;
			break;
		}
	}
	spin_unlock(&gct_served_lock);
	return found;
}

/* Returns the entry of current if it overlaps [address, address + n), and the overlap. */
static struct gct_served *gct_served_find(uint64_t address, uint32_t n, uint64_t *begin,
					  uint64_t *end)
{
	struct gct_served *found = gct_served_current();

	if (!found)
		return NULL;
	*begin = max(address, found->address);
	*end = min(address + n, found->address + found->bytes);
	return *begin < *end ? found : NULL;
}

static void gct_served_add(struct gct_served *served)
{
	spin_lock(&gct_served_lock);
	hlist_add_head(&served->node, gct_served_list());
	WRITE_ONCE(gct_servings, gct_servings + 1);
	spin_unlock(&gct_served_lock);
}

const uint8_t *gct_helper_serve(struct gct_call *call, uint64_t address, uint16_t bytes,
				uint16_t most)
{
	struct gct_served *served = gct_served_of(call);
	const uint8_t __user *from = u64_to_user_ptr(address);

	served->task = current;
	served->address = address;
	served->bytes = bytes;
	served->asked = bytes;
	served->swaps = 0;
	most = max(bytes, most);
	served->copy = kmalloc(round_up(most, sizeof(uint64_t)) +
			       GCT_SWAPS_MAX * sizeof(struct gct_swap), GFP_KERNEL_ACCOUNT);
	if (served->copy && copy_from_user(served->copy, from, bytes)) {
		kfree(served->copy);
		served->copy = NULL;
	}
	if (served->copy)
		served->bytes += most - bytes - copy_from_user(served->copy + bytes, from + bytes,
							       most - bytes);
	gct_served_add(served);
	return served->copy;
}

void gct_helper_serve_watch(struct gct_call *call)
{
	struct gct_served *served = gct_served_of(call);

	served->task = current;
	/* No address of a tenant's, and no bytes: nothing overlaps it. */
	served->address = U64_MAX;
	gct_served_add(served);
}

bool gct_helper_serve_swap(struct gct_call *call, uint32_t offset, uint32_t bytes,
			   uint64_t value)
{
	struct gct_served *served = gct_served_of(call);
	struct gct_swap *swap;

	if (!served->address || !served->copy || served->swaps >= GCT_SWAPS_MAX ||
	    bytes > sizeof(swap->tenant) || bytes > served->bytes ||
	    offset > served->bytes - bytes)
		return false;
	swap = &gct_swaps_of(served)[served->swaps++];
	swap->offset = offset;
	swap->bytes = bytes;
	memcpy(swap->tenant, served->copy + offset, bytes);
	memcpy(served->copy + offset, &value, bytes);
	return true;
}

uint8_t *gct_helper_serve_end(struct gct_call *call, struct gct_serving *out)
{
	struct gct_served *served = gct_served_of(call);

	if (!served->address)
		return NULL;
	spin_lock(&gct_served_lock);
	hlist_del(&served->node);
	WRITE_ONCE(gct_servings, gct_servings - 1);
	spin_unlock(&gct_served_lock);
	served->address = 0;
	out->bytes = served->asked;
	out->written = served->written;
	out->file = served->file;
	return served->copy;
}

void gct_helper_serve_free(uint8_t *copy)
{
	kfree(copy);
}

int gct_serve_read(void *to, const void *from, uint32_t n)
{
	const uint64_t address = (uintptr_t)from;
	uint64_t begin, end;
	const struct gct_served *served = gct_served_find(address, n, &begin, &end);

	if (!served)
		return 0;
	/* Where something else is read, all is: nothing else may change, nor stall. */
	if (!served->copy || (served->swaps && end - begin != n))
		return -EFAULT;
	memcpy((uint8_t *)to + (begin - address), served->copy + (begin - served->address),
	       end - begin);
	return 0;
}

/* Puts what the tenant wrote in the place of what the resource manager has read. */
static void gct_swap_back(const struct gct_served *served, uint8_t *from, uint64_t address,
			  uint64_t begin, uint64_t end)
{
	const struct gct_swap *swap = gct_swaps_of(served);
	uint32_t count, at;

	for (count = served->swaps; count; count--, swap++) {
		for (at = 0; at < swap->bytes; at++) {
			const uint64_t byte = served->address + swap->offset + at;

			if (byte >= begin && byte < end)
				from[byte - address] = swap->tenant[at];
		}
	}
}

void gct_serve_write(const void *to, const void *from, uint32_t n)
{
	const uint64_t address = (uintptr_t)to;
	uint64_t begin, end;
	struct gct_served *served = gct_served_find(address, n, &begin, &end);

	if (!served || !served->copy)
		return;
	memcpy(served->copy + (begin - served->address), (const uint8_t *)from + (begin - address),
	       end - begin);
	served->written = 1;
	/* The resource manager's own buffer, which it frees when it has been copied. */
	gct_swap_back(served, (uint8_t *)from, address, begin, end);
}

bool gct_serve_offer(struct gct_call *call, struct gct_map *map)
{
	struct gct_served *served = gct_served_of(call);

	if (!served->address)
		return false;
	served->map = map;
	return true;
}

int gct_serve_file(void *file, void *private)
{
	struct gct_served *served = gct_served_current();

	if (!served)
		return 0;
	served->file = (uintptr_t)file;
	return served->map ? gct_map_attach(served->map, private) : 0;
}
