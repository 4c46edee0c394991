// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Gives a tenant pages of the host in place of pages of the GPU's memory.
 *
 * A channel that was there before a limit has its ring and its USERD in memory that its
 * tenant maps. To shadow it, those pages of the tenant's mappings are replaced. The
 * driver's fault handler maps all pages of a mapping at once, and leaves alone those
 * that are there: so gct_pane_fault(), which runs before it, maps the host's pages.
 *
 * Terminology
 *   sheet  a memory object of a tenant, and the pages that stand for its own
 *   pane   a device file through which the tenant maps a part of it
 *   shown  a page of the host that is mapped in place of the GPU's
 *   turn   a change of what is shown: nobody faults on the GPU meanwhile, and nothing of
 *          the sheets is mapped
 *
 * A mapping is not in its file's tree before mmap() returns, where a turn would not find
 * it. So mmap() of a pane leaves nothing mapped, and each page that a pane maps was
 * mapped by a fault, below the driver's mmap_lock.
 */
#include "nv-linux.h"

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/xarray.h>

#include "gct_helpers.h"

#define GCT_SHOWN XA_MARK_0

/* Most panes of a sheet. With more its pages cannot be replaced. */
#define GCT_PANES_MAX 64

struct gct_sheet {
	struct kref users;
	/* Pages of the host by their number in the memory object. The mark changes in a turn. */
	struct xarray pages;
	atomic_t changes;		/* faults of panes, below the driver's mmap_lock, and new panes */
	/* Protects what follows. Taken below the driver's mmap_lock. */
	struct mutex lock;
	struct list_head panes;
	u32 count;
	bool opaque;			/* the tenant may have a mapping that is no pane */
	u32 gpu_id;			/* of the memory; it never changes */
	/*
	 * The memory's GPU, from the first pane on. It never changes. Valid while there is a
	 * pane, and while pages are shown; otherwise it is only compared.
	 */
	nv_linux_state_t *nvl;
};

struct gct_pane {
	struct list_head node;
	struct gct_sheet *sheet;
	struct address_space *mapping;
	u64 first;			/* number of the mapping's first page in the memory object */
};

struct gct_sheet *gct_helper_sheet_new(uint32_t gpu_id)
{
	struct gct_sheet *sheet = kzalloc(sizeof(*sheet), GFP_KERNEL_ACCOUNT);

	if (sheet) {
		sheet->gpu_id = gpu_id;
		kref_init(&sheet->users);
		xa_init(&sheet->pages);
		mutex_init(&sheet->lock);
		INIT_LIST_HEAD(&sheet->panes);
	}
	return sheet;
}

static void gct_sheet_free(struct kref *users)
{
	struct gct_sheet *sheet = container_of(users, struct gct_sheet, users);

	/* Whoever adds pages takes them out. */
	WARN_ON_ONCE(!xa_empty(&sheet->pages));
	xa_destroy(&sheet->pages);
	kfree(sheet);
}

void gct_helper_sheet_put(struct gct_sheet *sheet)
{
	kref_put(&sheet->users, gct_sheet_free);
}

/* Adds a pane. Returns whether it did. The lock of the sheet is held. */
static bool gct_pane_add(struct gct_sheet *sheet, nv_linux_file_private_t *nvlfp,
			 struct gct_pane *pane)
{
	const nv_state_t *nv = NV_STATE_PTR(nvlfp->nvptr);

	if (nvlfp->gct_pane || sheet->count >= GCT_PANES_MAX)
		return false;
	/* A file of another GPU is none that the resource manager has prepared for the memory. */
	if (nv->gpu_id != sheet->gpu_id || (sheet->nvl && sheet->nvl != nvlfp->nvptr))
		return false;
	sheet->nvl = nvlfp->nvptr;
	sheet->count++;
	atomic_inc(&sheet->changes);
	kref_get(&sheet->users);
	list_add_tail(&pane->node, &sheet->panes);
	/* Faults look at it without the lock. */
	smp_store_release(&nvlfp->gct_pane, pane);
	return true;
}

void gct_helper_pane_follow(int32_t descriptor, uint64_t file, struct gct_sheet *sheet,
			    uint64_t first)
{
	struct gct_pane *pane = kzalloc(sizeof(*pane), GFP_KERNEL_ACCOUNT);
	void *held = NULL;
	nv_linux_file_private_t *nvlfp = gct_file_found(descriptor, file, &held);
	bool added = false;

	if (nvlfp && pane) {
		pane->mapping = &nvlfp->mapping;
		pane->sheet = sheet;
		pane->first = first;
		mutex_lock(&sheet->lock);
		added = gct_pane_add(sheet, nvlfp, pane);
		mutex_unlock(&sheet->lock);
	}
	if (!added) {
		gct_helper_sheet_give_up(sheet);
		kfree(pane);
	}
	if (nvlfp)
		nv_put_file_private(held);
}

void gct_helper_sheet_give_up(struct gct_sheet *sheet)
{
	mutex_lock(&sheet->lock);
	sheet->opaque = true;
	mutex_unlock(&sheet->lock);
}

/*
 * Returns whether a mapping has pages of the processor's memory, as nvidia_mmap_numa()
 * makes them. The driver does not map them again by a fault, and a number of a frame must
 * not be inserted there. They are left as they are.
 */
static bool gct_area_has_pages(const struct vm_area_struct *vma)
{
	return vma->vm_flags & VM_MIXEDMAP;
}

