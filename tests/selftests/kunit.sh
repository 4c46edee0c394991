#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the machine: loads the driver with the KUnit suites inside, and prints their results.
. /test/lib.sh
load_nvidia || exit 1
for results in /sys/kernel/debug/kunit/gct_*/results; do
	cat "$results" || exit 1
done
