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

/* Most windows of a VA space. */
#define GCT_WINDOWS_MAX 128

/* A VA space that gctgroup knows. */
struct gct_known {
	struct hlist_node node;
	uvm_va_space_t *va_space;
	u64 number;
	/* The VA space's open file. It is not held: it leaves the table before it goes. */
	struct file *filp;
	/* The token of the control file by which GPU VA spaces were registered. */
	void *owner;
	/* Whoever registered them first. Windows are reserved there. */
	struct mm_struct *mm;
	/* Held while address spaces come and go, while memory does, and by UVM_FREE. */
	struct mutex lock;
	struct list_head registered;
	/* The windows, and where the next one is looked for. */
	u64 windows[GCT_WINDOWS_MAX];
	unsigned int count;
	u64 next;
};

/* Returns what is known of the VA space of an open file that the caller holds, or NULL. */
struct gct_known *gct_known_of(struct file *filp);

#endif /* GCT_UVM_OBJECTS_H */
