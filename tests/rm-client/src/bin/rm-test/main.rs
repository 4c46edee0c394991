// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that the tree shows RM's objects.
//!
//! The tests run in the virtual machine, on the patched driver and the software GPU, as root, and
//! print KTAP.
//!
//! ```text
//! rm-test all [FILTER]     every test whose name contains FILTER
//! rm-test owned FILTER     the same, with channels whose rings are the driver's
//! rm-test refused FILTER   tests on a GPU that refuses controls
//! rm-test full FILTER      tests on a GPU with 768 MiB of memory
//! rm-test crowd COUNT      one test: COUNT processes at once, each with a channel group
//! rm-test accounts COUNT   one test: fewer than COUNT processes with an address space of UVM
//! rm-test deaths COUNT     one test: COUNT members die while a group at its limit evicts
//! rm-test programs COUNT   one test: COUNT random programs on managed memory
//! rm-test spaces COUNT     one test: COUNT operations of processes with several address spaces
//! rm-test oracle BOUND COUNT   one test: the same, which print what they compute
//! rm-test swap BOUND       one test: uses memory that does not fit, and prints what moves
//! rm-test stream BOUND     the same with more memory, and prints which copies are beside others
//! rm-test channels COUNT   one test: a process with COUNT channels whose rings are the driver's
//! rm-test storm-NAME COUNT one test: COUNT launches, states, deaths, switches or shadows
//! rm-test layouts VERSION  a C program that compares this crate with the headers
//! rm-test wait             until the standard input ends
//! ```

mod accounts;
mod ahead;
mod charged;
mod dying;
mod evicted;
mod exports;
mod faults;
mod freeze;
mod full;
mod gmem;
mod gpus;
mod groups;
mod host_memory;
mod hostile;
mod interrupted;
mod kept;
mod launch;
mod leaks;
mod limits;
mod managed;
mod many_spaces;
mod memory;
mod memory_seen;
mod mixed;
mod nvidia;
mod objects;
mod oracle;
mod owned;
mod owned_atoms;
mod owned_bells;
mod owned_billed;
mod owned_copies;
mod owned_crowded;
mod owned_ends;
mod owned_forged;
mod owned_launch;
mod owned_mapped;
mod owned_mapped_crowd;
mod owned_memory;
mod owned_mps;
mod owned_nodes;
mod owned_process;
mod owned_race;
mod owned_rights;
mod owned_slip;
mod owned_slots;
mod owned_stalled;
mod owned_storm;
mod owned_strict;
mod owned_strict_graphs;
mod owned_time;
mod owned_uvm;
mod owned_worker;
mod paused;
mod process;
mod processes;
mod programs;
mod replayable;
mod replayed;
mod rules;
mod sent;
mod shadowed;
mod shadowed_back;
mod shadowed_stalled;
mod shared;
mod shortage;
mod starved;
mod steps;
mod strangers;
mod submit;
mod suspended;
mod swap;
mod tables;
mod timing;
mod tree;

use gct_ktap::Stop;
use rm_client::{abi, Release};
use std::io::{self, Read};
use std::process::ExitCode;
use std::str::FromStr;

const USAGE: &str =
    "usage: rm-test all [FILTER] | owned FILTER | refused FILTER | full FILTER | crowd COUNT | deaths COUNT | programs COUNT | spaces COUNT | oracle small|limit|plenty COUNT | swap small|limit | stream small|limit | batches COUNT | shorts COUNT | accounts COUNT | channels COUNT | storm-NAME COUNT | layouts VERSION | wait";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["all"] => all(""),
        ["all", filter] => all(filter),
        ["owned", filter] => match owned::everybody() {
            Ok(()) => {
                let mut tests = tests();
                tests.retain(|(name, _)| *name != charged::WITHOUT_LIMITS);
                outcome(gct_ktap::run(&tests, filter))
            }
            Err(why) => exit("owned", Err(why)),
        },
        ["refused", filter] => outcome(gct_ktap::run(sent::REFUSED, filter)),
        ["full", filter] => outcome(gct_ktap::run(full::TESTS, filter)),
        ["accounts", count] => counted("accounts", count, accounts::processes),
        ["deaths", count] => counted("deaths", count, dying::storm),
        ["batches", count] => counted("batches", count, mixed::storm),
        ["shorts", count] => counted("shorts", count, mixed::deaths),
        ["spaces", count] => counted("spaces", count, many_spaces::histories),
        ["programs", count] => counted("programs", count, programs::many),
        ["oracle", bound, count] => match (oracle::Bound::of_name(bound), count.parse()) {
            (Ok(bound), Ok(count)) => exit("oracle", oracle::many(bound, count)),
            (Err(why), _) => exit("oracle", Err(why)),
            _ => usage(),
        },
        ["swap", bound] => exit("swap", oracle::Bound::of_name(bound).and_then(swap::all)),
        ["stream", bound] => exit(
            "stream",
            oracle::Bound::of_name(bound).and_then(swap::stream),
        ),
        ["crowd", count] => counted("crowd", count, processes::crowd),
        ["channels", count] => counted("channels", count, owned::channels),
        ["layouts", version] => {
            // The client's own structures are those of some releases, the core's of all.
            let own = Release::of_version(version).map(abi::c_assertions);
            print!("{}", own.unwrap_or_else(abi::core_assertions));
            ExitCode::SUCCESS
        }
        ["wait"] => {
            // Only the end of the input matters.
            let _ = io::stdin().read_to_end(&mut Vec::new());
            ExitCode::SUCCESS
        }
        [name, count] => match owned_storm::named(name) {
            Some(storm) => counted(name, count, storm),
            None => usage(),
        },
        _ => usage(),
    }
}

