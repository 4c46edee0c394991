# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the test machine: initialises every GPU and shuts it down, twice, before and after loading
# the driver anew. With the argument `once` the driver is loaded once. Prints KTAP.
. /test/lib.sh

GPUS=$(ls -d /sys/bus/pci/devices/* | while read -r device; do
	[ "$(cat "$device/vendor") $(cat "$device/class")" = "0x10de 0x030200" ] && echo "$device"
done | wc -l)
number=0
failed=0

# result "name" STATUS
result() {
	number=$((number + 1))
	if [ "$2" -eq 0 ]; then
		echo "ok $number $1"
	else
		echo "not ok $number $1"
		failed=1
	fi
}

# Opens and closes the device file of GPU $1: RM initialises it and shuts it
# down again.
open_gpu() {
	(exec 3<"/dev/nvidia$1")
}

echo "KTAP version 1"
rounds='first second'
[ "${1:-}" != once ] || rounds=first
echo "1..$(($(echo "$rounds" | wc -w) * (2 + 2 * GPUS)))"
for round in $rounds; do
	load_nvidia
	result "${round}_load" $?
	for time in once again; do
		gpu=0
		while [ $gpu -lt "$GPUS" ]; do
			open_gpu $gpu
			result "${round}_load_gpu${gpu}_initialises_${time}" $?
			gpu=$((gpu + 1))
		done
	done
	unload_nvidia
	result "${round}_unload" $?
done
exit $failed
