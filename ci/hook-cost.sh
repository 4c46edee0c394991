#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# What a hook costs while gctgroup is off, read from the modules themselves.
#
#   ci/hook-cost.sh VERSION [STOCK.ko PATCHED.ko]   prints a table
#   ci/hook-cost.sh --all       writes gctgroup-docs/results/hook-cost.md
#
# By default the modules are build/kmod/VERSION/lean/{stock,patched}/nvidia.ko.
# Exits with 1 unless every static-key site is a no-op in the patched module and
# each of the driver's entry points below has its one.
#
# For each function that holds a site of gct_enabled_key:
#   stock, patched   instructions, padding not counted
#   sites            static-key sites, and the instruction that stands there
#   off              instructions run more than stock while the key is off: the
#                    no-op of each site
#   on only          instructions behind the sites' jump targets, up to the jump
#                    back: run only while the key is on
#   rest             what remains of the difference: other choices of the compiler
#                    (registers, blocks, inlining), for the path on and off alike
# A function is listed by the symbol it was compiled into.

. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

# Where the series puts static keys. nvidia_ioctl() and nv_start_device() may be
# inlined into a caller, so they are named by what the compiler may choose.
expected_sites='nv_pci_probe
nv_pci_remove|nv_pci_remove_helper
nv_start_device|nv_open_device|nv_open_device_for_nvlfp|nvidia_dev_get
nvidia_open
nvidia_ioctl|nvidia_unlocked_ioctl|nvidia_frontend_unlocked_ioctl
nvidia_fault
nvidia_mmap
os_memcpy_from_user
os_memcpy_to_user
nv_dma_buf_dup_mem_handles|nv_dma_buf_create|nv_dma_buf_reuse|nv_dma_buf_export'

# awk has no standard way to read a hexadecimal number.
awk_hex='function hex(s,  i, v) {
	for (i = 1; i <= length(s); i++)
		v = v * 16 + index("0123456789abcdef", substr(s, i, 1)) - 1
	return v
}'

# symbols OBJECT: "ADDRESS SIZE NAME" of the functions in .text, by address.
symbols() {
	local text
	text=$(readelf -SW "$1" | sed -n 's/^ *\[ *\([0-9]*\)\] \.text .*/\1/p')
	readelf -sW "$1" | awk -v text="$text" "$awk_hex"'
		$4 == "FUNC" && $7 == text { print hex($2), $3, $8 }' | sort -n
}

# sites OBJECT: "CODE TARGET" of gct_enabled_key, decimal offsets in .text.
sites() {
	readelf -rW "$1" | awk "$awk_hex"'
		/^Relocation section/ { inside = ($3 ~ /__jump_table/); n = 0; next }
		inside && /R_X86_64/ {
			address[n % 3] = hex($NF)
			section[n % 3] = $(NF - 2)
			if (n % 3 == 2 && section[2] == "gct_enabled_key")
				print address[0], (section[1] == ".text" ? address[1] : -1)
			n++
		}'
}

# disassembly OBJECT FUNCTION: "OFFSET TEXT" of its instructions in .text.
disassembly() {
	objdump -d --no-show-raw-insn -j .text --disassemble="$2" "$1" | awk "$awk_hex"'
		/^ *[0-9a-f]+:\t/ { sub(/:/, "", $1); printf "%d", hex($1); $1 = ""; print }'
}

# Padding between blocks is no instruction of the function.
count_instructions() {
	awk '$2 !~ /^(nop|nopw|nopl|cs|data16|xchg|int3)$/ { n++ } END { print n + 0 }'
}

# enabled_block TARGET: instructions from TARGET to the jump back.
enabled_block() {
	awk -v target="$1" '$1 >= target { n++; if ($2 ~ /^(jmp|ret)/) exit } END { print n + 0 }'
}

row() {
	local stock_object=$1 patched_object=$2 function=$3 start=$4 end=$5
	local patched stock total_stock total_patched code target count=0 blocks=0 instruction seen=()
	patched=$(disassembly "$patched_object" "$function")
	stock=$(disassembly "$stock_object" "$function")
	[ -n "$stock" ] || die "$function is not in $stock_object: inlined differently"
	while read -r code target; do
		[ "$code" -ge "$start" ] && [ "$code" -lt "$end" ] || continue
		count=$((count + 1))
		instruction=$(awk -v code="$code" '$1 == code { $1 = ""; print }' <<<"$patched" | xargs)
		case $instruction in
		nop* | xchg\ %ax,%ax | data16*) ;;
		*) die "$function: no no-op but \"$instruction\" at the site" ;;
		esac
		seen+=("\`${instruction%% *}\`")
		blocks=$((blocks + $(enabled_block "$target" <<<"$patched")))
	done < <(sites "$patched_object")
	total_stock=$(count_instructions <<<"$stock")
	total_patched=$(count_instructions <<<"$patched")
	printf '| %s | %d | %d | %d: %s | %d | %d | %+d |\n' "$function" "$total_stock" "$total_patched" \
		"$count" "${seen[*]}" "$count" "$blocks" $((total_patched - total_stock - blocks))
}

