#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: uvm-swap.sh STOCK.log PATCHED.log
#
# Prints gctgroup-docs/results/uvm-swap.md from what `rm-test swap` has printed in two machines of
# ci/test-gpu.sh, which compares it with the page. `GCT_BLESS=1 ci/test-gpu.sh` writes the page.
set -euo pipefail

# counts LOG: a line for each way: name, then operations and bytes in, operations and bytes out.
counts() {
	sed -nE 's/^ +\| # swap (.*): in ([0-9]+) ([0-9]+) out ([0-9]+) ([0-9]+)$/\1\t\2\t\3\t\4\t\5/p' "$1"
}

rows() {
	paste <(counts "$1") <(counts "$2") | awk -F '\t' '
	function both(stock, patched, unit) {
		return sprintf("%s : %s = %.2f", number(patched, unit), number(stock, unit), patched / stock)
	}
	function number(value, unit) {
		return unit == 1 ? value : sprintf("%.1f", value / unit)
	}
	NF != 10 || $1 != $6 || !$2 || !$3 || !$4 || !$5 { exit 1 }
	{
		mib = 2 ^ 20
		printf "| %s | %s | %s | %s | %s |\n", $1,
			both($2, $7, 1), both($3, $8, mib), both($4, $9, 1), both($5, $10, mib)
	}'
}

[ $# -eq 2 ] || { sed -n '4s/^# //p' "$0" >&2; exit 2; }
[ "$(counts "$1" | wc -l)" -gt 0 ] || { echo "uvm-swap.sh: $1 has no counts of rm-test swap" >&2; exit 1; }
table=$(rows "$1" "$2") || { echo "uvm-swap.sh: $1 and $2 have counts of other ways" >&2; exit 1; }
cat <<-PAGE
	# What managed memory over a limit moves

	Counted by the software GPU's copy engines ([fakegpu.md](../fakegpu.md#recorder)), driver 535.261.03, nvidia-uvm.ko as
	a debug build in the patched driver. \`GCT_BLESS=1 ci/test-gpu.sh\` writes this page, and \`ci/test-gpu.sh\` fails where
	a count is another one. The numbers say what is moved and how often. They say nothing about time.

	A tenant uses 32 MiB of managed memory, 16 MiB of which fit on the GPU: with the patched driver by its \`gmem.limit\`
	(a large GPU), with the stock driver because memory of others fills the rest. It uses 2 MiB 48 times, and writes a word
	of each page there with a launch. In comes to the GPU, out leaves it for the host.

	- *in turn*: one piece of 2 MiB after the other, three times over;
	- *at random*: any of them;
	- *some often*: four of five uses are of the same 8 MiB, the fifth is of the others in turn;
	- *by migrations*: \`UVM_MIGRATE\` brings each piece before it is used; *by faults*: the launch's own faults do.

	Each cell is patched : stock = ratio.

	| use | in, copies | in, MiB | out, copies | out, MiB |
	|---|---|---|---|---|
	$table

	A ratio of 1 means that a limit costs no more traffic than a GPU of that size. The two differ in what they evict: UVM
	the root chunk that was used longest ago, a limit gives each a second chance (\`gct_core::memory\`). Fills of new memory
	are not counted.

	## Copies in both directions

	With a large enough limit an evictor makes room before it is needed
	([interface](../interface.md#what-is-enforced-and-how)). For \`rm-test stream\` the copy engines take 250 ms for 2 MiB, so
	that the driver has the next copy ready in time under emulation. A tenant uses 192 MiB in turn by migrations, 128 MiB
	of which fit; 96 uses are counted once all room is in use. Release builds on the lean kernel, one run each on 26
	November 2026; no job repeats them. Each cell is patched : stock; beside is beside a copy of the other direction.

	| use | in, copies | in, MiB | in, beside | out, copies | out, MiB | out, beside |
	|---|---|---|---|---|---|---|
	| in turn, by migrations | 96 : 96 | 192 : 192 | 73 : 0 | 98 : 96 | 196 : 192 | 92 : 0 |
	| in turn, by faults | 1344 : 1344 | 192 : 192 | 496 : 0 | 98 : 96 | 198 : 192 | 98 : 0 |

	By migrations 85% of the copies run beside another, and all bytes are in copies of 2 MiB; stock has none beside. Two or
	three pieces leave for room that nobody needs at the end. With 20 ms for 2 MiB, on a host with ten times as much work as
	processors, 41% did.
PAGE
