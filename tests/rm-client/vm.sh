#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the machine: every test, or those that the file `filter` names. A filter
# of two words is another command, such as "crowd 1000".
. /test/lib.sh
load_nvidia || exit
load_uvm || exit
# A crowd needs many pipes.
ulimit -n 8192
set -- $(cat /test/filter 2>/dev/null)
[ $# -eq 2 ] || set -- all "$@"
exec rm-test "$@"
