// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests `slip.tpc` of owned channels: launches have the TPCs that they need.

use crate::gpus::session;
use crate::launch::{recorder, Place, PROGRAMS};
use crate::limits::{path, set};
use crate::owned::{join, no_worker};
use crate::owned_launch::{disabled, MASK};
use crate::owned_mps::{guest, server};
use crate::owned_time::{
    groups, launches, stat, tenant, tenant_as, Tenant, MILLISECOND, ONE, OTHER, PROGRAM_OF_ONE,
    PROGRAM_OF_OTHER, QUOTA,
};
use crate::process::{Child, Parent};
use crate::shadowed::cuda_like;
use crate::tree::{self, eventually, Group};
use fakegpu_record::{Event, Recorder};
use gct_core::mask::TpcMask;
use gct_ktap::{failed, same, Outcome, Stop, Test};
use rm_client::Capture;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("owned_slip_finds_the_tpcs_of_a_kernel", finds),
    ("owned_slip_gives_few_blocks_few_tpcs", few_blocks),
    ("owned_slip_leaves_a_kernel_that_needs_all", needs_all),
    ("owned_slip_finds_the_tpcs_of_a_graph", of_graph),
    ("owned_slip_of_a_channel_from_before", from_before),
    ("owned_slip_lends_what_a_size_frees", lends),
    ("owned_slip_hostile_forges_its_ends", forges),
];

const SLIP: &str = "slip.tpc";

/// TPCs of the GPU, of two SMs each.
const TPCS: u32 = 66;

/// A program whose blocks take 50 ms, and one whose blocks take 5 ms. A time counts if the worker
/// sees both ends to an eighth of it, and on a busy host an emulated worker looks late.
const LONG: u32 = 0xce20_0000;
const SHORT: u32 = 0x87d0_0000;

/// Blocks of two waves of the first on 34 TPCs or more, and of three on fewer; and of 20 waves of
/// the second. Both take 100 ms.
const TWO_WAVES: u32 = 136;
const NEEDED: u32 = 34;
const ALL_WAVES: u32 = 20 * 2 * TPCS;

/// Blocks that have a TPC each, which needs no time to be known.
const FEW: u32 = 4;

/// Launches of a round.
const ROUND: usize = 10;

/// Rounds within which a size is found. Eight will do, if all times count.
const ROUNDS_MAX: usize = 150;

/// Returns how many TPCs a launch had.
fn tpcs(launch: &Event) -> u32 {
    let disabled = launch
        .mask_words()
        .into_iter()
        .map(|word| word.count_ones());
    TPCS.saturating_sub(disabled.sum())
}

/// A member of a group that launches one kernel, again and again.
struct Member {
    program: u32,
    rounds: usize,
    child: Child,
    recorder: Recorder,
}

impl Member {
    fn new(group: &Group, program: u32, blocks: u32) -> Result<Self, Stop> {
        Self::that_opens(Tenant::new, group, program, blocks)
    }

    /// The same, for a member that opens the GPU in its own way.
    fn that_opens(
        open: fn(u32) -> Result<Tenant, Stop>,
        group: &Group,
        program: u32,
        blocks: u32,
    ) -> Result<Self, Stop> {
        let child = tenant_as(open, group, program, move |tenant, parent| loop {
            for _ in 0..ROUND {
                tenant.launch_as_cuda(blocks);
                tenant.wait(1)?;
            }
            tenant.wait(0)?;
            parent.step()?;
        })?;
        Self::of(program, child)
    }

    /// The same, for a child that makes a round in each step.
    fn of(program: u32, child: Child) -> Result<Self, Stop> {
        Ok(Self {
            program,
            rounds: 0,
            child,
            recorder: recorder()?,
        })
    }

