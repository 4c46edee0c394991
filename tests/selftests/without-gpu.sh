#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in a machine without a GPU: the driver's init fails there.
exec gct-selftest without-gpu --module /modules/nvidia.ko
