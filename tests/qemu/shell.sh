# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs before the shell of `make shell` appears.
. /test/lib.sh

load_nvidia && load_uvm || exit
cat <<TEXT

The driver is loaded. Things to try:
    cd $GCT
    echo create web >control;  echo \$\$ >web/group.procs;  ls web/0
    gctctl ls;  gctctl show web;  gctctl doctor
    gct-selftest client --hold 60 &
    . /test/lib.sh;  unload_nvidia
TEXT
