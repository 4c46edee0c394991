// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives a launch the TPCs that cost least within the slip of its tenant, and learns from its time.
//!
//! A piece has a size if it is a whole launch with a grid, or the replay of one known graph with
//! one end. Atoms, cooperative launches, launches of clusters and uploads of graphs have the TPCs
//! that they are granted. A node of a replay has more TPCs than its size if only these hold its
//! blocks at once, and fewer if it has fewer blocks.
//!
//! A time counts if the piece had its TPCs to itself: no other lane of the tenant and no process on
//! the same TPCs had work in flight meanwhile, and its beginning and end were seen well enough. The
//! time of a replay whose masks were written with it does not count.

use super::in_flight::{Allotment, End, Submission};
use super::words::Storage;
use super::work::Seal;
use crate::mask::TpcMask;
use crate::policy::predict::Kernel;
use crate::policy::scale::{self, Bounds, Law, Laws, Observation, Size, Verdict};
use crate::policy::tide::Tide;
use crate::probe;
use crate::submit::graph::{Masks, Patched, Width};
use crate::submit::mask::DisabledTpcs;
use crate::submit::occupancy;
use crate::submit::precedence::Precedence;
use crate::submit::stats::{add, Counters};
use crate::submit::tracker::QmdCall;
use crate::topology::Topology;
use crate::units::{div_ceil, Ns, Percent};

/// The part of a time that may be unknown, as a divisor. The average of eight is then off by a
/// hundredth.
const ERROR: u64 = 8;

/// Looks during a piece. Two of them at each end are then an [`ERROR`] of its time, and as much is
/// left for looks that come late.
pub(super) const LOOKS: u64 = 4 * ERROR;

/// Widths of nodes that need more TPCs than the size of their graph, or cannot use as many.
const WIDTHS: usize = 8;

/// The TPCs that were granted, the tenant's own, and the place of a release on them.
pub(super) type Granted = (TpcMask, TpcMask, Option<Precedence>);

/// The widths of nodes: parts of the granted TPCs, of the same size.
#[derive(Default)]
struct Widths {
    of: Granted,
    widths: [Width; WIDTHS],
}

/// Returns `count` of the TPCs `granted` to a tenant, its `own` ones first.
pub(super) fn choose(gpu: &Topology, (granted, own, _): &Granted, count: u32) -> TpcMask {
    let first = gpu.spread(&granted.and(own), count);
    let more = count.saturating_sub(first.count());
    first.or(&gpu.spread_beside(&first, &granted.without(own), more))
}

/// The sizes of one tenant's launches.
pub(super) struct Sizing<S: Storage> {
    laws: S::Slots<Option<Law>>,
    uses: u32,
    /// The size of the next release, if it has one.
    next: Option<(Kernel, Size)>,
    /// What the masks of its nodes are, if it is a replay.
    patched: Patched,
    /// The TPCs that the last releases had.
    tide: Tide,
    /// The TPCs without a size, and other widths of nodes.
    most: u32,
    widths: Widths,
    /// When more than one piece was last seen on the tenant's TPCs.
    disturbed: Ns,
}

impl<S: Storage> Sizing<S> {
    pub(super) fn new(laws: S::Slots<Option<Law>>) -> Self {
        Self {
            laws,
            uses: 0,
            next: None,
            patched: Patched::default(),
            tide: Tide::HIGH,
            most: 0,
            widths: Widths::default(),
            disturbed: Ns(0),
        }
    }

    /// Records which masks the nodes of the next release have.
    pub(super) fn replay(&mut self, patched: &Patched) {
        self.patched = *patched;
    }

    /// Returns the masks for the nodes of a replay, which leave the TPCs `granted`.
    pub(super) fn masks<'a>(
        &'a self,
        each: Option<&'a DisabledTpcs>,
        granted: &TpcMask,
    ) -> Masks<'a> {
        let (Some((_, size)), tpcs) = (&self.next, granted.count()) else {
            return each.into();
        };
        Masks {
            each,
            tpcs,
            // Times are compared with those of nodes that all have all TPCs.
            others: match size.tpcs < self.most {
                true => &self.widths.widths,
                false => &[],
            },
        }
    }

    /// Records that other work runs on the tenant's TPCs, or on another of its lanes.
    pub(super) fn disturb(&mut self, now: Ns) {
        self.disturbed = now;
    }
}

/// Returns what identifies the replays of a segment.
pub(super) fn graph(found: &[QmdCall]) -> Kernel {
    let words = found.iter().flat_map(|call| {
        // CAST: both halves of an address.
        [call.qmd_va as u32, (call.qmd_va >> 32) as u32]
    });
    Kernel::graph(words.fold(0, probe::mix))
}

/// Returns whether no launch of a segment needs certain TPCs together or at once.
pub(super) fn fit_anywhere(found: &[QmdCall], words: &[u32]) -> bool {
    found.iter().all(|call| {
        let qmd = call.qmd(words).zip(call.version);
        qmd.is_some_and(|(qmd, version)| occupancy::fits_anywhere(qmd, version))
    })
}

