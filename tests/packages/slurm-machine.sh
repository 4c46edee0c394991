# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# In Debian 12 with Slurm: a job of Slurm's is a member of its group by the cgroup that Slurm makes.

# A failure ends the script.
explain() {
	tail -n 15 /tmp/*.log
	exit 1
}

group_cgroup() { cat $GCT/slurm_1/group.cgroup; }
# The program that the job runs is in a cgroup below the group's.
has_program() {
	local pid
	pid=$(pidof rm-pod) && grep -q "^0::$(group_cgroup)/" "/proc/$pid/cgroup"
}
groups() { is "$(ls $GCT | grep ^slurm_ | xargs)" "$*"; }

ip link set lo up
ip addr add 10.99.0.1/32 dev lo
printf '127.0.0.1 localhost\n10.99.0.1 node1\n' >/etc/hosts
hostname node1
cat >/etc/default/gctgroup-slurm <<'SETTINGS'
SHARDS=4
SHARD_TPCS=
SHARD_MIB=16
LIMITS='compute.timeslice = "1ms"'
GCTCTL=gctctl
SCOPE=/system.slice/${SLURMD_NODENAME}_slurmstepd.scope
SETTINGS
cat >/etc/slurm/slurm.conf <<'CONF'
ClusterName=test
SlurmctldHost=node1
SlurmUser=root
ProctrackType=proctrack/cgroup
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
Prolog=/usr/lib/gctgroup/slurm/prolog
Epilog=/usr/lib/gctgroup/slurm/epilog
PrologFlags=Alloc
KillWait=1
NodeName=node1 CPUs=2 Gres=gpu:1,shard:4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
printf 'Name=gpu File=/dev/nvidia0\nName=shard Count=4\n' >/etc/slurm/gres.conf
printf 'CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n' >/etc/slurm/cgroup.conf
# systemd's.
mkdir /sys/fs/cgroup/system.slice
mkdir -p /var/spool/slurmctld /var/spool/slurmd /run/munge
chown munge: /run/munge
setpriv --reuid munge --regid munge --clear-groups munged --force -F >/tmp/munged.log 2>&1 &
slurmctld -D >/tmp/slurmctld.log 2>&1 &
slurmd -D >/tmp/slurmd.log 2>&1 &

printf 'KTAP version 1\n1..6\n'
soon "the node takes jobs" eval 'is "$(sinfo -h -o %t)" idle'
sbatch --gres=shard:2 --output=/tmp/out --wrap 'exec rm-pod 16 32' >/tmp/sbatch.log 2>&1
soon "a job's program works, and has the memory of its shards only" eval 'is "$(cat /tmp/out)" "10 pieces of work done
time slice 1000 us
16 MiB granted
32 MiB refused"'
soon "it is in the cgroup of its group, by Slurm" has_program
soon "the group is charged" eval '[ "$(cat $GCT/slurm_1/0/gmem.current)" -ge 16777216 ]'
scancel 1
soon "the group goes with its job" groups
soon "the node takes jobs again" eval 'is "$(sinfo -h -o %t)" idle'
kill $(jobs -p)
wait
