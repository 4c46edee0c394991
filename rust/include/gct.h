/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * gct.h - the C interface between NVIDIA's driver and gctgroup.
 *
 * The driver's C code calls these functions; rust/gct_kernel/ffi.rs implements
 * them. Only fixed-width types cross, so the header needs neither Linux's nor
 * NVIDIA's headers. Layouts are asserted here and again in Rust. A change of a
 * structure or of a signature raises GCT_ABI_VERSION.
 *
 * If gctgroup fails, the driver takes the stock path and the tree's `events`
 * counts the failure. Only a tenant under a limit may get an error instead, from
 * gct_file_open() and gct_ioctl_enter().
 */
#ifndef GCT_H
#define GCT_H

#ifdef __KERNEL__
#include <linux/stddef.h>
#include <linux/types.h>
#else
#include <stddef.h>
#include <stdint.h>
#endif

#define GCT_ABI_VERSION 19

/* The driver's release, such as 580 of "580.142". The compiler knows it. */
#define GCT_DRIVER_RELEASE \
	((NV_VERSION_STRING[0] - '0') * 100 + (NV_VERSION_STRING[1] - '0') * 10 + \
	 (NV_VERSION_STRING[2] - '0'))

/* Bytes of struct gct_gpu's name, including the terminating NUL. */
#define GCT_GPU_NAME_BYTES 64

/* Bytes of a GPU's UUID. */
#define GCT_GPU_UUID_BYTES 16

/*
 * What the driver knows about a GPU when its PCI probe has succeeded. Fields are
 * in CPU byte order; 0 means unknown.
 */
struct gct_gpu {
	uint32_t size;			/* sizeof(struct gct_gpu), set by the caller */
	uint32_t gpu_id;		/* RM's identifier, unique while the GPU is present */
	uint32_t minor;			/* N of /dev/nvidiaN */
	uint32_t domain;		/* PCI address: domain:bus:slot.function */
	uint8_t bus;
	uint8_t slot;
	uint8_t function;
	uint8_t reserved;		/* 0 */
	uint16_t vendor;
	uint16_t device;
	uint16_t subsystem_vendor;
	uint16_t subsystem_device;
	uint32_t pmc_boot_42;		/* chip identification register, 0 when it was not read */
	uint64_t bar0_base;		/* registers: CPU physical address and bytes */
	uint64_t bar0_len;
	uint64_t fb_base;		/* frame buffer BAR: CPU physical address and bytes */
	uint64_t fb_len;
	char name[GCT_GPU_NAME_BYTES];	/* marketing name, NUL-terminated; "" when unknown */
};

_Static_assert(sizeof(struct gct_gpu) == 128, "struct gct_gpu is ABI");
_Static_assert(offsetof(struct gct_gpu, bus) == 16, "struct gct_gpu is ABI");
_Static_assert(offsetof(struct gct_gpu, vendor) == 20, "struct gct_gpu is ABI");
_Static_assert(offsetof(struct gct_gpu, pmc_boot_42) == 28, "struct gct_gpu is ABI");
_Static_assert(offsetof(struct gct_gpu, bar0_base) == 32, "struct gct_gpu is ABI");
_Static_assert(offsetof(struct gct_gpu, name) == 64, "struct gct_gpu is ABI");

/*
 * What gct_ioctl_enter() leaves for the gct_ioctl_leave() of the same ioctl, on
 * the caller's stack. The caller need not initialise it, does not look at it, and
 * does not move it in between.
 */
struct gct_call {
	uint64_t has_entered;		/* not 0: `entered` holds the decoded ioctl */
	uint64_t entered[16];		/* ioctl::Entered of gct_kernel */
	uint64_t served[8];		/* struct gct_served of gct_serve.c */
};

_Static_assert(sizeof(struct gct_call) == 200, "struct gct_call is ABI");

