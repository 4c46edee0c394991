#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: note-test-program.sh PROGRAM [ARGUMENT...]
#
# Cargo's runner in job host: notes a test program, which is run later beside others, with
# the folder and the libraries that cargo would give it, in the list $TEST_PROGRAMS.
printf '%s\0' "$PWD" "${LD_LIBRARY_PATH:-}" "$1" >>"$TEST_PROGRAMS"