    /// Returns the launches of a round.
    fn round(&mut self) -> Result<Vec<Event>, Stop> {
        let mark = self.recorder.mark()?;
        self.child.next()?;
        self.rounds += 1;
        let events = launches(&self.recorder, mark, self.program)?;
        same("launches", events.len(), ROUND)?;
        Ok(events)
    }

    /// Returns the launches of the first round for which `is_done` holds.
    fn until(&mut self, is_done: impl Fn(&[Event]) -> bool) -> Result<Vec<Event>, Stop> {
        for round in 1..=ROUNDS_MAX {
            let events = self.round()?;
            if is_done(&events) {
                println!("# after {round} rounds");
                return Ok(events);
            }
        }
        let last = self.round()?;
        let last: Vec<u32> = last.iter().map(tpcs).collect();
        Err(failed(format!(
            "{ROUNDS_MAX} rounds were not enough: {last:?}"
        )))
    }

    fn end(mut self) -> Outcome {
        self.child.kill();
        no_worker()
    }
}

/// Makes a group with a slip.
fn group(slip: &str) -> Result<Group, Stop> {
    // The driver learns the GPU's TPCs from its first client.
    drop(session(0)?);
    let group = Group::new(ONE)?;
    set(ONE, SLIP, slip)?;
    Ok(group)
}

/// Returns whether launches have the TPCs that they need, in steps of a 32nd of all.
fn have(needed: u32) -> impl Fn(&[Event]) -> bool {
    move |events| {
        let near = |event: &Event| (needed..needed + 4).contains(&tpcs(event));
        events.iter().all(near)
    }
}

/// The driver sees from its times that a kernel is no slower on half of the GPU's TPCs. It has
/// these from then on, and all of them once there is no slip.
fn finds() -> Outcome {
    let group = group("10")?;
    let mut member = Member::new(&group, LONG, TWO_WAVES)?;
    let first = member.round()?;
    same("the first has all", tpcs(&first[0]), TPCS)?;
    let events = member.until(have(NEEDED))?;
    let mut times: Vec<u64> = events.iter().map(|it| it.ns - it.began).collect();
    times.sort_unstable();
    same(
        "as long as on all TPCs, in us",
        times[ROUND / 2] / 1000,
        100_002,
    )?;
    let effective = path(ONE, "tpc.effective")?;
    let list = tree::read(&effective)?;
    let shown = TpcMask::parse(list.trim().as_bytes()).ok();
    same(&list, shown.map(|it| it.count()), events.last().map(tpcs))?;
    let narrowed = stat(ONE, "slip_narrowed")?;
    same("narrowed", narrowed as usize >= ROUND, true)?;
    same("saved", stat(ONE, "slip_saved_usec")? > 0, true)?;
    set(ONE, SLIP, "0")?;
    let after: Vec<u32> = member.round()?.iter().map(tpcs).collect();
    same("without a slip", after, vec![TPCS; ROUND])?;
    same("narrowed then", stat(ONE, "slip_narrowed")?, narrowed)?;
    same("shown then", tree::read(&effective)?.trim(), "all")?;
    member.end()
}

/// A launch of few blocks has a TPC for each, from the first one on.
fn few_blocks() -> Outcome {
    let group = group("10")?;
    let mut member = Member::new(&group, SHORT, FEW)?;
    let most = member.round()?.iter().map(tpcs).max();
    same("most", most, Some(FEW))?;
    member.end()
}

/// A kernel of many waves would take longer and save nothing. It has all TPCs, but for launches
/// that explore: eight in a row, and then one in 32 at most.
fn needs_all() -> Outcome {
    let group = group("10")?;
    let mut member = Member::new(&group, SHORT, ALL_WAVES)?;
    let refused = || stat(ONE, "slip_refused");
    let is_known = |_: &[Event]| refused().is_ok_and(|refused| refused > 0);
    member.until(is_known)?;
    let has_all = |events: &[Event]| events.iter().all(|event| tpcs(event) == TPCS);
    member.until(has_all)?;
    let (narrowed, refused) = (stat(ONE, "slip_narrowed")?, refused()?);
    println!("# {narrowed} had fewer, {refused} all");
    let most = 8 + (member.rounds * ROUND) as u64 / 32;
    same("few explore", narrowed <= most, true)?;
    member.end()
}