/*
 * Start and stop gctgroup with nvidia.ko. Context: process, may sleep.
 *
 * The driver calls gct_init() before it probes a GPU and before the character
 * devices exist, and gct_exit() after the last GPU is removed and the devices are
 * gone, even if gct_init() failed. gct_init() returns 0 or a negative errno. After
 * an errno all other functions here do nothing.
 */
int gct_init(void);
void gct_exit(void);

/*
 * Report that a GPU arrived, that its UUID is known, and that it left. @gpu and
 * @uuid are read during the call only. Context: process, may sleep; the driver may
 * hold its ldata_lock in gct_gpu_uuid().
 */
void gct_gpu_add(const struct gct_gpu *gpu);
void gct_gpu_uuid(uint32_t gpu_id, const uint8_t uuid[GCT_GPU_UUID_BYTES]);
void gct_gpu_remove(uint32_t gpu_id);

/*
 * Reports that a GPU was suspended and works again. Context: process, may sleep;
 * the driver may hold its ldata_lock and its nv_system_pm_lock.
 */
void gct_gpu_resumed(uint32_t gpu_id);

/*
 * The start of each line of the driver's log that reports an error of a GPU, and
 * the bytes of such a line that gctgroup reads.
 */
#define GCT_LOG_ERROR "NVRM: Xid (PCI:"
#define GCT_LOG_BYTES 96

/*
 * Reports a line that the driver logs: @size bytes that begin with GCT_LOG_ERROR.
 * The line may be truncated. @line is read during the call only. Context: any,
 * including interrupts; takes no lock and does not allocate.
 */
void gct_log_line(const char *line, uint32_t size);

/*
 * Reports that current opens the control file or a device file. Sets *@file to a
 * token of the open file, which the driver passes to exactly one gct_file_close();
 * NULL means that the file is not followed. Returns 0, or a negative errno with
 * which the open must fail: the file cannot be followed, and current is under a
 * limit. Context: process, may sleep; takes no lock of the driver.
 */
int gct_file_open(void **file);

/*
 * Reports that an open file is closed. The driver calls this just before the
 * resource manager frees the file's clients. @file is the file's token or NULL; it
 * is invalid after the call. Context: process or a kernel thread, may sleep;
 * current is not used.
 */
void gct_file_close(void *file);

/*
 * Reports that the driver has dup'ed a tenant's memory for a dma-buf: @bytes or more of
 * @client's @object on the GPU @gpu_id. @index counts the objects of one dma-buf.
 * *@file is the dma-buf's token; it is made here if it is NULL. The driver passes it to
 * gct_file_close() when it has freed all duplicates. Returns 0, or a negative errno with
 * which the driver must free the duplicate and fail: it cannot be followed, and its
 * exporter is under a limit. Context: process, current exports; may sleep. The driver
 * has held the resource manager's API lock since before the dup, so that no object is
 * made or freed; no call of the resource manager is possible.
 */
int gct_memory_kept(void **file, uint32_t gpu_id, uint32_t index, uint32_t client,
		    uint32_t object, uint64_t bytes);

/*
 * Reports the name of what gct_memory_kept() was told: the driver's client @keeper has
 * the duplicate @kept. gctgroup asks the resource manager for its size where it has no
 * other name. Context: process, may sleep; no lock of the resource manager is held.
 */
void gct_memory_size(void *file, uint32_t index, uint32_t keeper, uint32_t kept);

