/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * nv-gct.h - the calls from the driver into gctgroup.
 *
 * gctgroup is linked into nvidia.ko if its sources are in kernel-open/gct. Its
 * Kbuild then defines NV_GCT. Otherwise all hooks are empty, and the driver
 * compiles to the same instructions as without this file.
 *
 * Each hook is called in one place, behind gct_enabled(): a static key that is
 * off until gctgroup has started. A hook that may refuse a call returns an error.
 */
#ifndef _NV_GCT_H_
#define _NV_GCT_H_

#include "nv-linux.h"

#if defined(NV_GCT)

#include "gct-hooks.h"

/* Identifies the chip. Only headers in src/ define this register. */
#define NV_GCT_PMC_BOOT_42 0xA00

static inline void nv_gct_gpu_add(nv_linux_state_t *nvl)
{
    nv_state_t *nv = NV_STATE_PTR(nvl);
    struct pci_dev *pci_dev = nvl->pci_dev;
    const char *name = rm_get_device_name(pci_dev->device,
                                          pci_dev->subsystem_vendor,
                                          pci_dev->subsystem_device);
    struct gct_gpu gpu = {
        .size             = sizeof(gpu),
        .gpu_id           = nv->gpu_id,
        .minor            = nvl->minor_num,
        .domain           = nv->pci_info.domain,
        .bus              = nv->pci_info.bus,
        .slot             = nv->pci_info.slot,
        .function         = PCI_FUNC(pci_dev->devfn),
        .vendor           = pci_dev->vendor,
        .device           = pci_dev->device,
        .subsystem_vendor = pci_dev->subsystem_vendor,
        .subsystem_device = pci_dev->subsystem_device,
        .bar0_base        = nv->regs->cpu_address,
        .bar0_len         = nv->regs->size,
        .fb_base          = nv->fb->cpu_address,
        .fb_len           = nv->fb->size,
    };
    void *boot_42 = nv_ioremap(nv->regs->cpu_address + NV_GCT_PMC_BOOT_42,
                               sizeof(NvU32));

    if (boot_42 != NULL)
    {
        gpu.pmc_boot_42 = readl(boot_42);
        nv_iounmap(boot_42, sizeof(NvU32));
    }

    if (name != NULL)
        snprintf(gpu.name, sizeof(gpu.name), "%s", name);

    gct_gpu_add(&gpu);

    if (nv_get_cached_uuid(nv) != NULL)
        gct_gpu_uuid(nv->gpu_id, nv_get_cached_uuid(nv));
}

static inline void nv_gct_gpu_remove(struct pci_dev *pci_dev)
{
    nv_linux_state_t *nvl = pci_get_drvdata(pci_dev);

    if (nvl != NULL && nvl->pci_dev == pci_dev)
        gct_gpu_remove(nvl->nv_state.gpu_id);
}

static inline int nv_gct_file_open(nv_linux_file_private_t *nvlfp)
{
    mutex_init(&nvlfp->gct_lock);
    return gct_file_open(&nvlfp->gct_file);
}

/* Tests what there is, not gct_enabled(), so that each opened file is closed. */
static inline void nv_gct_file_close(nv_linux_file_private_t *nvlfp)
{
    if (unlikely(nvlfp->gct_maps != NULL))
    {
        gct_maps_close(nvlfp->gct_maps, nvlfp->gct_file);
        nvlfp->gct_maps = NULL;
    }
    if (unlikely(nvlfp->gct_file != NULL))
    {
        gct_file_close(nvlfp->gct_file);
        nvlfp->gct_file = NULL;
    }
}

/*
 * Reports that a mapping of a file was made, if gctgroup has made the file a bell.
 * The page table entries are there.
 */
static inline void nv_gct_bell_mapped(nv_linux_file_private_t *nvlfp)
{
    void *bell = smp_load_acquire(&nvlfp->gct_bell);

    if (unlikely(bell != NULL))
        gct_bell_mapped(bell);
}

/* The file has no mapping any more. Tests the bell, as nv_gct_file_close() the token. */
static inline void nv_gct_bell_close(nv_linux_file_private_t *nvlfp)
{
    if (unlikely(nvlfp->gct_bell != NULL))
    {
        gct_bell_close(nvlfp->gct_bell);
        nvlfp->gct_bell = NULL;
    }
}