impl<S: Storage> Sizing<S> {
    /// Returns the TPCs that none of the last releases had.
    pub(super) fn ebb(&self) -> TpcMask {
        self.tide.ebb()
    }

    /// Records which of the TPCs `granted` the present release has. `bound` says whether its mask
    /// could be written.
    pub(super) fn record_tide(&mut self, gpu: &Topology, granted: &TpcMask, bound: bool) {
        let had = match (&self.next, self.patched.widest) {
            _ if !bound => TpcMask::FULL,
            // A replay without known nodes may use any TPC.
            (Some((kernel, _)), 0) if kernel.is_graph() => TpcMask::FULL,
            (Some((_, size)), widest) if widest > size.tpcs => choose(gpu, &self.widths.of, widest),
            (Some(_), _) => *granted,
            (None, _) => TpcMask::FULL,
        };
        self.tide = self.tide.after(&had);
    }

    /// Has the next release no size.
    pub(super) fn clear(&mut self) {
        self.next = None;
    }

    /// Returns the size of the next release, which has a `seal`. `observed` says whether its time will
    /// tell of it.
    pub(super) fn fit<V>(
        &mut self,
        submission: &Submission<V>,
        seal: &Seal<V>,
        (most, slip): (u32, Percent),
        observed: bool,
    ) -> u32 {
        // More TPCs than blocks have nothing to do.
        let blocks = match submission.blocks {
            0 => most,
            blocks => u32::try_from(blocks).unwrap_or(most).min(most),
        };
        let bounds = Bounds {
            least: match seal.replays || seal.resident > most {
                true => 1,
                false => seal.resident,
            },
            most: blocks,
        };
        let kernel = submission.kernel;
        let size = scale::size(&self.laws, &kernel, bounds, slip, observed);
        self.next = Some((kernel, size));
        self.patched = Patched::default();
        self.most = most;
        size.tpcs
    }

    /// Makes the widths those of the granted TPCs, of which all are `mask`.
    pub(super) fn update_widths(
        &mut self,
        gpu: &Topology,
        of: Granted,
        mask: Option<DisabledTpcs>,
    ) {
        if self.widths.of == of {
            return;
        }
        let most = u64::from(self.most);
        let mut widths = Widths {
            of,
            ..Widths::default()
        };
        for (width, part) in widths.widths.iter_mut().zip(1u64..) {
            let tpcs = div_ceil(most.saturating_mul(part), WIDTHS as u64);
            // CAST: at most `most`.
            let chosen = choose(gpu, &of, tpcs as u32);
            let mask = match tpcs < most {
                true => DisabledTpcs::outside(gpu, &chosen)
                    .ok()
                    .map(|mask| mask.with_precedence(of.2)),
                false => mask,
            };
            *width = Width {
                tpcs: chosen.count(),
                mask,
            };
        }
        self.widths = widths;
    }

    /// Records that the piece with the present size was released. `bound` says whether its mask
    /// could be written.
    pub(super) fn released<V>(
        &mut self,
        submission: &mut Submission<V>,
        bound: bool,
        counters: &mut Counters,
    ) {
        let patched = self.patched;
        let Some((kernel, size)) = self.next.take() else {
            return;
        };
        Laws::new(&mut self.laws, &mut self.uses).launch(&kernel, &size);
        let refused = size.verdict == Verdict::Refused;
        add(&mut counters.sums.slip_refused, u64::from(refused));
        if bound {
            let most = self.most;
            let is_narrowed = u64::from(size.tpcs < most);
            add(&mut counters.sums.slip_narrowed, is_narrowed);
            submission.sized = Some(Allotment {
                tpcs: size.tpcs,
                most,
                observed: patched.nodes == 0,
            });
            submission.tpcs = patched.mean(size.tpcs.into());
        }
    }