/*
 * Report an ioctl just before and just after the resource manager runs it. The
 * driver calls them if gct_tracks() returns 1.
 *
 * @file:   token of the ioctl's file, or NULL. If NV_ESC_REGISTER_FD has bound that
 *          file to a control file, the token of the control file.
 * @escape: escape number, unwrapped
 * @arg:    the kernel's copy of the ioctl's structure, @size bytes
 * @call:   the same for both
 * @result: what rm_ioctl() returned; NV_OK is 0
 *
 * gct_ioctl_enter() returns 0 if the ioctl may run, and then does not write to
 * @arg. It returns 1 if a limit forbids the ioctl, or if the ioctl cannot be
 * followed and its process is under a limit. It has then written a status to @arg;
 * the driver does not call rm_ioctl() nor gct_ioctl_leave(), and goes on as if
 * rm_ioctl() had returned NV_OK, as it does when the resource manager refuses.
 *
 * gct_ioctl_leave() writes a status to @arg if it has freed what the ioctl made: a
 * limit forbids it, which could not be known before, or it cannot be followed and its
 * process is under a limit. Otherwise it does not write to @arg.
 *
 * Context: process, may sleep; no lock of the resource manager is held. For one
 * @file only one ioctl at a time is between enter and leave.
 */
int gct_ioctl_enter(void *file, uint32_t escape, void *arg, uint32_t size,
		    struct gct_call *call);
void gct_ioctl_leave(void *file, uint32_t escape, void *arg, uint32_t size,
		     struct gct_call *call, uint32_t result);

/*
 * Have the resource manager see the parameters that gctgroup saw. An ioctl's
 * structure points to parameters in the tenant's memory, which may change at any
 * time. gct_ioctl_enter() copies them. During the ioctl
 *
 *   gct_serve_read()   replaces what os_memcpy_from_user() has copied by that copy.
 *                      Returns 0, or a negative errno if gct_ioctl_enter() could not
 *                      copy; then the resource manager must not read either.
 *   gct_serve_write()  records what os_memcpy_to_user() is about to write, and
 *                      puts back what the tenant wrote where gctgroup had the
 *                      resource manager read something else.
 *   gct_serve_file()   records the token of a file that the resource manager has
 *                      found by its descriptor, and makes it a map (below): @private
 *                      is the file's private data. Returns 0, or a negative errno if
 *                      the resource manager must not use the file.
 *
 * The driver calls them only while gct_servings is not 0. Context: the ioctl; they
 * do not sleep.
 */
extern uint32_t gct_servings;
int gct_serve_read(void *to, const void *from, uint32_t n);
void gct_serve_write(const void *to, const void *from, uint32_t n);
int gct_serve_file(void *file, void *private);

