// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Runs those of NVIDIA's built-in UVM tests that need no GPU, and reports them
 * in KTAP. nvidia-uvm.ko must be loaded with uvm_enable_builtin_tests=1 and
 * uvm_leak_checker=2; the last test unloads it.
 *
 *   uvm-tests [--quick] [NAME...]
 *                     runs all tests, or the named ones; with fewer rounds
 *   uvm-tests --list  prints every built-in test of the driver's headers and
 *                     what becomes of it; loads and opens nothing
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "uvm.h"

/* A kernel with KASAN and lockdep does about as many rounds a second less. */
#define QUICK_DIVISOR 50

/* A test that takes longer is hung, even on an emulated CPU with KASAN. */
#define TEST_SECONDS_MAX 600

static const struct test *const lists[] = {
	pure_tests, space_tests, range_tests, block_tests, tools_tests,
	unload_tests,
};
#define LISTS (sizeof(lists) / sizeof(lists[0]))

/* The names of all built-in tests, which the Makefile takes from the header. */
static const char *const header_names[] = {
#include "header-names.inc"
};
#define HEADER_NAMES (sizeof(header_names) / sizeof(header_names[0]))

static bool quick;

unsigned int rounds(unsigned int number)
{
	return quick ? number / QUICK_DIVISOR : number;
}

/* No name at all selects everything. */
static bool selected(const char *name, int names, char **chosen)
{
	int i;

	for (i = 0; i < names; i++) {
		if (strcmp(chosen[i], name) == 0)
			return true;
	}
	return names == 0;
}

static const struct test *find_test(const char *name)
{
	const struct test *test;
	size_t i;

	for (i = 0; i < LISTS; i++) {
		for (test = lists[i]; test->name; test++) {
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

/* A test of the headers that we neither run nor excuse is an error. */
static int list(void)
{
	size_t i;
	int unknown = 0;

	for (i = 0; i < HEADER_NAMES; i++) {
		const char *name = header_names[i];
		const char *why = why_not_run(name);

		if (find_test(name)) {
			printf("run      %s\n", name);
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
	if (session_open(&session))
		return 1;
	return test->run(&session) ? 1 : 0;
}

/* Returns whether the child passed; says what it died of. */
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
	size_t i;

	for (i = 0; i < LISTS; i++) {
		for (test = lists[i]; test->name; test++)
			count += selected(test->name, names, chosen);
	}
	return count;
}

static int run(int names, char **chosen)
{
	int number = 0, failed = 0;
	const struct test *test;
	size_t i;

	printf("KTAP version 1\n1..%d\n", plan(names, chosen));
	for (i = 0; i < LISTS; i++) {
		for (test = lists[i]; test->name; test++) {
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
	if (argc >= 2 && strcmp(argv[1], "--quick") == 0) {
		quick = true;
		argc--;
		argv++;
	}
	return run(argc - 1, argv + 1);
}
