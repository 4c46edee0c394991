#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# `make port` on driver trees that differ from those of the series: newer by a number, shifted,
# with a function renamed, moved or gone. The clone is a copy, for its series gets a version.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

job=port
rm -f "$RESULTS/$job"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
from=$NV_DEBIAN_VERSION
later=${from%.*}.99
patches=open-gpu-kernel-modules-patches
clone=$scratch/clone
mkdir "$clone"
cp -r "$ROOT/ci" "$ROOT/$patches" "$ROOT/Makefile" "$clone"

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
	rm -rf "${clone:?}/$patches"
	cp -r "$ROOT/$patches" "$clone"
	make -s -C "$clone" port NV_SRC="$scratch/$1"
}

# reports NAME WORDS...: the port fails and says each of these, and changes nothing.
reports() {
	local name=$1 output words
	shift
	if output=$(port "$name" 2>&1); then
		printf 'accepted: %s\n' "$output"
		return 1
	fi
	printf '%s\n' "$output"
	diff -r "$ROOT/$patches" "$clone/$patches" || return
	for words; do
		grep -qF -e "$words" <<<"$output" || { printf 'does not say: %s\n' "$words"; return 1; }
	done
}

# The port adds a section of BASE, and no hunk. Its series applies without fuzz, and adds to the
# driver what that of its branch adds.
is_ported() {
	local tree=$1 patch_file applied=$scratch/applied
	grep '^fits ' <<<"$2" | wc -l | grep -x "$(ls "$ROOT/$patches"/0*.patch | wc -l)" || return
	diff -r --exclude BASE "$ROOT/$patches" "$clone/$patches" || return
	grep -xF "[$later]" "$clone/$patches/BASE" || return
	"$clone/ci/series.py" write "$later" "$scratch/ported" "$tree" || return
	"$ROOT/ci/series.py" write "$from" "$scratch/branch" || return
	rm -rf "$applied"
	cp -r "$tree" "$applied"
	while read -r patch_file; do
		patch -s -d "$applied" -p1 --fuzz=0 <"$scratch/ported/$patch_file" || return
	done <"$scratch/ported/series"
	diff <(cat "$scratch/branch"/0*.patch | grep '^+[^+].*gct' | sort) \
		<(cat "$scratch/ported"/0*.patch | grep '^+[^+].*gct' | sort)
}

ports() {
	local output
	output=$(port "$1" 2>&1) || { printf '%s\n' "$output"; return 1; }
	printf '%s\n' "$output"
	grep -F "porting the series to $later" <<<"$output" && grep -F 'lint: nothing found' <<<"$output" &&
		is_ported "$scratch/$1/kernel-open" "$output"
}

# A driver older than all of its branch takes the branch's hunks, not those of an older branch.
takes_its_branch() {
	local tree=$scratch/older/kernel-open older=${from%%.*}.1.01
	mkdir -p "$tree"
	cp -r "$scratch/same/kernel-open/." "$tree"
	sed -i "s/$later/$older/" "$tree/Kbuild"
	port older && diff -r --exclude BASE "$ROOT/$patches" "$clone/$patches"
}

# An edit of one version in git, and its hunk is that version's alone.
edits_one() {
	local file=nvidia-uvm/uvm_thread_context.h version
	rm -rf "${clone:?}/$patches" "$scratch/edit"
	cp -r "$ROOT/$patches" "$clone"
	mkdir -p "$clone/build/nv"
	ln -sfn "$BUILD/nv/$from" "$clone/build/nv/$from"
	"$clone/ci/patches-git.sh" tree "$from" "$scratch/edit" || return
	sed -i 's,gct_table;,& // edited,' "$scratch/edit/$file"
	git -C "$scratch/edit" commit -qa --amend --no-edit || return
	"$clone/ci/patches-git.sh" export "$from" "$scratch/edit" || return
	for version in $("$ROOT/ci/series.py" versions); do
		"$ROOT/ci/series.py" write "$version" "$scratch/before/$version" || return
		"$clone/ci/series.py" write "$version" "$scratch/after/$version" || return
	done
	[ "$(diff -rq "$scratch/before" "$scratch/after" | wc -l)" -eq 1 ] &&
		grep '// edited' "$scratch/after/$from"/0*.patch
}

driver same >/dev/null
check $job "a newer number alone" ports same
check $job "an older number of a branch takes the branch's hunks" takes_its_branch
check $job "an edit of one version leaves the others" edits_one
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