/*
 * Managed memory, which nvidia-uvm.ko allocates in root chunks of 2 MiB. An address
 * space of UVM is a file of gct_file_open(). A process has one account on each GPU, which
 * all its address spaces use: a number below GCT_UVM_ACCOUNTS; 0 is nobody's. A root chunk
 * has one account at a time, its holder, and is charged to it as a whole.
 *
 * gct_uvm_gpu_add() reports that UVM uses the GPU with @uuid, which has @roots root
 * chunks: root chunk N is at address N * 2 MiB. It returns the GPU for the functions
 * below, or NULL if managed memory on it cannot be charged. UVM passes the GPU to
 * exactly one gct_uvm_gpu_remove(). Both may sleep.
 *
 * gct_uvm_account_open() adds @file's address space to the account of its process, or
 * returns GCT_UVM_NO_ACCOUNT if there is none: the address space must not use the GPU.
 * Without a @gpu it returns 0, or GCT_UVM_NO_ACCOUNT if the process is under a limit.
 * @file may be NULL.
 * gct_uvm_account_close() takes an address space out of it, and closes it with the last:
 * they hold nothing any more, but root chunks that others are evicting. Its number is used
 * again when those have another holder. gct_uvm_settle() charges the process of an account
 * for what it holds now. These may sleep and allocate memory; any lock of UVM but a
 * spinlock may be held, and the resource manager's API lock.
 *
 * gct_uvm_reserve() charges an account for a root chunk that the caller is about to
 * take, and returns 1. Beyond a limit it charges nothing, returns 0 and stores the
 * account that has to give up a root chunk first in *@victim: one of the owner whose
 * limit it is, or 0 if there is none. @tried victims before this one could give up
 * nothing; with GCT_UVM_ANYWAY it charges beyond any limit. @victim may be NULL.
 * gct_uvm_reserve_table() does so for a root chunk of page tables, which have at most
 * half of a limit. It does not know GCT_UVM_ANYWAY.
 * gct_uvm_cancel() takes a charge back for which no gct_uvm_take() follows.
 * gct_uvm_evicted() counts a root chunk, which still has its holder. Context: as above.
 *
 * gct_uvm_instead() names an account that gives up a root chunk before @root, which a
 * full GPU would evict next: if the holder of @root has a gmem.limit or a gmem.low and no
 * root chunk beyond either, one that has. Who has neither gives way, too. @tried such
 * accounts before could give up nothing. It returns 0 if @root is to go. Context: as above.
 *
 * gct_uvm_shortage() says how long a shortage of an account lasts for which
 * gct_uvm_reserve() has no victim any more: GCT_UVM_PASSING, GCT_UVM_RENEWED if all
 * victims are to be tried again, or GCT_UVM_LASTING. @failed counts evictions that found
 * no host memory, and earlier answers. It is for a thread that serves faults of all
 * tenants and cannot wait. Context: as above.
 *
 * gct_uvm_host_charge() charges an account for @bytes of host memory that an eviction
 * of its pages takes. It returns the charge for gct_uvm_host_uncharge(), 0 if nobody is
 * charged, or GCT_UVM_REFUSED if a limit is in the way and the eviction is @for_owner:
 * for a limit of the owner's, and not for a GPU that is full. Context: as above.
 *
 * gct_uvm_take() gives a root chunk to an account, which must have reserved one.
 * gct_uvm_take_table() does so for a root chunk that page tables of the account are in,
 * which nobody evicts.
 * gct_uvm_drop() makes it free, and gct_uvm_holder() returns its holder.
 * gct_uvm_use() says whether it was used lately. gct_uvm_pick() returns the root chunk
 * that a victim gives up, among those for which @can_leave returns 1, or
 * GCT_UVM_NO_ROOT. They do not sleep; UVM's spinlocks may be held. @can_leave must not
 * call gctgroup.
 */
#define GCT_UVM_ACCOUNTS 4096
#define GCT_UVM_NO_ACCOUNT 0xffffffffu
#define GCT_UVM_NO_ROOT 0xffffffffu
#define GCT_UVM_ANYWAY 0xffffffffu
#define GCT_UVM_PASSING 0u
#define GCT_UVM_RENEWED 1u
#define GCT_UVM_LASTING 2u
#define GCT_UVM_REFUSED 0x7fffffffffffffffull

void *gct_uvm_gpu_add(const uint8_t uuid[GCT_GPU_UUID_BYTES], uint32_t roots);
void gct_uvm_gpu_remove(void *gpu);
uint32_t gct_uvm_account_open(void *gpu, void *file);
void gct_uvm_account_close(void *gpu, uint32_t account);
void gct_uvm_settle(void *gpu, uint32_t account);
uint32_t gct_uvm_reserve(void *gpu, uint32_t account, uint32_t tried, uint32_t *victim);
uint32_t gct_uvm_reserve_table(void *gpu, uint32_t account, uint32_t tried, uint32_t *victim);
void gct_uvm_cancel(void *gpu, uint32_t account);
void gct_uvm_evicted(void *gpu, uint32_t root);
uint32_t gct_uvm_instead(void *gpu, uint32_t root, uint32_t tried);
uint32_t gct_uvm_shortage(void *gpu, uint32_t account, uint32_t failed);
uint64_t gct_uvm_host_charge(void *gpu, uint32_t account, uint64_t bytes, uint32_t for_owner);
void gct_uvm_host_uncharge(uint64_t charge, uint64_t bytes);
void gct_uvm_take(void *gpu, uint32_t root, uint32_t account);
void gct_uvm_take_table(void *gpu, uint32_t root, uint32_t account);
void gct_uvm_drop(void *gpu, uint32_t root);
uint32_t gct_uvm_holder(void *gpu, uint32_t root);
void gct_uvm_use(void *gpu, uint32_t root, uint32_t used);
uint32_t gct_uvm_pick(void *gpu, uint32_t victim, uint32_t (*can_leave)(void *pmm, uint32_t root),
		      void *pmm);

