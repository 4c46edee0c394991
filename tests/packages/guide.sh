# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Executes each block of commands of gctgroup-docs/guide.md, in order, but for those of the patched
# driver, which the job gctctl executes, and for containers, which the job kubernetes has. There are
# no GPU and no systemd: gctd is told of a GPU, and the programs below play what is missing.

mkdir -p /tmp/gpus/0000:01:00.0 /tmp/here
printf 'Model: \t\t NVIDIA H200\nBus Location: \t 0000:01:00.0\nDevice Minor: \t 0\n' \
	>/tmp/gpus/0000:01:00.0/information
cp /gct/new/gctgroup-tools_*.deb /tmp/here
cd /tmp/here

# A program is one that has the library.
for program in serve train; do
	printf '#!/bin/sh\nexec grep -q /usr/lib/gctgroup/libgct_preload.so /proc/self/maps\n' >$program
	chmod +x $program
done

# systemctl runs what a unit says, with its environment and its options, and first the units that it
# pulls in. A condition that does not hold skips a unit and fails nobody.
cat >/usr/local/bin/systemctl <<'SYSTEMCTL'
#!/bin/bash
now='' units=()
for word in "${@:2}"; do
	case $word in
	--now) now=yes ;;
	*) units+=("${word%.service}") ;;
	esac
done
case $1 in
restart | start) now=yes ;;
enable) for unit in "${units[@]}"; do deb-systemd-helper enable "$unit.service"; done ;;
daemon-reload) ;;
*) exit 1 ;;
esac
[ -n "$now" ] || exit 0
for unit in "${units[@]}"; do
	file=/lib/systemd/system/$unit.service
	for pulled in $(sed -n 's/^\(Requires\|Wants\)=//p' "$file"); do
		[ -e "/run/${pulled%.service}.runs" ] || "$0" start "$pulled" || exit
	done
	for condition in $(sed -n 's/^ConditionPathExists=//p' "$file"); do
		case $condition in
		!*) [ ! -e "${condition#!}" ] || continue 2 ;;
		*) [ -e "$condition" ] || continue 2 ;;
		esac
	done
	eval "$(sed -n 's/^Environment=\([A-Z_]*\)=\(.*\)$/\1="\2"/p' "$file")"
	environment=$(sed -n 's/^EnvironmentFile=-//p' "$file")
	[ ! -e "$environment" ] || . "$environment"
	eval "command=($(sed -n 's/^ExecStart=//p' "$file"))"
	user=$(sed -n 's/^User=//p' "$file")
	if [ -n "$user" ]; then
		mkdir -p "/run/$(sed -n 's/^RuntimeDirectory=//p' "$file")"
		chown -R "$user:" "/run/$(sed -n 's/^RuntimeDirectory=//p' "$file")"
		command=(setpriv --reuid "$user" --regid "$user" --init-groups --inh-caps=-all "${command[@]}")
	fi
	if grep -q '^Type=oneshot' "$file"; then
		"${command[@]}" || exit
	else
		setsid "${command[@]}" </dev/null >/tmp/$unit.log 2>&1 &
		echo $! >/run/$unit.runs
		sleep 1
	fi
done
SYSTEMCTL
# systemd-run gives a program its environment.
cat >/usr/local/bin/systemd-run <<'SYSTEMD_RUN'
#!/bin/bash
[ "$1 $2" = "--slice=train.slice -E" ] && exec env "${@:3}"
SYSTEMD_RUN
cat >/usr/local/bin/curl <<'CURL'
#!/bin/bash
exec 3<>"/dev/tcp/127.0.0.1/9910" && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3 && cat <&3
CURL
chmod +x /usr/local/bin/*

number=0
run_block() {
	local block=$1 first
	number=$((number + 1))
	first=${block%%$'\n'*}
	printf '%s\n' "$block" >/tmp/block
	case $first in
	# It finds that there is no driver, and says so.
	"gctctl --user doctor"*)
		try "$first" says 'nvidia is not loaded' gctctl --user doctor
		printf '%s\n' "$block" | sed 1d >/tmp/block
		;;
	esac
	try "$first" bash -e -o pipefail -c '. /tmp/block; for job in $(jobs -p); do wait $job; done'
	# Where systemd runs, the package's script has started gctd, which finds the GPUs.
	[ $number -ne 1 ] || printf 'GCTD_OPTIONS="--gpus /tmp/gpus --tpcs 0-65"\n' >/etc/default/gctd
	[ $number -ne 1 ] || systemctl start gctd
}

# Where the patched driver is, the unit of the groups takes its tree, and nobody starts gctd. The
# device is a file here, which gctctl finds and cannot use.
patched_boot() {
	local outcome=0
	kill "$(cat /run/gctd.runs)"
	while [ -e /run/gctgroup/admin.sock ]; do sleep 0.1; done
	rm /run/gctd.runs
	touch /dev/gctgroup
	says /dev/gctgroup systemctl start gctgroup-groups || outcome=1
	systemctl start gct-device-plugin gctd
	[ ! -e /run/gctd.runs ] || outcome=1
	kill "$(cat /run/gct-device-plugin.runs)" || true
	rm /dev/gctgroup
	systemctl start gctd gctgroup-groups
	gctctl --user get serve/0 gmem.limit
	return $outcome
}

block= section=
while IFS= read -r line; do
	case $line in
	'## '*)
		section=${line#'## '}
		[ "$section" != "With the patched driver" ] || try "no gctd beside the patched driver" patched_boot
		;;
	'    '*)
		case $section:$line in
		"With the patched driver:"* | Kubernetes:* | "Podman:    podman "*) ;;
		*) block+="${line#    }"$'\n' ;;
		esac
		;;
	*)
		[ -z "$block" ] || run_block "$block"
		block=
		;;
	esac
done </gct/guide.md
