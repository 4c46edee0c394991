/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * gct-uvm.h - the calls from nvidia-uvm into gctgroup, which gct_uvm.c implements.
 *
 * uvm.c includes this header last. Its table of ioctls then has gctgroup's functions
 * for six of them. Each calls the driver's function, which keeps its name everywhere
 * else, and reports what has succeeded.
 */
#ifndef GCT_UVM_H
#define GCT_UVM_H

#include "uvm_api.h"

/* Begin and end the use of nvidia-uvm by nvidia.ko. */
void uvm_gct_start(void);
void uvm_gct_stop(void);

/* Reports that a file is closed. Its VA space is still whole. */
void uvm_gct_release(uvm_va_space_t *va_space);

NV_STATUS uvm_gct_register_gpu_va_space(UVM_REGISTER_GPU_VASPACE_PARAMS *params, struct file *filp);
NV_STATUS uvm_gct_unregister_gpu_va_space(UVM_UNREGISTER_GPU_VASPACE_PARAMS *params,
					  struct file *filp);
NV_STATUS uvm_gct_unregister_gpu(UVM_UNREGISTER_GPU_PARAMS *params, struct file *filp);
NV_STATUS uvm_gct_map_external_allocation(UVM_MAP_EXTERNAL_ALLOCATION_PARAMS *params,
					  struct file *filp);
NV_STATUS uvm_gct_unmap_external(UVM_UNMAP_EXTERNAL_PARAMS *params, struct file *filp);
NV_STATUS uvm_gct_free(UVM_FREE_PARAMS *params, struct file *filp);

#ifndef GCT_UVM_IMPLEMENTS
#define uvm_api_register_gpu_va_space uvm_gct_register_gpu_va_space
#define uvm_api_unregister_gpu_va_space uvm_gct_unregister_gpu_va_space
#define uvm_api_unregister_gpu uvm_gct_unregister_gpu
#define uvm_api_map_external_allocation uvm_gct_map_external_allocation
#define uvm_api_unmap_external uvm_gct_unmap_external
#define uvm_api_free uvm_gct_free
#endif

#endif /* GCT_UVM_H */
