#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the machine: every test, or those that the file `filter` names.
. /test/lib.sh
load_nvidia || exit
load_uvm || exit
exec rm-test all $(cat /test/filter 2>/dev/null)
