// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// A driver of one H100 without a GPU: what driver.rs interposes, and no more. Built as
// libcuda.so.1 by the test.
//
// THUNKS: cuGetProcAddress answers with other functions than those that are exported.
// OLD: nothing of CUDA 12 is there.

#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>

#define SMS 132
#define BLOCKS 2

static int ready;

/* Whose ioctl the driver would call. */
const void *whose_ioctl(void) { return (void *)ioctl; }

int cuInit(unsigned flags) { ready = 1; return flags ? 1 : 0; }

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	if (!ready)
		return 3;
	if (device != 0)
		return 101;
	*value = attribute == 16 ? SMS : 1000 + attribute;
	return 0;
}

int cuDeviceGetPCIBusId(char *text, int len, int device)
{
	if (device != 0 || len < 13)
		return 101;
	strcpy(text, "0000:0F:00.0");
	return 0;
}

int cuCtxGetDevice(int *device) { *device = 0; return ready ? 0 : 3; }

int cuCtxGetExecAffinity(unsigned *affinity, int type)
{
	affinity[0] = type;
	affinity[1] = SMS;
	return 0;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *f, int threads, size_t shared)
{
	*blocks = threads > 1024 || shared > 200000 ? 0 : BLOCKS;
	return 0;
}

int cuOccupancyMaxPotentialBlockSize(int *grid, int *block, void *f, void *cb, size_t s, int limit)
{
	*grid = SMS * BLOCKS;
	*block = 1024;
	return 0;
}

int cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, void *f, void *cb, size_t s, int limit,
					      unsigned flags)
{
	return cuOccupancyMaxPotentialBlockSize(grid, block, f, cb, s, limit);
}

int cuOccupancyMaxActiveClusters(int *clusters, void *f, const void *config) { *clusters = 62; return 0; }

/* Launches that this driver itself has refused: it ends a capture then. */
int refused;

static int fits(unsigned long blocks)
{
	if (blocks <= SMS * BLOCKS)
		return 0;
	refused++;
	return 720;
}

#define COOPERATIVE(name)                                                                          \
	int name(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
		 unsigned shared, void *stream, void **arguments)                                  \
	{                                                                                          \
		return fits((unsigned long)gx * gy * gz);                                          \
	}
COOPERATIVE(cuLaunchCooperativeKernel)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz)

struct config {
	unsigned grid[3], block[3], shared;
	void *stream;
	int *attributes;
	unsigned count;
};

/* Blocks of the last launch of those that follow. */
int launched;

#ifndef OLD
#define LAUNCH(name)                                                                               \
	int name(const struct config *c, void *f, void **arguments, void **extra)                  \
	{                                                                                          \
		launched = c->grid[0];                                                             \
		for (unsigned i = 0; i < c->count; i++)                                            \
			if (c->attributes[18 * i] == 2 && c->attributes[18 * i + 2])               \
				return fits((unsigned long)c->grid[0] * c->grid[1] * c->grid[2]);  \
		return 0;                                                                          \
	}
LAUNCH(cuLaunchKernelEx)
LAUNCH(cuLaunchKernelEx_ptsz)
#endif

// A node is its own parameters: CUDA_KERNEL_NODE_PARAMS_v2.
struct node {
	void *function;
	unsigned grid[3], block[3], shared;
	void *pointers[2], *kernel, *context;
};

int cuGraphKernelNodeGetParams_v2(struct node *node, struct node *params) { *params = *node; return 0; }

int cuGraphKernelNodeSetAttribute(struct node *node, int attribute, const int *value)
{
	return attribute == 2 && *value ? fits((unsigned long)node->grid[0] * node->grid[1] * node->grid[2]) : 0;
}

#ifndef OLD
int cuCtxSynchronize(void) { return 1; }
/* Waits as long as the context says. */
int cuCtxSynchronize_v2(void *context) { return poll(NULL, 0, (int)(long)context), 2; }
/* One that nobody knows yet. */
int cuCtxSynchronize_v3(long one, long two) { return one + two; }
#endif

int cuMemAllocManaged(void **address, size_t bytes, unsigned flags) { return bytes > 1 << 20 ? 999 : 0; }

int cuGetProcAddress(const char *name, void **address, int version, unsigned long flags);

#ifdef THUNKS
static int attribute(int *value, int attribute, int device) { return cuDeviceGetAttribute(value, attribute, device); }
#else
#define attribute cuDeviceGetAttribute
#endif

#ifndef OLD
int cuGetProcAddress_v2(const char *name, void **address, int version, unsigned long flags, int *status);
#endif

static void *find(const char *name, int version, unsigned long flags)
{
	if (!strcmp(name, "cuDeviceGetAttribute"))
		return (void *)attribute;
	if (!strcmp(name, "cuCtxGetDevice"))
		return (void *)cuCtxGetDevice;
	if (!strcmp(name, "cuLaunchCooperativeKernel"))
		return flags & 2 ? (void *)cuLaunchCooperativeKernel_ptsz : (void *)cuLaunchCooperativeKernel;
#ifndef OLD
	if (!strcmp(name, "cuLaunchKernelEx"))
		return flags & 2 ? (void *)cuLaunchKernelEx_ptsz : (void *)cuLaunchKernelEx;
	if (!strcmp(name, "cuCtxSynchronize"))
		return version >= 99000 ? (void *)cuCtxSynchronize_v3 :
		       version >= 13000 ? (void *)cuCtxSynchronize_v2 : (void *)cuCtxSynchronize;
	if (!strcmp(name, "cuGetProcAddress") && version >= 12000)
		return (void *)cuGetProcAddress_v2;
#endif
	return strcmp(name, "cuGetProcAddress") ? NULL : (void *)cuGetProcAddress;
}

int cuGetProcAddress(const char *name, void **address, int version, unsigned long flags)
{
	*address = find(name, version, flags);
	return *address ? 0 : 500;
}

#ifndef OLD
int cuGetProcAddress_v2(const char *name, void **address, int version, unsigned long flags, int *status)
{
	if (status)
		*status = 0;
	return cuGetProcAddress(name, address, version, flags);
}
#endif
