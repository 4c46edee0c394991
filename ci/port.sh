#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: NV_SRC=DIR port.sh
#
# Ports the patch series to NVIDIA's tree in DIR, which is left as it is. Applies each patch with
# all of its context, says which hunks did not fit and what the driver seems to have renamed, and
# leaves a git tree to edit in build/port/VERSION/tree, with a commit for each patch. If all fit, it
# adds the version to open-gpu-kernel-modules-patches, checks its patches with ci/patches-lint.sh,
# and builds them if `make setup` has been run and DIR has a compiled resource manager or its
# source.
. "$(dirname "$0")/lib.sh"

# Hunks of the port to new kernels may miss: newer drivers have it.
PORT=0001-

[ -n "${NV_SRC:-}" ] || die "usage: make port NV_SRC=DIR, with NVIDIA's tree or its kernel-open"
kernel_open=$(readlink -f "$NV_SRC")
[ ! -e "$NV_SRC/kernel-open/conftest.sh" ] || kernel_open=$kernel_open/kernel-open
[ -e "$kernel_open/conftest.sh" ] ||
	die "NV_SRC=$NV_SRC holds no kernel-open/conftest.sh: it is not NVIDIA's open module source"
version=$(driver_version "$kernel_open")
[ -n "$version" ] || die "$kernel_open/Kbuild names no version"
! "$ROOT/ci/series.py" versions | grep -xF -e "$version" >/dev/null ||
	die "there is a series for $version: make kmod NV_VERSION=$version NV_SRC=$NV_SRC"

work=$BUILD/port/$version
tree=$work/tree
missing=0

in_git() {
	git -C "$tree" -c user.name='gctgroup maintainers' -c user.email=maintainers@gctgroup.dev "$@"
}

make_tree() {
	rm -rf "$work"
	mkdir -p "$tree"
	tar -C "$kernel_open" --exclude='*.o_binary' --exclude='*.o' --exclude='*.ko' --exclude=.git -cf - . |
		tar -C "$tree" -xf -
	git -C "$tree" init -q
	in_git add -Af .
	in_git commit -qm "Import kernel-open $version"
	git -C "$tree" tag base
}

# hunk PATCH FILE N: the text of the N-th hunk of a file.
hunk() {
	awk -v file="$2" -v wanted="$3" '
		/^diff --git / { here = 0 }
		$1 == "+++" { here = $2 == "b/" file; n = 0; next }
		/^-- $/ { here = 0 }
		here && /^@@ / { n++ }
		here && n == wanted && n > 0' "$1"
}

# renames FILE: reads a hunk; prints what its context names and the file does not.
renames() {
	local file=$1 name near elsewhere
	{ grep -v '^+' | grep -oE '[A-Za-z_][A-Za-z0-9_]{5,}' || true; } | LC_ALL=C sort -u | while read -r name; do
		! grep -qw -- "$name" "$tree/$file" || continue
		near=$(grep -oE '[A-Za-z_][A-Za-z0-9_]{5,}' "$tree/$file" | LC_ALL=C sort -u | nearest_name "$name")
		elsewhere=$(cd "$tree" && { grep -rlw --include='*.[ch]' -- "$name" . || true; } |
			LC_ALL=C sort | sed -n '1,2s,^\./,,p' | xargs)
		if [ -n "$near" ]; then
			printf '        %s is not in it; there is %s\n' "$name" "$near"
		elif [ -n "$elsewhere" ]; then
			printf '        %s is in %s now\n' "$name" "$elsewhere"
		else
			printf '        %s is gone\n' "$name"
		fi
	done
}

# nearest_name NAME: reads names; prints the one with the most of NAME's beginning and end, if that
# is three quarters of it.
nearest_name() {
	awk -v name="$1" '
		function common(a, b,   n, m) {
			n = 0
			while (n < length(a) && substr(a, n + 1, 1) == substr(b, n + 1, 1)) n++
			m = 0
			while (m < length(a) - n && m < length(b) - n &&
				substr(a, length(a) - m, 1) == substr(b, length(b) - m, 1)) m++
			return n + m
		}
		$0 != name {
			score = common(name, $0)
			if (score > best) { best = score; found = $0 }
		}
		END { if (found != "" && best * 4 >= length(name) * 3) print found }'
}

