#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Turns a patch series into a git branch and back, so that it can be edited with
# git rebase instead of by hand.
#
#   ci/patches-git.sh tree VERSION DIR     DIR becomes a git repository: one
#                                          commit for the pristine kernel-open,
#                                          tagged "base", then one per patch
#   ci/patches-git.sh export VERSION DIR   writes base..HEAD of DIR back as the
#                                          series of VERSION, with the digest in
#                                          BASE and the cover letter's diffstat

. "$(dirname "$0")/lib.sh"

usage() {
	sed -n '4,14s/^# \{0,1\}//p' "$0"
	exit 2
}

[ $# -eq 3 ] || usage
version=$2 dir=$3
series_dir=$ROOT/open-gpu-kernel-modules-patches/$version
pristine=$BUILD/nv/$version/kernel-open
[ -e "$series_dir/BASE" ] || die "no series for version $version"

make_tree() {
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
	sed "s,^,$series_dir/," "$series_dir/series" | xargs git -C "$dir" am -q
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
	local digest cover=$series_dir/0000-cover-letter.md
	rm -f "$series_dir"/[0-9]*.patch
	git -C "$dir" format-patch -q --zero-commit --no-signature --no-renames --abbrev=12 \
		-n --subject-prefix=PATCH -o "$series_dir" base..HEAD
	(cd "$series_dir" && printf '%s\n' [0-9]*.patch >series)
	digest=$(git -C "$dir" diff --name-only base HEAD | LC_ALL=C sort | base_digest)
	sed -i "s/^touched-sha256: .*/touched-sha256: $digest/" "$series_dir/BASE"
	# The diffstat is the last thing in the letter, between fences.
	sed -i '/^```$/,$d' "$cover"
	{
		printf '```\n'
		git -C "$dir" diff --stat=80 base HEAD
		printf '```\n'
	} >>"$cover"
}

case $1 in
tree) make_tree ;;
export) export_series ;;
*) usage ;;
esac
