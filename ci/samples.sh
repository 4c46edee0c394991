#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Keeps the samples of gctgroup-docs/results in one archive.
#
#   ci/samples.sh                  list them
#   ci/samples.sh FILE.json ...    add them, or replace those of the same name
#
# `tar xf gctgroup-docs/results/samples.tar.xz -C DIR` takes them out. The same files give the same
# archive.

set -euo pipefail

archive=$(cd "${0%/*}/../gctgroup-docs/results" && pwd)/samples.tar.xz

if [ $# = 0 ]; then
	exec tar tf "$archive"
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar xf "$archive" -C "$folder"
cp -- "$@" "$folder"
(
	cd "$folder"
	tar c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 -- *.json
) | xz -9e >"$archive.new"
mv "$archive.new" "$archive"
