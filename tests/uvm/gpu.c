// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A session with a GPU. Allocates the RM objects that UVM needs to own an address space, as libcuda
 * does.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "uvm.h"

#if __has_include("nvos.h")

#include "class/cl0000.h"
#include "class/cl0040.h"
#include "class/cl0080.h"
#include "class/cl2080.h"
#include "class/cl90f1.h"
#include "ctrl/ctrl2080.h"
#include "nv-ioctl-numbers.h"
#include "nv-ioctl.h"
#include "nv_escape.h"
#include "nvos.h"

/* Our handles of the objects. */
enum { DEVICE = 1, SUBDEVICE, SPACE, FIRST_MEMORY };

static int control_fd, gpu_fd;
static NvHandle client;

static int request(unsigned int escape, void *params, size_t size)
{
	if (ioctl(control_fd, _IOC(_IOC_READ | _IOC_WRITE, NV_IOCTL_MAGIC, escape, size), params))
		return fail(__FILE__, __LINE__, "escape %#x: %m", escape);
	return 0;
}

static int allocate(NvHandle parent, NvHandle object, NvU32 class, void *params, size_t size)
{
	NVOS21_PARAMETERS call = {
		.hRoot = client,
		.hObjectParent = parent,
		.hObjectNew = object,
		.hClass = class,
		.pAllocParms = (NvP64)(uintptr_t)params,
		.paramsSize = size,
	};

	if (request(NV_ESC_RM_ALLOC, &call, sizeof(call)))
		return -1;
	CHECK_EQUAL(call.status, NV_OK);
	if (class == NV01_ROOT)
		client = call.hObjectNew;
	return 0;
}

/* Reads the GPU's UUID from RM. */
static int ask_uuid(NvProcessorUuid *uuid)
{
	NV2080_ALLOC_PARAMETERS subdevice = { 0 };
	NV2080_CTRL_GPU_GET_GID_INFO_PARAMS gid = {
		.flags = DRF_DEF(2080_GPU_CMD, _GPU_GET_GID_FLAGS, _FORMAT, _BINARY),
	};
	NVOS54_PARAMETERS call = {
		.hClient = client,
		.hObject = SUBDEVICE,
		.cmd = NV2080_CTRL_CMD_GPU_GET_GID_INFO,
		.params = (NvP64)(uintptr_t)&gid,
		.paramsSize = sizeof(gid),
	};

	if (allocate(DEVICE, SUBDEVICE, NV20_SUBDEVICE_0, &subdevice, sizeof(subdevice)) ||
	    request(NV_ESC_RM_CONTROL, &call, sizeof(call)))
		return -1;
	CHECK_EQUAL(call.status, NV_OK);
	CHECK_EQUAL(gid.length, sizeof(*uuid));
	memcpy(uuid, gid.data, sizeof(*uuid));
	return 0;
}

/* Opening the GPU's own file initialises it. */
static int open_files(void)
{
	nv_ioctl_register_fd_t call;

	control_fd = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	gpu_fd = open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
	if (control_fd < 0 || gpu_fd < 0)
		return fail(__FILE__, __LINE__, "/dev/nvidia*: %m");
	call.ctl_fd = control_fd;
	if (ioctl(gpu_fd, _IOC(_IOC_READ | _IOC_WRITE, NV_IOCTL_MAGIC, NV_ESC_REGISTER_FD,
			       sizeof(call)), &call))
		return fail(__FILE__, __LINE__, "NV_ESC_REGISTER_FD: %m");
	return 0;
}

int gpu_open(struct session *s)
{
	NV0080_ALLOC_PARAMETERS device = { 0 };
	NV_VASPACE_ALLOCATION_PARAMETERS space = {
		.flags = NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED,
	};
	UVM_REGISTER_GPU_PARAMS gpu = { 0 };
	UVM_REGISTER_GPU_VASPACE_PARAMS va_space = { 0 };

	if (open_files() || allocate(0, 0, NV01_ROOT, NULL, 0))
		return -1;
	device.hClientShare = client;
	if (allocate(client, DEVICE, NV01_DEVICE_0, &device, sizeof(device)) ||
	    ask_uuid(&s->gpu) ||
	    allocate(DEVICE, SPACE, FERMI_VASPACE_A, &space, sizeof(space)))
		return -1;
	gpu.gpu_uuid = s->gpu;
	gpu.rmCtrlFd = control_fd;
	gpu.hClient = client;
	CHECK_OK(UVM_API(s->fd, UVM_REGISTER_GPU, gpu));
	va_space.gpuUuid = s->gpu;
	va_space.rmCtrlFd = control_fd;
	va_space.hClient = client;
	va_space.hVaSpace = SPACE;
	CHECK_OK(UVM_API(s->fd, UVM_REGISTER_GPU_VASPACE, va_space));
	return 0;
}

uint32_t gpu_memory(size_t bytes)
{
	static NvHandle next = FIRST_MEMORY;
	NV_MEMORY_ALLOCATION_PARAMS memory = { .owner = client, .size = bytes };

	if (allocate(DEVICE, next, NV01_MEMORY_LOCAL_USER, &memory, sizeof(memory)))
		return 0;
	return next++;
}

uint32_t gpu_client(void)
{
	return client;
}

int gpu_control_fd(void)
{
	return control_fd;
}

#else /* the headers of the resource manager are not there */

int gpu_open(struct session *s)
{
	(void)s;
	return fail(__FILE__, __LINE__, "built without the headers of the resource manager");
}

uint32_t gpu_memory(size_t bytes)
{
	(void)bytes;
	return 0;
}

uint32_t gpu_client(void)
{
	return 0;
}

int gpu_control_fd(void)
{
	return -1;
}

#endif
