/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * gct-hooks.h - gct.h and the guard of the hooks, for patched files of the driver.
 *
 * gct_enabled() is a static key. A hook is one no-op instruction until gct_init()
 * has succeeded and after gct_exit().
 */
#ifndef GCT_HOOKS_H
#define GCT_HOOKS_H

#include <linux/compiler.h>
#include <linux/jump_label.h>

#include "gct.h"

DECLARE_STATIC_KEY_FALSE(gct_enabled_key);

#define gct_enabled() static_branch_unlikely(&gct_enabled_key)

/* Returns whether any ioctl has served parameters; current's own may be among them. */
#define gct_serving() (gct_enabled() && unlikely(READ_ONCE(gct_servings) != 0))

#endif /* GCT_HOOKS_H */
