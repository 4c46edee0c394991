/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * nv-gct-uvm.h - the calls from nvidia-uvm into gctgroup.
 *
 * uvm.c includes it last. With gctgroup, its table of ioctls has gctgroup's functions
 * for six of them, which call the driver's own (gct-uvm.h). Without it nothing changes.
 */
#ifndef _NV_GCT_UVM_H_
#define _NV_GCT_UVM_H_

#if defined(NV_GCT)

#include "gct-uvm.h"

#else

#define uvm_gct_start() do { } while (0)
#define uvm_gct_stop() do { } while (0)
#define uvm_gct_release(va_space) do { } while (0)

#endif /* NV_GCT */

#endif /* _NV_GCT_UVM_H_ */