/*
 * Doorbells. A device file through which a tenant with owned channels maps a doorbell
 * is a bell; gctgroup stores it in the file's private data. While the GPU's worker is
 * idle, gctgroup revokes the file's mappings (unmap_mapping_range).
 *
 * gct_bell_mapped() reports that a mapping of the file was made or faulted in. The
 * driver calls it after the page table entries are there. gct_bell_close() reports
 * that the file is closed and has no mapping any more; @bell is invalid after it.
 * Context: process or a kernel thread, may sleep; in a fault the mm's lock and the
 * driver's mmap_lock are held.
 */
void gct_bell_mapped(void *bell);
void gct_bell_close(void *bell);

/*
 * Pages of the host in place of the GPU's. A device file through which a tenant maps
 * memory that gctgroup may have to replace is a pane. gct_pane_fault() maps gctgroup's
 * pages of a vm_area_struct, before the driver maps those that are not mapped then. It
 * returns a vm_fault_t; unless that is VM_FAULT_NOPAGE, the driver maps nothing.
 * gct_pane_mapped() unmaps what mmap() has mapped: the first access faults.
 * gct_pane_close() as gct_bell_close(). Context: the first in a fault, with the driver's
 * mmap_lock; the second in mmap.
 */
uint32_t gct_pane_fault(void *pane, void *vma);
void gct_pane_mapped(void *pane, void *vma);
void gct_pane_close(void *pane);

/*
 * Mappings that end with their memory. A device file through which somebody maps the GPU's
 * memory, while somebody is governed, is a map. The client file through which the resource
 * manager was asked has all its maps in @maps, NULL until there is one.
 *
 * gct_maps_enter() and gct_maps_leave() are called between gct_ioctl_enter() and
 * gct_ioctl_leave(), just before and just after the resource manager runs the ioctl. The
 * first unmaps what the ioctl may end, and returns 0, or a negative errno if the ioctl must
 * not run. @file is the client file's token. gct_maps_close() unmaps all, before the
 * resource manager frees the file's clients; @maps is invalid after it.
 *
 * gct_map_fault() returns a vm_fault_t; unless that is VM_FAULT_NOPAGE, the driver maps
 * nothing. @flags are those of the fault. gct_map_by_fault() returns 1 if mmap() must map
 * nothing. gct_map_mapped() returns 0 for what mmap() has made, or a negative errno with
 * which it must fail. gct_map_hides() returns 1 if the memory may be accessed by its
 * mappings alone.
 * gct_map_close() as gct_bell_close(). Context: as for panes; enter, leave and the closes
 * take the driver's mmap_lock.
 */
int gct_maps_enter(void **maps, void *file, uint32_t escape, const void *arg, uint32_t size,
		   struct gct_call *call);
void gct_maps_leave(void *maps, uint32_t escape, const void *arg, uint32_t size,
		    struct gct_call *call, uint32_t result);
void gct_maps_close(void *maps, void *file);
uint32_t gct_map_fault(void *map, uint32_t flags);
int gct_map_by_fault(void *map);
int gct_map_mapped(void *map, void *vma);
int gct_map_hides(void *map);
void gct_map_close(void *map);

/* Escape numbers of the ioctls that allocate, free, share or control RM objects. */
#define GCT_ESCAPE_ALLOC_MEMORY 0x27u
#define GCT_ESCAPE_ALLOC_OBJECT 0x28u
#define GCT_ESCAPE_FREE 0x29u
#define GCT_ESCAPE_CONTROL 0x2Au
#define GCT_ESCAPE_ALLOC 0x2Bu
#define GCT_ESCAPE_DUP_OBJECT 0x34u
#define GCT_ESCAPE_VID_HEAP_CONTROL 0x4Au