/// Runs a test of `count` steps and prints its result.
fn counted<N: FromStr>(
    name: &str,
    count: &str,
    test: impl FnOnce(N) -> gct_ktap::Outcome,
) -> ExitCode {
    match count.parse() {
        Ok(count) => exit(name, test(count)),
        Err(_) => usage(),
    }
}

/// Prints the result of a single test.
fn exit(name: &str, outcome: gct_ktap::Outcome) -> ExitCode {
    println!("KTAP version 1\n1..1");
    match outcome {
        Ok(()) => {
            println!("ok 1 {name}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("# {why:?}\nnot ok 1 {name}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::FAILURE
}

fn all(filter: &str) -> ExitCode {
    let mut tests = tests();
    let version = std::fs::read_to_string("/sys/module/nvidia/version");
    if version.is_ok_and(|version| Release::of_version(&version) == Some(Release::R595)) {
        let revoked = |name: &str| REVOKED.iter().any(|part| name.starts_with(part));
        for test in tests.iter_mut().filter(|test| revoked(test.0)) {
            test.1 = || Err(Stop::Skipped("on 595 no mapping is revoked".into()));
        }
    }
    outcome(gct_ktap::run(&tests, filter))
}

/// How the names of tests begin for which gctgroup revokes mappings of a tenant.
const REVOKED: &[&str] = &[
    "shadowed_",
    "owned_bells_",
    "owned_slip_of_a_channel_from_before",
];

/// Returns all tests. The first ones need GPUs that nobody has open. Those of `gpus` follow: the
/// last of them keeps the GPUs initialised for all others, which saves half a second each time.
fn tests() -> Vec<gct_ktap::Test> {
    [
        owned_ends::FIRST_TESTS,
        ahead::FIRST_TESTS,
        gpus::TESTS,
        objects::TESTS,
        memory::TESTS,
        processes::TESTS,
        groups::TESTS,
        submit::TESTS,
        launch::TESTS,
        owned::TESTS,
        owned_launch::TESTS,
        shadowed::TESTS,
        shadowed_back::TESTS,
        shadowed_stalled::TESTS,
        owned_mapped::TESTS,
        owned_mapped_crowd::TESTS,
        owned_memory::TESTS,
        owned_rights::TESTS,
        owned_ends::TESTS,
        owned_bells::TESTS,
        owned_race::TESTS,
        owned_atoms::TESTS,
        owned_copies::TESTS,
        owned_crowded::TESTS,
        owned_forged::TESTS,
        owned_slip::TESTS,
        owned_slots::TESTS,
        owned_strict::TESTS,
        owned_strict_graphs::TESTS,
        owned_nodes::TESTS,
        owned_time::TESTS,
        owned_billed::TESTS,
        owned_process::TESTS,
        owned_stalled::TESTS,
        owned_storm::TESTS,
        steps::TESTS,
        owned_uvm::TESTS,
        owned_mps::TESTS,
        owned_worker::TESTS,
        faults::TESTS,
        limits::TESTS,
        gmem::TESTS,
        kept::TESTS,
        memory_seen::TESTS,
        managed::TESTS,
        tables::TESTS,
        many_spaces::TESTS,
        accounts::TESTS,
        evicted::TESTS,
        ahead::TESTS,
        interrupted::TESTS,
        suspended::TESTS,
        host_memory::TESTS,
        leaks::TESTS,
        programs::TESTS,
        oracle::TESTS,
        starved::TESTS,
        dying::TESTS,
        replayable::TESTS,
        replayed::TESTS,
        shortage::TESTS,
        mixed::TESTS,
        nvidia::TESTS,
        freeze::TESTS,
        paused::TESTS,
        sent::TESTS,
        shared::TESTS,
        hostile::TESTS,
        exports::TESTS,
        strangers::TESTS,
        rules::TESTS,
        gpus::LAST_TESTS,
        charged::TESTS,
    ]
    .concat()
}

/// Returns the exit code for the number of failed tests.
fn outcome(failures: usize) -> ExitCode {
    match failures {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
