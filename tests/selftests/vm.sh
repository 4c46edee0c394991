#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the machine: every test, or those that the file `filter` names.
exec gct-selftest all --module /modules/nvidia.ko $(cat /test/filter 2>/dev/null)
