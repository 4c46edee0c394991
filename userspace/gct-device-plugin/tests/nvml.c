// SPDX-License-Identifier: GPL-2.0 OR MIT

/*
 * Plays libnvidia-ml.so for GPUs of compute capability 9.0. The file FAKE_NVML/needs.PCI has the
 * number of the recovery action of a GPU; without it the GPU needs none. FAKE_NVML/lost.PCI has the
 * GPU off its bus, and FAKE_NVML/sick.PCI without an answer. FAKE_NVML/open is there while the
 * library is open.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, GPU_IS_LOST = 15, UNKNOWN = 999 };
enum { RECOVERY_ACTION = 230, UNSIGNED_INT = 1 };

struct value {
	unsigned int field, scope;
	long long timestamp, latency;
	int type, result;
	union {
		double real;
		unsigned int number;
		unsigned long long wide;
	} value;
};

static const char *path(const char *name, const char *pci)
{
	static char text[4096];

	snprintf(text, sizeof(text), "%s/%s%s", getenv("FAKE_NVML"), name, pci);
	return text;
}

int nvmlInit_v2(void)
{
	FILE *file = fopen(path("open", ""), "w");

	if (!file)
		abort();
	fclose(file);
	return SUCCESS;
}

int nvmlShutdown(void)
{
	unlink(path("open", ""));
	return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device)
{
	static char known[8][32];
	static int count;

	if (!access(path("lost.", pci), F_OK))
		return GPU_IS_LOST;
	if (!access(path("sick.", pci), F_OK))
		return UNKNOWN;
	for (int at = 0; at < count; at++) {
		*device = known[at];
		if (!strcmp(known[at], pci))
			return SUCCESS;
	}
	if (count == 8)
		abort();
	*device = strncpy(known[count++], pci, sizeof(known[0]) - 1);
	return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
	(void)device;
	*major = 9;
	*minor = 0;
	return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *device, int count, struct value *values)
{
	FILE *file = fopen(path("needs.", device), "r");

	for (int at = 0; at < count; at++) {
		values[at].type = UNSIGNED_INT;
		values[at].result = values[at].field == RECOVERY_ACTION ? SUCCESS : NOT_SUPPORTED;
		values[at].value.number = 0;
		if (file && fscanf(file, "%u", &values[at].value.number) != 1)
			abort();
	}
	if (file)
		fclose(file);
	return SUCCESS;
}
