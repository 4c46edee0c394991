// SPDX-License-Identifier: GPL-2.0 OR MIT

/*
 * Plays libnvidia-ml.so.1 for one GPU, whose clocks are 200, 220, .. 2000 MHz. It writes each call
 * down in the file FAKE_NVML/log. FAKE_NVML/pids names the processes with a context. While there is
 * FAKE_NVML/fails, no clock and no limit can be set. With OLD it is one of before r615.
 */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7 };
enum { LOWEST = 200, STEP = 20, CLOCKS = 91, MEMORY = 2619 };

struct process {
	unsigned int pid;
	unsigned long long memory;
	unsigned int gpu_instance, compute_instance;
};

static const char *path(const char *name)
{
	static char text[4096];

	snprintf(text, sizeof(text), "%s/%s", getenv("FAKE_NVML"), name);
	return text;
}

static void note(const char *format, ...)
{
	FILE *log = fopen(path("log"), "a");
	va_list values;

	if (!log)
		abort();
	va_start(values, format);
	vfprintf(log, format, values);
	va_end(values);
	fclose(log);
}

int nvmlInit_v2(void)
{
	note("init\n");
	return SUCCESS;
}

int nvmlShutdown(void)
{
	note("shutdown\n");
	return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device)
{
	static int gpu;

	*device = &gpu;
	return strcmp(pci, "0000:00:00.0") ? NO_PERMISSION : SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned int *clock)
{
	(void)device;
	*clock = type == 2 ? MEMORY : LOWEST + STEP * (CLOCKS - 1);
	return SUCCESS;
}

int nvmlDeviceGetSupportedGraphicsClocks(void *device, unsigned int memory, unsigned int *count,
					 unsigned int *clocks)
{
	unsigned int room = *count;

	(void)device;
	*count = CLOCKS;
	if (memory != MEMORY)
		return NO_PERMISSION;
	if (room < CLOCKS)
		return INSUFFICIENT_SIZE;
	for (unsigned int at = 0; at < CLOCKS; at++)
		clocks[at] = LOWEST + STEP * (CLOCKS - 1 - at);
	return SUCCESS;
}

int nvmlDeviceSetGpuLockedClocks(void *device, unsigned int least, unsigned int most)
{
	(void)device;
	note("lock %u %u\n", least, most);
	return access(path("fails"), F_OK) ? SUCCESS : NO_PERMISSION;
}

int nvmlDeviceResetGpuLockedClocks(void *device)
{
	(void)device;
	note("reset\n");
	return SUCCESS;
}

#ifndef OLD
struct limits {
	const char *cgroup;
	unsigned long long soft, hard;
};

int nvmlDeviceSetMemoryLimits_v1(void *device, struct limits *limits)
{
	const char *name = strrchr(limits->cgroup, '/');

	(void)device;
	if (access(limits->cgroup, F_OK))
		abort();
	note("limit %s %llu %llu\n", name, limits->soft, limits->hard);
	return access(path("fails"), F_OK) ? SUCCESS : NO_PERMISSION;
}
#endif

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count,
					    struct process *processes)
{
	FILE *pids = fopen(path("pids"), "r");
	unsigned int room = *count, pid;

	(void)device;
	*count = 0;
	while (pids && fscanf(pids, "%u", &pid) == 1) {
		if (*count < room)
			processes[*count].pid = pid;
		++*count;
	}
	if (pids)
		fclose(pids);
	return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned int *count,
					     struct process *processes)
{
	(void)device;
	(void)processes;
	*count = 0;
	return SUCCESS;
}
