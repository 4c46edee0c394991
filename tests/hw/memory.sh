#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: memory.sh PROGRAMS
#
# Checks on a GPU that a tenant sees its gmem.limit as the memory of the GPU: PyTorch, cuMemGetInfo,
# nvidia-smi and JAX in a group, with the limit raised and lowered while a program runs. PROGRAMS is
# the folder that ci/user.sh has made.
. "$(dirname "$0")/lib.sh"
here=$(dirname "$(realpath "$0")")

# smi COMMAND..: prints total, used and free MiB that nvidia-smi shows under a command.
smi() { "$@" nvidia-smi -i 0 --query-gpu=memory.total,memory.used,memory.free --format=csv,noheader,nounits; }
total() { cut -d, -f1 <<<"$1" | tr -d ' '; }
free() { cut -d, -f3 <<<"$1" | tr -d ' '; }
in_group() { run --group web -- "$@"; }

sees() { [ "$(ask info | cut -d' ' -f1)" = "$1" ]; }
# Compares what is free with the limit and what is charged, in MiB.
leaves() {
	local free current
	free=$(ask info | cut -d' ' -f2)
	current=$(($(get web/0 gmem.current) >> 20))
	[ $((free + current - $1)) -ge -2 ] && [ $((free + current - $1)) -le 2 ]
}
answers() { [ "$(ask "$1")" = "$2" ]; }
# begin PROGRAM: starts a program in the group.
begin() { talk in_group python3 "$here/src/$1"; }
# native REASON: some channels of the group are native for it.
native() { get web/0 compute.stat | grep -qE "^unmanaged\.$1 [1-9]"; }
# Prints the threads of the group's program that govern its launches.
governors() { grep -lx gct-worker "/proc/$(process_of web)"/task/*/comm 2>/dev/null; }
charged() { echo $(($(get web/0 gmem.current) >> 20)); }
# within NUMBER LOW HIGH: whether it is more than LOW, and HIGH at most.
within() { [ "$1" -gt "$2" ] && [ "$1" -le "$3" ]; }
refuses() { ! set_ web/0 "$1" 2>/dev/null; }

whole=$(smi env) || exit 1
start_daemon || exit 1
ctl create web >/dev/null
check "without a limit nvidia-smi shows the whole GPU" [ "$(total "$(smi in_group)")" = "$(total "$whole")" ]
set_ web/0 gmem.limit=10G
limited=$(smi in_group)
echo "        nvidia-smi: $whole, in the group: $limited"
check "nvidia-smi shows the limit as total" [ "$(total "$limited")" = 10240 ]
check "nvidia-smi shows no more than the limit as free" [ "$(free "$limited")" -le 10240 ]
check "outside the group it shows the whole GPU" [ "$(total "$(smi env)")" = "$(total "$whole")" ]

begin memory.py
check "PyTorch sees the limit" sees 10240
check "its channels are native: no other limit is there" eventually native memory_only
check "nothing governs them" [ -z "$(governors)" ]
check "PyTorch sees what is left of it" leaves 10240
check "2 GiB are allocated" answers "allocate 2048" done
check "less is left" leaves 10240
# libcuda asks for the total once, when the program starts.
set_ web/0 gmem.limit=20G
check "more is left as soon as the limit is raised" leaves 20480
check "nvidia-smi shows the raised limit" [ "$(total "$(smi in_group)")" = 20480 ]
set_ web/0 gmem.limit=6G
check "less is left as soon as the limit is lowered" leaves 6144
check "nvidia-smi shows the lowered limit" [ "$(total "$(smi in_group)")" = 6144 ]
check "beyond it memory is out" answers "allocate 5000" "out of memory"
set_ web/0 gmem.limit=max
check "without a limit nvidia-smi shows the whole GPU again" [ "$(total "$(smi in_group)")" = "$(total "$whole")" ]
check "NVML in the program agrees" answers nvml agrees
# gctd ends, and nobody starts it anew. 2 GiB are held, of 6.
set_ web/0 gmem.limit=6G
kill -9 $daemon
wait $daemon 2>/dev/null
check "without gctd the program gets no more memory" answers "allocate 2000" "out of memory"
check "it frees 2 GiB" answers drop done
check "and has them again" answers "allocate 2048" done
check "a new gctd starts" start_daemon
check "the program gets more" eventually answers "allocate 2000" done
set_ web/0 gmem.limit=max
# A limit on launches that comes later binds the programs that start from then on.
said=$(ctl set web/0 tpc.mask=0-7 2>&1)
echo "        $said"
check "a mask that comes later warns of them" grep -q "does not bind [1-9]" <<<"$said"
check "the program goes on" answers "allocate 100" done
check "as natively as before" [ -z "$(governors)" ]
end
begin memory.py
check "a program that starts now runs" answers "allocate 100" done
check "and is governed" [ -n "$(governors)" ]
end
in_group "$bin/gct-load" sms | tr , '\n' >"$work/sms"
check "another one keeps to the mask" [ "$(lines "$work/sms")" -gt 0 -a "$(lines "$work/sms")" -le 16 ]
set_ web/0 tpc.mask=all

if python3 -c 'import jax' 2>/dev/null; then
	# JAX takes three quarters of the memory that it sees as soon as it starts.
	set_ web/0 gmem.limit=8G
	begin memory_jax.py
	pool=$(ask limit)
	echo "        JAX's pool: $pool MiB, charged: $(charged) MiB"
	check "JAX sizes its pool by the limit" within "$pool" 5120 6144
	check "the pool is charged" within "$(charged)" $((pool - 1)) 8192
	check "JAX multiplies rightly" answers product exact
	check "an array fits into the pool" answers "allocate 3500" done
	check "a second one does not" answers "allocate 3500" "out of memory"
	check "a limit below the pool is refused" refuses gmem.limit=4G
	check "the limit stays" [ "$(get web/0 gmem.limit)" = 8589934592 ]
	check "a raised limit is accepted" set_ web/0 gmem.limit=16G
	check "JAX goes on" answers product exact
	end
	export XLA_PYTHON_CLIENT_PREALLOCATE=false
	begin memory_jax.py
	ask limit >/dev/null
	check "without its pool JAX starts with little" within "$(charged)" 0 2047
	check "an array is charged" answers "allocate 3500" done
	check "so much is charged" [ "$(charged)" -ge 3500 ]
	set_ web/0 gmem.limit=6G
	check "beyond a lowered limit memory is out" answers "allocate 3500" "out of memory"
	set_ web/0 gmem.limit=12G
	check "it is there as soon as the limit is raised" answers "allocate 3500" done
	check "JAX multiplies rightly still" answers product exact
	end
else
	echo "        no JAX is here"
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
