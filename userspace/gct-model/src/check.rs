// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares a rewritten submission with the original: both must have the same effects.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use crate::descriptor::{Kernel, Kind, Mask};
use crate::grid::{Blocks, Coverage};
use crate::memory::SparseMemory;
use crate::report::{Act, Anomaly, ChannelId, Moment, Report, Run, Waiting};

/// The requested changes of a rewrite.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Memory of the rewriter. Changes to descriptors in it are not compared.
    pub slots: Range<u64>,
    /// TPCs that must be disabled in addition to those that the tenant disables.
    pub mask: Mask,
}

/// A difference that a tenant could notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The blocks of a kernel ran a different number of times.
    Blocks {
        /// The kernel and its arguments.
        kernel: Kernel,
        /// Number of runs of each block in the original.
        original: Vec<(Blocks, u32)>,
        /// Number of runs of each block in the rewrite.
        rewritten: Vec<(Blocks, u32)>,
    },
    /// An effect happened a different number of times.
    Times {
        /// The effect.
        act: Act,
        /// Number of times in the original.
        original: usize,
        /// Number of times in the rewrite.
        rewritten: usize,
    },
    /// An effect happened before the blocks that it depends on had ended.
    Early {
        /// The effect.
        act: Act,
        /// Blocks that had ended when it happened in the original.
        ended_in_original: u64,
        /// Blocks that had ended when it happened in the rewrite.
        ended: u64,
    },
    /// A run's mask differs from the tenant's mask combined with the requested one.
    Mask {
        /// The run's descriptor.
        qmd: u64,
        /// Its mask.
        mask: Mask,
    },
    /// A descriptor waits at the end in only one of the two.
    Waits(Waiting),
    /// A channel is blocked at the end only in the rewrite.
    Blocked(ChannelId),
    /// An anomaly occurred only in the rewrite.
    Unusual(Anomaly),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks {
                kernel,
                original,
                rewritten,
            } => {
                write!(f, "the kernel at {:#x} ran", kernel.program)?;
                list(f, rewritten)?;
                f.write_str(" instead of")?;
                list(f, original)
            }
            Self::Times {
                act,
                original,
                rewritten,
            } => write!(f, "{act}: {rewritten} times instead of {original}"),
            Self::Early {
                act,
                ended_in_original,
                ended,
            } => write!(
                f,
                "{act}: after {ended} blocks instead of {ended_in_original}"
            ),
            Self::Mask { qmd, mask } => {
                write!(f, "the QMD at {qmd:#x} ran under the mask {:08x?}", mask.0)
            }
            Self::Waits(waiting) => write!(f, "the QMD at {:#x} waits otherwise", waiting.qmd),
            Self::Blocked(channel) => write!(f, "channel {} is stuck", channel.0),
            Self::Unusual(anomaly) => anomaly.fmt(f),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, counts: &[(Blocks, u32)]) -> fmt::Result {
    if counts.is_empty() {
        return f.write_str(" nothing");
    }
    for (blocks, times) in counts {
        write!(f, " {blocks} {times} times")?;
    }
    Ok(())
}

/// Returns every difference of a rewrite that a tenant could notice.
///
/// `original` must come from a machine with [`crate::Order::Eager`]; `rewritten` may have any
/// order.
#[must_use]
pub fn compare(original: &Report, rewritten: &Report, expected: &Expected) -> Vec<Violation> {
    let mut violations = Vec::new();
    compare_blocks(original, rewritten, &mut violations);
    compare_effects(original, rewritten, &expected.slots, &mut violations);
    compare_masks(original, rewritten, &expected.mask, &mut violations);
    compare_waiting(original, rewritten, &expected.slots, &mut violations);
    let stuck = |channel: &&ChannelId| !original.blocked.contains(channel);
    let blocked = rewritten.blocked.iter().filter(stuck);
    violations.extend(blocked.copied().map(Violation::Blocked));
    let unusual = |anomaly: &&Anomaly| !is_known(anomaly, original, &expected.slots);
    let anomalies = rewritten.anomalies.iter().filter(unusual);
    violations.extend(anomalies.copied().map(Violation::Unusual));
    violations
}

/// Returns whether the original has the anomaly, too. An anomaly of a descriptor in `slots` counts
/// for the launch that it is a part of.
fn is_known(anomaly: &Anomaly, original: &Report, slots: &Range<u64>) -> bool {
    let is_part = matches!(anomaly, Anomaly::UnknownDependent(qmd) if slots.contains(qmd));
    let of_a_launch = |other: &Anomaly| matches!(other, Anomaly::UnknownDependent(_));
    original.anomalies.contains(anomaly) || is_part && original.anomalies.iter().any(of_a_launch)
}

/// Returns the addresses of words that differ between two memories, outside `ignored`; at most 16.
#[must_use]
pub fn memory_differences(
    original: &SparseMemory,
    rewritten: &SparseMemory,
    ignored: &[Range<u64>],
) -> Vec<u64> {
    let outside = |address: &u64| !ignored.iter().any(|range| range.contains(address));
    let mut words: BTreeMap<u64, [u32; 2]> = BTreeMap::new();
    for (address, value) in original.words() {
        words.entry(address).or_default()[0] = value;
    }
    for (address, value) in rewritten.words() {
        words.entry(address).or_default()[1] = value;
    }
    words
        .into_iter()
        .filter(|(_, [original, rewritten])| original != rewritten)
        .map(|(address, _)| address)
        .filter(outside)
        .take(16)
        .collect()
}

