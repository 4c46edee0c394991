/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * gct.h - the one C interface between NVIDIA's driver and gctgroup.
 *
 * The driver's C code calls these functions; rust/gct_kernel/ffi.rs implements
 * them. Only fixed-width types cross, no Linux and no NVIDIA header is needed,
 * and the layout of every structure is asserted here and again in Rust. A
 * change of a structure or of a signature raises GCT_ABI_VERSION.
 *
 * None of these functions may fail the driver. What goes wrong inside is
 * counted in the gctgroup tree and the stock path is taken.
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

#define GCT_ABI_VERSION 9

/* Bytes of struct gct_gpu's name, with the NUL that ends it. */
#define GCT_GPU_NAME_BYTES 64

/* Bytes of a GPU's UUID. */
#define GCT_GPU_UUID_BYTES 16

/*
 * What the driver knows of a GPU when its PCI probe succeeded. All fields are
 * in CPU byte order. A field that the driver does not know is 0.
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
 * Room on the caller's stack through which gct_ioctl_enter() talks to the
 * gct_ioctl_leave() of the same ioctl. The caller passes it through unread; it
 * needs no initialisation, and stays where it is in between.
 */
struct gct_call {
	uint64_t has_entered;	/* not 0: gct_ioctl_leave() finds in entered what it needs */
	uint64_t entered[12];
	uint64_t served[7];
};

_Static_assert(sizeof(struct gct_call) == 160, "struct gct_call is ABI");

/*
 * Module init and exit of nvidia.ko. Context: process, may sleep.
 *
 * gct_init() returns 0, or a negative errno after which every other function
 * here does nothing; the driver then goes on as unpatched. It is called before
 * the first GPU is probed and before the character devices exist. gct_exit() is
 * called after the last GPU is removed and the character devices are gone, also
 * when gct_init() had failed.
 */
int gct_init(void);
void gct_exit(void);

/*
 * A GPU arrived, its UUID became known, it left. Context: process, may sleep;
 * gct_gpu_uuid() may be called under the driver's ldata_lock. @gpu and @uuid
 * are only read during the call.
 */
void gct_gpu_add(const struct gct_gpu *gpu);
void gct_gpu_uuid(uint32_t gpu_id, const uint8_t uuid[GCT_GPU_UUID_BYTES]);
void gct_gpu_remove(uint32_t gpu_id);

/*
 * A GPU was suspended and works again. Context: process, may sleep; the driver's
 * ldata_lock or its nv_system_pm_lock may be held.
 */
void gct_gpu_resumed(uint32_t gpu_id);

/*
 * What every line of the driver's log begins with that tells of an error of a GPU,
 * and how much of such a line is looked at.
 */
#define GCT_LOG_ERROR "NVRM: Xid (PCI:"
#define GCT_LOG_BYTES 96

/*
 * The driver logs @line of @size bytes, which begins with GCT_LOG_ERROR and may be
 * cut off. Context: any, interrupts too; takes no lock and allocates nothing. @line
 * is only read during the call.
 */
void gct_log_line(const char *line, uint32_t size);

/*
 * current opened the control file or a device file. Context: process, may
 * sleep; takes no lock of the driver. @file becomes a token that belongs to the
 * open file and goes to exactly one gct_file_close(), or NULL when the file is
 * not tracked. Returns 0, or a negative errno when the file cannot be tracked
 * and current is under a limit: it may not be opened then.
 */
int gct_file_open(void **file);

/*
 * The open file goes away: called just before the resource manager frees its
 * clients. @file is what gct_file_open() returned, or NULL, and is dead after
 * the call. Context: process or a kernel thread (never looks at current), may
 * sleep.
 */
void gct_file_close(void *file);

/*
 * The driver keeps memory for as long as a dma-buf lives: its client @keeper has
 * the name @kept of what @client has as @object, on the GPU of @gpu_id. It is the
 * dma-buf's number @index. *@file is the dma-buf's token, which is made when it is
 * NULL; it goes to gct_file_close() when the driver keeps nothing any more. Context:
 * process, current exports; may sleep, no lock of the resource manager held.
 */
