# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# In Debian 12: systemd starts the package's units, as process 1 of a pid namespace. First the
# driver's nodes and debugfs are hidden, and gctd owns the tree; then the kernel does.
RESULTS=/var/results
TESTS=59
BOOT_SECONDS=300

# boot MODE: runs systemd until it has executed this script with MODE. Prints what that added to the
# results.
boot() {
	local before
	before=$(wc -l <$RESULTS)
	printf 'ARGUMENT=%s\n' "$1" >/etc/gct-test
	timeout --kill-after=5 $BOOT_SECONDS unshare --pid --mount --uts --ipc --fork --kill-child bash -c '
		mount -t proc proc /proc
		mount -t tmpfs tmpfs /run
		if [ '"$1"' = user ]; then
			mount -t tmpfs tmpfs /mnt
			for node in null zero full random urandom tty; do
				touch /mnt/$node
				mount --bind /dev/$node /mnt/$node
			done
			mkdir /mnt/shm /mnt/pts
			mount -t devpts -o newinstance,ptmxmode=0666 devpts /mnt/pts
			: >/mnt/console
			mknod /mnt/nvidia0 c 195 0
			ln -s /proc/self/fd /mnt/fd
			ln -s pts/ptmx /mnt/ptmx
			mount --move /mnt /dev
			mount -t tmpfs tmpfs /sys/kernel/debug
		fi
		exec env -i container=gct PATH=$PATH /lib/systemd/systemd --show-status=no --unit=gct-test.target'
	tail -n +$((before + 1)) $RESULTS
}

# The older package is installed as by apt. The GPUs are a file: nobody asks the driver here.
prepare() {
	# No CUDA runs here.
	dpkg-divert --quiet --local --rename --add /usr/lib/gctgroup/gct-load
	dpkg --install /debs/old.deb >/var/log/installed 2>&1 || cat /var/log/installed
	install -m 755 /debs/gct-load /usr/lib/gctgroup/gct-load
	mkdir -p /opt/gpus/0000:01:00.0 /etc/gctgroup /etc/default
	printf 'Model: \t\t NVIDIA H200\nBus Location: \t 0000:01:00.0\nDevice Minor: \t 0\n' \
		>/opt/gpus/0000:01:00.0/information
	printf 'GCTD_OPTIONS="--gpus /opt/gpus --tpcs 0-65"\n' >/etc/default/gctd
	printf '[group.train]\ngmem.limit = "32M"\ngroup.cgroup = "/train.slice"\n' >/etc/gctgroup/groups.toml
	printf '[group.serve]\ngmem.limit = "1G"\ngroup.cgroup = "/system.slice/serve.service"\n' >>/etc/gctgroup/groups.toml
	printf '[profile.small]\nslots = 2\ngmem.limit = "16M"\n' >/etc/gctgroup/profiles.toml
	mkdir -p /etc/systemd/system/gct-device-plugin.service.d
	printf '[Service]\nStandardError=append:/run/plugin.log\n' \
		>/etc/systemd/system/gct-device-plugin.service.d/log.conf
	cat >/etc/systemd/system/gct-test.target <<-'UNIT'
		[Unit]
		Requires=basic.target
		Wants=gctd.service gctgroup-groups.service gct-exporter.service gctgroup-selftest.service
		Wants=gct-device-plugin.service gct-test.service
		AllowIsolate=yes
	UNIT
	cat >/etc/systemd/system/gct-test.service <<-UNIT
		[Unit]
		After=gct-exporter.service gctgroup-groups.service
		[Service]
		Type=oneshot
		EnvironmentFile=/etc/gct-test
		ExecStart=/test.sh \$ARGUMENT
		ExecStopPost=systemctl exit
		StandardOutput=append:$RESULTS
		StandardError=inherit
	UNIT
	# A service as in the guide: its program has the library, and is a member by the unit's cgroup.
	mkdir -p /etc/systemd/system/serve.service.d
	printf '[Service]\nExecStart=/usr/bin/tenant 512 600\nStandardOutput=file:/run/serve\n' \
		>/etc/systemd/system/serve.service
	printf '[Unit]\nWants=gctgroup-groups.service\nAfter=gctgroup-groups.service\n[Service]\n%s\n' \
		Environment=LD_PRELOAD=/usr/lib/gctgroup/libgct_preload.so \
		>/etc/systemd/system/serve.service.d/gctgroup.conf
}

explain() {
	systemctl status --no-pager --lines=20 'gct*'
	tail -n 15 /run/plugin.log
}

# Programs that start one after the other while the package is upgraded. One that finds no daemon
# starts again, as the library asks again.
load() {
	while [ ! -e /run/upgraded ]; do
		tenant --exit 16 64 >>/run/load 2>/dev/null || sleep 0.05
	done
}
upgrades() {
	[ -e /run/upgraded ] || dpkg --install /debs/new.deb
	touch /run/upgraded
}
# runs UNIT: its process is of the installed package.
runs() { is "$(readlink "/proc/$(pid_of "$1")/exe")" "/usr/sbin/$1"; }
is_new() {
	is "$(dpkg-query -W -f '${Version}' gctgroup-tools)" "$(dpkg-deb -f /debs/new.deb Version)" &&
		[ "$(pid_of gctd)" != "$1" ] && runs gctd
}
# What groups, members and accounts are.
accounts() {
	local group
	for group in serve train told; do
		gctctl --user get $group group.procs
		gctctl --user get $group/0 gmem.limit
		gctctl --user get $group/0 gmem.current
		gctctl --user get $group/0 tpc.mask
	done
}

