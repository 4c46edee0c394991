#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: vm.sh run [OPTION...]
#
# Builds gct-vm and fakegpu if needed and runs gct-vm with these arguments.
. "$(dirname "$0")/lib.sh"

need_tools >&2
exec "$GCT_VM" "$@" --build "$BUILD"
