// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fuzzes the core. Each function takes arbitrary bytes and panics if a property does not hold.
//!
//! The same functions are libFuzzer targets (`fuzz_targets/`) and the body of `smoke`, which needs
//! no libFuzzer.
//!
//! ```text
//! cargo run --release --bin smoke -- 200000 1          stable: 200000 inputs per target, seed 1
//! cargo run --release --bin smoke -- seeds corpus      the captures as first inputs of libFuzzer
//! cargo fuzz run rewrite --features libfuzzer corpus   with cargo-fuzz and a nightly compiler
//! ```
//!
//! libFuzzer with a stable compiler (name the target, or build scripts are instrumented, too):
//!
//! ```text
//! RUSTFLAGS='--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module
//!   -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
//!   -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares' \
//!   cargo run --release --target x86_64-unknown-linux-gnu --features libfuzzer --bin rewrite -- \
//!   -max_len=8192 -max_total_time=60 corpus
//! ```

mod engine;
mod interface;
mod memory;
mod submit;

pub use engine::engine;
pub use interface::{interface, rmapi};
pub use memory::memory;
pub use submit::{rewrite, ring, scan, words_of};
