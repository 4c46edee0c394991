#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: controls.sh [--without-a-rule | --sizes] TREE
#
# Lists the open controls (RMCTRL_FLAGS_NON_PRIVILEGED) in the export tables of NVIDIA's resource
# manager, whose source is TREE/src or build/nv/TREE/src: number and function. With --without-a-rule
# only those that rust/gct_core/rmapi/allow.rs neither has a row for nor a range. With --sizes
# number and bytes of the parameters, as tests/rm-client/src/controls.txt has them.
. "$(dirname "$0")/lib.sh"

what=functions
case ${1:-} in
--*) what=${1#--}; shift ;;
esac
tree=${1:?a tree of NVIDIA\'s source, or a version}
[ -d "$tree" ] || tree=$BUILD/nv/$tree
generated=$tree/src/nvidia/generated
[ -d "$generated" ] || die "$tree has no src/nvidia/generated"

# The flag's value differs between drivers.
open=$(sed -n 's/^#define RMCTRL_FLAGS_NON_PRIVILEGED  *\(0x[0-9a-f]*\).*/\1/p' \
	"$tree/src/nvidia/inc/kernel/rmapi/control.h")
[ -n "$open" ] || die "control.h has no RMCTRL_FLAGS_NON_PRIVILEGED"

# Number, size in C and function of each open control.
exported() {
	cat "$generated"/*_nvoc.c | awk '
		/\/\*flags=\*\//     { sub(/.*\*\/ */, ""); sub(/u,.*/, ""); flags = $0 }
		/\/\*methodId=\*\//  { sub(/.*\*\/ */, ""); sub(/u,.*/, ""); number = $0 }
		/\/\*paramSize=\*\// { sub(/.*\*\/ */, ""); sub(/,.*/, ""); gsub(/ /, ""); size = $0 }
		/\/\*func=\*\//      { sub(/.*\*\/ *"/, ""); sub(/".*/, ""); print flags, number, size, $0 }' |
		while read -r flags number size function; do
			[ $((flags & open)) -eq 0 ] || printf '%08x %s %s\n' $((number)) "$size" "$function"
		done | LC_ALL=C sort -u
}

open_controls() {
	exported | cut -d' ' -f1,3
}

# Number and bytes of each, by a program that the headers are compiled into.
sizes() {
	local program
	program=$(mktemp "$BUILD/controls.XXXXXX")
	{
		printf '#include <stdio.h>\n#include <nvtypes.h>\n#include <nvos.h>\n'
		find "$tree/src/common/sdk/nvidia/inc/ctrl" -name '*.h' | LC_ALL=C sort | sed 's/.*/#include "&"/'
		printf 'int main(void)\n{\n'
		exported | awk '!seen[$1]++ { printf "printf(\"%s %%zu\\n\", (size_t)%s);\n", $1, $2 }'
		printf 'return 0; }\n'
	} >"$program.c"
	cc -w -I"$tree/src/common/sdk/nvidia/inc" -o "$program" "$program.c" && "$program"
	rm -f "$program" "$program.c"
}

# First and last number of each row and range of the table.
ruled() {
	local tables=$ROOT/rust/gct_core/rmapi
	sed -n 's/^    0x\([0-9a-f]*\) [A-Z].*/\1 \1/p' "$tables"/allow/*.rs
	sed -n 's/^    (0x\([0-9a-f_]*\), 0x\([0-9a-f_]*\), Rule::.*/\1 \2/p' "$tables/allow.rs" | tr -d _
}

case $what in
functions) open_controls ;;
sizes) sizes ;;
without-a-rule)
	LC_ALL=C awk '
		NR == FNR { first[NR] = $1; last[NR] = $2; count = NR; next }
		{
			for (at = 1; at <= count; at++)
				if ($1 >= first[at] && $1 <= last[at]) next
			print
		}' <(ruled) <(open_controls)
	;;
*) die "what is --$what?" ;;
esac
