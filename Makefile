# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Everything here is a script in ci/; this file only gives the scripts names.

# NVIDIA's version for kmod, demo and shell; ci/versions.sh knows them all.
NV_VERSION ?= 535.261.03

export NV_VERSION NV_SRC KDIR GCT_STOCK GCT_KUNIT
export PREFIX DESTDIR PROGRAMS UNITDIR

.PHONY: help setup kmod demo shell test test-long test-host test-patches test-gate test-vm test-gpu test-uvm user install \
	uninstall packages port clean
.NOTPARALLEL:

help:
	@echo 'make setup      fetch and build all that is needed, into build/ (idempotent)'
	@echo 'make demo       see the patched driver take quotas in a virtual machine'
	@echo 'make shell      a shell in that machine'
	@echo 'make test       the tests that gate a commit; ends with "N passed, M failed"'
	@echo 'make test-long  the same, with every variant, storms and long random runs'
	@echo 'make kmod       nvidia.ko and nvidia-uvm.ko for a kernel of yours:'
	@echo '                NV_VERSION=535.261.03|550.163.01|570.211.01|580.142|595.45.04 [NV_SRC=dir] [KDIR=dir] [GCT_STOCK=1];'
	@echo '                570, 580 and 595 need NV_SRC, the tree of github.com/NVIDIA/open-gpu-kernel-modules'
	@echo 'make port       a patch series for a driver of yours: NV_SRC=dir; says what does not fit'
	@echo 'make user       gctd, gctctl, gct-exporter, gct-device-plugin and libgct_preload.so for a stock driver, into build/user'
	@echo 'make install    the same programs, their pages, completions and systemd units:'
	@echo '                [PREFIX=/usr/local] [DESTDIR=dir]; make uninstall removes them'
	@echo 'make packages   gctgroup-tools and gctgroup-dkms for Debian, into build/packages (as root)'
	@echo 'make test-host | test-patches | test-gate | test-vm | test-gpu | test-uvm'
	@echo '                one part of the tests'
	@echo 'make clean      remove build/ (the store outside the clone stays: ci/lib.sh)'

setup:
	@ci/setup.sh

kmod:
	@ci/kmod.sh

port:
	@ci/port.sh

user:
	@ci/user.sh

install uninstall:
	@ci/install.sh $@

packages:
	@ci/packages.sh

demo:
	@ci/setup.sh demo
	@ci/demo.sh

shell:
	@ci/setup.sh demo
	@ci/shell.sh

test: setup
	@ci/test.sh

test-long: setup
	@GCT_LONG=1 ci/test.sh

test-host: setup
	@ci/test.sh host

test-patches: setup
	@ci/test.sh patches

test-gate: setup
	@ci/test.sh gate

test-vm: setup
	@ci/test.sh selftests gctctl

test-gpu: setup
	@ci/test.sh gpu rm

test-uvm: setup
	@ci/test.sh uvm

clean:
	rm -rf build
