#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes build/prometheus: Debian 12's Prometheus and promtool, unpacked and not installed.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/apt.sh"
APT_HOME=$BUILD/apt-prometheus

apt_sources() {
	printf '%s\n' "deb $1 bookworm main"
}

unpack_prometheus() {
	local dir=$1
	cd "$dir"
	rm -rf unpacked
	private_apt apt-get download prometheus
	dpkg-deb -x prometheus_*.deb unpacked
	mv unpacked/usr/bin/{prometheus,promtool} .
	rm -r unpacked prometheus_*.deb
	./promtool --version
}

dir=$(store_dir prometheus "$(content_key "$(declare -f apt_sources unpack_prometheus)")")
[ -e "$dir/.complete" ] || apt_refresh
build_once prometheus "$(basename "$dir")" "Prometheus of Debian 12" unpack_prometheus
link_to "$built" "$BUILD/prometheus"
