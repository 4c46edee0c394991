// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the cost of running a kernel in parts, beside the published mechanisms.

use crate::report::{Report, Table};
use crate::Cli;
use anyhow::Result;
use gct_hw::daemon::Daemon;
use gct_hw::kit::{number, Kit, RunEnv};

/// Number of blocks of the kernel: 20 waves of an H200.
const BLOCKS: u64 = 42_240;
/// Clock cycles of a block, and the resulting duration of the kernel in microseconds.
const KERNELS: [(u64, u64); 2] = [(20_000, 210), (200_000, 2030)];
/// Lengths of an atom, in microseconds.
const ATOMS_US: [u64; 5] = [5, 25, 50, 200, 1000];
/// Maximum number of parts that the user-space mode keeps at once.
const AT_ONCE_MAX: u64 = 96;
/// The columns: the unsplit kernel, and parts of these lengths.
const WHOLE: &str = "whole";

/// One measurement: its row and column, its environment, the arguments of gct-load.
struct Cell {
    row: String,
    column: usize,
    env: RunEnv,
    arguments: String,
}

/// Prefix of the titles of these tables, by which others find them.
pub(crate) const TITLE: &str = "Ratio to the kernel alone, by the length of its parts";

pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    for (cycles, whole_us) in KERNELS {
        let lengths: Vec<u64> = ATOMS_US
            .into_iter()
            .filter(|us| 2 * us <= whole_us)
            .collect();
        let mut columns = vec![WHOLE.to_string()];
        columns.extend(lengths.iter().map(|us| format!("{us} us")));
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let title = format!("{TITLE}: {BLOCKS} blocks of {cycles} cycles, about {whole_us} us");
        for _ in 0..cli.repeat {
            let mut table = Table::new(&title, &columns);
            let mut native = None;
            for cell in cells(cycles, whole_us, &lengths, tpcs, &daemon) {
                let time = number(&kit.json(&cell.env, &cell.arguments)?, "median_us")?;
                // The first cell is the kernel alone.
                let native = *native.get_or_insert(time);
                let mut values = vec![Vec::new(); columns.len()];
                if let Some(value) = values.get_mut(cell.column) {
                    value.push(time / native);
                }
                table.row(&cell.row, &values);
            }
            report.add(table);
            report.write(&cli.out, "atoms")?;
        }
    }
    Ok(())
}

fn cells(cycles: u64, whole_us: u64, lengths: &[u64], tpcs: &[&str], daemon: &Daemon) -> Vec<Cell> {
    let base = format!("split --blocks {BLOCKS} --cycles {cycles} --rounds 15");
    let cell = |row: &str, column, env: RunEnv, more: &str| Cell {
        row: row.into(),
        column,
        env,
        arguments: format!("{base} {more}"),
    };
    let mut cells = vec![
        cell("native", 0, RunEnv::native(), ""),
        cell("gctgroup, paced atoms", 0, RunEnv::gctgroup(), ""),
    ];
    for (atom_us, column) in lengths.iter().zip(1..) {
        let parts = whole_us.div_ceil(*atom_us);
        // The configured duration covers two atoms.
        let env = RunEnv::gctgroup()
            .with("GCTGROUP_TPC_MASK", tpcs.join(","))
            .with("GCTGROUP_ATOM_DURATION", 2 * atom_us);
        cells.push(cell("gctgroup, paced atoms", column, env, ""));
        // With a daemon, which reports that there is no neighbour.
        let options = format!("--tpc {} --atom {}us", tpcs.join(","), 2 * atom_us);
        let env = daemon.group(&format!("atoms{atom_us}"), &options);
        cells.push(cell("gctgroup with gctd, paced atoms", column, env, ""));
        let env = RunEnv::gctgroup().with("GCTGROUP_ATOMS", parts.min(AT_ONCE_MAX));
        cells.push(cell(
            "gctgroup, atoms at once (at most 96)",
            column,
            env,
            "",
        ));
        let more = format!("--mechanism range-check --parts {parts}");
        cells.push(cell("range check", column, RunEnv::native(), &more));
    }
    for workers in [4, 8, 16] {
        let more = format!("--mechanism persistent --parts {workers}");
        let row = format!("persistent blocks, {workers} an SM");
        cells.push(cell(&row, 0, RunEnv::native(), &more));
    }
    cells
}
