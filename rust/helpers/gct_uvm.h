/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * gct_uvm.h - what gctgroup's objects in nvidia-uvm.ko share.
 */
#ifndef GCT_UVM_OBJECTS_H
#define GCT_UVM_OBJECTS_H

#include "uvm_va_space.h"

#include <linux/fs.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/workqueue.h>

/*
 * A window lies at a multiple of its size, the first free one. Channels name addresses with
 * 40 bits. libcuda 580 has nothing here.
 */
#define GCT_WINDOW_BYTES (1ull << 30)

/* A VA space that gctgroup knows. */
struct gct_known {
	struct hlist_node node;
	uvm_va_space_t *va_space;
	u64 number;
	/* The VA space's open file. It is not held: it leaves the table before it goes. */
	struct file *filp;
	/* The token of the control file by which GPU VA spaces were registered; NULL before. */
	void *owner;
	/* Whoever registered them first, or NULL. The window is reserved there. */
	struct mm_struct *mm;
	/* Held by ioctls of the tenant by which address spaces and mappings come and go. */
	struct mutex ioctls;
	/* Held while the lists change. Nobody waits for a lock of the tenant's with it. */
	struct mutex lock;
	/* GPUs' address spaces, and memory that was given back and is not free yet. */
	struct list_head registered;
	struct list_head leaving;
	/* Frees that memory. */
	struct delayed_work reaper;
	/* Address of the window, or 0. */
	u64 window;
	/* Memory of the resource manager that is mapped: its gct_kept_gpu. */
	struct list_head kept;
};

/* A GPU's address space that was registered in a VA space. */
struct gct_registered {
	struct list_head list;
	struct gct_uvm_space space;
	/* Its gct_mapped. */
	struct list_head mapped;
};

/* Returns what is known of the VA space of an open file that the caller holds, or NULL. */
struct gct_known *gct_known_of(struct file *filp);

/* The same where there is something, even if gctgroup is being removed. */
struct gct_known *gct_known_still(struct file *filp);

/* The same. Makes it if there is none. NULL without memory. */
struct gct_known *gct_known_made(struct file *filp);

/* Returns what is known of a VA space by its number, with its file held, or NULL. */
struct gct_known *gct_hold(u64 number);

/* Returns the address space of a GPU. The lock of the space is held. */
struct gct_registered *gct_registered_of(struct gct_known *known, const NvU8 *uuid);

/*
 * Frees memory that was given back. Returns false if the tenant keeps its lock, unless the
 * caller waits. g_uvm_global.pm.lock is held. Each memory lets the file go: unless the
 * caller holds it, what is known may be gone after a true answer.
 */
bool gct_reap(struct gct_known *known, bool waits);
void gct_reap_later(struct work_struct *work);

/* Room for the changes of one ioctl. */
struct gct_spares {
	struct list_head ranges;
	struct list_head gpus;
	struct gct_kept *kept;
};

/* Allocates room for a change of the mappings of some GPUs. Returns false without memory. */
bool gct_spares_alloc(struct gct_spares *spares, NvU64 gpus);

/* Frees what of it was not used. */
void gct_spares_free(struct gct_spares *spares);

/*
 * Record what nvidia-uvm has mapped and unmapped (gct_uvm_kept.c). The ioctls of the space
 * are held.
 *
 *   begin     memory is mapped that has the name @name, 0 if it is not followed
 *   mapped    it, for one of the GPUs for which there is room
 *   begun     it is mapped for all of them, at least for one
 *   unmapped  addresses, for the GPU @uuid or for all. Without @spares it divides no mapping
 *   gone      all that a GPU has mapped
 *   end       nothing is recorded any more. The names go with the file
 */
void gct_kept_begin(struct gct_spares *spares, u32 name);
void gct_kept_mapped(struct gct_known *known, const struct gct_uvm_mapping *mapping,
		     struct gct_spares *spares);
void gct_kept_begun(struct gct_spares *spares);
void gct_kept_unmapped(struct gct_known *known, const NvU8 *uuid, NvU64 first, NvU64 last,
		       struct gct_spares *spares);
void gct_kept_gone(struct gct_known *known, const NvU8 *uuid);
void gct_kept_end(struct gct_known *known);

#endif /* GCT_UVM_OBJECTS_H */