uint32_t gct_pane_fault(void *data, void *area)
{
	const struct gct_pane *pane = data;
	struct vm_area_struct *vma = area;
	const u64 last = pane->first + vma_pages(vma) - 1;
	unsigned long number;
	struct page *page;

	atomic_inc(&pane->sheet->changes);
	if (gct_area_has_pages(vma))
		return VM_FAULT_NOPAGE;
	xa_for_each_marked(&pane->sheet->pages, number, page, GCT_SHOWN) {
		vm_fault_t ret;

		if (number < pane->first || number > last)
			continue;
		ret = vmf_insert_pfn(vma, vma->vm_start + ((number - pane->first) << PAGE_SHIFT),
				     page_to_pfn(page));
		if (ret != VM_FAULT_NOPAGE)
			return ret;
	}
	return VM_FAULT_NOPAGE;
}

void gct_pane_mapped(void *data, void *area)
{
	const struct gct_pane *pane = data;
	struct vm_area_struct *vma = area;

	/* The driver cannot map the pages of a private mapping by a fault. */
	if (is_cow_mapping(vma->vm_flags) || gct_area_has_pages(vma)) {
		gct_helper_sheet_give_up(pane->sheet);
		return;
	}
	zap_special_vma_range(vma, vma->vm_start, vma->vm_end - vma->vm_start);
}

void gct_pane_close(void *data)
{
	struct gct_pane *pane = data;

	mutex_lock(&pane->sheet->lock);
	list_del(&pane->node);
	pane->sheet->count--;
	mutex_unlock(&pane->sheet->lock);
	gct_helper_sheet_put(pane->sheet);
	kfree(pane);
}

void *gct_helper_sheet_page(struct gct_sheet *sheet, uint64_t number)
{
	struct page *page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);

	if (page && xa_insert(&sheet->pages, number, page, GFP_KERNEL_ACCOUNT) != 0) {
		__free_page(page);
		page = NULL;
	}
	return page ? page_address(page) : NULL;
}

/* Unmaps all panes of a sheet. Faults map them again, unless the driver's mmap_lock is held. */
static void gct_sheet_revoke(struct gct_sheet *sheet)
{
	struct gct_pane *pane;

	mutex_lock(&sheet->lock);
	list_for_each_entry(pane, &sheet->panes, node)
		unmap_mapping_range(pane->mapping, 0, 0, 1);
	mutex_unlock(&sheet->lock);
}

/* Returns the GPU of a sheet if all mappings of the sheet can be replaced, or else NULL. */
static nv_linux_state_t *gct_sheet_ready(struct gct_sheet *sheet, uint32_t gpu_id)
{
	nv_linux_state_t *nvl = NULL;

	mutex_lock(&sheet->lock);
	/* While the tenant has the file of a pane open, and the GPU is held, nvl is valid. */
	if (sheet->count && sheet->gpu_id == gpu_id && !sheet->opaque)
		nvl = sheet->nvl;
	mutex_unlock(&sheet->lock);
	return nvl;
}

/* Returns a number that changes when a page may have been mapped by a pane. */
static u32 gct_sheet_changes(const struct gct_sheet *one, const struct gct_sheet *other)
{
	return (u32)atomic_read(&one->changes) + (u32)atomic_read(&other->changes);
}

struct gct_turn *gct_helper_turn_begin(struct gct_sheet *one, struct gct_sheet *other,
				       uint32_t gpu_id)
{
	nv_linux_state_t *nvl = gct_sheet_ready(one, gpu_id);
	u32 changes;

	if (!nvl || gct_sheet_ready(other, gpu_id) != nvl)
		return NULL;
	down(&nvl->mmap_lock);
	changes = gct_sheet_changes(one, other);
	up(&nvl->mmap_lock);
	/* A tenant may have many mappings, in many processes: its neighbours' faults go on. */
	gct_sheet_revoke(one);
	gct_sheet_revoke(other);
	down(&nvl->mmap_lock);
	/* A GPU that sleeps must not be accessed. Then nothing is mapped, either. */
	if (!nvl->safe_to_mmap) {
		up(&nvl->mmap_lock);
		return NULL;
	}
	if (gct_sheet_changes(one, other) != changes) {
		gct_sheet_revoke(one);
		gct_sheet_revoke(other);
	}
	/* Whatever becomes of the sheets, the turn ends with the lock that it has taken. */
	return (struct gct_turn *)nvl;
}

void gct_helper_turn_show(struct gct_sheet *sheet, uint64_t number, bool shown)
{
	if (shown)
		xa_set_mark(&sheet->pages, number, GCT_SHOWN);
	else
		xa_clear_mark(&sheet->pages, number, GCT_SHOWN);
}

void gct_helper_turn_end(struct gct_turn *turn)
{
	nv_linux_state_t *nvl = (nv_linux_state_t *)turn;

	up(&nvl->mmap_lock);
}

void gct_helper_sheet_forget(struct gct_sheet *sheet, uint64_t number)
{
	struct page *page;

	if (xa_get_mark(&sheet->pages, number, GCT_SHOWN)) {
		nv_linux_state_t *nvl = sheet->nvl;

		down(&nvl->mmap_lock);
		xa_clear_mark(&sheet->pages, number, GCT_SHOWN);
		up(&nvl->mmap_lock);
		/* Faults map the GPU's page again. */
		gct_sheet_revoke(sheet);
	}
	page = xa_erase(&sheet->pages, number);
	if (page)
		__free_page(page);
}

#ifdef GCT_KUNIT
#include "gct_sheet_kunit.c"
#endif
