#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Tests NCCL under masks and pacing, on a machine with two GPUs or more, the stock driver and
# PyTorch.
#
#     usage: tests/hw/collectives.sh DIR   gctd, gctctl, gct-load and libgct_preload.so are in DIR
set -u
here=$(dirname "$(realpath "$0")")
. "$here/lib.sh"

# collectives MODE COMMAND...: runs collectives.py MODE under COMMAND.
collectives() {
	local what=$1
	shift
	"$@" timeout 60 python3 "$here/collectives.py" $what >"$work/nccl" 2>&1 && grep -q '^ok$' "$work/nccl" || {
		tail -n 5 "$work/nccl"
		false
	}
}

check "the daemon starts" start_daemon
check "data parallelism natively" collectives training env
check "on four TPCs" collectives training run --group four --tpc 0-3 --
check "paced" collectives training run --group paced --atom 20us --
check "paced on four TPCs" collectives training run --group both --tpc 0-3 --atom 20us --

# Two CTAs each, so that all of them are resident on four TPCs.
export NCCL_MAX_CTAS=2 NCCL_MIN_CTAS=1
check "two communicators in opposite orders natively" collectives "communicators 2" env
check "and on four TPCs" collectives "communicators 2" run --group four --tpc 0-3 --
export CUDA_DEVICE_MAX_CONNECTIONS=1
check "four that share a channel, natively" collectives "communicators 4" env
check "and paced" collectives "communicators 4" run --group paced --atom 20us --
for gpu in 0 1; do
	get paced/$gpu compute.events | tr '\n' ' '
done
echo
echo "$passed passed, $failed failed"
[ $failed = 0 ]
