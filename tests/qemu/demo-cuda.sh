# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The part of the demo in which a program runs on NVIDIA's own libcuda. demo.sh sources it where
# /root.tar has the libraries.

tar -xf /root.tar -C / && rm /root.tar || fail "the libraries cannot be unpacked"
PATH=$PATH:/usr/bin

# cuda STEPS: runs steps of the program as a member of the group "web".
cuda() {
	local status=0
	echo " # cuda-client all $1             in the group \"web\""
	sh -c "echo 0 >web/group.procs; exec cuda-client all $1" >/tmp/cuda 2>&1 || status=$?
	# Not as results: those of the demo are its own.
	sed -n 's/^# /   /p; s/^ok [0-9]* /   passed: /p; s/^not ok [0-9]* /   failed: /p' /tmp/cuda
	return $status
}

title "10. A program on NVIDIA's libcuda"
say "libcuda, NVML and the compiler of PTX are NVIDIA's own, from Debian's non-free. Only what"
say "kernels compute is played by the software GPU."
shown "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader"
say "The program sees its limits, and every launch has the group's mask, graphs included:"
shown "echo 700M >web/0/gmem.limit"
shown "echo 0-31 >web/0/tpc.mask"
mark=$(fakegpu-record mark)
cuda memory_info,memset,copies,streams,graph || fail "a step failed"
grep -q "of 700 MiB free" /tmp/cuda || fail "it does not see the limit"
echo " # fakegpu-record since $mark          the launches by their disabled TPCs, 32 in a word"
fakegpu-record since "$mark" | sed -n 's/.*"kind":"launch".*"grid":\[[1-9].*"mask":"\([0-9a-f]*\)".*/\1/p' |
	sort | uniq -c | tee /tmp/masks
[ "$(wc -l </tmp/masks)" -eq 1 ] && ! grep -q ' 0*$' /tmp/masks || fail "a launch has another mask"
say "What it may not have fails as it does on a full GPU, and the program goes on:"
if cuda large_memory,copies; then
	fail "the limit does not bind"
fi
grep -q "CUDA_ERROR_OUT_OF_MEMORY" /tmp/cuda && grep -q '^ok .*copies' /tmp/cuda || fail "it failed otherwise"
say "Managed memory beyond the limit goes to the host, and comes back:"
shown "echo 600M >web/0/gmem.limit"
cuda managed_beyond || fail "managed memory is not what was written"
shown "grep evicted web/0/gmem.events"
! grep -qx "evicted 0" web/0/gmem.events || fail "nothing was evicted"
shown "echo max >web/0/gmem.limit; echo all >web/0/tpc.mask"
