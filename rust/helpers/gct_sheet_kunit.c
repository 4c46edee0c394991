// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Tests of gct_sheet.c, which includes this file where the KUnit suites are built.
 */
#include <kunit/test.h>

/* A GPU, and a device file through which a tenant maps its memory. */
struct gct_sheet_file {
	nv_linux_state_t nvl;
	nv_linux_file_private_t nvlfp;
};

static struct gct_sheet_file *gct_sheet_file(struct kunit *test, u32 gpu_id)
{
	struct gct_sheet_file *file = kunit_kzalloc(test, sizeof(*file), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, file);
	sema_init(&file->nvl.mmap_lock, 1);
	file->nvl.safe_to_mmap = NV_TRUE;
	file->nvl.nv_state.gpu_id = gpu_id;
	file->nvlfp.nvptr = &file->nvl;
	address_space_init_once(&file->nvlfp.mapping);
	return file;
}

/* Has a file be a pane, as gct_helper_pane_follow() does. Returns whether it is. */
static bool gct_sheet_follow(struct gct_sheet *sheet, struct gct_sheet_file *file)
{
	struct gct_pane *pane = kzalloc(sizeof(*pane), GFP_KERNEL);
	bool added = false;

	if (pane) {
		pane->mapping = &file->nvlfp.mapping;
		pane->sheet = sheet;
		mutex_lock(&sheet->lock);
		added = gct_pane_add(sheet, &file->nvlfp, pane);
		mutex_unlock(&sheet->lock);
	}
	if (!added)
		kfree(pane);
	return added;
}

static void gct_sheet_close(struct gct_sheet_file *file)
{
	gct_pane_close(file->nvlfp.gct_pane);
	file->nvlfp.gct_pane = NULL;
}

/* Returns whether the lock is free, and held by one at most. */
static bool gct_sheet_is_free(struct gct_sheet_file *file)
{
	const bool taken = !down_trylock(&file->nvl.mmap_lock);
	const bool twice = taken && !down_trylock(&file->nvl.mmap_lock);

	if (taken)
		up(&file->nvl.mmap_lock);
	return taken && !twice;
}

/*
 * During a turn the tenant closes the panes, and has a file of another GPU follow the
 * empty sheet: its thread has put that file in the descriptor's place.
 */
static void gct_turn_ends_with_its_lock(struct kunit *test)
{
	struct gct_sheet_file *own = gct_sheet_file(test, 1), *other = gct_sheet_file(test, 2);
	struct gct_sheet *sheet = gct_helper_sheet_new(1);
	struct gct_turn *turn;

	KUNIT_ASSERT_NOT_NULL(test, sheet);
	KUNIT_ASSERT_TRUE(test, gct_sheet_follow(sheet, own));
	turn = gct_helper_turn_begin(sheet, sheet, 1);
	KUNIT_ASSERT_NOT_NULL(test, turn);
	KUNIT_EXPECT_NE(test, down_trylock(&own->nvl.mmap_lock), 0);
	gct_sheet_close(own);
	if (gct_sheet_follow(sheet, other)) {
		KUNIT_FAIL(test, "a file of another GPU became a pane");
		gct_sheet_close(other);
	}
	gct_helper_turn_end(turn);
	KUNIT_EXPECT_TRUE(test, gct_sheet_is_free(own));
	KUNIT_EXPECT_TRUE(test, gct_sheet_is_free(other));
	gct_helper_sheet_put(sheet);
}

/* Memory of one GPU is not replaced in a turn of another one, nor while its GPU sleeps. */
static void gct_turn_needs_its_gpu(struct kunit *test)
{
	struct gct_sheet_file *own = gct_sheet_file(test, 1), *other = gct_sheet_file(test, 2);
	struct gct_sheet *one = gct_helper_sheet_new(1), *two = gct_helper_sheet_new(2);

	KUNIT_ASSERT_TRUE(test, one && two);
	KUNIT_EXPECT_NULL(test, gct_helper_turn_begin(one, one, 1));
	KUNIT_ASSERT_TRUE(test, gct_sheet_follow(one, own) && gct_sheet_follow(two, other));
	KUNIT_EXPECT_NULL(test, gct_helper_turn_begin(one, two, 1));
	KUNIT_EXPECT_NULL(test, gct_helper_turn_begin(one, one, 2));
	own->nvl.safe_to_mmap = NV_FALSE;
	KUNIT_EXPECT_NULL(test, gct_helper_turn_begin(one, one, 1));
	KUNIT_EXPECT_TRUE(test, gct_sheet_is_free(own));
	KUNIT_EXPECT_TRUE(test, gct_sheet_is_free(other));
	gct_sheet_close(own);
	gct_sheet_close(other);
	gct_helper_sheet_put(one);
	gct_helper_sheet_put(two);
}

/*
 * The driver maps memory that is the processor's, too, page by page. Such a mapping is
 * neither revoked nor filled, and the memory is never replaced. The area has no mm, so
 * whoever changes it faults.
 */
static void gct_panes_leave_pages_alone(struct kunit *test)
{
	struct gct_sheet_file *file = gct_sheet_file(test, 1);
	struct vm_area_struct *area = kunit_kzalloc(test, sizeof(*area), GFP_KERNEL);
	struct gct_sheet *sheet = gct_helper_sheet_new(1);

	KUNIT_ASSERT_TRUE(test, area && sheet);
	area->vm_end = PAGE_SIZE;
	vm_flags_init(area, VM_SHARED | VM_MIXEDMAP | VM_IO | VM_PFNMAP);
	KUNIT_ASSERT_TRUE(test, gct_sheet_follow(sheet, file));
	KUNIT_ASSERT_NOT_NULL(test, gct_helper_sheet_page(sheet, 0));
	gct_helper_turn_show(sheet, 0, true);
	KUNIT_EXPECT_EQ(test, gct_pane_fault(file->nvlfp.gct_pane, area), VM_FAULT_NOPAGE);
	gct_helper_turn_show(sheet, 0, false);
	gct_pane_mapped(file->nvlfp.gct_pane, area);
	KUNIT_EXPECT_NULL(test, gct_helper_turn_begin(sheet, sheet, 1));
	gct_helper_sheet_forget(sheet, 0);
	gct_sheet_close(file);
	gct_helper_sheet_put(sheet);
}

static struct kunit_case gct_sheet_cases[] = {
	KUNIT_CASE(gct_panes_leave_pages_alone),
	KUNIT_CASE(gct_turn_ends_with_its_lock),
	KUNIT_CASE(gct_turn_needs_its_gpu),
	{}
};

static struct kunit_suite gct_sheet_suite = {
	.name = "gct_sheet",
	.test_cases = gct_sheet_cases,
};

kunit_test_suite(gct_sheet_suite);
