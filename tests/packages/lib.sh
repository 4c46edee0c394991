# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Precedes each script of this folder, which runs in a Debian 12 of ci/setup-chroot.sh. /gct/old and
# /gct/new have the packages.
set -u

# try WHAT COMMAND...: one test.
try() {
	local what=$1 output
	shift
	if output=$(set -e; "$@" 2>&1); then
		printf 'ok %s\n' "$what"
	else
		printf '%s\n' "$output" | tail -n 40
		printf 'FAILED %s\n' "$what"
	fi
}

# There is no network: the root file system has what the package depends on.
install_deb() {
	apt-get install -y --no-install-recommends "$@"
}

# says WORDS COMMAND...: the command prints these words, however it ends.
says() {
	local words=$1 output
	shift
	output=$("$@" 2>&1) || true
	printf '%s\n' "$output"
	grep -qF -e "$words" <<<"$output"
}

# refuses WORDS COMMAND...: the command fails and prints these words.
refuses() {
	local words=$1 output
	shift
	if output=$("$@" 2>&1); then
		printf 'accepted: %s\n' "$output"
		return 1
	fi
	printf '%s\n' "$output"
	grep -qF -e "$words" <<<"$output"
}

# All files but those of the package manager and of this test, and what is kept of the list of users
# when one is added.
files() {
	find / -xdev \( -path /gct -o -path /proc -o -path /tmp -o -path /run -o -path /var/lib/dpkg -o -path /var/cache \
		-o -path /var/log -o -path /var/lib/apt -o -path /var/lib/systemd -o -path '/etc/*shadow-' \) -prune -o -print | sort
}