void gct_memory_kept(void **file, uint32_t gpu_id, uint32_t index, uint32_t client,
		     uint32_t object, uint32_t keeper, uint32_t kept);

/*
 * Just before and just after the resource manager runs an ioctl for which
 * gct_tracks() says yes. @file is the token of the file in whose name the
 * resource manager runs it: the file on which NV_ESC_REGISTER_FD has registered
 * another one stands for that one. @escape is the unwrapped escape number, @arg
 * the kernel's copy of the ioctl's structure, @size its bytes, @result what
 * rm_ioctl() returned (NV_OK is 0). Of one @file one ioctl at a time is between
 * enter and leave. Context: process, may sleep, no
 * lock of the resource manager held. @file may be NULL. They observe, but for
 * what a limit forbids, or what cannot be tracked of a process that is under one:
 * then gct_ioctl_enter() returns 1 and has written a status
 * behind @arg. The resource manager is not to run the ioctl, and there is no leave;
 * its result is NV_OK, as for all that the resource manager refuses. Otherwise
 * nothing behind @arg is written, and 0 is returned.
 */
int gct_ioctl_enter(void *file, uint32_t escape, void *arg, uint32_t size,
		    struct gct_call *call);
void gct_ioctl_leave(void *file, uint32_t escape, const void *arg, uint32_t size,
		     struct gct_call *call, uint32_t result);

/*
 * Parameters to which an ioctl's structure points are the tenant's memory. What
 * gct_ioctl_enter() has read there, the resource manager reads too: after
 * os_memcpy_from_user() has copied, gct_serve_read() puts our copy in its place.
 * Returns 0, or a negative errno where the copy could not be made: what gctgroup
 * could not read, the resource manager does not read either. gct_serve_write()
 * sees what os_memcpy_to_user() is about to write. gct_serve_file() sees the token
 * of a file that the resource manager has found by its descriptor. They are called
 * while gct_servings is not 0, in the context of the ioctl, and do not sleep.
 */
extern uint32_t gct_servings;
int gct_serve_read(void *to, const void *from, uint32_t n);
void gct_serve_write(const void *to, const void *from, uint32_t n);
void gct_serve_file(void *file);

/* Escape numbers of the ioctls that create, free, share or control RM objects. */
#define GCT_ESCAPE_ALLOC_MEMORY 0x27u
#define GCT_ESCAPE_ALLOC_OBJECT 0x28u
#define GCT_ESCAPE_FREE 0x29u
#define GCT_ESCAPE_CONTROL 0x2Au
#define GCT_ESCAPE_ALLOC 0x2Bu
#define GCT_ESCAPE_DUP_OBJECT 0x34u
#define GCT_ESCAPE_VID_HEAP_CONTROL 0x4Au

/* Binds a file to another one, for good: it takes its turn with the others. */
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

/*
 * Controls by which a tenant may undo a limit: the time slice of a channel group,
 * and what lets channels run. And those that put names of objects into a file, and
 * take them out.
 */
static inline int gct_tracks_control(uint32_t command)
{
	/* A channel takes those of every generation: 0xa06f, 0xb06f, 0xc36f ... */
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
 * Does gctgroup look at this ioctl? Two compares and one bit test, and of a
 * control, which is the most frequent, its number: word 2 of NVOS54_PARAMETERS.
 */
static inline int gct_tracks(uint32_t escape, const void *arg, uint32_t size)
{
	const uint32_t bit = escape - GCT_ESCAPE_FIRST;

	if (bit >= 64)
		return escape == GCT_ESCAPE_REGISTER_FD;
	if (!((GCT_ESCAPE_MASK >> bit) & 1))
		return 0;
	if (escape != GCT_ESCAPE_CONTROL)
		return 1;
	return size == 32 && gct_tracks_control(((const uint32_t *)arg)[2]);
}

#endif /* GCT_H */
