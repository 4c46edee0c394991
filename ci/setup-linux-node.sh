#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Builds the kernel "node" of the test machine: lean.config with what container
# runtimes and a kubelet need, tests/qemu/node.config. It has a script of its own
# because the other kernels' keys in the store contain theirs.
. "$(dirname "$0")/setup-linux.sh" lean

# What node.config says replaces what base.config says.
base=$BUILD/work/node-base.config
mkdir -p "$BUILD/work"
awk -F= 'FNR == NR { own[$1]; next } !($1 in own)' "$ROOT/tests/qemu/node.config" \
	"$ROOT/tests/qemu/base.config" >"$base"
flavour=node
fragments=("$base" "$ROOT/tests/qemu/node.config")
key=$(content_key "$key" "@$base" "@${fragments[1]}" "@$ROOT/ci/setup-linux-node.sh")
build_once linux-node "$key" "Linux node kernel" build_linux
link_to "$built" "$BUILD/linux/node"