/*
 * Escapes that map memory, for the CPU and for the GPU. gctgroup looks at them while
 * channels may be owned: it must know where a ring lies, and no thread may name what
 * an allocation lends to its client for a moment.
 */
#define GCT_ESCAPE_MAP_MEMORY 0x4Eu
#define GCT_ESCAPE_MAP_MEMORY_DMA 0x57u
#define GCT_ESCAPE_UNMAP_MEMORY_DMA 0x58u

/* Escapes that end a mapping for the CPU, and that say by which address it is known. */
#define GCT_ESCAPE_UNMAP_MEMORY 0x4Fu
#define GCT_ESCAPE_UPDATE_MAPPING 0x5Eu

/*
 * What waits with the resource manager's locks, and is refused to whom gctgroup governs:
 * the one while a page of the caller's does not come, with which it reads and writes keys;
 * the other for work of the caller's, as long as the caller says.
 */
#define GCT_ESCAPE_ACCESS_REGISTRY 0x4Du
#define GCT_ESCAPE_IDLE_CHANNELS 0x41u

/* Binds a file to another one until it is closed. It is serialised with the above. */
#define GCT_ESCAPE_REGISTER_FD 0xC9u

#define GCT_ESCAPE_FIRST GCT_ESCAPE_ALLOC_MEMORY
#define GCT_ESCAPE_BIT(escape) (1ull << ((escape) - GCT_ESCAPE_FIRST))
#define GCT_ESCAPE_MASK                                                        \
	(GCT_ESCAPE_BIT(GCT_ESCAPE_ALLOC_MEMORY) |                             \
	 GCT_ESCAPE_BIT(GCT_ESCAPE_ALLOC_OBJECT) |                             \
	 GCT_ESCAPE_BIT(GCT_ESCAPE_FREE) |                                     \
	 GCT_ESCAPE_BIT(GCT_ESCAPE_CONTROL) |                                  \
	 GCT_ESCAPE_BIT(GCT_ESCAPE_ALLOC) |                                    \
	 GCT_ESCAPE_BIT(GCT_ESCAPE_DUP_OBJECT) |                               \
	 GCT_ESCAPE_BIT(GCT_ESCAPE_VID_HEAP_CONTROL))

#define GCT_ESCAPE_OWNED_MASK                                                  \
	(GCT_ESCAPE_BIT(GCT_ESCAPE_MAP_MEMORY) |                               \
	 GCT_ESCAPE_BIT(GCT_ESCAPE_UNMAP_MEMORY) |                             \
	 GCT_ESCAPE_BIT(GCT_ESCAPE_UPDATE_MAPPING) |                           \
	 GCT_ESCAPE_BIT(GCT_ESCAPE_MAP_MEMORY_DMA) |                           \
	 GCT_ESCAPE_BIT(GCT_ESCAPE_UNMAP_MEMORY_DMA) |                         \
	 GCT_ESCAPE_BIT(GCT_ESCAPE_ACCESS_REGISTRY) |                          \
	 GCT_ESCAPE_BIT(GCT_ESCAPE_IDLE_CHANNELS))

/*
 * 1 while somebody is governed, else 0: somebody is to have owned channels, or may be when
 * its group gets a limit, or what a file maps is recorded. A record lasts until its file is
 * closed.
 */
extern uint32_t gct_owning;

/*
 * Returns 1 for controls that may undo a limit (they set the time slice of a
 * channel group or let channels run), for those that export objects to a file or
 * import them, and for the one whose answer shows a tenant the GPU's memory.
 */
