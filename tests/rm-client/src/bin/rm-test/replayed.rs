// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares what the driver answers on the software GPU with what it answered on an H200.

use gct_ktap::{same, Outcome, Stop, Test};
use rm_client::{Control, Release, Replayed};
use std::collections::BTreeSet;

pub(crate) const TESTS: &[Test] = &[("replayed_calls_of_an_h200", calls)];

/// A record, and its calls without an answer that are refused: the begins of their lines, and how
/// many.
type Record = (&'static str, &'static str, &'static [(&'static str, usize)]);

const RECORDS: &[Record] = &[
    (
        "pool",
        include_str!("../../../../fixtures/ioctls/580/pool.txt"),
        REFUSED,
    ),
    (
        "segments",
        include_str!("../../../../fixtures/ioctls/580/segments.txt"),
        REFUSED,
    ),
    (
        "mps",
        include_str!("../../../../fixtures/ioctls/580/mps.txt"),
        &[("alloc c8b5 ", 3), ("channel ", 5)],
    ),
];

/// Controls whose answers differ, with the reason. All others must agree byte for byte.
const DIFFER: &[(u32, &str)] = &[
    (0x0000_0202, "NV0000_CTRL_CMD_GPU_GET_ID_INFO: number of the board"),
    (0x0000_0205, "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2: number of the board"),
    (0x0000_0214, "NV0000_CTRL_CMD_GPU_GET_PROBED_IDS: GPUs of the machine"),
    (0x0000_0288, "NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS: GPUs of the machine"),
    (0x0080_0289, "NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE: the H200 was in a virtual machine"),
    (0x0080_0292, "NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2: units that are not modelled"),
    (0x2080_0102, "NV2080_CTRL_CMD_GPU_GET_INFO_V2: GSP's part is left as it was sent"),
    (0x2080_0110, "NV2080_CTRL_CMD_GPU_GET_NAME_STRING: name of the board"),
    (0x2080_0111, "NV2080_CTRL_CMD_GPU_GET_SHORT_NAME_STRING: name of the chip"),
    (0x2080_012f, "NV2080_CTRL_CMD_GPU_QUERY_ECC_STATUS: no memory has ECC"),
    (0x2080_014a, "NV2080_CTRL_CMD_GPU_GET_GID_INFO: name of the board"),
    (0x2080_0170, "NV2080_CTRL_CMD_GPU_GET_ENGINES_V2: units that are not modelled"),
    (0x2080_1218, "NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE: invented sizes"),
    (0x2080_1227, "NV2080_CTRL_CMD_GR_GET_CAPS_V2: GSP's part is left as it was sent"),
    (0x2080_122b, "NV2080_CTRL_CMD_GR_GET_TPC_MASK: other TPCs"),
    (0x2080_1303, "NV2080_CTRL_CMD_FB_GET_INFO_V2: size of the memory; GSP's part is left as it was sent"),
    (0x2080_1701, "NV2080_CTRL_CMD_MC_GET_ARCH_INFO: subrevision of the chip"),
    (0x2080_1801, "NV2080_CTRL_CMD_BUS_GET_PCI_INFO: numbers of the board"),
    (0x2080_1803, "NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO: sizes of BARs"),
    (0x2080_1823, "NV2080_CTRL_CMD_BUS_GET_INFO_V2: the bus is QEMU's"),
    (0x2080_2a0a, "NV2080_CTRL_CMD_CE_GET_ALL_CAPS: copy engines 4 and 5 share the runlist of compute, on an H200 0 and 1"),
    (0x2080_3601, "NV2080_CTRL_CMD_GSP_GET_FEATURES: no firmware has a version"),
    (0x2080_3801, "NV2080_CTRL_CMD_GRMGR_GET_GR_FS_INFO: not modelled"),
    (0x2080_8162, "without a name: not modelled"),
    (0x2080_9001, "without a name: not modelled"),
    (0x2080_9009, "without a name: not modelled"),
    (0x2080_9064, "without a name: not modelled"),
    (0x2080_a084, "without a name: not modelled"),
    (0x2081_0108, "without a name: not modelled"),
    (0x906f_0101, "NV906F_CTRL_GET_CLASS_ENGINEID: of the objects that are refused"),
    (0x90e6_0102, "NV90E6_CTRL_CMD_MASTER_GET_VIRTUAL_FUNCTION_ERROR_CONT_INTR_MASK: not modelled"),
    (
        0xa06c_0101,
        "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE: of the group whose contexts are not mapped",
    ),
    (0xc36f_0108, "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN: numbers of channels and runlists"),
];

/// What is refused of a program's own context. libcuda put copy engine 1 on the eight channels of
/// compute, whose runlist it does not share here. Copy engine 4, which it gave a group of four
/// channels, has contexts here that the record does not map. An MPS server and its client have
/// fewer channels of compute, and a group on copy engine 4 each.
const REFUSED: &[(&str, usize)] = &[("alloc c8b5 ", 8), ("channel ", 4)];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the command if the answer is another one than the record's, and prints both.
fn differs(replayed: &Replayed) -> Option<u32> {
    let command = replayed.command?;
    if replayed.status == 0 && replayed.answer == replayed.recorded {
        return None;
    }
    println!("# {} status {:#x}", replayed.call, replayed.status);
    println!("#   H200 {}", hex(&replayed.recorded));
    println!("#   here {}", hex(&replayed.answer));
    Some(command)
}

/// Replays a record. Returns the controls that differ.
fn replay((name, text, known): &Record) -> Result<BTreeSet<u32>, Stop> {
    let all = rm_client::replay(text)?;
    let answers = all.iter().filter(|call| !call.recorded.is_empty());
    println!(
        "# {name}: {} calls, {} answers compared",
        all.len(),
        answers.count()
    );
    let differ = all.iter().filter_map(differs).collect();
    let refused: Vec<_> = all
        .iter()
        .filter(|call| call.command.is_none() && call.status != 0)
        .inspect(|call| println!("# {} status {:#x}", call.call, call.status))
        .collect();
    for (call, count) in *known {
        let found = refused
            .iter()
            .filter(|refused| refused.call.starts_with(call));
        same(call, found.count(), *count)?;
    }
    let all_known = known.iter().map(|(_, count)| count).sum();
    same("refused", refused.len(), all_known)?;
    Ok(differ)
}

fn calls() -> Outcome {
    if Control::open()?.release() != Release::R580 {
        return Err(Stop::Skipped("recorded with driver 580".into()));
    }
    let mut differ = BTreeSet::new();
    for record in RECORDS {
        differ.extend(replay(record)?);
    }
    let known: BTreeSet<u32> = DIFFER.iter().map(|(command, _)| *command).collect();
    same("controls that differ", differ, known)
}
