# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Jobs of a real slurmctld and slurmd ask for shards of two GPUs, and get their groups by the
# package's prolog and epilog. gctd has no GPU. Slurm's own cgroups need a machine with version 2
# alone: here the jobs enter them, which is all that the test plays.

install_deb /gct/new/gctgroup-tools_*.deb >/tmp/install.log 2>&1
cp /gct/programs-of-tests/tenant /usr/local/bin
hostname node1
ip addr add 10.99.0.1/32 dev lo
printf '127.0.0.1 localhost\n10.99.0.1 node1\n' >/etc/hosts
for number in 0 1; do
	bus=0000:0$((number + 1)):00.0
	mkdir -p /tmp/gpus/$bus
	printf 'Model: \t\t NVIDIA H200\nBus Location: \t %s\nDevice Minor: \t %d\n' $bus $number \
		>/tmp/gpus/$bus/information
	[ -e /dev/nvidia$number ] || mknod /dev/nvidia$number c 1 3
done
mount -t cgroup2 cgroup2 /mnt
# Two clones do not meet.
SCOPE=/gct-slurm-$(stat -c %i /gct)
mkdir "/mnt$SCOPE"
cat >/etc/default/gctgroup-slurm <<SETTINGS
SHARDS=4
SHARD_TPCS=8
SHARD_MIB=512
LIMITS='compute.weight = 50
tpc.steal = 0'
GCTCTL="gctctl --user"
SCOPE=$SCOPE
SETTINGS

# Slurm, with four shards on each of two GPUs.
hooks=/usr/lib/gctgroup/slurm
cat >/etc/slurm/slurm.conf <<CONF
ClusterName=test
SlurmctldHost=node1
SlurmUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdParameters=config_overrides
MpiDefault=none
GresTypes=gpu,shard
Prolog=$hooks/prolog
Epilog=$hooks/epilog
TaskProlog=$hooks/task-prolog
PrologFlags=Alloc
KillWait=1
NodeName=node1 CPUs=8 Gres=gpu:2,shard:8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
printf 'Name=gpu File=/dev/nvidia[0-1]\nName=shard Count=8\n' >/etc/slurm/gres.conf
echo CgroupPlugin=cgroup/v1 >/etc/slurm/cgroup.conf
mkdir -p /var/spool/slurmctld /var/spool/slurmd /run/munge
chown munge: /run/munge
setpriv --reuid munge --regid munge --clear-groups munged --force -F >/tmp/munged.log 2>&1 &
start_gctd() {
	gctd --gpus /tmp/gpus --tpcs 0-65 </dev/null >>/tmp/gctd.log 2>&1 &
	daemon=$!
}
start_gctd
slurmctld -D >/tmp/slurmctld.log 2>&1 &
slurmd -D >/tmp/slurmd.log 2>&1 &

# soon COMMAND...: waits until the command succeeds.
soon() {
	local limit=$((SECONDS + 30))
	until "$@" >/tmp/last 2>&1; do
		[ $SECONDS -lt $limit ] || { cat /tmp/last; tail -n 20 /tmp/slurm*.log; return 1; }
		sleep 0.1
	done
}
is() { [ "$1" = "$2" ] || { echo "is $1, not $2"; return 1; }; }

# job OPTION...: submits a job whose program takes 512 MiB, asks for 600, and stays.
cat >/tmp/job <<JOB
#!/bin/bash
mkdir -p "/mnt$SCOPE/job_\$SLURM_JOB_ID"
echo \$\$ >"/mnt$SCOPE/job_\$SLURM_JOB_ID/cgroup.procs"
echo "\$LD_PRELOAD"
exec env -u LD_PRELOAD tenant 512 600
JOB
job() { sbatch --output=/tmp/out-%j "$@" /tmp/job; }
# A line of scontrol's, for a job's name and comment.
line=$'x\n     Nodes=node1 CPU_IDs=0 Mem=0 GRES=shard:4(IDX:0)\n'
lie=(--job-name="$line" --comment="${line//4/400000000000000000000}")
limits() { printf '%s ' "$(gctctl --user get "$1" tpc.quota)" "$(gctctl --user get "$1" gmem.limit)"; }
has_limits() { is "$(limits "$1")" "$2 $3 "; }
says() { is "$(cat "/tmp/out-$1")" "/usr/lib/gctgroup/libgct_preload.so"$'\n'"$2"; }
groups() { is "$(gctctl --user ls --json | grep -o '"slurm_[0-9]*"' | tr -d '"' | sort -u | xargs)" "$*"; }
node_is() { is "$(sinfo -h -o %t)" "$1"; }

printf 'Slurm of this system: %s\n' "$(slurmd -V)"
try "a node offers shards of its GPUs" soon node_is idle
try "two jobs have groups of their own" eval 'job --gres=shard:2 "${lie[@]}" && job --gres=shard:3 && soon groups slurm_1 slurm_2'
try "a job with two shards has twice the limits of one, and gains nothing by its name" has_limits slurm_1/0 16 1073741824
try "and the limits that all have" eval 'is "$(gctctl --user get slurm_1/0 compute.weight)" 50'
try "its program has the library, its TPCs and no more memory than that" \
	soon says 1 $'can count on 16 TPCs\n512 MiB granted\n600 MiB refused'
try "its group is charged" eval 'is "$(gctctl --user get slurm_1/0 gmem.current)" 536870912'
try "a job with three shards has three times the limits, on the other GPU" has_limits slurm_2/1 24 1610612736
try "and none on this one" eval 'is "$(gctctl --user get slurm_2/0 tpc.quota)" none'
try "a job with a whole GPU waits" eval 'job --gres=gpu:1 && sleep 1 && is "$(squeue -h -j 3 -o %t)" PD'
try "the group goes with its job" eval 'scancel 1 && soon groups slurm_2'
try "a job with a whole GPU has no group" eval 'soon test -s /tmp/out-3; groups slurm_2'
scancel 2 3
try "nothing is left" soon groups
try "the node takes jobs" soon node_is idle

kill $daemon
wait $daemon
try "without gctd no job with shards starts, and the node is drained" eval 'job --gres=shard:1 && soon node_is drain'
scancel 4
start_gctd
try "with it the next job starts" eval 'soon gctctl --user ls && soon scontrol update nodename=node1 state=resume &&
	job --gres=shard:1 && soon groups slurm_5 && soon test -s /tmp/out-5'
scancel 5
try "and its group goes, too" soon groups
soon rmdir "/mnt$SCOPE"/job_*
rmdir "/mnt$SCOPE"
