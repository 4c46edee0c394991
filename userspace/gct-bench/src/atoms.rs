// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What it costs to run a kernel in parts, against the published ways.

use crate::report::{Report, Table};
use crate::Cli;
use anyhow::Result;
use gct_bench::kit::{number, Kit, Under};

/// Blocks of the kernel: 20 waves of an H200.
const BLOCKS: u64 = 42_240;
/// How long it takes, whole, in microseconds: the clock cycles of a block that make it so.
const KERNELS: [(u64, u64); 2] = [(20_000, 210), (200_000, 2030)];
/// Lengths of an atom, in microseconds.
const ATOMS_US: [u64; 5] = [5, 25, 50, 200, 1000];

pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    for (cycles, whole_us) in KERNELS {
        let mut table = Table::new(
            format!("A kernel of {BLOCKS} blocks, {cycles} cycles each, in parts"),
            &["time (us)", "ratio to the kernel alone in this round"],
        );
        let rows = rows(cycles, whole_us, tpcs);
        let mut samples = vec![(Vec::new(), Vec::new()); rows.len()];
        for _ in 0..cli.repeat {
            let mut alone = None;
            for ((_, under, arguments), (times, ratios)) in rows.iter().zip(&mut samples) {
                let time = number(&kit.json(under, arguments)?, "median_us")?;
                // The first row is the kernel alone.
                let alone = *alone.get_or_insert(time);
                times.push(time);
                ratios.push(time / alone);
            }
        }
        for ((name, ..), (times, ratios)) in rows.iter().zip(samples) {
            table.row(name, &[times, ratios]);
        }
        report.add(table);
    }
    Ok(())
}

/// Name, what it runs under, arguments of gct-load.
fn rows(cycles: u64, whole_us: u64, tpcs: &[&str]) -> Vec<(String, Under, String)> {
    let base = format!("split --blocks {BLOCKS} --cycles {cycles} --rounds 15");
    let mut rows = vec![
        ("native".into(), Under::native(), base.clone()),
        ("gctgroup, whole".into(), Under::gctgroup(), base.clone()),
    ];
    for atom_us in ATOMS_US.into_iter().filter(|atom| 2 * atom <= whole_us) {
        let parts = whole_us.div_ceil(atom_us);
        // Two atoms last the duration that is asked for.
        let under = Under::gctgroup()
            .with("GCTGROUP_TPC_MASK", tpcs.join(","))
            .with("GCTGROUP_TPCS", 128)
            .with("GCTGROUP_ATOM_DURATION", 2 * atom_us);
        rows.push((
            format!("gctgroup, atoms of {atom_us} us, paced"),
            under,
            base.clone(),
        ));
        rows.push((
            format!("gctgroup, {} atoms at once", parts.min(96)),
            Under::gctgroup().with("GCTGROUP_ATOMS", parts.min(96)),
            base.clone(),
        ));
        rows.push((
            format!("range check, {parts} parts"),
            Under::native(),
            format!("{base} --mechanism range-check --parts {parts}"),
        ));
    }
    for workers in [4, 8, 16] {
        rows.push((
            format!("persistent blocks, {workers} an SM"),
            Under::native(),
            format!("{base} --mechanism persistent --parts {workers}"),
        ));
    }
    rows
}
