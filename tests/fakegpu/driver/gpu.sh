# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the test machine: shuts the GPUs down and initialises them again, then runs NVIDIA's UVM
# tests on a GPU. The last of them unloads nvidia-uvm.ko. Prints KTAP.
. /test/lib.sh

# The debug kernel's checkers make each round some fifty times slower.
debug=
[ ! -e /sys/kernel/debug/kmemleak ] || debug=yes

status=0
sh /test/driver.sh ${debug:+once} || status=1
load_nvidia || { echo "Bail out! nvidia.ko does not load"; exit 1; }
load_uvm uvm_enable_builtin_tests=1 uvm_leak_checker=2 ||
	{ echo "Bail out! nvidia-uvm.ko does not load"; exit 1; }
# The open file keeps the GPU initialised between the tests.
exec 3</dev/nvidia0
uvm-tests --gpu ${debug:+--quick} || status=1
if [ -s /test/filter ] || [ -s /test/oracle ]; then
	load_uvm uvm_enable_builtin_tests=1 || status=1
fi
# A test opens thousands of files.
ulimit -n 8192
# A GPU that a test takes from the driver waits until all its files are closed.
exec 3<&-
[ ! -s /test/filter ] || rm-test all "$(cat /test/filter)" || status=1
# Random programs where little memory is on the GPU: "small" or "limit", and how many.
if [ -s /test/oracle ]; then
	rm-test oracle $(cat /test/oracle) || status=1
	rm-test swap $(cut -d' ' -f1 /test/oracle) || status=1
fi
unload_nvidia || status=1
exit $status
