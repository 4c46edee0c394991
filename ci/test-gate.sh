#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Looks at the objects that Kbuild made: nothing in the core can panic, use
# floating point or divide 128 bits, no function takes half of the kernel's
# stack, and the glue calls nothing that is not on its list. At the C interface:
# it stands alone, and Rust sees what C says. And at the mutations: they apply.
. "$(dirname "$0")/lib.sh"
. "$BUILD/env.sh"

JOB=gate
VERSION=${NV_VERSION:-535.261.03}
LIST=$ROOT/ci/glue-symbols.txt
rm -f "$RESULTS/$JOB"

# The kernel's overflow checks are on, so an addition that could overflow calls
# core::panicking; its compiler_builtins implement float and 128-bit helpers by
# panicking.
FORBIDDEN='core9panicking|panic_fmt|__(add|sub|mul|div|eq|lt|le|gt|ge|ne|unord|fix|float|trunc|extend)[a-z]*[sdt]f|__u?(div|mod|divmod)ti[34]|__(ashl|ashr|lshr|mul|mulo)ti[34]'

core_is_clean() {
	local bad
	bad=$(nm -u "$1" | grep -E "$FORBIDDEN") || return 0
	printf '%s needs:\n%s\n' "$1" "$bad"
	return 1
}

# The gate must be able to fail: an object with an addition is refused.
gate_can_fail() {
	local scratch
	scratch=$(mktemp -d)
	printf '#![no_std]\n#[no_mangle]\npub fn add(a: u32, b: u32) -> u32 { a + b }\n' >"$scratch/add.rs"
	rustc --edition 2021 --crate-type rlib -Copt-level=2 -Coverflow-checks=y -Cpanic=abort \
		--emit=obj="$scratch/add.o" "$scratch/add.rs"
	! core_is_clean "$scratch/add.o"
	local status=$?
	rm -rf "$scratch"
	return $status
}

# The largest frame that is allowed, of a stack of 16384 bytes. One of 10200 left some 100 of them
# in a write that begins to shadow channels (535, software GPU).
FRAME_MAX=7168

# frames OBJECT: prints the size of each frame of 256 bytes or more, and its function. The self-test
# of lanes is compiled for this gate, and nothing in the kernel calls it.
frames() {
	local function first size
	objdump -d --no-show-raw-insn "$1" |
		sed -nE 's/^[0-9a-f]+ <(.*)>:$/\1/p; s/.*[[:space:]]sub +\$(0x[0-9a-f]{3,6}),%rsp$/= \1/p' |
		while read -r first size; do
			case $first in
			=) printf '%d %s\n' $((size)) "$function" ;;
			*) function=$first ;;
			esac
		done | grep -v 'lane.*selftest'
}

frames_are_small() {
	local object all large
	for object in "$@"; do
		all=$(frames "$object") || { echo "no frame is found in $object"; return 1; }
		large=$(awk -v most=$FRAME_MAX '$1 > most' <<<"$all" | c++filt)
		[ -z "$large" ] || {
			printf 'frames of more than %d bytes:\n%s\n' $FRAME_MAX "$large"
			return 1
		}
	done
}

# Undefined symbols of an object by their plain names; hashes change with the
# compiler.
needs() {
	nm -u "$1" | sed 's/^ *U //' | c++filt | sed -E 's/\[[0-9a-f]+\]//g' |
		grep -v -E '^<?gct_core::|^<gct_core' | sort -u
}

glue_is_listed() {
	local unlisted
	unlisted=$(comm -23 <(needs "$1") <(grep -v '^#' "$LIST" | sort -u))
	[ -z "$unlisted" ] || {
		printf '%s needs what %s does not list:\n%s\n' "$1" "${LIST#"$ROOT/"}" "$unlisted"
		return 1
	}
}

header_stands_alone() {
	printf '#include "gct.h"\nint alone(void) { return gct_tracks(GCT_ESCAPE_ALLOC, 0, 0); }\n' |
		"$@" -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$ROOT/rust/include" \
			-x c -c -o /dev/null -
}

bindings_are_current() {
	"$ROOT/ci/bindings.sh" | diff -u "$ROOT/rust/gct_kernel/bindings.rs" -
}

# A mutation that does not apply to the source any more would be found by `make test-long` alone.
mutations_apply() {
	local patch rc=0
	for patch in "$ROOT"/tests/mutations/*.patch; do
		patch --directory="$ROOT" --strip=1 --fuzz=0 --dry-run --force --silent --input="$patch" || rc=1
	done
	return $rc
}

objects=$BUILD/work/$VERSION/lean/patched/gct
GCT_STOCK='' GCT_KUNIT='' KDIR=$BUILD/linux/lean NV_VERSION=$VERSION "$ROOT/ci/kmod.sh"

check $JOB "the core cannot panic, nor use floats or 128-bit helpers" \
	core_is_clean "$objects/gct_core/gct_core.o"
check $JOB "an object that could panic is refused" gate_can_fail
check $JOB "no frame takes half of the kernel's stack" \
	frames_are_small "$objects"/{gct_core/gct_core,gct_kernel/gct_kernel}.o
check $JOB "the glue calls only what is on its list" \
	glue_is_listed "$objects/gct_kernel/gct_kernel.o"
check $JOB "gct.h stands alone for gcc" header_stands_alone gcc
check $JOB "gct.h stands alone for clang" header_stands_alone clang-19
check $JOB "the bindings are those of the headers" bindings_are_current
check $JOB "every mutation applies to the source" mutations_apply
finish $JOB