/* Maps gctgroup's pages of a mapping, which the driver leaves alone when it maps the others. */
static inline vm_fault_t nv_gct_pane_fault(nv_linux_file_private_t *nvlfp, struct vm_area_struct *vma)
{
    void *pane = smp_load_acquire(&nvlfp->gct_pane);

    return unlikely(pane != NULL) ? gct_pane_fault(pane, vma) : VM_FAULT_NOPAGE;
}

/* Returns VM_FAULT_NOPAGE if the file's memory may be mapped. */
static inline vm_fault_t nv_gct_map_fault(nv_linux_file_private_t *nvlfp, struct vm_fault *vmf)
{
    void *map = smp_load_acquire(&nvlfp->gct_map);

    return unlikely(map != NULL) ? gct_map_fault(map, vmf->flags) : VM_FAULT_NOPAGE;
}

/* Returns whether faults alone may map what a mapping leads to. */
static inline int nv_gct_maps_by_fault(struct vm_area_struct *vma)
{
    nv_linux_file_private_t *nvlfp = NV_GET_LINUX_FILE_PRIVATE(NV_VMA_FILE(vma));
    void *map = gct_enabled() ? smp_load_acquire(&nvlfp->gct_map) : NULL;

    return unlikely(map != NULL) && gct_map_by_fault(map);
}

/*
 * nvidia_mmap() maps the GPU's memory at once. Other threads may access it there before
 * mmap() returns, and nobody finds it to unmap it.
 */
#define nv_io_remap_page_range(vma, ...)                                   \
    (nv_gct_maps_by_fault(vma) ? 0 : nv_io_remap_page_range(vma, __VA_ARGS__))

/* Reports that nvidia_mmap() has made a mapping. Returns its result. */
static inline int nv_gct_map_mapped(nv_linux_file_private_t *nvlfp, struct vm_area_struct *vma)
{
    void *map = smp_load_acquire(&nvlfp->gct_map);

    return unlikely(map != NULL) ? gct_map_mapped(map, vma) : 0;
}

/* What nvidia_vma_access() returns for memory that is accessed by its mappings alone. */
#define NV_GCT_HIDDEN (-EINVAL)

/*
 * Returns whether a file's memory may be accessed by its mappings alone: whoever has looked
 * up an address would use it when the memory is gone.
 */
static inline int nv_gct_map_hides(nv_linux_file_private_t *nvlfp)
{
    void *map = smp_load_acquire(&nvlfp->gct_map);

    return unlikely(map != NULL) && gct_map_hides(map);
}

/* The file has no mapping any more. Tests the map, as nv_gct_bell_close() the bell. */
static inline void nv_gct_map_close(nv_linux_file_private_t *nvlfp)
{
    if (unlikely(nvlfp->gct_map != NULL))
    {
        gct_map_close(nvlfp->gct_map);
        nvlfp->gct_map = NULL;
    }
}

/* The first release whose nvidia_fault() maps all pages of a file's memory. */
#define NV_GCT_RELEASE_MAPS_ALL 570

/*
 * Returns whether an address is behind a mapping that gctgroup may have revoked. Its
 * tenant has cut it then, for mmap() maps all of a file's memory.
 */
static inline int nv_gct_is_cut(struct vm_area_struct *vma, NvU64 address)
{
    nv_linux_file_private_t *nvlfp = NV_GET_LINUX_FILE_PRIVATE(NV_VMA_FILE(vma));

    return GCT_DRIVER_RELEASE >= NV_GCT_RELEASE_MAPS_ALL && gct_enabled() &&
           unlikely(address >= vma->vm_end) &&
           (READ_ONCE(nvlfp->gct_bell) != NULL || READ_ONCE(nvlfp->gct_pane) != NULL ||
            READ_ONCE(nvlfp->gct_map) != NULL);
}

/*
 * nvidia_fault() inserts page after page, and fails at the end of a mapping that was cut,
 * when all pages of the mapping are there. Skips the pages behind it.
 */
#define nv_insert_pfn(vma, address, ...)                                   \
    (nv_gct_is_cut(vma, address) ?                                         \
         VM_FAULT_NOPAGE : nv_insert_pfn(vma, address, __VA_ARGS__))

/* Reports that nvidia_mmap() has mapped pages of the GPU. */
static inline void nv_gct_pane_mapped(nv_linux_file_private_t *nvlfp, struct vm_area_struct *vma)
{
    void *pane = smp_load_acquire(&nvlfp->gct_pane);

    if (unlikely(pane != NULL))
        gct_pane_mapped(pane, vma);
}

