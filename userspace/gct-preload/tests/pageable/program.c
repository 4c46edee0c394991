// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// Does what its lines of input say, and prints the outcome of each.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

static void *cuda;
static unsigned long at[16];
static size_t sizes[16];

/* A context beside the primary one, the contexts of the slots, and the current one. */
static void *other;
static int owners[16], current;

#define CALL(name, ...) (((int (*)())dlsym(cuda, name))(__VA_ARGS__))

static int allocate(int slot, size_t bytes)
{
	int status = ((int (*)(unsigned long *, size_t))dlsym(cuda, "cuMemAlloc_v2"))(&at[slot], bytes);

	sizes[slot] = bytes;
	owners[slot] = current;
	if (!status && at[slot] >> 36 != 7)
		memset((void *)at[slot], 'A' + slot, bytes);
	return status;
}

static int pitched(int slot, size_t width, size_t height, unsigned element)
{
	size_t pitch = 0;
	int status = ((int (*)(unsigned long *, size_t *, size_t, size_t, unsigned))dlsym(
		cuda, "cuMemAllocPitch_v2"))(&at[slot], &pitch, width, height, element);

	printf("%zu ", pitch);
	return status;
}

/* Launches with arguments at the end of a page. */
static int launch(int slot)
{
	static char *page;
	void *arguments[3], *extra[] = { (void *)1, NULL, (void *)2, NULL, NULL };
	size_t bytes = 24;
	int failed;
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		      void **) = dlsym(cuda, "cuLaunchKernel");

	if (!page) {
		page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		mprotect(page + 4096, 4096, PROT_NONE);
	}
	memcpy(page + 4096 - 24, &at[slot], 8);
	arguments[0] = page + 4096 - 24;
	arguments[1] = page + 4096 - 4;
	arguments[2] = page + 4096 - 12;
	failed = launch(arguments, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
	extra[1] = page + 4096 - 24;
	extra[3] = &bytes;
	return failed | launch(arguments, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra);
}

/*
 * Launches for each piece of 16 MiB in turns, as a step of a model does. Returns how many were
 * found on the GPU.
 */
static int step(int slot)
{
	int *found = dlsym(cuda, "found"), before = *found;
	unsigned long words[2] = { at[slot] };
	void *arguments[3] = { words, words, words };

	for (; words[0] < at[slot] + sizes[slot]; words[0] += 16 * MIB) {
		((int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
			  void **))dlsym(cuda, "cuLaunchKernel"))(arguments, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
		usleep(3000);
	}
	return *found - before;
}

/* Forgets the memory of a context that has ended. */
static void ended(int context)
{
	for (int slot = 0; slot < 16; slot++)
		if (owners[slot] == context)
			at[slot] = 0;
	current = 0;
}

/* Returns whether each allocation has its contents. */
static int intact(void)
{
	for (int slot = 0; slot < 16; slot++)
		for (size_t i = 0; at[slot] && at[slot] >> 36 != 7 && i < sizes[slot]; i += 4096)
			if (((char *)at[slot])[i] != 'A' + slot)
				return 0;
	return 1;
}

/* Frees and allocates in a child. Returns its exit status. */
static int in_child(void)
{
	int status = -1;
	pid_t pid = fork();

	if (!pid)
		exit(((int (*)(unsigned long))dlsym(cuda, "cuMemFree_v2"))(at[0]) || allocate(0, 4 * MIB));
	waitpid(pid, &status, 0);
	return status;
}

int main(void)
{
	char line[128], what[16], name[64];
	void *primary, *made;
	size_t a = 0, b = 0, c = 0;

	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	CALL("cuInit", 0);
	while (fgets(line, sizeof(line), stdin)) {
		sscanf(line, "%15s %zu %zu %zu", what, &a, &b, &c);
		if (!strcmp(what, "alloc"))
			printf("%d\n", allocate(a, b));
		else if (!strcmp(what, "pitch"))
			printf("%d\n", pitched(a, b, c, 4));
		else if (!strcmp(what, "free")) {
			printf("%d\n", ((int (*)(unsigned long))dlsym(cuda, "cuMemFree_v2"))(at[a]));
			at[a] = 0;
		} else if (!strcmp(what, "freeasync")) {
			printf("%d ", CALL("cuMemFreeAsync", at[a], &at[a]));
			printf("%d\n", *(void **)dlsym(cuda, "synchronized") == &at[a]);
			at[a] = 0;
		} else if (!strcmp(what, "launch"))
			printf("%d\n", launch(a));
		else if (!strcmp(what, "step"))
			printf("%d\n", step(a));
		else if (!strcmp(what, "fail")) {
			*(int *)dlsym(cuda, "pinned_failures") = a;
			puts("0");
		} else if (sscanf(line, "make %63s", name) == 1)
			printf("%d\n", CALL(name, &made, 4096, 1, NULL, NULL));
		else if (!strcmp(what, "capture")) {
			*(int *)dlsym(cuda, "capturing") = a;
			printf("%d\n", *(int *)dlsym(cuda, "spoiled"));
		} else if (!strcmp(what, "context")) {
			printf("%d\n", CALL("cuCtxCreate_v2", &other, 0, 0));
			current = 1;
		} else if (!strcmp(what, "enter"))
			printf("%d\n", CALL("enter", current = a));
		else if (!strcmp(what, "destroy")) {
			ended(1);
			printf("%d\n", CALL("cuCtxDestroy_v2", other));
		} else if (!strcmp(what, "reset")) {
			ended(0);
			printf("%d\n", CALL("cuDevicePrimaryCtxReset_v2", 0));
		} else if (!strcmp(what, "retain"))
			printf("%d\n", CALL("cuDevicePrimaryCtxRetain", &primary, 0));
		else if (!strcmp(what, "release"))
			printf("%d\n", CALL("cuDevicePrimaryCtxRelease_v2", 0));
		else if (!strcmp(what, "freeze")) {
			*(volatile int *)dlsym(cuda, "frozen") = a;
			puts("0");
		} else if (!strcmp(what, "waiting"))
			printf("%d\n", *(volatile int *)dlsym(cuda, "waiting"));
		else if (!strcmp(what, "fork"))
			printf("%d\n", in_child());
		else if (!strcmp(what, "quit"))
			return 0;
		else if (!strcmp(what, "state"))
			printf("resident %d pinned %d streams %d intact %d\n", CALL("resident"),
			       *(int *)dlsym(cuda, "pinned"), *(int *)dlsym(cuda, "streams"), intact());
		fflush(stdout);
	}
	return 0;
}
