// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Replays libcuda's creation of a context, as recorded on an H200: ioctls as structures, and
//! mappings as ordinary memory.

use super::*;
use gct_core::rmapi::escape;
use std::collections::HashMap;

const CLIENT: u32 = 0xc1d0_0019;
/// The recorded address of the rings. The test maps them elsewhere, at one address for both sides.
const RINGS: u64 = 0x2_0060_0000;

/// Returns the `KEY=VALUE` words of a line. Values are hexadecimal, except `fd` and `entries`.
fn words(line: &str) -> HashMap<&str, u64> {
    let pairs = line.split_whitespace().filter_map(|w| w.split_once('='));
    let number = |key: &str, value: &str| match key {
        "fd" | "entries" => value.parse(),
        _ => u64::from_str_radix(value.trim_start_matches("0x"), 16),
    };
    pairs
        .filter_map(|(key, value)| Some((key, number(key, value).ok()?)))
        .collect()
}

/// Records an ioctl that the driver has carried out with this structure.
fn ioctl(session: &mut Session, number: u32, structure: &[u32]) {
    let size = size_of_val(structure) as u64;
    let request = 0xc000_0000 | size << 16 | 0x4600 | u64::from(number);
    // SAFETY: the structure is as long as the request says, and what it points to lives on the
    // caller's stack. Nothing is written to it.
    let ioctl = unsafe { rm::Ioctl::new(request, structure.as_ptr() as u64) }.unwrap();
    if let Some(effect) = ioctl.effect(ioctl.call().as_ref()) {
        session.learn(effect, |_| None, || true);
    }
}

/// Returns the structure with a 64-bit number at a word.
fn with(mut structure: Vec<u32>, at: usize, number: u64) -> Vec<u32> {
    structure[at] = number as u32;
    structure[at + 1] = (number >> 32) as u32;
    structure
}

/// Replays the log up to the channels' summary. Returns the session and the address of its rings.
fn replay(log: &str) -> (Session, Governors, u64) {
    let (mut session, governors) = (Session::new(), Governors::new());
    let mut rings = 0;
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        let get = words(line);
        let word = |key: &str| get[key] as u32;
        match line.split_whitespace().next() {
            Some("ALLOC") => {
                let mut params = [0u32; 80];
                if let Some(channel) = lines.peek().filter(|line| line.starts_with("  CHAN")) {
                    let get = words(channel);
                    let ring = get["gpfifo"] - RINGS + rings;
                    params[2] = ring as u32;
                    params[3] = (ring >> 32) as u32;
                    params[4] = get["entries"] as u32;
                    params[8] = get["userd"] as u32;
                    params[16] = get["off"] as u32;
                }
                let mut nvos64 = vec![0; 12];
                nvos64[..4].copy_from_slice(&[
                    word("root"),
                    word("parent"),
                    word("new"),
                    word("class"),
                ]);
                let nvos64 = with(nvos64, 4, params.as_ptr() as u64);
                ioctl(&mut session, escape::ALLOC, &nvos64);
            }
            Some("MAPMEM") => {
                let mut nvos33 = vec![0; 14];
                (nvos33[0], nvos33[2], nvos33[12]) = (CLIENT, word("h"), word("fd"));
                let nvos33 = with(with(nvos33, 4, get["off"]), 6, get["len"]);
                ioctl(&mut session, escape::MAP_MEMORY, &nvos33);
            }
            Some("MMAP") => {
                let len = get["len"] as usize;
                let at = device(len);
                if get["va"] == RINGS {
                    rings = at as u64;
                }
                let gpu = line.contains("/dev/nvidia0").then_some(0);
                session.mapped(get["fd"] as i32, at, len, gpu);
            }
            Some("CTRL") => {
                let token = [word("p0")];
                let mut nvos54 = vec![0; 8];
                (nvos54[0], nvos54[1], nvos54[2]) = (CLIENT, word("obj"), word("cmd"));
                let nvos54 = with(nvos54, 4, token.as_ptr() as u64);
                ioctl(&mut session, escape::CONTROL, &nvos54);
            }
            _ => {}
        }
    }
    (session, governors, rings)
}

#[test]
fn every_channel_of_a_context_is_managed_and_rung() {
    let log = include_str!("../../../../../tests/fixtures/ioctls/h200_context.log");
    let (mut session, mut governors, rings) = replay(log);
    governors.prepare(0);
    let summary: Vec<_> = log.lines().filter(|l| l.starts_with("chan ")).collect();
    assert_eq!((session.channels.len(), summary.len()), (20, 20));
    assert_eq!(session.doorbells.len(), 2);
    for line in summary {
        let get = words(line);
        let at = |address: u64| usize::try_from(address - RINGS + rings).unwrap();
        let (ring, userd) = (at(get["gp"]), at(get["userd"]));
        submit(&session, ring, userd, 0);
        assert_eq!(
            session.publish(&mut governors, crate::sys::now_ns(), 0),
            1,
            "{line}"
        );
        // The program rings the doorbell that was mapped last.
        let registers = rung(&session);
        assert_eq!(registers, [(0, 0), (0, get["token"] as u32)], "{line}");
    }
}