/*
 * Returns the status of a look for I/O memory behind a mapping: an error if the mapping may
 * have gctgroup's pages, or ends with its memory; nobody may keep either. Only a file of the
 * driver's has its mapping in its private data.
 */
static inline NV_STATUS nv_gct_io_memory(struct vm_area_struct *vma, NV_STATUS status)
{
    struct file *file = NV_VMA_FILE(vma);
    nv_linux_file_private_t *nvlfp = file ? NV_GET_LINUX_FILE_PRIVATE(file) : NULL;

    if (nvlfp == NULL || file->f_mapping != &nvlfp->mapping)
        return status;

    if (READ_ONCE(nvlfp->gct_pane) != NULL || nv_gct_map_hides(nvlfp))
        return NV_ERR_INVALID_ADDRESS;

    return status;
}

/* The file has no mapping any more. Tests the pane, as nv_gct_bell_close() the bell. */
static inline void nv_gct_pane_close(nv_linux_file_private_t *nvlfp)
{
    if (unlikely(nvlfp->gct_pane != NULL))
    {
        gct_pane_close(nvlfp->gct_pane);
        nvlfp->gct_pane = NULL;
    }
}

/*
 * Returns the file whose clients RM uses, as RmIoctl() does: the one registered
 * with this file (NV_ESC_REGISTER_FD, at most once), or this one. RM accepts a
 * client only through the file that created it.
 */
static inline nv_linux_file_private_t *nv_gct_owner(nv_linux_file_private_t *nvlfp)
{
    nv_file_private_t *ctl = READ_ONCE(nvlfp->nvfp.ctl_nvfp);

    return (ctl == NULL) ? nvlfp : nv_get_nvlfp_from_nvfp(ctl);
}

/*
 * Serializes the ioctls of one owner that gctgroup tracks, so that it sees them in
 * RM's order. RM serializes the ioctls of one client, too. Returns NULL if the
 * caller is being killed.
 */
static inline nv_linux_file_private_t *nv_gct_lock(nv_linux_file_private_t *nvlfp)
{
    nv_linux_file_private_t *owner = nv_gct_owner(nvlfp);

    if (mutex_lock_killable(&owner->gct_lock) != 0)
        return NULL;

    if (owner == nv_gct_owner(nvlfp))
        return owner;

    /* NV_ESC_REGISTER_FD has changed the owner. It can do so only once. */
    mutex_unlock(&owner->gct_lock);
    owner = nv_gct_owner(nvlfp);

    return (mutex_lock_killable(&owner->gct_lock) == 0) ? owner : NULL;
}

/* noinline: nvidia_ioctl() uses no more registers and stack than before. */
static noinline NV_STATUS nv_gct_rm_ioctl(nvidia_stack_t *sp, nv_state_t *nv,
                                          nv_linux_file_private_t *nvlfp,
                                          NvU32 cmd, void *arg, NvU32 size)
{
    nv_linux_file_private_t *owner = nv_gct_lock(nvlfp);
    struct gct_call call;
    NV_STATUS status;

    if (owner == NULL)
        return NV_ERR_SIGNAL_PENDING;

    if (gct_ioctl_enter(owner->gct_file, cmd, arg, size, &call) == 0)
    {
        if (gct_maps_enter(&owner->gct_maps, owner->gct_file, cmd, arg, size, &call) == 0)
            status = rm_ioctl(sp, nv, &nvlfp->nvfp, cmd, arg, size);
        else
            status = NV_ERR_NO_MEMORY;

        gct_maps_leave(owner->gct_maps, cmd, arg, size, &call, status);
        gct_ioctl_leave(owner->gct_file, cmd, arg, size, &call, status);
    }
    else
    {
        /* A limit forbids the ioctl. The structure has the status. */
        status = NV_OK;
    }
    mutex_unlock(&owner->gct_lock);

    return status;
}

/*
 * Copies parameters that gctgroup has read before: RM gets what gctgroup has read,
 * whatever the caller has written since. gctgroup sees what RM writes back.
 */
static noinline NV_STATUS nv_gct_from_user(void *to, const void *from, NvU32 n)
{
    if (NV_COPY_FROM_USER(to, from, n) || gct_serve_read(to, from, n) != 0)
        return NV_ERR_INVALID_ADDRESS;

    return NV_OK;
}

static noinline void nv_gct_to_user(const void *to, const void *from, NvU32 n)
{
    gct_serve_write(to, from, n);
}

