#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Boots the virtual machine and shows what gctgroup does (tests/qemu/demo.sh).
# The last line is "demo: ok" if every command did what it should.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/demo-parts.sh"

if ! "${machine[@]}" --quiet --timeout 900 --file "$ROOT/tests/qemu/demo-work.sh" \
	"$ROOT/tests/qemu/demo-memory.sh" "$ROOT/tests/qemu/demo-limits.sh" \
	"$ROOT/tests/qemu/demo-cuda.sh" --script "$ROOT/tests/qemu/demo.sh" "$@"; then
	echo "demo: FAILED"
	exit 1
fi
echo "demo: ok"
