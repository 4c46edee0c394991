// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// A driver of one GPU without a GPU: what pageable memory needs, and no more. It knows where each
// MiB of managed memory is.

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#define MIB (1ul << 20)
#define RANGES 64

struct location { int kind, id; };

static struct range {
	char *base;
	size_t bytes;
	int accessed;
	char on_gpu[1024];
} ranges[RANGES];

/* Pinned allocations, and those of them that fail from now on. */
int pinned, pinned_failures;
int launched, streams;

int cuInit(unsigned flags) { return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 1; return 0; }

int cuDeviceGetPCIBusId(char *text, int len, int device)
{
	strcpy(text, "0000:00:00.0");
	return 0;
}

static struct range *find(unsigned long at)
{
	for (struct range *r = ranges; r < ranges + RANGES; r++)
		if (r->base && at - (unsigned long)r->base < r->bytes)
			return r;
	return NULL;
}

int cuMemAllocManaged(unsigned long *at, size_t bytes, unsigned flags)
{
	for (struct range *r = ranges; r < ranges + RANGES; r++) {
		if (r->base)
			continue;
		memset(r, 0, sizeof(*r));
		r->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		r->bytes = bytes;
		*at = (unsigned long)r->base;
		return flags == 1 ? 0 : 1;
	}
	return 2;
}

int cuMemAlloc_v2(unsigned long *at, size_t bytes)
{
	if (pinned_failures) {
		pinned_failures--;
		return 2;
	}
	if (!bytes)
		return 1;
	pinned++;
	*at = 0x7000000000 + pinned * MIB;
	return 0;
}

int cuMemAllocPitch_v2(unsigned long *at, size_t *pitch, size_t width, size_t height, unsigned element)
{
	*pitch = width;
	return element > 16 ? 1 : cuMemAlloc_v2(at, width * height);
}

int cuMemFree_v2(unsigned long at)
{
	struct range *r = find(at);

	if (at >> 36 == 7) {
		pinned--;
		return 0;
	}
	if (!r || (unsigned long)r->base != at)
		return 1;
	munmap(r->base, r->bytes);
	r->base = NULL;
	return 0;
}

int cuMemAdvise_v2(unsigned long at, size_t bytes, int advice, struct location of)
{
	struct range *r = find(at);

	if (!r || advice != 5 || of.kind != 1 || of.id != 0)
		return 1;
	r->accessed = 1;
	return 0;
}

int cuMemPrefetchAsync_v2(unsigned long at, size_t bytes, struct location to, unsigned flags, void *stream)
{
	struct range *r = find(at);

	/* Without a mapping of the GPU, its accesses would move pages. */
	if (!r || !r->accessed || flags)
		return 1;
	for (size_t off = at - (unsigned long)r->base; bytes; off += MIB, bytes -= bytes < MIB ? bytes : MIB)
		r->on_gpu[off / MIB] = to.kind == 1;
	return 0;
}

/* MiB of managed memory on the GPU. */
int resident(void)
{
	int sum = 0;

	for (struct range *r = ranges; r < ranges + RANGES; r++)
		for (size_t i = 0; r->base && i < sizeof(r->on_gpu); i++)
			sum += r->on_gpu[i];
	return sum;
}

int cuStreamCreate(void **stream, unsigned flags) { streams++; *stream = &streams; return flags == 1 ? 0 : 1; }
int cuStreamSynchronize(void *stream) { return 0; }
int cuStreamDestroy_v2(void *stream) { streams--; return 0; }
int cuStreamIsCapturing(void *stream, int *state) { *state = 0; return 0; }

/* Every function takes a pointer, an int, and a structure of 12 bytes. */
int cuFuncGetParamInfo(void *f, size_t index, size_t *offset, size_t *bytes)
{
	static const size_t sizes[] = { 8, 4, 12 };

	if (index >= 3)
		return 1;
	*offset = 8 * index;
	*bytes = sizes[index];
	return 0;
}

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		   unsigned shared, void *stream, void **arguments, void **extra)
{
	launched++;
	return 0;
}
