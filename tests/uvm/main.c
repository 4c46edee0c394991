// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Runs NVIDIA's built-in UVM tests, and reports them in KTAP. nvidia-uvm.ko must be loaded with
 * uvm_enable_builtin_tests=1 and uvm_leak_checker=2; the last test unloads it.
 *
 *     uvm-tests [--gpu] [--quick] [NAME...]
 *                       runs all tests, or the named ones; with fewer rounds; those
 *                       that need a GPU, which must be the software one
 *     uvm-tests --list  prints every built-in test of the driver's headers, and
 *                       whether it runs; loads and opens nothing
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "uvm.h"

/* The slowdown of a kernel with KASAN and lockdep. */
#define QUICK_DIVISOR 50

/* A test that takes longer hangs, even on an emulated CPU with KASAN. */
#define TEST_SECONDS_MAX 600

static const struct test *const lists[] = {
	pure_tests, space_tests, range_tests, block_tests, tools_tests,
	unload_tests,
};
#define LISTS (sizeof(lists) / sizeof(lists[0]))

/* The tests that need a GPU. */
static const struct test *const gpu_lists[] = {
	channel_tests, memory_tests, alone_tests, unload_tests,
};
#define GPU_LISTS (sizeof(gpu_lists) / sizeof(gpu_lists[0]))

/* The names of all built-in tests, which the Makefile extracts from the header. */
static const char *const header_names[] = {
#include "header-names.inc"
};
#define HEADER_NAMES (sizeof(header_names) / sizeof(header_names[0]))

static bool quick, with_gpu;

unsigned int rounds(unsigned int number)
{
	return quick ? number / QUICK_DIVISOR : number;
}

/* Without names every test is selected. */
static bool selected(const char *name, int names, char **chosen)
{
	int i;

	for (i = 0; i < names; i++) {
		if (strcmp(chosen[i], name) == 0)
			return true;
	}
	return names == 0;
}

/* Returns the lists to run, and their number. */
static const struct test *const *chosen_lists(size_t *count)
{
	*count = with_gpu ? GPU_LISTS : LISTS;
	return with_gpu ? gpu_lists : lists;
}

static const struct test *find_in(const struct test *const *in, size_t count,
				  const char *name)
{
	const struct test *test;
	size_t i;

	for (i = 0; i < count; i++) {
		for (test = in[i]; test->name; test++) {
			if (strcmp(test->name, name) == 0)
				return test;
		}
	}
	return NULL;
}

static const char *why_not_run(const char *name)
{
	const struct not_run *entry;

	for (entry = not_run; entry->name; entry++) {
		if (strcmp(entry->name, name) == 0)
			return entry->why;
	}
	return NULL;
}

/* A test of the headers that is neither run nor excused is an error. */
static int list(void)
{
	size_t i;
	int unknown = 0;

	for (i = 0; i < HEADER_NAMES; i++) {
		const char *name = header_names[i];
		const char *why = why_not_run(name);

		if (find_in(lists, LISTS, name)) {
			printf("run      %s\n", name);
		} else if (find_in(gpu_lists, GPU_LISTS, name)) {
			printf("on a GPU %s\n", name);
		} else if (why) {
			printf("not run  %s: %s\n", name, why);
		} else {
			printf("unknown  %s\n", name);
			unknown++;
		}
	}
	return unknown ? 1 : 0;
}

static int run_in_child(const struct test *test)
{
	struct session session;

	alarm(TEST_SECONDS_MAX);
	if (session_open(&session) || (with_gpu && gpu_open(&session)))
		return 1;
	return test->run(&session) ? 1 : 0;
}

/* Returns whether the child passed. Prints the cause of its death. */
static bool run_isolated(const struct test *test)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		status = run_in_child(test);
		fflush(stdout);
		_exit(status);
	}
	if (child < 0 || waitpid(child, &status, 0) != child) {
		printf("# cannot run a process: %m\n");
		return false;
	}
	if (WIFSIGNALED(status))
		printf("# ended by signal %d (%s)\n", WTERMSIG(status),
		       strsignal(WTERMSIG(status)));
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/*
 * Starts a process that keeps the GPU registered; returns 0 if it fails. UVM initialises the GPU
 * for its first user, which takes longer than most tests.
 */
static pid_t hold_gpu(void)
{
	int ready[2];
	char byte = 0;
	pid_t holder;

	fflush(stdout);
	if (pipe(ready))
		return 0;
	holder = fork();
	if (holder == 0) {
		struct session session;

		if (!session_open(&session) && !gpu_open(&session) &&
		    write(ready[1], "r", 1) == 1)
			pause();
		fflush(stdout);
		_exit(1);
	}
	close(ready[1]);
	if (holder < 0 || read(ready[0], &byte, 1) != 1)
		printf("# the GPU cannot be held\n");
	close(ready[0]);
	return holder > 0 ? holder : 0;
}

static pid_t let_go(pid_t holder)
{
	if (holder > 0) {
		kill(holder, SIGKILL);
		waitpid(holder, NULL, 0);
	}
	return 0;
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int plan(int names, char **chosen)
{
	const struct test *test;
	int count = 0;
	size_t i, number;
	const struct test *const *run_lists = chosen_lists(&number);

	for (i = 0; i < number; i++) {
		for (test = run_lists[i]; test->name; test++)
			count += selected(test->name, names, chosen);
	}
	return count;
}

static int run(int names, char **chosen)
{
	int number = 0, failed = 0;
	pid_t holder = with_gpu ? hold_gpu() : 0;
	const struct test *test;
	size_t i, count;
	const struct test *const *run_lists = chosen_lists(&count);

	printf("KTAP version 1\n1..%d\n", plan(names, chosen));
	for (i = 0; i < count; i++) {
		/* Unloading, too, needs all other processes to have closed the module. */
		if (run_lists[i] == alone_tests || run_lists[i] == unload_tests)
			holder = let_go(holder);
		for (test = run_lists[i]; test->name; test++) {
			long start = now_ms();
			bool passed;

			if (!selected(test->name, names, chosen))
				continue;
			passed = run_isolated(test);
			failed += !passed;
			printf("# time %s %ld ms\n", test->name, now_ms() - start);
			printf("%s %d %s\n", passed ? "ok" : "not ok", ++number,
			       test->name);
		}
	}
	fflush(stdout);
	return failed || number == 0 ? 1 : 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "--list") == 0)
		return list();
	for (; argc >= 2 && argv[1][0] == '-'; argc--, argv++) {
		quick |= strcmp(argv[1], "--quick") == 0;
		with_gpu |= strcmp(argv[1], "--gpu") == 0;
	}
	return run(argc - 1, argv + 1);
}
