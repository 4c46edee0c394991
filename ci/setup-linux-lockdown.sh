#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Builds the kernel "lockdown" of the test machine: lean.config with the lockdown of
# Secure Boot, tests/qemu/lockdown.config. As ci/setup-linux-node.sh otherwise.
. "$(dirname "$0")/setup-linux.sh" lean

# What lockdown.config says replaces what base.config says.
base=$BUILD/work/lockdown-base.config
mkdir -p "$BUILD/work"
awk -F= 'FNR == NR { own[$1]; next } !($1 in own)' "$ROOT/tests/qemu/lockdown.config" \
	"$ROOT/tests/qemu/base.config" >"$base"
flavour=lockdown
fragments=("$base" "$ROOT/tests/qemu/lockdown.config")
key=$(content_key "$key" "@$base" "@${fragments[1]}" "@$ROOT/ci/setup-linux-lockdown.sh")
build_once linux-lockdown "$key" "Linux lockdown kernel" build_linux
link_to "$built" "$BUILD/linux/lockdown"
