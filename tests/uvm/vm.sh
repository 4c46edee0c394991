#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the test machine: loads both modules with the built-in tests and the leak checker enabled,
# and runs the tests. The last test unloads nvidia-uvm.ko.
. /test/lib.sh

load_nvidia || { echo "Bail out! nvidia.ko does not load"; exit 1; }
load_uvm uvm_enable_builtin_tests=1 uvm_leak_checker=2 ||
	{ echo "Bail out! nvidia-uvm.ko does not load"; exit 1; }
# The debug kernel's checkers make each round of a random test some fifty to two
# hundred times slower.
quick=
[ ! -e /sys/kernel/debug/kmemleak ] || quick=--quick
/test/uvm-tests $quick "$@"
status=$?
unload_nvidia || status=1
exit $status