    /// Learns from the time of a piece with a size. Returns the time of the GPU's `gpu_count` TPCs
    /// that this has saved.
    pub(super) fn learn<V>(
        &mut self,
        submission: &Submission<V>,
        end: &End,
        gpu_count: u32,
        now: Ns,
    ) -> Ns {
        let Some(sized) = submission.sized else {
            return Ns(0);
        };
        let Allotment { tpcs, most, .. } = sized;
        let kernel = &submission.kernel;
        let mut laws = Laws::new(&mut self.laws, &mut self.uses);
        let whole = laws.time(kernel, most).filter(|_| tpcs < most);
        let saved = whole.map_or(Ns(0), |whole| {
            let (before, after) = (whole * u64::from(most), end.time * submission.tpcs);
            (before - after) / u64::from(gpu_count.max(1))
        });
        let began = now - end.time;
        if submission.is_timed(end, ERROR) && began > self.disturbed {
            let observation = Observation {
                tpcs,
                used: submission.tpcs,
                time: end.time,
            };
            laws.observe(kernel, observation);
        }
        saved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::governor::{Governor, Nobody};
    use crate::lane::limits::LaunchLimits;
    use crate::lane::testing::{self, Heap, View};
    use std::vec;

    const KERNEL: Kernel = Kernel {
        program: 7,
        grid: [1000, 1, 1],
        block: [32, 1, 1],
        per_tpc: 4,
    };

    fn submission(observed: bool) -> Submission<View> {
        Submission {
            sized: Some(Allotment {
                tpcs: 8,
                most: 8,
                observed,
            }),
            ..testing::submission(KERNEL, 1000, 8)
        }
    }

    /// Returns whether ends of launches that took 100 us teach their time.
    fn teaches(observed: bool, queued: bool, error: u64, disturbed: u64) -> bool {
        let mut sizing: Sizing<Heap> = Sizing::new(vec![None; 16]);
        let bounds = Bounds { least: 1, most: 8 };
        let size = scale::size(&sizing.laws, &KERNEL, bounds, Percent(10), false);
        Laws::new(&mut sizing.laws, &mut sizing.uses).launch(&KERNEL, &size);
        sizing.disturb(Ns(disturbed));
        let end = End {
            time: Ns(100_000),
            queued,
            error: Ns(error),
            at: Ns(200_000),
            missed: false,
        };
        for _ in 0..8 {
            sizing.learn(&submission(observed), &end, 8, end.at);
        }
        let laws = Laws::new(&mut sizing.laws, &mut sizing.uses);
        laws.time(&KERNEL, 8) == Some(end.time)
    }

    /// Returns the governor of 16 TPCs whose next release is a replay of this size.
    fn replaying(tpcs: u32) -> Governor<Heap, Nobody> {
        let limits = LaunchLimits {
            slip: Percent(10),
            ..LaunchLimits::NONE
        };
        let mut governor = Governor::new(limits, vec![], vec![], vec![]);
        governor.set_gpu(Topology::together(TpcMask::first(16)));
        governor.sizing.most = 16;
        let of = (governor.granted, governor.own, governor.precedence);
        let (gpu, mask) = (&governor.gpu, governor.mask);
        governor.sizing.update_widths(gpu, of, mask);
        let size = Size {
            tpcs,
            settled: tpcs,
            verdict: Verdict::Known,
            explores: false,
        };
        governor.sizing.next = Some((Kernel::graph(7), size));
        governor.use_mask(TpcMask::first(tpcs as usize));
        governor
    }

    /// Returns what replays of size 4 leave whose widest node has `widest` TPCs.
    fn replays_leave(widest: u32, bound: bool) -> TpcMask {
        let mut governor = replaying(4);
        governor.sizing.patched.widest = widest;
        // The tide is high at first.
        (0..1000).for_each(|_| governor.record_tide(bound));
        governor.ebb().and(&TpcMask::first(16))
    }

    #[test]
    fn only_work_that_moves_under_a_slip_is_looked_at_closely() {
        let looks = |slip: u8, frozen: bool, pending: bool| {
            let limits = LaunchLimits {
                slip: Percent(slip),
                frozen,
                ..LaunchLimits::NONE
            };
            let mut governor: Governor<Heap, Nobody> =
                Governor::new(limits, vec![], vec![], vec![]);
            governor.end(false, Ns(1_000_000));
            governor.end(pending, Ns(1_000_000));
            [1_000_000, 5_000_000, 1 << 40].map(|now| governor.next_look(Ns(now)))
        };
        // A launch that hangs is looked at no more often than without a slip.
        let moves = [Some(Ns(0)), Some(Ns(125_000)), None];
        assert_eq!(looks(10, false, true), moves);
        let others = [(0, false, true), (10, true, true), (10, false, false)];
        for (slip, frozen, pending) in others {
            assert_eq!(looks(slip, frozen, pending), [None; 3]);
        }
    }

    #[test]
    fn nodes_have_widths_below_all_tpcs_only() {
        for (tpcs, widths) in [(16, 0), (15, WIDTHS)] {
            let governor = replaying(tpcs);
            let masks = governor.sizing.masks(None, &governor.granted);
            assert_eq!((masks.tpcs, masks.others.len()), (tpcs, widths));
        }
        let widths = replaying(4).sizing.widths.widths.map(|width| width.tpcs);
        assert_eq!(widths, [2, 4, 6, 8, 10, 12, 14, 16]);
    }

    #[test]
    fn a_replay_leaves_what_its_widest_node_has_not() {
        let from = |tpc| TpcMask::first(16).without(&TpcMask::first(tpc));
        assert_eq!(replays_leave(4, true), from(4));
        assert_eq!(replays_leave(2, true), from(4), "the mask of the others");
        assert_eq!(replays_leave(10, true), from(10));
        assert_eq!(replays_leave(0, true), from(16), "no node is known");
        assert_eq!(replays_leave(10, false), from(16), "no mask was written");
    }

    #[test]
    fn only_a_time_that_is_the_launch_s_own_teaches() {
        assert!(teaches(true, true, 12_500, 99_999));
        assert!(!teaches(true, true, 12_500, 100_000), "others worked");
        assert!(!teaches(true, true, 12_501, 0), "it was not seen well");
        assert!(!teaches(false, true, 0, 0), "masks were written with it");
        // The start of an idle GPU takes up to 8 us of it.
        assert!(teaches(true, false, 4_500, 0) && !teaches(true, false, 4_501, 0));
    }
}