pid_of() { systemctl show --value --property=MainPID "$1"; }
# has UNIT FIELD VALUE: a line of the status of a unit's process.
has() { is "$(sed -n "s/^$2:\s*//p" "/proc/$(pid_of "$1")/status")" "$3"; }
# own UNIT NAMESPACE: it is in a namespace of its own.
own() { [ "$(readlink "/proc/$(pid_of "$1")/ns/$2")" != "$(readlink "/proc/1/ns/$2")" ]; }
# refuses_writes UNIT: its process sees the system read-only.
refuses_writes() { grep -q ' / / ro[, ]' "/proc/$(pid_of "$1")/mountinfo"; }
page() {
	exec 3<>/dev/tcp/127.0.0.1/9910 && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3 && cat <&3
}
shows() { page | grep -qF "$1"; }
# has_run UNIT: a unit that ends has succeeded.
has_run() {
	is "$(systemctl show --property=ActiveState,ConditionResult,ExecMainStatus "$1" | sort | xargs)" \
		"ActiveState=inactive ConditionResult=yes ExecMainStatus=0"
}
serves() { [ -S /var/lib/kubelet/device-plugins/gctgroup-small.sock ]; }
member() { [ "$(gctctl $user get "$1" group.procs)" = "$(pid_of "$2")" ]; }

user() {
	user=--user
	soon "systemd is process 1" is "$(cat /proc/1/comm)" systemd
	soon "gctd runs" is "$(systemctl is-active gctd)" active
	soon "it has the groups of the file" eval 'is "$(gctctl --user get train/0 gmem.limit)" 33554432'
	soon "gctd has a user of its own" eval 'has gctd Uid "$(id -u _gctd | sed "s/.*/&	&	&	&/")"'
	soon "it has CAP_SYS_RESOURCE" has gctd CapEff 0000000001000000
	soon "and no other capability" has gctd CapBnd 0000000001000000
	soon "and gains none" has gctd NoNewPrivs 1
	soon "its system calls are filtered" has gctd Seccomp 2
	soon "it has no network" own gctd net
	soon "it sees the system read-only" refuses_writes gctd
	soon "the exporter shows the tree" shows 'gctgroup_up{} 1'
	soon "the exporter is another user's" eval '! has gct-exporter Uid "0	0	0	0"'
	soon "it has no capability" has gct-exporter CapBnd 0000000000000000
	systemctl start serve
	soon "a service is a member by its drop-in" member serve serve.service
	soon "its program is refused memory beyond the limit" eval 'is "$(sed 1d /run/serve)" "512 MiB granted
600 MiB refused"'
	systemd-run --quiet --slice=train.slice --unit=train -p StandardOutput=file:/run/train \
		-E LD_PRELOAD=/usr/lib/gctgroup/libgct_preload.so tenant 16 64
	soon "what runs in a slice is a member of its group" member train train.service
	soon "under its limit" eval 'is "$(sed 1d /run/train)" "16 MiB granted
64 MiB refused"'
	systemd-run --quiet --unit=told -p StandardOutput=file:/run/told tenant 64
	gctctl --user create told
	gctctl --user set told gmem.limit=2G tpc.mask=0-7
	gctctl --user attach told --pid "$(pid_of told)"
	soon "a program that runs learns its group's mask" grep -x 'may use 8 TPCs' /run/told
	killed=$(pid_of gctd)
	kill -9 "$killed"
	soon "systemd starts a killed gctd anew" eval '[ "$(pid_of gctd)" -gt "$killed" ]'
	# systemd gives up on a unit by default that it starts more than five times in ten seconds.
	for _ in 1 2 3 4 5 6; do
		kill -9 "$(pid_of gctd)"
		sleep 1
	done
	soon "as often as it is killed, with its groups" eval 'is "$(gctctl --user get train/0 gmem.limit)" 33554432'
	soon "and those that no file has" eval 'is "$(gctctl --user get told/0 gmem.limit)" 2147483648'
	soon "a member by its pid is one again" member told told
	soon "the service's program is a member again" member serve serve.service
	soon "the exporter goes on" shows 'gctgroup_up{} 1'
	before=$(accounts)
	mkdir -p /etc/systemd/system/gctd.service.d
	printf '[Service]\nUser=root\nWatchdogSec=2\n' >/etc/systemd/system/gctd.service.d/root.conf
	systemctl daemon-reload
	systemctl restart gctd
	soon "a gctd of root, as in earlier releases, has all of it" eval \
		'has gctd Uid "0	0	0	0" && is "$(accounts)" "$before"'
	hung=$(pid_of gctd)
	kill -STOP "$hung"
	soon "one that does not serve is started anew" eval '[ "$(pid_of gctd)" -gt "$hung" ] && is "$(accounts)" "$before"'
	rm /etc/systemd/system/gctd.service.d/root.conf
	daemon=$(pid_of gctd)
	systemd-run --quiet --slice=train.slice --unit=load /test.sh load
	soon "programs start and end" test -s /run/load
	soon "the package is upgraded while programs run" upgrades
	soon "another gctd runs, of the new package" is_new "$daemon"
	soon "it is its own user's again" eval '! has gctd Uid "0	0	0	0"'
	soon "exporter and plugin are restarted" eval 'runs gct-exporter && runs gct-device-plugin'
	soon "groups, members, limits and charges are as before" eval 'is "$(accounts)" "$before"'
	soon "whoever started meanwhile had its group's limit" eval \
		'grep -qx "64 MiB refused" /run/load && ! grep -x "64 MiB granted" /run/load'
	systemctl stop gctd
	soon "gctd can be stopped" eval '! gctctl --user get told/0 tpc.mask'
	sleep 1
	systemctl start gctd
	soon "a gctd that was away has all of it" eval 'is "$(accounts)" "$before"'
	soon "no program had another mask at any time" eval 'is "$(sed 1,2d /run/told)" "may use 8 TPCs"'
	systemctl stop serve train told load
	soon "programs that have ended are no members" eval 'is "$(gctctl --user get serve group.procs)" ""'
	drop_in=/etc/systemd/system/gct-exporter.service.d
	mkdir -p $drop_in
	cp /usr/share/doc/gctgroup-tools/examples/gct-exporter-proc.conf $drop_in
	systemd-run --quiet --slice=train.slice --unit=bare env -i /bin/sh -c 'exec sleep 600 </dev/nvidia0'
	systemctl daemon-reload
	systemctl restart gct-exporter
	soon "by its drop-in the exporter sees who uses a GPU unknown to gctd" \
		shows 'gctgroup_group_processes_unknown{group="train",gpu="0"} 1'
	systemctl stop bare
	rm -r /dev/nvidia0 $drop_in
	soon "a self-test without a GPU ends well" has_run gctgroup-selftest
	soon "the plugin waits for a node's first kubelet" grep -q 'small: waits for a kubelet' /run/plugin.log
	mkdir -p /var/lib/kubelet/device-plugins
	soon "when its folder is there the plugin serves in it" serves
	soon "it has no capability" has gct-device-plugin CapBnd 0000000000000000
	soon "its system calls are filtered" has gct-device-plugin Seccomp 2
	soon "it has no network" own gct-device-plugin net
	soon "it sees the system read-only" refuses_writes gct-device-plugin
	soon "it has written its CDI specification" grep -q libgct_preload.so /run/cdi/gctgroup.dev_small.json
	killed=$(pid_of gct-device-plugin)
	rm /var/lib/kubelet/device-plugins/*
	kill -9 "$killed"
	soon "systemd starts a killed plugin anew" eval '[ "$(pid_of gct-device-plugin)" -gt "$killed" ] && serves'
}

kernel() {
	user=
	soon "gctd does not run beside the patched driver" is "$(systemctl is-active gctd)" inactive
	soon "the kernel's tree has the groups" eval 'is "$(gctctl get train/0 gmem.limit)" 33554432'
	systemd-run --quiet --slice=train.slice --unit=train -p StandardOutput=file:/run/train rm-pod 16 64
	soon "what runs in a slice has memory up to its group's limit" grep -x '16 MiB granted' /run/train
	soon "and is refused more" grep -x '64 MiB refused' /run/train
	soon "it is a member" member train train.service
	soon "the exporter shows the kernel's tree, by the drop-in" shows 'gctgroup_group_processes{group="train"} 1'
	systemctl stop train
	soon "what has ended is no member" eval 'is "$(gctctl get train group.procs)" ""'
	soon "the self-test has used the GPU, and stored its result" eval \
		'grep -x "masks exact" /var/lib/gctgroup/selftest/GPU-*.535.261.03 && has_run gctgroup-selftest'
	soon "the plugin serves the profile of the software GPU, by the drop-in" serves
	soon "it may write to the device alone" has gct-device-plugin CapBnd 0000000000200000
	soon "its CDI specification is the kernel's" grep -q GCTGROUP_MODE=kernel /run/cdi/gctgroup.dev_small.json
	soon "it serves what is healthy" eval '! grep unhealthy /run/plugin.log'
}

if [ "${1:-}" = load ]; then
	load
	exit
elif [ $# = 1 ]; then
	tests=$(grep -cE '^(not )?ok ' $RESULTS)
	"$1"
	exit
fi
printf 'KTAP version 1\n1..%d\n' $TESTS | tee $RESULTS
prepare
boot user
for unit in gct-exporter gct-device-plugin; do
	mkdir -p /etc/systemd/system/$unit.service.d
	cp /usr/share/doc/gctgroup-tools/examples/$unit-kernel.conf /etc/systemd/system/$unit.service.d
done
boot kernel
