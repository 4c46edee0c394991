/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Shared by the tests of this directory: a session with nvidia-uvm.ko, calls to it, and checks.
 *
 * Every parameter structure and ioctl number comes from the headers of the driver under test.
 * Nothing of them is repeated here.
 */
#ifndef GCT_TEST_UVM_H
#define GCT_TEST_UVM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "uvm_linux_ioctl.h"
#include "uvm_ioctl.h"
#include "uvm_test_ioctl.h"

/* One 2 MiB block of UVM's address space, and the alignment of our ranges. */
#define BLOCK_BYTES ((size_t)UVM_TEST_VA_BLOCK_SIZE)
#define PAGE_BYTES ((size_t)4096)

/* Not a status of the driver: the ioctl itself failed, and errno was printed. */
#define STATUS_NO_ANSWER ((NV_STATUS)0xfffffffe)

/* An open /dev/nvidia-uvm with an address space, as CUDA opens it. */
struct session {
	int fd;			/* UVM_INITIALIZE was done on it */
	int mm_fd;		/* UVM_MM_INITIALIZE was done on it */
	NV_STATUS mm_status;	/* its answer */
	NvProcessorUuid cpu;	/* the name UVM gives to the CPU */
	NvProcessorUuid gpu;	/* the GPU's, if gpu_open() was called */
};

/* A test. Each runs in its own child process with its own session. */
struct test {
	const char *name;		/* of the ioctl, without UVM_TEST_ */
	int (*run)(struct session *s);	/* 0, or -1 after fail() */
};

/* Lists of tests, ended by an entry without a name. */
extern const struct test pure_tests[];
extern const struct test space_tests[];
extern const struct test range_tests[];
extern const struct test block_tests[];
extern const struct test tools_tests[];
extern const struct test unload_tests[];

/* Lists of tests that act on the software GPU, each in a session with it. */
extern const struct test channel_tests[];
extern const struct test alone_tests[];
extern const struct test memory_tests[];

/*
 * Gives the software GPU to the session: initialises it, registers it with UVM under its UUID, and
 * makes UVM the owner of an address space on it.
 */
int gpu_open(struct session *s);

/* Allocates memory of the GPU and returns its handle; 0 after fail(). */
uint32_t gpu_memory(size_t bytes);

/* Returns the RM client that gpu_open() allocated. */
uint32_t gpu_client(void);
int gpu_control_fd(void);

/* A built-in test that is not run, with the reason. */
struct not_run {
	const char *name;
	const char *why;
};
extern const struct not_run not_run[];

/* The minor numbers of the character device. */
enum uvm_minor { UVM_MINOR_MAIN = 0, UVM_MINOR_TOOLS = 1 };

int uvm_open(enum uvm_minor minor);
int session_open(struct session *s);
void session_close(struct session *s);

const char *status_name(NV_STATUS status);

/*
 * Issues one ioctl. Returns the status that the driver left in *status, or STATUS_NO_ANSWER if the
 * driver did not know the number.
 */
NV_STATUS uvm_ioctl(int fd, const char *name, unsigned long command,
		    void *params, const NV_STATUS *status);

/* UVM(fd, RANGE_TREE_RANDOM, params): params is an lvalue of its type. */
#define UVM_API(fd, command, params) \
	uvm_ioctl(fd, #command, command, &(params), \
		  (const NV_STATUS *)&(params).rmStatus)
#define UVM_TEST(fd, name, params) \
	UVM_API(fd, UVM_TEST_##name, params)

/* The same for a test. The initialiser of its parameters follows. */
#define UVM_RUN(fd, name, ...) ({ \
	UVM_TEST_##name##_PARAMS params_ = { __VA_ARGS__ }; \
	UVM_TEST(fd, name, params_); \
})

/*
 * Returns the number of rounds of a random test: the given number, or a fiftieth with --quick for a
 * kernel whose checkers slow each round by that factor.
 */
unsigned int rounds(unsigned int number);

/* Prints the location and a message. Always returns -1. */
int fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Prints a value that must not depend on our patches. The job compares it between runs. */
void value(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define CHECK(condition) do { \
	if (!(condition)) \
		return fail(__FILE__, __LINE__, "not true: %s", #condition); \
} while (0)

#define CHECK_EQUAL(actual, expected) do { \
	unsigned long long actual_ = (actual), expected_ = (expected); \
	if (actual_ != expected_) \
		return fail(__FILE__, __LINE__, "%s is %#llx, not %#llx", \
			    #actual, actual_, expected_); \
} while (0)

/* Takes the text before the macros in the call are expanded. */
#define CHECK_STATUS(call, expected) CHECK_NAMED(#call, call, expected, #expected)
#define CHECK_OK(call) CHECK_NAMED(#call, call, NV_OK, "NV_OK")
#define CHECK_NAMED(text, call, expected, expected_text) do { \
	NV_STATUS status_ = (call); \
	if (status_ != (expected)) \
		return fail(__FILE__, __LINE__, "%s is %s, not %s", text, \
			    status_name(status_), expected_text); \
} while (0)

/*
 * Reserves `bytes` at a multiple of BLOCK_BYTES and maps it as managed memory
 * of the session. NULL on failure, after printing it.
 */
volatile uint8_t *managed_map(const struct session *s, size_t bytes);

/*
 * Returns parameters that inject no error into the block of an address, or that let its next
 * allocation of host memory fail once.
 */
UVM_TEST_VA_BLOCK_INJECT_ERROR_PARAMS inject_nothing(volatile uint8_t *memory);
UVM_TEST_VA_BLOCK_INJECT_ERROR_PARAMS inject_no_page(volatile uint8_t *memory);

/* Reserves address space without mapping anything in it, aligned in the same way. */
void *reserve(size_t bytes);

#endif
