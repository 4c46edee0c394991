// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// Asks a driver for the number of SMs in every way that programs do, as `KEY VALUE` lines. Its
// first argument says which.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int attribute_fn(int *, int, int);
typedef int lookup_fn(const char *, void **, int, unsigned long);
typedef int lookup2_fn(const char *, void **, int, unsigned long, int *);
typedef int cooperative_fn(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
			   void **);

static int ask(void *function)
{
	int sms = -1;

	return ((attribute_fn *)function)(&sms, 16, 0) ? -1 : sms;
}

static void *cuda(int flags)
{
	void *handle = dlopen("libcuda.so.1", flags);

	if (!handle) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	((int (*)(unsigned))dlsym(handle, "cuInit"))(0);
	return handle;
}

static void *lookup(void *handle, const char *name, int version, unsigned long flags)
{
	lookup2_fn *ask2 = dlsym(handle, "cuGetProcAddress_v2");
	void *found = NULL;

	if (ask2)
		ask2(name, &found, version, flags, NULL);
	else
		((lookup_fn *)dlsym(handle, "cuGetProcAddress"))(name, &found, version, flags);
	return found;
}

static void sizes(void)
{
	void *handle = cuda(RTLD_NOW);
	void *v1 = lookup(handle, "cuGetProcAddress", 11030, 0), *found = NULL;
	int value, grid, block, sms[2] = { 0, 0 };

	printf("dlsym %d\n", ask(dlsym(handle, "cuDeviceGetAttribute")));
	printf("lookup %d\n", ask(lookup(handle, "cuDeviceGetAttribute", 2000, 0)));
	((lookup_fn *)v1)("cuDeviceGetAttribute", &found, 2000, 0);
	printf("lookup-v1 %d\n", ask(found));
	found = lookup(handle, "cuGetProcAddress", 13000, 0);
	((lookup2_fn *)found)("cuDeviceGetAttribute", &found, 13000, 0, NULL);
	printf("lookup-found %d\n", ask(found));
	((attribute_fn *)dlsym(handle, "cuDeviceGetAttribute"))(&value, 39, 0);
	printf("other-attribute %d\n", value);
	printf("no-device %d\n", ((attribute_fn *)dlsym(handle, "cuDeviceGetAttribute"))(&value, 16, 7));
	((int (*)(int *, int *, void *, void *, size_t, int))dlsym(handle, "cuOccupancyMaxPotentialBlockSize"))(
		&grid, &block, NULL, NULL, 0, 0);
	printf("grid %d\nblock %d\n", grid, block);
	((int (*)(int *, int *, void *, void *, size_t, int, unsigned))dlsym(
		handle, "cuOccupancyMaxPotentialBlockSizeWithFlags"))(&grid, &block, NULL, NULL, 0, 0, 0);
	printf("grid-flags %d\n", grid);
	((int (*)(int *, void *, void *))dlsym(handle, "cuOccupancyMaxActiveClusters"))(&value, NULL, NULL);
	printf("clusters %d\n", value);
	((int (*)(int *, int))dlsym(handle, "cuCtxGetExecAffinity"))(sms, 0);
	printf("affinity %d\n", sms[1]);
	((int (*)(int *, void *, int, size_t))dlsym(handle, "cuOccupancyMaxActiveBlocksPerMultiprocessor"))(
		&value, NULL, 1024, 0);
	printf("blocks-per-sm %d\n", value);
}

static int launch(cooperative_fn *function, unsigned blocks, unsigned threads)
{
	return function((void *)1, blocks, 1, 1, threads, 1, 1, 0, NULL, NULL);
}

static int launch_ex(void *function, unsigned blocks, int cooperative)
{
	int attributes[36] = { 4, 0, 1 };
	struct {
		unsigned grid[3], block[3], shared;
		void *stream;
		int *attributes;
		unsigned count;
	} config = { { blocks, 1, 1 }, { 1024, 1, 1 }, 0, NULL, attributes, 2 };

	attributes[18] = 2;
	attributes[20] = cooperative;
	return ((int (*)(void *, void *, void **, void **))function)(&config, (void *)1, NULL, NULL);
}

static int node(void *handle, unsigned blocks, int cooperative)
{
	struct {
		void *function;
		unsigned grid[3], block[3], shared;
		void *pointers[4];
	} node = { NULL, { blocks, 1, 1 }, { 1024, 1, 1 }, 0, { NULL, NULL, (void *)1, NULL } };
	int value[16] = { cooperative };

	return ((int (*)(void *, int, int *))dlsym(handle, "cuGraphKernelNodeSetAttribute"))(&node, 2, value);
}

/* The largest grid of up to 300 blocks that is accepted. */
#define LARGEST(call)                                                                              \
	({                                                                                         \
		unsigned n = 300;                                                                  \
		while (n && (call))                                                                \
			n--;                                                                       \
		n;                                                                                 \
	})

