// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Tests of gct_bell.c, which includes this file where the KUnit suites are built.
 */
#include <kunit/test.h>

/*
 * The worker of a GPU's last channel ends behind the locks (Owned::close). A channel that
 * is allocated meanwhile starts another worker, which the bells must go on to wake.
 */
static void gct_bells_keep_the_next_worker(struct kunit *test)
{
	struct gct_bell_gpu gpu = {};
	/* Addresses alone are looked at. */
	struct gct_worker *former = (void *)&gpu.id, *next = (void *)&gpu.open;

	gct_bells_begin(&gpu, former);
	gct_bells_begin(&gpu, next);
	gct_bells_end(&gpu, former);
	KUNIT_EXPECT_PTR_EQ(test, gpu.worker, next);
	gct_bells_end(&gpu, next);
	KUNIT_EXPECT_NULL(test, gpu.worker);
}

static struct kunit_case gct_bell_cases[] = {
	KUNIT_CASE(gct_bells_keep_the_next_worker),
	{}
};

static struct kunit_suite gct_bell_suite = {
	.name = "gct_bell",
	.test_cases = gct_bell_cases,
};

kunit_test_suite(gct_bell_suite);
