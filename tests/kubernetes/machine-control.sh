#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: machine-control.sh
#
# Runs in the network namespace of the machine that machine.sh runs in: the control plane of its
# node. A machine on a slow host is silent for longer than a node may be by default.
set -u
export PATH=/gct/bin:/usr/sbin:/usr/bin KUBECONFIG=/run/kubeconfig HOME=/root
. /gct/tests/control-plane.sh
ip link set lo up
configure_control_plane >/gct/logs/configure.log 2>&1
start_api_server
start_deciders --node-monitor-grace-period=300s
wait