static inline int gct_tracks_control(uint32_t command)
{
	/* A channel accepts the numbers of all generations: 0xa06f, 0xb06f, 0xc36f ... */
	switch (command & 0x00ffffff) {
	case 0x006f0102: /* NV906F_CTRL_CMD_RESET_CHANNEL */
	case 0x006f0103: /* NVA06F_CTRL_CMD_GPFIFO_SCHEDULE */
		return 1;
	}
	switch (command) {
	case 0x506f0105: /* NV506F_CTRL_CMD_RESET_ISOLATED_CHANNEL */
	case 0xa06c0101: /* NVA06C_CTRL_CMD_GPFIFO_SCHEDULE */
	case 0xa06c0103: /* NVA06C_CTRL_CMD_SET_TIMESLICE */
	case 0x2080110b: /* NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS */
	case 0x20801303: /* NV2080_CTRL_CMD_FB_GET_INFO_V2 */
	case 0x00801705: /* NV0080_CTRL_CMD_FIFO_START_SELECTED_CHANNELS */
	case 0x0080170f: /* NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES */
	case 0x00003d05: /* NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD */
	case 0x00003d06: /* NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD */
	case 0x00003d0b: /* NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD */
	case 0x00003d0c: /* NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD */
		return 1;
	default:
		return 0;
	}
}

/*
 * Returns 1 if gctgroup looks at this ioctl. Costs two compares and a bit test. For
 * controls, which are the most frequent, a load more; while that is 0 the command also
 * counts, word 2 of NVOS54_PARAMETERS. Escapes that gctgroup does not look at cost
 * another shift and a load.
 *
 * While gct_owning is 1, all controls of a file take their turn with its other ioctls.
 * gctgroup relies on that for those that it lets pass, too: during an allocation no
 * control of the same client says what names the client has
 * (NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE).
 */
static inline int gct_tracks(uint32_t escape, const void *arg, uint32_t size)
{
	const uint32_t bit = escape - GCT_ESCAPE_FIRST;

	if (bit >= 64)
		return escape == GCT_ESCAPE_REGISTER_FD;
	if (!((GCT_ESCAPE_MASK >> bit) & 1))
		return ((GCT_ESCAPE_OWNED_MASK >> bit) & gct_owning) != 0;
	if (escape != GCT_ESCAPE_CONTROL)
		return 1;
	return size == 32 && (gct_owning || gct_tracks_control(((const uint32_t *)arg)[2]));
}

/* -- Address spaces of nvidia-uvm ------------------------------------------- */

/*
 * An address space of the resource manager whose page tables nvidia-uvm owns: the
 * client and the handle by which it was registered, the GPU, and the number of
 * nvidia-uvm's open file. A number is never used again.
 */
struct gct_uvm_space {
	uint64_t number;
	uint32_t client;
	uint32_t object;
	uint8_t uuid[GCT_GPU_UUID_BYTES];
};

_Static_assert(sizeof(struct gct_uvm_space) == 32, "struct gct_uvm_space is ABI");

/* Part of a memory object that nvidia-uvm has mapped at @address for a GPU. */
struct gct_uvm_mapping {
	uint64_t number;
	uint64_t address;
	uint64_t bytes;
	uint64_t offset;
	uint32_t client;
	uint32_t memory;
	uint8_t uuid[GCT_GPU_UUID_BYTES];
};

_Static_assert(sizeof(struct gct_uvm_mapping) == 56, "struct gct_uvm_mapping is ABI");

/* Zeroed memory of the host, mapped in an address space of nvidia-uvm and for the kernel. */
struct gct_uvm_memory {
	void *file;			/* nvidia-uvm's open file, held until unmap */
	void *words;			/* for the kernel */
	uint64_t address;		/* for the GPU, below 2^40 */
};

