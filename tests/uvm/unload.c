// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The last test unloads the module. The driver's leak checker writes its result into our memory
 * while the module unloads, and the test reads it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "uvm.h"

/* Returns whether the module was loaded with the leak checker. */
static int leak_checker_on(void)
{
	int level = 0;
	FILE *file = fopen("/sys/module/nvidia_uvm/parameters/uvm_leak_checker", "r");

	CHECK(file);
	CHECK(fscanf(file, "%d", &level) == 1);
	fclose(file);
	CHECK(level >= 1);
	return 0;
}

static int register_unload_state_buffer(struct session *s)
{
	static volatile uint64_t state __attribute__((aligned(8)));

	if (leak_checker_on())
		return -1;
	CHECK_STATUS(UVM_RUN(s->fd, REGISTER_UNLOAD_STATE_BUFFER,
			     .unload_state_buf = (uintptr_t)&state + 1),
		     NV_ERR_INVALID_ADDRESS);
	/* The driver must clear it. */
	state = ~0ull;
	CHECK_OK(UVM_RUN(s->fd, REGISTER_UNLOAD_STATE_BUFFER,
			 .unload_state_buf = (uintptr_t)&state));
	CHECK_EQUAL(state, 0);
	CHECK_STATUS(UVM_RUN(s->fd, REGISTER_UNLOAD_STATE_BUFFER,
			     .unload_state_buf = (uintptr_t)&state),
		     NV_ERR_IN_USE);
	session_close(s);
	if (syscall(SYS_delete_module, "nvidia_uvm", O_NONBLOCK))
		return fail(__FILE__, __LINE__, "unloading nvidia-uvm.ko: %m");
	CHECK_EQUAL(state & UVM_TEST_UNLOAD_STATE_MEMORY_LEAK, 0);
	CHECK_EQUAL(state, 0);
	return 0;
}

const struct test unload_tests[] = {
	{ "REGISTER_UNLOAD_STATE_BUFFER", register_unload_state_buffer },
	{ NULL, NULL },
};
