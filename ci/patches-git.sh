#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Turns the patch series of a driver version into a git branch and back, so that
# it can be edited with git rebase instead of by hand.
#
#   ci/patches-git.sh tree VERSION DIR     DIR becomes a git repository: one
#                                          commit for the pristine kernel-open,
#                                          tagged "base", then one per patch
#   ci/patches-git.sh export VERSION DIR   writes base..HEAD of DIR back as the
#                                          hunks of VERSION, with the digest in
#                                          BASE, to which it adds a new version;
#                                          hunks of other versions stay

. "$(dirname "$0")/lib.sh"

usage() {
	sed -n '4,15s/^# \{0,1\}//p' "$0"
	exit 2
}

[ $# -eq 3 ] || usage
version=$2 dir=$3
pristine=$BUILD/nv/$version/kernel-open
base=$ROOT/open-gpu-kernel-modules-patches/BASE
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

make_tree() {
	grep -qxF "[$version]" "$base" || die "BASE has no version $version"
	[ -d "$pristine" ] || die "$pristine is missing: run make setup"
	[ ! -e "$dir" ] || die "$dir exists already"
	mkdir -p "$dir"
	tar -C "$pristine" --exclude='*.o_binary' -cf - . | tar -C "$dir" -xf -
	git -C "$dir" init -q
	# Commits of this tree become patches, which the maintainers write and sign.
	git -C "$dir" config user.name 'gctgroup maintainers'
	git -C "$dir" config user.email maintainers@gctgroup.dev
	git -C "$dir" add -Af .
	git -C "$dir" commit -qm "Import kernel-open $version"
	git -C "$dir" tag base
	"$ROOT/ci/series.py" write "$version" "$scratch" "$pristine"
	git -C "$dir" am -q "$scratch"/[0-9]*.patch
}

# Reads a list of files, prints one digest over those that BASE has.
base_digest() {
	local file
	while read -r file; do
		git -C "$dir" cat-file -e "base:$file" 2>/dev/null || continue
		printf '%s  %s\n' "$(git -C "$dir" show "base:$file" | sha256sum | cut -d' ' -f1)" "$file"
	done | sha256sum | cut -d' ' -f1
}

export_series() {
	local digest
	grep -qxF "[$version]" "$base" ||
		printf '\n[%s]\nsource: a tree that make port was given, not tested\ntouched-sha256:\n' "$version" >>"$base"
	git -C "$dir" format-patch -q --zero-commit --no-signature --no-renames \
		-n --subject-prefix=PATCH -o "$scratch" base..HEAD
	"$ROOT/ci/series.py" import "$version" "$scratch"
	digest=$(git -C "$dir" diff --name-only base HEAD | LC_ALL=C sort | base_digest)
	sed -i "/^\[$version\]$/,/^\[/s/^touched-sha256:.*/touched-sha256: $digest/" "$base"
}

case $1 in
tree) make_tree ;;
export) export_series ;;
*) usage ;;
esac