fn coverages(report: &Report) -> BTreeMap<Kernel, Coverage> {
    let mut coverages: BTreeMap<Kernel, Coverage> = BTreeMap::new();
    for run in report.runs.iter().filter(|run| run.ended.is_some()) {
        if !run.blocks.is_empty() {
            coverages.entry(run.kernel).or_default().add(&run.blocks);
        }
    }
    coverages
}

fn compare_blocks(original: &Report, rewritten: &Report, violations: &mut Vec<Violation>) {
    let (before, after) = (coverages(original), coverages(rewritten));
    let kernels = before
        .keys()
        .chain(after.keys().filter(|kernel| !before.contains_key(kernel)));
    for kernel in kernels {
        let counts = |all: &BTreeMap<Kernel, Coverage>| {
            all.get(kernel).map(Coverage::counts).unwrap_or_default()
        };
        let (original, rewritten) = (counts(&before), counts(&after));
        if original != rewritten {
            violations.push(Violation::Blocks {
                kernel: *kernel,
                original,
                rewritten,
            });
        }
    }
}

/// Returns the tenant's effects in order, each with its times and the runs that caused it.
///
/// Effects that stay within `slots` are left out: those on a descriptor there, such as an atom's
/// decrement of its join, and releases by a descriptor there to a word there.
fn tenant_effects<'a>(
    report: &'a Report,
    slots: &Range<u64>,
) -> BTreeMap<Act, Vec<(Moment, Option<&'a Run>)>> {
    let mut effects: BTreeMap<Act, Vec<(Moment, Option<&Run>)>> = BTreeMap::new();
    for effect in &report.effects {
        let run = effect.by.and_then(|by| report.runs.get(by));
        let by_own = run.is_some_and(|run| slots.contains(&run.qmd));
        let stays = match effect.act {
            Act::Release(release) => by_own && slots.contains(&release.address),
            act => act.qmd().is_some_and(|qmd| slots.contains(&qmd)),
        };
        if !stays {
            effects
                .entry(effect.act)
                .or_default()
                .push((effect.at, run));
        }
    }
    effects
}

fn compare_effects(
    original: &Report,
    rewritten: &Report,
    slots: &Range<u64>,
    violations: &mut Vec<Violation>,
) {
    let (before, after) = (
        tenant_effects(original, slots),
        tenant_effects(rewritten, slots),
    );
    for act in before
        .keys()
        .chain(after.keys().filter(|act| !before.contains_key(act)))
    {
        let times = |all: &BTreeMap<Act, Vec<_>>| all.get(act).map_or(0, Vec::len);
        let (original, rewritten) = (times(&before), times(&after));
        if original != rewritten {
            violations.push(Violation::Times {
                act: *act,
                original,
                rewritten,
            });
        }
    }
    for (act, events) in &before {
        // For each kernel, how many blocks must have ended at the first, second... occurrence of
        // this effect.
        let mut needed: BTreeMap<Kernel, u64> = BTreeMap::new();
        for (at, (time, run)) in events.iter().enumerate() {
            let Some(run) = run else { continue };
            let behind = needed.entry(run.kernel).or_default();
            if run.ended.is_some_and(|ended| ended <= *time) {
                *behind = behind.saturating_add(run.count());
            }
            let Some((time, _)) = after.get(act).and_then(|events| events.get(at)) else {
                continue;
            };
            let ended = ended_by(rewritten, &run.kernel, *time);
            if ended < *behind {
                violations.push(Violation::Early {
                    act: *act,
                    ended_in_original: *behind,
                    ended,
                });
            }
        }
    }
}

/// Returns how many blocks of a kernel had ended at `time`.
fn ended_by(report: &Report, kernel: &Kernel, time: Moment) -> u64 {
    report
        .runs
        .iter()
        .filter(|run| run.kernel == *kernel && run.ended.is_some_and(|ended| ended <= time))
        .fold(0, |sum, run| sum.saturating_add(run.count()))
}

/// Checks that the same launches wait. A descriptor in `slots` is a part of the launch that runs
/// the same kernel. A launch waits if a part of it waits. A part of a launch that does not wait in
/// the original must not wait either.
fn compare_waiting(
    original: &Report,
    rewritten: &Report,
    slots: &Range<u64>,
    violations: &mut Vec<Violation>,
) {
    let is_part = |part: &Waiting, whole: &Waiting| {
        slots.contains(&part.qmd) && part.kernel.is_some() && part.kernel == whole.kernel
    };
    let same = |one: &Waiting, other: &Waiting| one.qmd == other.qmd || is_part(one, other);
    let more = rewritten
        .waiting
        .iter()
        .filter(|waiting| !original.waiting.iter().any(|other| same(waiting, other)));
    let fewer = original
        .waiting
        .iter()
        .filter(|waiting| !rewritten.waiting.iter().any(|other| same(other, waiting)));
    violations.extend(more.chain(fewer).copied().map(Violation::Waits));
}

fn compare_masks(
    original: &Report,
    rewritten: &Report,
    asked: &Mask,
    violations: &mut Vec<Violation>,
) {
    let runs = rewritten.runs.iter().filter(|run| !run.blocks.is_empty());
    for run in runs {
        // Blocks that must be resident together may not fit the requested mask. Then the launch
        // stays unmasked.
        let may_refuse = !matches!(run.kind, Kind::Blocks);
        let as_asked = original
            .runs
            .iter()
            .filter(|before| before.kernel == run.kernel)
            .any(|before| {
                before.mask.union(asked) == run.mask || (may_refuse && before.mask == run.mask)
            });
        if !as_asked {
            violations.push(Violation::Mask {
                qmd: run.qmd,
                mask: run.mask,
            });
        }
    }
}