/*
 * What nvidia-uvm.ko does for nvidia.ko. map() makes and maps memory in the address
 * space, read-only for the GPU if @writes is 0. The tenant can neither map over it nor
 * unmap it, and the address space stays registered until unmap(). map() returns an
 * NV_STATUS, 0 for success, NV_ERR_BUSY_RETRY if the tenant keeps a lock. It waits for
 * that with @waits, which is for an ioctl of the tenant's that makes nobody else wait.
 * unmap() may free the memory later. Context: process, may sleep; the caller of map()
 * holds nv_system_pm_lock for reading.
 *
 * evict() evicts a root chunk of a victim (gct_uvm_pick) on the GPU @uuid that
 * gct_uvm_gpu_add() has returned as @gpu, if UVM still uses it. It gives a root chunk back
 * to the resource manager, or with @keeps leaves it to the next allocation of UVM. It
 * returns an NV_STATUS. The caller holds nv_system_pm_lock for reading, and no lock of UVM
 * or of the resource manager.
 */
struct gct_uvm_operations {
	uint32_t (*map)(const struct gct_uvm_space *space, uint64_t bytes, uint32_t writes,
			uint32_t waits, struct gct_uvm_memory *memory);
	void (*unmap)(const struct gct_uvm_memory *memory);
	uint32_t (*evict)(const uint8_t *uuid, void *gpu, uint32_t victim, uint32_t keeps);
};

/*
 * Begin and end the use of nvidia-uvm's operations. When the end returns, none is
 * running. Context: module init and exit.
 */
void gct_uvm_start(const struct gct_uvm_operations *operations);
void gct_uvm_stop(void);

/*
 * Hold the control file with a descriptor of current's, and have no ioctl of it
 * between gct_ioctl_enter() and gct_ioctl_leave() until the release. hold returns 1,
 * or 0 if it is no control file or current is killed. @file is the token of the control
 * file.
 */
struct gct_uvm_holder {
	void *file;
	void *held;
	void *lock;
};
int gct_uvm_hold(int32_t descriptor, struct gct_uvm_holder *holder);
void gct_uvm_release(struct gct_uvm_holder *holder);

/*
 * Report what happened in address spaces of nvidia-uvm. @file is the token of the
 * control file by which a space was registered; it may be stale.
 *
 *   registered  a space, whose @file is held. Its page tables are nvidia-uvm's now. Returns
 *               1 if memory may be mapped there later, 0 if not
 *   gone        the space of the GPU @uuid, or all of a file for NULL
 *   mapped      memory, in the space of a GPU
 *   unmapped    addresses in the space of the GPU @uuid, or of all GPUs for NULL
 *
 * is_lent returns whether the driver has lent @memory to @client: nobody may map it.
 *
 * Context: process, may sleep; no lock of nvidia-uvm is held.
 */
int gct_uvm_registered(void *file, const struct gct_uvm_space *space);
void gct_uvm_gone(void *file, uint64_t number, const uint8_t *uuid);
int gct_uvm_is_lent(uint32_t client, uint32_t memory);
void gct_uvm_mapped(void *file, const struct gct_uvm_mapping *mapping);
void gct_uvm_unmapped(void *file, uint64_t number, uint64_t address, uint64_t bytes,
		      const uint8_t *uuid);

/*
 * Memory of the resource manager that nvidia-uvm maps, and so keeps, is charged until the
 * last mapping is gone.
 *
 * gct_uvm_keep() has the core follow @client's @object for an address space with the token
 * @space. It is called before the memory is mapped, so that a mapping never fails half-way.
 * @control is the token of the client's control file, whose ioctls the caller holds off
 * (gct_uvm_hold) until the memory is mapped, or NULL. It returns an NV_STATUS: other than 0
 * if the memory cannot be followed and the opener of the space is under a limit. It then must
 * not be mapped. *@name is the name of the memory there, 0 if nothing is to be followed.
 * gct_uvm_let_go() ends one gct_uvm_keep(). Names that are left go with @space.
 *
 * Context: process, may sleep; no lock of nvidia-uvm is held.
 */
uint32_t gct_uvm_keep(void *control, void *space, uint32_t client, uint32_t object,
		      uint32_t *name);
void gct_uvm_let_go(void *space, uint32_t name);

#endif /* GCT_H */
