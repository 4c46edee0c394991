#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The job rm on the debug kernel, for `make test-long`.
JOB=rm-debug exec "$(dirname "$0")/test-rm.sh" debug
