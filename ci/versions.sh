# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Versions of everything that the setup fetches. Source this file.

LINUX_SERIES=7.2
RUST_VERSION=1.95.0
BINDGEN_VERSION=0.73.2
LLVM_MAJOR=19

# The full source of NVIDIA's open modules exists for this version in Debian,
NV_SOURCE_VERSION=535.261.03
# and for this one only kernel-open with a prebuilt resource-manager core.
NV_DEBIAN_VERSION=550.163.01
NV_VERSIONS="$NV_SOURCE_VERSION $NV_DEBIAN_VERSION"
