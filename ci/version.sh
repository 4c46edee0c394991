#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Prints the version of this source. userspace/Cargo.toml names the next release, which a tag of
# its name makes; every other commit comes before it: 0.2.0~git20261123.014500.27e6de5a.
. "$(dirname "$0")/lib.sh"

release=$(sed -n '/^\[workspace\.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' "$ROOT/userspace/Cargo.toml")
[ -n "$release" ] || die "userspace/Cargo.toml has no version"
# An archive of a release has no history.
if ! commit=$(git -C "$ROOT" rev-parse --short=8 HEAD 2>/dev/null) ||
	git -C "$ROOT" tag --points-at HEAD | grep -qxF "v$release"; then
	printf '%s\n' "$release"
	exit 0
fi
time=$(TZ=UTC git -C "$ROOT" log -1 --date=format-local:%Y%m%d.%H%M%S --format=%cd)
printf '%s~git%s.%s\n' "$release" "$time" "$commit"