static void launches(void)
{
	void *handle = cuda(RTLD_NOW);
	void *own = lookup(handle, "cuLaunchKernelEx", 11060, 2), *all = lookup(handle, "cuLaunchKernelEx", 11060, 0);

	printf("cooperative %u\n", LARGEST(launch(dlsym(handle, "cuLaunchCooperativeKernel"), n, 1024)));
	printf("cooperative-ptsz %u\n",
	       LARGEST(launch(lookup(handle, "cuLaunchCooperativeKernel", 9000, 2), n, 1024)));
	printf("refused-by-libcuda %d\n", *(int *)dlsym(handle, "refused"));
	printf("error %d\n", launch(dlsym(handle, "cuLaunchCooperativeKernel"), 300, 1024));
	printf("no-sm-holds-it %u\n", LARGEST(launch(dlsym(handle, "cuLaunchCooperativeKernel"), n, 2048)));
	if (all) {
		printf("ex %u\n", LARGEST(launch_ex(all, n, 1)));
		printf("ex-ptsz %u\n", LARGEST(launch_ex(own, n, 1)));
		printf("ex-plain %u\n", LARGEST(launch_ex(all, n, 0)));
		printf("launched %d\n", *(int *)dlsym(handle, "launched"));
		printf("variants %d\n", own != all);
	}
	printf("node %u\n", LARGEST(node(handle, n, 1)));
	printf("node-plain %u\n", LARGEST(node(handle, n, 0)));
}

static pthread_barrier_t together;

static void *thread(void *handle)
{
	pthread_barrier_wait(&together);
	return (void *)(long)ask(lookup(handle, "cuDeviceGetAttribute", 2000, 0));
}

static void threads(void)
{
	void *handle = cuda(RTLD_NOW), *answer;
	pthread_t all[16];
	long min = 1 << 30, max = 0;

	pthread_barrier_init(&together, NULL, 16);
	for (int i = 0; i < 16; i++)
		pthread_create(&all[i], NULL, thread, handle);
	for (int i = 0; i < 16; i++) {
		pthread_join(all[i], &answer);
		min = (long)answer < min ? (long)answer : min;
		max = (long)answer > max ? (long)answer : max;
	}
	printf("min %ld\nmax %ld\n", min, max);
}

static int is_ours(void *function)
{
	Dl_info info;

	return dladdr(function, &info) && strstr(info.dli_fname, "libgct_preload");
}

static void *waiter(void *function)
{
	return (void *)(long)((int (*)(long))function)(-1);
}

static void waits(void)
{
	void *handle = cuda(RTLD_NOW), *answer;
	void *v1 = lookup(handle, "cuCtxSynchronize", 2000, 0), *v2 = lookup(handle, "cuCtxSynchronize", 13000, 0);
	void *v3 = lookup(handle, "cuCtxSynchronize", 99000, 0);
	pthread_t thread;

	printf("v1 %d\nv2 %d\nv3 %d\n", ((int (*)(void))v1)(), ((int (*)(long))v2)(0),
	       ((int (*)(long, long))v3)(3, 4));
	printf("ours %d\n", is_ours(v1) + 10 * is_ours(v2) + 100 * is_ours(v3));
	pthread_create(&thread, NULL, waiter, v2);
	usleep(50000);
	pthread_cancel(thread);
	pthread_join(thread, &answer);
	printf("cancelled %d\n", answer == PTHREAD_CANCELED);
}

/* Whose ioctl a libcuda calls that is loaded so that it looks for its own functions first. */
static void deepbind(void)
{
	void *handle = cuda(RTLD_NOW | RTLD_DEEPBIND);
	void *whose = ((void *(*)(void))dlsym(handle, "whose_ioctl"))();
	Dl_info info;

	printf("found %d\n", dladdr(whose, &info));
	printf("library %d\n", strstr(info.dli_fname, "libgct_preload") != NULL);
	printf("sms %d\n", ask(dlsym(handle, "cuDeviceGetAttribute")));
	printf("absent %d\n", dlopen("libno.so.1", RTLD_NOW | RTLD_DEEPBIND) == NULL && dlerror() != NULL);
}

/* What a program without libcuda sees of this: nothing. */
static void none(void)
{
	char line[512];
	int mapped = 0;
	FILE *maps;

	dlerror();
	printf("found %d\n", dlsym(RTLD_DEFAULT, "cuDeviceGetAttribute") != NULL);
	printf("error %d\n", dlerror() != NULL);
	printf("self %d\n", dlsym(dlopen(NULL, RTLD_NOW), "cuDeviceGetAttribute") != NULL);
	printf("self-error %d\n", dlerror() != NULL);
	maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof(line), maps))
		mapped |= strstr(line, "libcuda") != NULL;
	printf("libcuda %d\n", mapped);
}

int main(int count, char **arguments)
{
	const char *what = count > 1 ? arguments[1] : "";

	if (!strcmp(what, "sizes"))
		sizes();
	else if (!strcmp(what, "launches"))
		launches();
	else if (!strcmp(what, "threads"))
		threads();
	else if (!strcmp(what, "waits"))
		waits();
	else if (!strcmp(what, "deepbind"))
		deepbind();
	else if (!strcmp(what, "none"))
		none();
	return 0;
}