/* Returns 0, or a negative errno if RM must not use the file that it has found. */
static noinline int nv_gct_file_found(nv_linux_file_private_t *nvlfp)
{
    return gct_serve_file(nvlfp->gct_file, nvlfp);
}

static inline void nv_gct_log_line(const char *format, va_list ap)
{
    char line[GCT_LOG_BYTES];

    gct_log_line(line, vscnprintf(line, sizeof(line), format, ap));
}

/* A macro: only the function that has the arguments may call va_start(). */
#define nv_gct_log(format, ap)                                             \
    do                                                                     \
    {                                                                      \
        if (strncmp(format, GCT_LOG_ERROR, sizeof(GCT_LOG_ERROR) - 1) == 0) \
        {                                                                  \
            va_start(ap, format);                                          \
            nv_gct_log_line(format, ap);                                   \
            va_end(ap);                                                    \
        }                                                                  \
    } while (0)

/* Macros: only nv-dmabuf.c defines the structures. */
#define nv_gct_dmabuf_add(priv, params, i)                                 \
    ((gct_memory_kept(&(priv)->gct_file, (priv)->nv->gpu_id,               \
                      (params)->index + (i), (params)->hClient,            \
                      (params)->handles[i], (params)->sizes[i]) == 0) ?    \
         NV_OK : NV_ERR_INSUFFICIENT_RESOURCES)

#define nv_gct_dmabuf_added(priv, params)                                  \
    do                                                                     \
    {                                                                      \
        const NvU32 gct_index = (params)->index;                           \
        NvU32 gct_i;                                                       \
        for (gct_i = 0; gct_i < (params)->numObjects; gct_i++)             \
            gct_memory_size((priv)->gct_file, gct_index + gct_i,           \
                            (priv)->h_client,                              \
                            (priv)->handles[gct_index + gct_i].h_memory);  \
    } while (0)

#define nv_gct_dmabuf_free(priv)                                           \
    do                                                                     \
    {                                                                      \
        if ((priv)->gct_file != NULL)                                      \
            gct_file_close((priv)->gct_file);                              \
    } while (0)

#else

static inline int gct_init(void) { return 0; }
static inline void gct_exit(void) { }
static inline int gct_enabled(void) { return 0; }
static inline void nv_gct_gpu_add(void *nvl) { }
static inline void nv_gct_gpu_remove(void *pci_dev) { }
static inline void gct_gpu_uuid(NvU32 gpu_id, const NvU8 *uuid) { }
static inline void gct_gpu_resumed(NvU32 gpu_id) { }
static inline int nv_gct_file_open(void *nvlfp) { return 0; }
static inline void nv_gct_file_close(void *nvlfp) { }
static inline void nv_gct_bell_mapped(void *nvlfp) { }
static inline void nv_gct_bell_close(void *nvlfp) { }
static inline vm_fault_t nv_gct_pane_fault(void *nvlfp, void *vma) { return VM_FAULT_NOPAGE; }
static inline void nv_gct_pane_mapped(void *nvlfp, void *vma) { }
static inline vm_fault_t nv_gct_map_fault(void *nvlfp, void *vmf) { return VM_FAULT_NOPAGE; }
static inline int nv_gct_map_mapped(void *nvlfp, void *vma) { return 0; }
#define NV_GCT_HIDDEN 0
static inline int nv_gct_map_hides(void *nvlfp) { return 0; }
static inline void nv_gct_map_close(void *nvlfp) { }
static inline NV_STATUS nv_gct_io_memory(void *vma, NV_STATUS status) { return status; }
static inline void nv_gct_pane_close(void *nvlfp) { }
static inline int gct_tracks(NvU32 cmd, const void *arg, NvU32 size) { return 0; }
#define nv_gct_rm_ioctl(sp, nv, nvlfp, cmd, arg, size) \
    rm_ioctl(sp, nv, &(nvlfp)->nvfp, cmd, arg, size)
static inline int gct_serving(void) { return 0; }
static inline NV_STATUS nv_gct_from_user(void *to, const void *from, NvU32 n) { return NV_OK; }
static inline void nv_gct_to_user(const void *to, const void *from, NvU32 n) { }
static inline int nv_gct_file_found(void *nvlfp) { return 0; }
#define nv_gct_log(format, ap) do { } while (0)
#define nv_gct_dmabuf_add(priv, params, i) NV_OK
#define nv_gct_dmabuf_added(priv, params) do { } while (0)
#define nv_gct_dmabuf_free(priv) do { } while (0)

#endif /* NV_GCT */

#endif /* _NV_GCT_H_ */