/// The captured graph of one kernel: its program, the TPCs that hold all of its 64 blocks, the
/// number that its node counts up, and what a replay releases at its end. CUDA counts up both from
/// replay to replay.
const GRAPH: &str = "graph of one kernel";
const GRAPH_PROGRAM: [u32; 2] = [0xff7b_7b00, 0x7f3c];
const GRAPH_NEEDED: u32 = 32;
const GRAPH_COUNTS: [u32; 2] = [0x6001_206d, 9];
const GRAPH_ENDS: [u32; 2] = [0x0460_ffe0, 0x54];

/// Replays the graph again and again, with a long kernel.
fn replays(parent: &mut Parent) -> Outcome {
    let program = PROGRAMS.iter().find(|program| program.0 == GRAPH);
    let (_, texts, _) = program.ok_or_else(|| failed("no graph"))?;
    let captured = |texts: &[&str]| {
        let capture = Capture::parse(texts)?;
        Ok::<_, Stop>(capture.replaced(GRAPH_PROGRAM, [LONG, 0]))
    };
    let place = Place::new(session(0)?)?;
    let mut channels = place.channels(&captured(texts)?)?;
    let mut run = |capture: &Capture| {
        let launches = place.run_on(&mut channels, capture, place.recorder.mark()?)?;
        same("launches", launches.len(), 1)
    };
    run(&captured(&texts[..1])?)?;
    let mut replay = captured(&texts[1..])?;
    let (mut counts, mut ends) = (GRAPH_COUNTS, GRAPH_ENDS);
    parent.step()?;
    loop {
        for _ in 0..ROUND {
            for number in [&mut counts, &mut ends] {
                let last = *number;
                number[1] += 1;
                replay = replay.replaced(last, *number);
            }
            run(&replay)?;
        }
        parent.step()?;
    }
}

/// The driver sees from the times of replays how many TPCs a graph needs.
fn of_graph() -> Outcome {
    let group = group("10")?;
    let mut member = Member::of(LONG, join(&group, replays)?)?;
    member.child.next()?;
    member.until(have(GRAPH_NEEDED))?;
    set(ONE, SLIP, "0")?;
    let after: Vec<u32> = member.round()?.iter().map(tpcs).collect();
    same("without a slip", after, vec![TPCS; ROUND])?;
    member.end()
}

/// A channel from before the slip is shadowed.
fn from_before() -> Outcome {
    let group = group("0")?;
    let open = |program| Tenant::with(cuda_like()?, program);
    let mut member = Member::that_opens(open, &group, SHORT, FEW)?;
    same("native", stat(ONE, "native")?, 1)?;
    let mut most = || Ok::<_, Stop>(member.round()?.iter().map(tpcs).max());
    same("before", most()?, Some(TPCS))?;
    set(ONE, SLIP, "10")?;
    // The driver learns where the launches release.
    most()?;
    same("after", most()?, Some(FEW))?;
    same("cooperative", stat(ONE, "cooperative")?, 1)?;
    set(ONE, SLIP, "0")?;
    same("without a slip", most()?, Some(TPCS))?;
    eventually("cooperative", &0, || stat(ONE, "cooperative"))?;
    member.end()
}

/// TPCs that are reserved for the member with the slip.
const OWN: u32 = 44;

