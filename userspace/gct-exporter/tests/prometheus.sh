#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: prometheus.sh PROGRAMS PROMETHEUS
#
# A real Prometheus scrapes gct-exporter of the folder PROGRAMS on a daemon without a GPU, and
# evaluates the alert rules. promtool takes rules and page. Prints a line for each test.
set -u
PROGRAMS=$1 PROMETHEUS=$2
HERE=$(cd "$(dirname "$0")/.." && pwd)
# A slow machine takes seconds where a fast one takes tenths.
WAIT=120

work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT

try() {
	local what=$1
	shift
	if "$@" >"$work/last" 2>&1; then
		printf 'ok %s\n' "$what"
	else
		tail -n 20 "$work/last"
		printf 'FAILED %s\n' "$what"
	fi
}

until_true() {
	local end=$((SECONDS + WAIT))
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.2
	done
}

# Where a program that takes a free port listens, by its messages.
address_in() {
	grep -o '127\.0\.0\.1:[0-9]*' "$1" | tail -n 1
}

ctl() {
	"$PROGRAMS/gctctl" --dir "$work/gctd" "$@"
}

start() {
	mkdir -p "$work/gpus/0000:01:00.0" "$work/gctd"
	printf 'Model: \t\t NVIDIA H200\nBus Location: \t 0000:01:00.0\nDevice Minor: \t 0\n' \
		>"$work/gpus/0000:01:00.0/information"
	"$PROGRAMS/gctd" --dir "$work/gctd" --gpus "$work/gpus" --tpcs 0-65 >"$work/gctd.log" 2>&1 &
	until_true test -S "$work/gctd/admin.sock" || return
	ctl create web && ctl set web gmem.limit=1G tpc.quota=8 compute.freeze=1 || return
	"$PROGRAMS/gct-exporter" --dir "$work/gctd" --listen 127.0.0.1:0 2>"$work/exporter.log" &
	until_true grep -q listening "$work/exporter.log"
}

# page ACCEPT: the metrics as a client of that format gets them.
page() {
	local address
	address=$(address_in "$work/exporter.log")
	exec 3<>"/dev/tcp/${address%:*}/${address#*:}" || return
	printf 'GET /metrics HTTP/1.0\r\nAccept: %s\r\n\r\n' "$1" >&3
	sed '1,/^\r$/d' <&3
	exec 3>&-
}

lints() {
	page 'text/plain;version=0.0.4' >"$work/page" && grep -q '^gctgroup_up 1$' "$work/page" &&
		"$PROMETHEUS/promtool" check metrics <"$work/page"
}

start_prometheus() {
	# The rules without the hour for which somebody must be frozen.
	sed 's/^\( *for:\) .*/\1 0s/' "$HERE/alerts.yml" >"$work/alerts.yml"
	cat >"$work/prometheus.yml" <<-YAML
		global: {scrape_interval: 1s, evaluation_interval: 1s}
		rule_files: [alerts.yml]
		scrape_configs:
		  - job_name: gctgroup
		    static_configs: [{targets: ["$(address_in "$work/exporter.log")"]}]
	YAML
	"$PROMETHEUS/promtool" check config "$work/prometheus.yml" || return
	"$PROMETHEUS/prometheus" --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" \
		--web.listen-address=127.0.0.1:0 >"$work/prometheus.log" 2>&1 &
	until_true prometheus_listens
}

# It does not say which free port it took.
prometheus_listens() {
	local inode
	for inode in $(ls -l "/proc/$!/fd" | sed -n 's/.*socket:\[\([0-9]*\)\]/\1/p'); do
		port=$(awk -v inode="$inode" '$10 == inode && $4 == "0A" { split($2, at, ":"); print at[2] }' /proc/net/tcp)
		[ -z "$port" ] || { port=$((16#$port)); return; }
	done
	return 1
}

# has QUERY VALUE: Prometheus answers a query by this value.
has() {
	"$PROMETHEUS/promtool" query instant "http://127.0.0.1:$port" "$1" | grep -qF "=> $2 @"
}

try "promtool takes the alert rules" "$PROMETHEUS/promtool" check rules "$HERE/alerts.yml"
try "the alerts on health fire when they should, and not else" "$PROMETHEUS/promtool" test rules "$HERE/alerts.test.yml"
try "the exporter runs on a daemon" start
try "promtool finds nothing wrong with the page" lints
try "a Prometheus starts with the rules" start_prometheus
try "it scrapes the exporter" until_true has 'up{job="gctgroup"}' 1
try "it has a group's limit" until_true has 'gctgroup_group_memory_limit_bytes{group="web"}' 1073741824
try "and the identity of a GPU" until_true has 'gctgroup_gpu_info{name="NVIDIA H200"}' 1
try "an alert fires for a frozen group" until_true has 'ALERTS{alertname="GctgroupFrozen",alertstate="firing"}' 1
try "and no other" has 'count(ALERTS)' 1
