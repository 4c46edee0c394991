// SPDX-License-Identifier: GPL-2.0 OR MIT

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gct_fuzz::memory(data));
