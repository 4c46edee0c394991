# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Shared by the scripts of this directory. Source it with the folder of the programs as first
# argument.
bin=$(realpath "$1")
work=$(mktemp -d)
export GCTGROUP_DIR=$work
passed=0 failed=0
daemon=

finish() {
	kill $(jobs -p) 2>/dev/null
	wait 2>/dev/null
	rm -rf "$work"
}
trap finish EXIT

check() {
	local what=$1
	shift
	if "$@"; then
		passed=$((passed + 1))
		echo "ok      $what"
	else
		failed=$((failed + 1))
		echo "FAILED  $what"
	fi
}

ctl() { "$bin/gctctl" --user "$@"; }
get() { ctl get "$@" 2>&1; }
set_() { ctl set "$@" >/dev/null; }
run() { "$bin/gctctl" run --preload "$bin/libgct_preload.so" "$@"; }

# talk COMMAND..: starts a program that answers each line with a line, and ends with its input.
talk() {
	coproc program { "$@"; }
	# Substitutions close the descriptors of a coprocess.
	exec {to}>&"${program[1]}" {from}<&"${program[0]}"
	# Nothing else may hold its input.
	exec {program[1]}>&- {program[0]}<&-
}
# Sets `answer` to the next line of the program.
hear() { read -r -t 120 answer <&"$from"; }
# ask LINE: sends a line to the program, and prints its answer.
ask() {
	echo "$1" >&"$to"
	hear
	echo "$answer"
}
# Ends the program.
end() {
	exec {to}>&- {from}<&-
	wait "$program_PID" 2>/dev/null
}

start_daemon() {
	"$bin/gctd" "$@" >"$work/gctd.log" 2>&1 &
	daemon=$!
	for _ in $(seq 100); do
		ctl version >/dev/null 2>&1 && return
		sleep 0.02
	done
	return 1
}

# Waits up to five seconds for a command to succeed.
eventually() {
	for _ in $(seq 100); do
		"$@" && return
		sleep 0.05
	done
	return 1
}

# Waits four times as long.
patiently() { eventually "$@" || eventually "$@" || eventually "$@" || eventually "$@"; }

# Prints the last number of SMs that a watched program printed, and counts its lines.
sms() { tail -n 1 "$1" | sed -n 's/.*"sms":\([0-9]*\).*/\1/p'; }
lines() { wc -l <"$1"; }
sms_at_most() { [ "$(sms "$1")" ] && [ "$(sms "$1")" -le "$2" ]; }
sms_over() { [ "$(sms "$1")" ] && [ "$(sms "$1")" -gt "$2" ]; }
# Prints the only process of a group.
process_of() { get "$1" group.procs | head -n 1; }
# Runs blocks of 20000 cycles on all SMs: launches of about 20 us.
watch() { run --group "$1" -- "$bin/gct-load" watch --seconds "$2" --every-ms 10; }