/// Clients of one server run side by side. Of the TPCs that are reserved for the first, the other
/// has those that its sizes free, while it works.
fn lends() -> Outcome {
    /// Launches by which the largest of the last 128 to 256 is a small one.
    const SMALL: u64 = 300;
    /// What the debug kernel may need.
    const PATIENCE: Duration = Duration::from_secs(600);
    let _server = server()?;
    let [one, other] = groups()?;
    set(ONE, QUOTA, &OWN.to_string())?;
    set(ONE, SLIP, "10")?;
    let mut owner = tenant_as(guest, &one, SHORT, |tenant, parent| {
        parent.work(|| {
            tenant.launch_as_cuda(FEW);
            tenant.wait(2)
        })
    })?;
    // Its launches take 0.1 ms on all TPCs. Long ones are not lent what may be needed any moment.
    let mut borrower = tenant_as(guest, &other, PROGRAM_OF_OTHER, |tenant, parent| loop {
        for _ in 0..50 {
            tenant.launch(MILLISECOND / 10);
            tenant.wait(0)?;
        }
        parent.step()?;
    })?;
    owner.next()?;
    let recorder = recorder()?;
    // Returns how many launches of the other have all TPCs but `taken`.
    let mut beside = |taken: u32| -> Result<usize, Stop> {
        let mark = recorder.mark()?;
        borrower.next()?;
        let all = launches(&recorder, mark, PROGRAM_OF_OTHER)?;
        let those = all.iter().filter(|event| tpcs(event) == TPCS - taken);
        Ok(those.count())
    };
    let start = Instant::now();
    while stat(ONE, "slip_narrowed")? < SMALL {
        same("small launches in time", start.elapsed() < PATIENCE, true)?;
        thread::sleep(Duration::from_millis(100));
    }
    // A busy host sees the ends late, so that the driver takes most launches for long ones.
    while beside(FEW)? == 0 {
        same("beside few in time", start.elapsed() < PATIENCE, true)?;
    }
    set(ONE, SLIP, "0")?;
    for _ in 0..5 {
        same("beside few", beside(FEW)?, 0)?;
    }
    same("beside all", beside(OWN)? > 0, true)?;
    owner.kill();
    borrower.kill();
    no_worker()
}

/// A tenant writes by itself what its launches release, early or twice, so that their times are
/// what it likes. Its launches have TPCs of its mask and at least one, and its neighbour has its
/// own.
fn forges() -> Outcome {
    let [one, other] = groups()?;
    set(ONE, MASK, "0-31")?;
    set(ONE, SLIP, "100")?;
    set(OTHER, MASK, "32-63")?;
    let recorder = recorder()?;
    let mut liar = tenant(&one, PROGRAM_OF_ONE, |tenant, parent| {
        parent.work(|| {
            for (blocks, lie) in [(1000, 5), (2, 1), (1000, 0), (5000, 9)] {
                tenant.launch_as_cuda(blocks);
                tenant.launch(blocks);
                thread::sleep(Duration::from_millis(lie));
                tenant.forge_ends();
            }
            Ok(())
        })
    })?;
    let mut witness = tenant(&other, PROGRAM_OF_OTHER, |tenant, parent| loop {
        for _ in 0..10 {
            tenant.launch(MILLISECOND);
            tenant.wait(0)?;
        }
        parent.step()?;
    })?;
    let mark = recorder.mark()?;
    liar.next()?;
    for _ in 0..5 {
        witness.next()?;
    }
    for (program, list) in [(PROGRAM_OF_ONE, "0-31"), (PROGRAM_OF_OTHER, "32-63")] {
        let outside = disabled(list)?;
        let found = launches(&recorder, mark, program)?;
        println!("# {} launches of {program:#x}", found.len());
        same("launches", found.len() >= 5, true)?;
        for launch in found {
            let mask = launch.mask_words();
            let inside = mask
                .iter()
                .zip(outside)
                .all(|(mask, outside)| mask & outside == outside);
            same("within its mask", (inside, tpcs(&launch) > 0), (true, true))?;
            let own = program == PROGRAM_OF_ONE || mask == outside;
            same("as if it were alone", own, true)?;
        }
    }
    liar.kill();
    witness.kill();
    no_worker()
}
