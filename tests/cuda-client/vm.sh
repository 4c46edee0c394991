#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the machine: programs on NVIDIA's libcuda and NVML, by the tests of cuda-client that the
# file `filter` chooses. /root.tar has the libraries and the programs.
. /test/lib.sh
tar -xf /root.tar -C / && rm /root.tar || exit
load_nvidia || exit
load_uvm || exit
export PATH=$PATH:/usr/bin
LD_PRELOAD=/test/sockets.so exec cuda-client limits "$(cat /test/filter)"
