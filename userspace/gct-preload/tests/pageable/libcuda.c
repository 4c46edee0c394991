// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// A driver of one GPU without a GPU: what pageable memory needs, and no more. It knows where each
// MiB of managed memory is.

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define RANGES 64

struct location { int kind, id; };

/*
 * The primary context, which exists as long as it is held, and one more. A thread that uses one
 * that does not exist would crash.
 */
static struct context { int exists; } contexts[2];
static int held;
static __thread struct context *current;

/* Whether a stream records a graph, and the mode of each thread beside that. */
int capturing, spoiled;
static __thread int mode;

static struct range {
	struct context *context;
	char *base;
	size_t bytes;
	unsigned long number;
	int accessed;
	char on_gpu[1024];
} ranges[RANGES];

/* Pinned allocations, and those of them that fail from now on. */
int pinned, pinned_failures;
static int pin(void) { return pinned_failures ? pinned_failures--, 2 : !++pinned; }
int launched, streams;

/* Whether moves do not end, and whether a thread waits for one. */
volatile int frozen, waiting;

/* The stream whose work has ended. */
void *synchronized;

int cuInit(unsigned flags)
{
	current = &contexts[0];
	return !(current->exists = 1);
}

int cuCtxGetCurrent(struct context **context) { *context = current; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return current ? 0 : 201; }

int cuCtxPushCurrent_v2(struct context *context)
{
	if (current || !context->exists)
		abort();
	current = context;
	return 0;
}

int cuCtxPopCurrent_v2(struct context **context)
{
	*context = current;
	current = NULL;
	return 0;
}

int cuCtxCreate_v2(struct context **context, unsigned flags, int device)
{
	*context = current = &contexts[1];
	return !(current->exists = 1);
}

/* Makes a context current in this thread. */
int enter(int context)
{
	current = &contexts[context];
	return !current->exists;
}

static int forbidden(void) { return (capturing && mode != 2) ? spoiled = 900 : 0; }

int cuThreadExchangeStreamCaptureMode(int *exchanged)
{
	int old = mode;

	mode = *exchanged;
	*exchanged = old;
	return 0;
}
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
	static unsigned long numbers;

	if (pinned_failures)
		return pin();
	for (struct range *r = ranges; r < ranges + RANGES; r++) {
		if (r->base)
			continue;
		memset(r, 0, sizeof(*r));
		r->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		r->bytes = bytes;
		r->context = current;
		r->number = ++numbers;
		*at = (unsigned long)r->base;
		return flags == 1 ? 0 : 1;
	}
	return 2;
}

int cuMemAlloc_v2(unsigned long *at, size_t bytes)
{
	int status = bytes ? pin() : 1;

	if (!status)
		*at = 0x7000000000 + pinned * MIB;
	return status;
}

/* What else allocates. In a stream that is allowed beside a capture of another thread. */
int cuMemAllocAsync(unsigned long *at, size_t bytes, void *stream) { return pin(); }
int cuMemAllocAsync_ptsz(unsigned long *at, size_t bytes, void *stream) { return pin(); }
int cuMemAllocFromPoolAsync(unsigned long *at, size_t bytes, void *pool, void *stream) { return pin(); }
int cuMemAllocFromPoolAsync_ptsz(unsigned long *at, size_t bytes, void *pool, void *stream) { return pin(); }
int cuMemCreate(unsigned long *handle, size_t bytes, void *properties, unsigned long flags) { return pin(); }
int cuArrayCreate_v2(void **array, void *shape) { return pin(); }
int cuArray3DCreate_v2(void **array, void *shape) { return pin(); }
int cuMipmappedArrayCreate(void **array, void *shape, unsigned levels) { return pin(); }

int cuMemAllocPitch_v2(unsigned long *at, size_t *pitch, size_t width, size_t height, unsigned element)
{
	*pitch = width;
	return element > 16 ? 1 : cuMemAlloc_v2(at, width * height);
}

int cuPointerGetAttribute(unsigned long *data, int attribute, unsigned long at)
{
	struct range *r = find(at);

	if (!r || attribute != 7)
		return 1;
	*data = r->number;
	return 0;
}

int cuMemFree_v2(unsigned long at)
{
	struct range *r = find(at);

	if (forbidden())
		return 900;
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

/* Memory of cuMemAlloc may be freed in a stream. */
int cuMemFreeAsync(unsigned long at, void *stream)
{
	if (at >> 36 != 7)
		return 1;
	pinned--;
	return 0;
}

static int end(struct context *context)
{
	context->exists = 0;
	for (struct range *r = ranges; r < ranges + RANGES; r++)
		if (r->base && r->context == context) {
			munmap(r->base, r->bytes);
			r->base = NULL;
		}
	current = &contexts[0];
	return 0;
}

int cuCtxDestroy_v2(struct context *context) { return end(context); }
int cuDevicePrimaryCtxReset_v2(int device) { return end(&contexts[0]); }
int cuDevicePrimaryCtxRelease_v2(int device) { return --held ? 0 : end(&contexts[0]); }

int cuDevicePrimaryCtxRetain(struct context **context, int device)
{
	*context = &contexts[0];
	held++;
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
	if (!current || !current->exists || forbidden())
		return 201;
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

int cuStreamCreate(void **stream, unsigned flags)
{
	if (!current || !current->exists || forbidden())
		return 201;
	__atomic_fetch_add(&streams, 1, __ATOMIC_SEQ_CST);
	*stream = &streams;
	return flags == 1 ? 0 : 1;
}

int cuStreamSynchronize(void *stream)
{
	for (; frozen; usleep(1000))
		waiting = 1;
	synchronized = stream;
	return waiting = 0;
}

int cuStreamDestroy_v2(void *stream) { __atomic_fetch_sub(&streams, 1, __ATOMIC_SEQ_CST); return 0; }
int cuStreamIsCapturing(void *stream, int *state) { *state = capturing && !stream; return 0; }

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

/* Launches whose first argument points to memory on the GPU. */
int found;

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		   unsigned shared, void *stream, void **arguments, void **extra)
{
	unsigned long at = arguments ? *(unsigned long *)arguments[0] : 0;
	struct range *r = find(at);

	launched++;
	found += r && r->on_gpu[(at - (unsigned long)r->base) / MIB];
	return 0;
}

/* An event is the number of launches before it, all of which have ended. Each took 3 ms. */
int cuEventCreate(void **event, unsigned flags)
{
	*event = calloc(1, sizeof(int));
	return !current || !current->exists || flags;
}

int cuEventRecord(void *event, void *stream)
{
	*(int *)event = launched;
	return capturing;
}

int cuEventQuery(void *event) { return forbidden(); }

int cuEventElapsedTime(float *ms, void *from, void *to)
{
	*ms = 3 * (*(int *)to - *(int *)from);
	return 0;
}
