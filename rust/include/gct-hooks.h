/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * gct-hooks.h - what a patched driver file includes: gct.h and the guard.
 *
 * gct_enabled() is a static key: while gctgroup is off (gct_init() was not
 * called, failed, or gct_exit() ran) a hook is one no-op instruction.
 */
#ifndef GCT_HOOKS_H
#define GCT_HOOKS_H

#include <linux/compiler.h>
#include <linux/jump_label.h>

#include "gct.h"

DECLARE_STATIC_KEY_FALSE(gct_enabled_key);

#define gct_enabled() static_branch_unlikely(&gct_enabled_key)

/* Are some parameters served? Those of current's own ioctl are if so. */
#define gct_serving() (gct_enabled() && unlikely(READ_ONCE(gct_servings) != 0))

#endif /* GCT_HOOKS_H */