# explain PATCH-FILE OUTPUT: says of each hunk that failed where it belongs.
explain() {
	local patch=$1 file='' line number
	while read -r line; do
		case $line in
		"patching file "*) file=${line#patching file } ;;
		"can't find file"*) printf '    a file is gone:\n%s\n' "$(sed -n 's,^--- a/,        ,p' "$patch")" ;;
		"Hunk #"*" FAILED"*)
			number=${line#Hunk #} number=${number%% *}
			printf '    %s, hunk %d does not fit:\n' "$file" "$number"
			hunk "$patch" "$file" "$number" | sed 's/^/        | /'
			hunk "$patch" "$file" "$number" | renames "$file"
			;;
		esac
	done <<<"$2"
}

# Functions in which a patch changes something: "FILE FUNCTION" for each hunk.
places() {
	awk '$1 == "+++" { file = substr($2, 3) } /^@@ / { sub(/^@@ [^@]* @@ ?/, ""); sub(/\(.*/, ""); print file, $0 }' "$1" |
		LC_ALL=C sort -u
}

commit_patch() {
	local patch=$1
	in_git add -Af .
	sed -n '/^Subject: /,/^---$/p' "$patch" | sed '$d; s/^Subject: \[PATCH[^]]*\] //' |
		in_git commit -q --allow-empty --author 'gctgroup maintainers <maintainers@gctgroup.dev>' \
			--date "$(sed -n 's/^Date: //p' "$patch" | head -n 1)" -F -
	in_git show --format= HEAD >"$work/now.patch"
	{ diff <(places "$patch") <(places "$work/now.patch") || true; } |
		sed -n 's/^> \(.*\)/    look at \1: the hook was in another function/p'
}

apply_one() {
	local patch=$1 name output
	name=$(basename "$patch")
	if output=$(patch -d "$tree" -p1 -N --fuzz=0 --no-backup-if-mismatch \
		-r "$work/$name.rej" -f <"$patch" 2>&1); then
		printf 'fits    %s\n' "$name"
	elif [[ $name = "$PORT"* ]]; then
		printf 'partly  %s: the driver has the rest, or the kernel modules will not compile\n' "$name"
	else
		printf 'MISSING %s\n' "$name"
		explain "$patch" "$output"
		missing=$((missing + 1))
	fi
	commit_patch "$patch"
}

# A hunk that fits in two places is refused here.
add_version() {
	"$ROOT/ci/patches-git.sh" export "$version" "$tree"
	"$ROOT/ci/series.py" write "$version" "$work/series" "$kernel_open"
	printf 'written: %s in open-gpu-kernel-modules-patches\n' "$version"
	"$ROOT/ci/patches-lint.sh" "$work/series"/[0-9]*.patch && printf 'lint: nothing found\n'
}

build() {
	if [ ! -e "$BUILD/env.sh" ]; then
		printf 'not built: make setup makes the tools for it\n'
	elif [ ! -e "$kernel_open/nvidia/nv-kernel.o_binary" ] && [ ! -e "$NV_SRC/src/nvidia/Makefile" ]; then
		printf 'not built: %s has neither nvidia/nv-kernel.o_binary nor src/nvidia\n' "$NV_SRC"
	else
		NV_VERSION=$version NV_SRC=$NV_SRC "$ROOT/ci/kmod.sh"
	fi
}

printf 'porting the series to %s\n' "$version"
make_tree
"$ROOT/ci/series.py" write "$version" "$work/series"
while read -r patch_name; do
	apply_one "$work/series/$patch_name"
done <"$work/series/series"
if [ $missing -gt 0 ]; then
	cat <<-SAY
		$missing patches do not fit. In $tree each patch is a commit with what fits of it: edit
		them with git rebase -i base, the rejected hunks are $work/*.rej. Then run
		ci/patches-git.sh export $version $tree
	SAY
	exit 1
fi
add_version
build
