// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// A program that is linked with the driver, and with two libraries that define the same function.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#if defined(FIRST)
int who(void) { return 1; }
int next(void) { return ((int (*)(void))dlsym(RTLD_NEXT, "who"))(); }
#elif defined(SECOND)
int who(void) { return 2; }
#else
int who(void);
int next(void);
int cuInit(unsigned flags);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuMemAllocManaged(void **address, size_t bytes, unsigned flags);

static int ask(void *function)
{
	int sms = -1;

	return ((int (*)(int *, int, int))function)(&sms, 16, 0) ? -1 : sms;
}

int main(void)
{
	void *address;

	printf("before-init %d\n", cuDeviceGetAttribute(NULL, 16, 0));
	cuInit(0);
	printf("linked %d\n", ask((void *)cuDeviceGetAttribute));
	printf("default %d\n", ask(dlsym(RTLD_DEFAULT, "cuDeviceGetAttribute")));
	printf("next %d\n", ask(dlsym(RTLD_NEXT, "cuDeviceGetAttribute")));
	printf("self %d\n", ask(dlsym(dlopen(NULL, RTLD_NOW), "cuDeviceGetAttribute")));
	printf("who %d\nnext-who %d\n", who(), next());
	printf("managed %d\n", cuMemAllocManaged(&address, 4096, 1));
	printf("managed-error %d\n", cuMemAllocManaged(&address, 1 << 30, 1));
	return 0;
}
#endif
