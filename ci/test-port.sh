#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# `make port` on driver trees that differ from those of the series: newer by a number, shifted,
# with a function renamed, moved or gone. The clone is a copy, for it gets a series.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

job=port
rm -f "$RESULTS/$job"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
from=$NV_DEBIAN_VERSION
later=${from%.*}.99
mkdir "$scratch/clone"
cp -r "$ROOT/ci" "$ROOT/open-gpu-kernel-modules-patches" "$ROOT/Makefile" "$scratch/clone"

# driver NAME: what the series touches of the driver, as a tree of a later version.
driver() {
	local tree=$scratch/$1/kernel-open
	mkdir -p "$tree"
	rsync -a --exclude '*.o_binary' --exclude /nvidia-drm --exclude /nvidia-modeset --exclude /nvidia-peermem \
		--exclude /debian "$BUILD/nv/$from/kernel-open/" "$tree/"
	sed -i "s/$from/$later/" "$tree/Kbuild"
	printf '%s\n' "$tree"
}

port() {
	rm -rf "$scratch/clone/open-gpu-kernel-modules-patches/$later"
	make -s -C "$scratch/clone" port NV_SRC="$scratch/$1"
}

series_of_port() {
	printf '%s' "$scratch/clone/open-gpu-kernel-modules-patches/$later"
}

# reports NAME WORDS...: the port fails and says each of these, and writes no series.
reports() {
	local name=$1 output words
	shift
	if output=$(port "$name" 2>&1); then
		printf 'accepted: %s\n' "$output"
		return 1
	fi
	printf '%s\n' "$output"
	[ ! -e "$(series_of_port)" ] || return
	for words; do
		grep -qF -e "$words" <<<"$output" || { printf 'does not say: %s\n' "$words"; return 1; }
	done
}

# The series of the port applies without fuzz, and adds to the driver what its source adds.
is_ported() {
	local tree=$1 patch_file applied
	grep '^fits ' <<<"$2" | wc -l | grep -x "$(wc -l <"$ROOT/open-gpu-kernel-modules-patches/$from/series")" || return
	diff "$ROOT/open-gpu-kernel-modules-patches/$from/series" "$(series_of_port)/series" || return
	applied=$(mktemp -d "$scratch/applied.XXXXXX")
	cp -r "$tree/." "$applied"
	while read -r patch_file; do
		patch -s -d "$applied" -p1 --fuzz=0 <"$(series_of_port)/$patch_file" || return
	done <"$(series_of_port)/series"
	diff <(cat "$ROOT/open-gpu-kernel-modules-patches/$from"/0*.patch | grep '^+[^+].*gct' | sort) \
		<(cat "$(series_of_port)"/0*.patch | grep '^+[^+].*gct' | sort)
}

ports() {
	local output
	output=$(port "$1" 2>&1) || { printf '%s\n' "$output"; return 1; }
	printf '%s\n' "$output"
	grep -F "porting the series of $from to $later" <<<"$output" && grep -F 'lint: nothing found' <<<"$output" &&
		is_ported "$scratch/$1/kernel-open" "$output"
}

# A branch is one driver; another one is further away, whichever is older.
takes_its_branch() {
	local tree=$scratch/older/kernel-open
	mkdir -p "$tree"
	cp -r "$scratch/same/kernel-open/." "$tree"
	sed -i "s/$later/${from%%.*}.1.01/" "$tree/Kbuild"
	port older 2>&1 | tee /dev/stderr | grep -F "porting the series of $from to ${from%%.*}.1.01"
}

driver same >/dev/null
check $job "a newer number alone" ports same
check $job "an older number of a branch takes the branch's series" takes_its_branch
tree=$(driver shifted)
sed -i '1i /* a line */\n/* another */' "$tree"/nvidia/nv*.c
check $job "lines in front of all hooks" ports shifted
tree=$(driver renamed)
sed -i 's/\bnv_linux_stop_open_q\b/nv_linux_stop_open_queue/' "$tree"/nvidia/nv-pci.c
check $job "a function that was renamed: the hook and the new name are said" reports renamed \
	'MISSING 0004-' 'nvidia/nv-pci.c, hunk' 'nv_linux_stop_open_q is not in it; there is nv_linux_stop_open_queue' \
	'1 patches do not fit'
tree=$(driver nameless)
sed -i 's/\bnv_linux_stop_open_q\b/stop/' "$tree"/nvidia/nv*.c "$tree"/common/inc/*.h
check $job "a function that is gone: so it is said, and the other patches follow" reports nameless \
	'nv_linux_stop_open_q is not in it' 'fits    0019-' '1 patches do not fit'
tree=$(driver moved)
sed -i 's/^nv_pci_remove(/nv_pci_remove_helper(/' "$tree"/nvidia/nv-pci.c
says_to_look() { port moved | grep -F 'look at nvidia/nv-pci.c nv_pci_remove_helper: the hook was in another function'; }
check $job "a hook that fits in another function than before" says_to_look
tree=$(driver gone)
rm "$tree/nvidia/nv-dmabuf.c"
check $job "a file that is gone" reports gone 'MISSING 0010-' 'a file is gone' 'nv-dmabuf.c'
check $job "a tree that is not NVIDIA's" reports empty-tree "no kernel-open/conftest.sh"
mkdir "$scratch/of-series" && cp -r "$scratch/same/kernel-open" "$scratch/of-series"
sed -i "s/$later/$from/" "$scratch/of-series/kernel-open/Kbuild"
check $job "a version that has a series" reports of-series "there is a series for $from: make kmod"
finish $job
