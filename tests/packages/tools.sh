# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# gctgroup-tools is installed, used, upgraded, removed and purged.

files >/tmp/before
try "gctgroup-tools installs with what it depends on" install_deb /gct/old/gctgroup-tools_*.deb

enabled() { [ -L "/etc/systemd/system/multi-user.target.wants/$1.service" ]; }
gctd_is_enabled() {
	enabled gctd && enabled gctgroup-selftest && ! enabled gct-exporter && ! enabled gct-device-plugin
}
try "gctd and the self-test start at boot, and neither exporter nor plugin" gctd_is_enabled

installs_user() { [ "$(id -u _gctd)" -gt 0 ] && id -nG _gctd | grep -qw video; }
try "gctd has a user of its own" installs_user

mkdir -p /tmp/gpus/0000:01:00.0
printf 'Model: \t\t NVIDIA H200\nBus Location: \t 0000:01:00.0\nDevice Minor: \t 0\n' \
	>/tmp/gpus/0000:01:00.0/information
install -d -o _gctd -g _gctd /run/gctgroup
setpriv --reuid _gctd --regid _gctd --init-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
	gctd --gpus /tmp/gpus --tpcs 0-7 </dev/null >/tmp/gctd.log 2>&1 &
daemon=$!
for ((i = 0; i < 100; i++)); do
	[ ! -e /run/gctgroup/admin.sock ] || break
	sleep 0.1
done
# bare GROUP COMMAND...: as root of a group, without a capability.
bare() { setpriv --regid 0 --groups "$1" --bounding-set=-all --inh-caps=-all "${@:2}"; }
takes_limits() {
	bare _gctd gctctl --user create web
	gctctl --user set web tpc.mask=0-3 gmem.limit=1G
	[ "$(gctctl --user get web/0 tpc.mask)" = 0-3 ]
}
try "gctd without a capability takes limits, and so from root of its group" takes_limits
try "not from a root without group and capability" refuses 'ermission denied' bare 0 gctctl --user create mine
has_library() { gctctl run --group web -- grep -q /usr/lib/gctgroup/libgct_preload.so /proc/self/maps; }
try "a program that gctctl runs has the library" has_library
without_driver() { gctctl selftest --gpus /tmp/gpus 2>&1 | grep -F 'No NVIDIA driver is loaded'; }
try "gctctl selftest says that there is no driver" without_driver
has_program() {
	echo 'NVRM version: test 1.2' >/tmp/version
	gctctl selftest --gpus /tmp/gpus | grep -F 'The driver lists no GPU'
	mkdir -p /var/lib/gctgroup/selftest && touch /var/lib/gctgroup/selftest/GPU-1.1.2
}
try "and with one it finds its program" has_program
try "gctd stops" eval "kill $daemon"
wait $daemon

# Each option that a program has is in its page.
pages_are_complete() {
	local program option page
	for program in gctd gct-exporter; do
		page=$(zcat "/usr/share/man/man8/$program.8.gz")
		for option in $("$program" --help | grep -o '^ *\(-., \)\?--[a-z-]*' | grep -o -- '--.*'); do
			grep -qF -- "Fl -${option#--}" <<<"$page" || { echo "$program $option"; return 1; }
		done
	done
	[ -e /usr/share/man/man1/gctctl-run.1.gz ] && [ -e /usr/share/man/man8/gct-device-plugin.8.gz ]
}
completes() {
	. /usr/share/bash-completion/completions/gctctl
	declare -F _gctctl
}
try "the manual pages have every option" pages_are_complete
try "bash completes gctctl" completes
try "licences and components are there" test -s /usr/share/doc/gctgroup-tools/sbom.spdx.json

echo '# mine' >>/etc/default/gctd
rm /etc/systemd/system/multi-user.target.wants/gctd.service
upgrades() {
	install_deb /gct/new/gctgroup-tools_*.deb
	[ "$(dpkg-query -W -f '${Version}' gctgroup-tools)" = "$(dpkg-deb -f /gct/new/gctgroup-tools_*.deb Version)" ]
}
try "it upgrades" upgrades
try "an upgrade leaves configuration alone" grep -qx '# mine' /etc/default/gctd
still_disabled() { ! enabled gctd; }
try "an upgrade leaves a disabled unit disabled" still_disabled

removes() {
	apt-get remove -y gctgroup-tools
	[ ! -e /usr/sbin/gctd ] && [ ! -e /usr/lib/gctgroup ] && [ -e /etc/default/gctd ]
}
try "it can be removed" removes
purges() {
	dpkg --purge gctgroup-tools
	files >/tmp/after
	diff /tmp/before /tmp/after
}
try "purging it leaves no file" purges