table() {
	local stock_object=$1 patched_object=$2 address size name found code rest all_sites
	local hooked=()
	all_sites=$(sites "$patched_object")
	[ -n "$all_sites" ] || die "$patched_object has no static-key site of gctgroup"
	printf '| function | stock | patched | sites | off | on only | rest |\n'
	printf '|---|---|---|---|---|---|---|\n'
	while read -r address size name; do
		while read -r code rest; do
			if [ "$code" -ge "$address" ] && [ "$code" -lt $((address + size)) ]; then
				row "$stock_object" "$patched_object" "$name" "$address" $((address + size))
				hooked+=("$name")
				break
			fi
		done <<<"$all_sites"
	done < <(symbols "$patched_object")
	while read -r found; do
		printf '%s\n' "${hooked[@]}" | grep -qxE "$found" || die "no site in $found"
	done <<<"$expected_sites"
	printf '\n%d sites of gct_enabled_key in all.\n' "$(wc -l <<<"$all_sites")"
}

# Closing is guarded by the file's token: the functions that hold such a call.
token_table() {
	local stock_object=$1 patched_object=$2 address size name calls stock
	calls=$(readelf -rW "$patched_object" | awk "$awk_hex"'
		/^Relocation section/ { inside = ($3 ~ /\.rela\.text/) }
		inside && $5 == "gct_file_close" { print hex($1) }')
	[ -n "$calls" ] || die "$patched_object never closes a file's token"
	printf '\n| function with a token test | stock | patched | tests |\n|---|---|---|---|\n'
	while read -r address size name; do
		local tests=0 call
		for call in $calls; do
			[ "$call" -lt "$address" ] || [ "$call" -ge $((address + size)) ] || tests=$((tests + 1))
		done
		[ $tests -gt 0 ] || continue
		stock=$(disassembly "$stock_object" "$name" | count_instructions)
		[ "$stock" -gt 0 ] || stock=inlined
		printf '| %s | %s | %d | %d |\n' "$name" "$stock" \
			"$(disassembly "$patched_object" "$name" | count_instructions)" $tests
	done < <(symbols "$patched_object")
}

version_table() {
	local stock_object=${2:-$BUILD/kmod/$1/lean/stock/nvidia.ko}
	local patched_object=${3:-$BUILD/kmod/$1/lean/patched/nvidia.ko}
	table "$stock_object" "$patched_object"
	token_table "$stock_object" "$patched_object"
}

report() {
	local version
	cat <<-TEXT
		# What a hook costs while gctgroup is off

		Made by \`ci/hook-cost.sh --all\` from build/kmod/VERSION/lean/{stock,patched}/nvidia.ko, that is from
		\`make kmod NV_VERSION=... GCT_STOCK=1\` and \`make kmod NV_VERSION=...\`, on $(gcc --version | head -n 1),
		Linux $(cat "$BUILD/linux/lean/include/config/kernel.release"), x86-64. Stock is the series' first patch alone.

		$(sed -n '/^# For each function/,/^# A function/s/^# \{0,1\}//p' "$0" | sed 's/^  \([a-z, ]*[a-z]\)   */* \1: /; s/^   */  /')

		Closing a file is guarded by the file's own token, not by the key: a load, a test and a not-taken branch before the
		resource manager frees the file's clients, and again when the private data is freed. nv_free_file_private() grows by
		that and is therefore no longer inlined into its callers: they get shorter, and freeing costs a call more.
	TEXT
	for version in $("$ROOT/ci/series.py" versions); do
		printf '\n## %s\n\n' "$version"
		# Of a version without a package there may be no source.
		if [ -e "$BUILD/kmod/$version/lean/patched/nvidia.ko" ] || [[ " $NV_VERSIONS " = *" $version "* ]]; then
			version_table "$version"
		else
			printf 'Not counted: its source was not at hand.\n'
		fi
	done
}

case ${1:-} in
--all)
	mkdir -p "$ROOT/gctgroup-docs/results"
	report >"$BUILD/hook-cost.md"
	cp "$BUILD/hook-cost.md" "$ROOT/gctgroup-docs/results/hook-cost.md"
	;;
[0-9]*) version_table "$@" ;;
*)
	sed -n '4,9s/^# \{0,1\}//p' "$0"
	exit 2
	;;
esac
