// SPDX-License-Identifier: GPL-2.0 OR MIT
/* A session with nvidia-uvm.ko: devices, ioctls, managed memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "uvm.h"

/* The driver never reports more processors (GPUs and the CPU) than this. */
#define PROCESSORS_MAX 512

const char *status_name(NV_STATUS status)
{
#define NV_STATUS_CODE(name, code, text) if (status == (code)) return #name;
#undef SDK_NVSTATUSCODES_H
#include "nvstatuscodes.h"
	return status == STATUS_NO_ANSWER ? "no answer" : "unknown status";
}

int fail(const char *file, int line, const char *format, ...)
{
	va_list arguments;

	printf("# %s:%d: ", file, line);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
	return -1;
}

void value(const char *format, ...)
{
	va_list arguments;

	printf("# value ");
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
}

/* The major number is dynamic, and the VM has no udev to create the nodes. */
static int uvm_major(void)
{
	char line[128], name[64];
	int major, found = -1;
	FILE *devices = fopen("/proc/devices", "r");

	if (!devices)
		return -1;
	while (found < 0 && fgets(line, sizeof(line), devices)) {
		if (sscanf(line, "%d %63s", &major, name) == 2 &&
		    strcmp(name, "nvidia-uvm") == 0)
			found = major;
	}
	fclose(devices);
	return found;
}

int uvm_open(enum uvm_minor minor)
{
	char path[64];
	int fd, major = uvm_major();

	if (major < 0)
		return fail(__FILE__, __LINE__, "nvidia-uvm.ko is not loaded");
	snprintf(path, sizeof(path), "/dev/gct-test-uvm%d", minor);
	if (mknod(path, S_IFCHR | 0600, makedev(major, minor)) && errno != EEXIST)
		return fail(__FILE__, __LINE__, "mknod %s: %m", path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return fail(__FILE__, __LINE__, "open %s: %m", path);
	return fd;
}

NV_STATUS uvm_ioctl(int fd, const char *name, unsigned long command,
		    void *params, const NV_STATUS *status)
{
	if (ioctl(fd, command, params) == 0)
		return *status;
	printf("# ioctl %s: %s\n", name, strerror(errno));
	return STATUS_NO_ANSWER;
}

/* The table's first entry is the CPU, as uvm_ioctl.h states. */
static int find_cpu(struct session *s)
{
	NvProcessorUuid table[PROCESSORS_MAX] = { 0 };
	UVM_TOOLS_GET_PROCESSOR_UUID_TABLE_PARAMS params = {
		.tablePtr = (uintptr_t)table,
#ifndef UVM_TEST_SET_P2P_SUSPENDED
		.count = PROCESSORS_MAX,
#endif
	};
	const NvProcessorUuid nobody = { 0 };

	CHECK_OK(UVM_API(s->fd, UVM_TOOLS_GET_PROCESSOR_UUID_TABLE, params));
	CHECK(memcmp(&table[0], &nobody, sizeof(nobody)) != 0);
	s->cpu = table[0];
	return 0;
}

int session_open(struct session *s)
{
	/* HMM would change the answers for addresses that do not belong to UVM. */
	UVM_INITIALIZE_PARAMS init = { .flags = UVM_INIT_FLAGS_DISABLE_HMM };
	UVM_MM_INITIALIZE_PARAMS mm_init = { 0 };

	s->fd = uvm_open(UVM_MINOR_MAIN);
	if (s->fd < 0)
		return -1;
	s->mm_fd = uvm_open(UVM_MINOR_MAIN);
	if (s->mm_fd < 0)
		return -1;
	CHECK_OK(UVM_API(s->fd, UVM_INITIALIZE, init));
	mm_init.uvmFd = s->fd;
	s->mm_status = UVM_API(s->mm_fd, UVM_MM_INITIALIZE, mm_init);
	/* The warning means that this kernel has no MMU notifiers. */
	CHECK(s->mm_status == NV_OK || s->mm_status == NV_WARN_NOTHING_TO_DO);
	return find_cpu(s);
}

void session_close(struct session *s)
{
	close(s->mm_fd);
	close(s->fd);
}

void *reserve(size_t bytes)
{
	uintptr_t start;
	void *map = mmap(NULL, bytes + BLOCK_BYTES, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (map == MAP_FAILED) {
		fail(__FILE__, __LINE__, "mmap of %zu bytes: %m", bytes);
		return NULL;
	}
	start = ((uintptr_t)map + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1);
	return (void *)start;
}

volatile uint8_t *managed_map(const struct session *s, size_t bytes)
{
	void *map, *start = reserve(bytes);

	if (!start)
		return NULL;
	/* UVM requires the file offset to equal the address. */
	map = mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		   s->fd, (off_t)(uintptr_t)start);
	if (map == MAP_FAILED) {
		fail(__FILE__, __LINE__, "mmap of managed memory: %m");
		return NULL;
	}
	return map;
}
