// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// Does what its lines of input say, and prints the outcome of each.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (1ul << 20)

static void *cuda;
static unsigned long at[16];
static size_t sizes[16];

#define CALL(name, ...) (((int (*)())dlsym(cuda, name))(__VA_ARGS__))

static int allocate(int slot, size_t bytes)
{
	int status = ((int (*)(unsigned long *, size_t))dlsym(cuda, "cuMemAlloc_v2"))(&at[slot], bytes);

	sizes[slot] = bytes;
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

/* Returns whether each allocation has its contents. */
static int intact(void)
{
	for (int slot = 0; slot < 16; slot++)
		for (size_t i = 0; at[slot] && at[slot] >> 36 != 7 && i < sizes[slot]; i += 4096)
			if (((char *)at[slot])[i] != 'A' + slot)
				return 0;
	return 1;
}

int main(void)
{
	char line[128], what[16];
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
		} else if (!strcmp(what, "launch"))
			printf("%d\n", launch(a));
		else if (!strcmp(what, "fail")) {
			*(int *)dlsym(cuda, "pinned_failures") = a;
			puts("0");
		} else if (!strcmp(what, "state"))
			printf("resident %d pinned %d streams %d intact %d\n", CALL("resident"),
			       *(int *)dlsym(cuda, "pinned"), *(int *)dlsym(cuda, "streams"), intact());
		fflush(stdout);
	}
	return 0;
}
