#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Writes the certificates of the API server that tests/tls.rs plays, for a hundred years: ca.pem and
# other.pem of two authorities, and server.pem with its key, which the first one has signed. No
# other program may trust them, for that key is public.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$(mktemp -d)"
cat >ca.cnf <<'CNF'
[ca]
default_ca = any
[any]
database = index.txt
new_certs_dir = .
rand_serial = yes
unique_subject = no
default_md = sha256
policy = policy
[policy]
commonName = supplied
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
[server]
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth
subjectAltName = IP:127.0.0.1
CNF
: >index.txt

# sign NAME EXTENSIONS OPTION...: makes NAME.key and its certificate NAME.pem.
sign() {
	name=$1 extensions=$2
	shift 2
	openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=gctgroup test $name" \
		-keyout "$name.key" -out "$name.csr"
	openssl ca -config ca.cnf -batch -notext -startdate 20200101000000Z -enddate 21200101000000Z \
		-extensions "$extensions" -in "$name.csr" -out "$name.pem" "$@"
}

for authority in ca other; do
	sign $authority authority -selfsign -keyfile $authority.key
done
sign server server -cert ca.pem -keyfile ca.key
install -m 644 ca.pem other.pem server.pem server.key "$here"
rm -r "$PWD"
