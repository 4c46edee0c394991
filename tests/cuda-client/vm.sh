#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the machine: programs on NVIDIA's libcuda, NVML and MPS, by the tests of cuda-client whose
# kind the file `tests` says and that the file `filter` chooses. /root.tar has the libraries and the
# programs.
. /test/lib.sh
tar -xf /root.tar -C / && rm /root.tar || exit
load_nvidia || exit
load_uvm || exit
export PATH=$PATH:/usr/bin
exec cuda-client "$(cat /test/tests)" "$(cat /test/filter)"
