#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# A shell in the virtual machine, with the modules loaded and gctctl in the
# PATH. GPUS=N gives it more GPUs.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/demo-parts.sh"

exec "${machine[@]}" --interactive --script "$ROOT/tests/qemu/shell.sh"
