// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the TPCs of a GPU by launches under masks, and checks that each mask is kept.

use crate::gpu::{Gpu, Stamp};
use crate::verdict::{right, Wrong};
use anyhow::{ensure, Context, Result};
use core::ffi::{c_char, c_int, c_void};
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
use std::collections::BTreeSet;
use std::ffi::CString;

/// SMs of a TPC.
const SMS: usize = 2;

/// `gctgroup_restrict` of libgct_preload.
type Restrict = unsafe extern "C" fn(*const c_char) -> c_int;

/// Returns the library's function with which a program restricts itself.
fn restrict() -> Result<Restrict> {
    // SAFETY: `dlsym` with a valid C string.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"gctgroup_restrict".as_ptr()) };
    ensure!(
        !symbol.is_null(),
        "tpcs needs the user-space mode's library: LD_PRELOAD=libgct_preload.so gct-load tpcs"
    );
    // SAFETY: the library declares the symbol with this type.
    Ok(unsafe { core::mem::transmute::<*mut c_void, Restrict>(symbol) })
}

/// Restricts this program's launches to some TPCs.
fn keep_to(restrict: Restrict, tpcs: &[u32]) -> Result<()> {
    let list: Vec<String> = tpcs.iter().map(u32::to_string).collect();
    let text = CString::new(list.join(",")).context("numbers have no NUL")?;
    // SAFETY: the string lives for the call.
    let errno = unsafe { restrict(text.as_ptr()) };
    ensure!(errno == 0, "TPCs {tpcs:?} were refused: errno {errno}");
    Ok(())
}

/// Launches once and returns the SMs on which its blocks ran.
fn sms(gpu: &Gpu, stamp: &mut Stamp) -> Result<BTreeSet<usize>> {
    let stream = gpu.context.default_stream();
    stream.memset_zeros(&mut stamp.sms)?;
    Ok(gpu.sms_used(stamp)?.into_keys().collect())
}

/// Returns the TPCs below `bits` that exist, as a list.
///
/// # Errors
///
/// Those of [`find`].
pub(crate) fn present(gpu: &Gpu, bits: u32) -> Result<String> {
    let restrict = restrict()?;
    // Before the first restriction, since a program sees the SMs that its limits leave.
    let count = gpu
        .context
        .attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let mut stamp = Gpu::alloc_stamp(&gpu.context.default_stream(), (600, 1, 1), 128, 20_000)?;
    // The library learns the GPU from a first launch.
    sms(gpu, &mut stamp)?;
    let found = find(bits, usize::try_from(count)?, |tpcs| {
        keep_to(restrict, tpcs)?;
        sms(gpu, &mut stamp)
    })?;
    let list: Vec<String> = found.iter().map(u32::to_string).collect();
    Ok(list.join(","))
}

/// Finds the TPCs below `bits` of a GPU with so many SMs. `launch` returns the SMs that a launch
/// used whose mask leaves these TPCs.
///
/// A launch whose mask leaves no existing TPC would never start, and TPC 0 may be a hole. So the
/// first TPC is the number without which a launch loses two SMs, and each further one is tried
/// beside it first, and alone when it has SMs. That takes any order of the numbers, and any holes.
///
/// # Errors
///
/// Fails unless each TPC has two SMs of its own, alone and beside the first, and all together have
/// all SMs of the GPU.
fn find(
    bits: u32,
    count: usize,
    mut launch: impl FnMut(&[u32]) -> Result<BTreeSet<usize>>,
) -> Result<Vec<u32>> {
    let (lowest, lost) = lowest(bits, &mut launch)?;
    let first = launch(&[lowest])?;
    right(first == lost, || {
        let used = first.len();
        format!("a launch kept to TPC {lowest} used {used} of {count} SMs, and without it missed {lost:?}")
    })?;
    let (mut found, mut all) = (vec![lowest], first.clone());
    for tpc in lowest + 1..bits {
        let both = launch(&[lowest, tpc])?;
        right(both.is_superset(&first), || {
            format!("TPC {lowest} has SMs {first:?}, and beside TPC {tpc} {both:?}")
        })?;
        let sms: BTreeSet<usize> = both.difference(&first).copied().collect();
        if sms.is_empty() {
            continue;
        }
        right(sms.len() == SMS, || {
            format!("TPC {tpc} has {} SMs: {sms:?}", sms.len())
        })?;
        right(all.is_disjoint(&sms), || {
            format!("TPC {tpc} has SMs of another: {sms:?}")
        })?;
        let alone = launch(&[tpc])?;
        right(alone == sms, || {
            format!("TPC {tpc} has SMs {sms:?}, and alone {alone:?}")
        })?;
        all.extend(sms);
        found.push(tpc);
    }
    right(all.len() == count, || {
        format!("the TPCs {found:?} have {} of {count} SMs", all.len())
    })?;
    Ok(found)
}

/// Finds the lowest TPC, and its SMs: those that launches on all others miss, twice.
fn lowest(
    bits: u32,
    mut launch: impl FnMut(&[u32]) -> Result<BTreeSet<usize>>,
) -> Result<(u32, BTreeSet<usize>)> {
    let whole: Vec<u32> = (0..bits).collect();
    let all = launch(&whole)?;
    for tpc in 0..bits {
        let others: Vec<u32> = whole
            .iter()
            .copied()
            .filter(|other| *other != tpc)
            .collect();
        let mut missed = || -> Result<BTreeSet<usize>> {
            let used = launch(&others)?;
            Ok(all.difference(&used).copied().collect())
        };
        let lost = missed()?;
        // A busy GPU may leave an SM without a block by chance.
        if lost.len() == SMS && missed()? == lost {
            return Ok((tpc, lost));
        }
    }
    let used = all.len();
    Err(Wrong::new(format!(
        "launches used {used} SMs, whichever TPC they had to avoid"
    ))
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A GPU whose TPCs have two SMs each, as bits of a mask.
    struct Simulated {
        sms_of: BTreeMap<u32, BTreeSet<usize>>,
    }

    impl Simulated {
        fn new(bits: &[u32]) -> Self {
            let sms = |at: usize| BTreeSet::from([2 * at, 2 * at + 1]);
            let of = bits.iter().enumerate().map(|(at, bit)| (*bit, sms(at)));
            Self {
                sms_of: of.collect(),
            }
        }

        fn count(&self) -> usize {
            2 * self.sms_of.len()
        }

        /// Runs a launch. One whose mask leaves no TPC never starts.
        fn launch(&self, tpcs: &[u32]) -> BTreeSet<usize> {
            let used = tpcs.iter().filter_map(|tpc| self.sms_of.get(tpc));
            let sms: BTreeSet<usize> = used.flatten().copied().collect();
            assert!(!sms.is_empty(), "the launch on {tpcs:?} never starts");
            sms
        }
    }

    /// Like an H100: holes, and bits in another order than SMs.
    const BITS: [u32; 8] = [0, 1, 9, 2, 18, 75, 40, 63];

    /// Returns the bits of a chip whose GPCs have these TPCs, with bit `number(gpc, tpc)` each.
    fn chip(gpcs: &[&[u32]], number: impl Fn(u32, u32) -> u32) -> Vec<u32> {
        let tpcs = (0..).zip(gpcs).flat_map(|(gpc, tpcs)| {
            let number = &number;
            tpcs.iter().map(move |tpc| number(gpc, *tpc))
        });
        tpcs.collect()
    }

    /// Each chip has an order of its own, and lacks other TPCs.
    #[test]
    fn the_tpcs_of_any_chip_are_found_between_holes() {
        const SIX: &[&[u32]] = &[&[0, 1, 2, 3], &[0, 1, 3], &[1, 2], &[0], &[], &[0, 1, 2, 3]];
        // Without the first TPC of the first GPC, and without all of it.
        const LATE: &[&[u32]] = &[&[1, 2], &[0, 2], &[2]];
        const NEXT: &[&[u32]] = &[&[], &[0, 1]];
        for bits in [
            BITS.to_vec(),
            // Hopper: nine bits for each GPC. GB10: one of each GPC in turn.
            chip(SIX, |gpc, tpc| 9 * gpc + tpc),
            chip(SIX, |gpc, tpc| 6 * tpc + gpc),
            chip(LATE, |gpc, tpc| 9 * gpc + tpc),
            chip(LATE, |gpc, tpc| 6 * tpc + gpc),
            chip(NEXT, |gpc, tpc| 9 * gpc + tpc),
            chip(NEXT, |gpc, tpc| 6 * tpc + gpc),
            // The last bits alone, downwards.
            chip(SIX, |gpc, tpc| 127 - 6 * tpc - gpc),
        ] {
            let gpu = Simulated::new(&bits);
            let found = find(128, gpu.count(), |tpcs| Ok(gpu.launch(tpcs))).unwrap();
            let mut sorted = bits;
            sorted.sort_unstable();
            assert_eq!(found, sorted);
        }
    }

    /// A launch that misses an SM by chance makes no TPC.
    #[test]
    fn a_hole_is_no_tpc_on_a_busy_gpu() {
        let gpu = Simulated::new(&[3, 4, 9]);
        let mut launches = 0;
        let found = find(128, gpu.count(), |tpcs| {
            launches += 1;
            let mut sms = gpu.launch(tpcs);
            // The second launch, without TPC 0, which is a hole.
            if launches == 2 {
                sms.retain(|sm| *sm >= 2);
            }
            Ok(sms)
        });
        assert_eq!(found.unwrap(), [3, 4, 9]);
    }

    /// Returns the error of a GPU that changes what a mask does.
    fn refused(mask: impl Fn(&[u32]) -> Vec<u32>) -> String {
        let gpu = Simulated::new(&BITS);
        let launch = |tpcs: &[u32]| Ok(gpu.launch(&mask(tpcs)));
        find(128, gpu.count(), launch).unwrap_err().to_string()
    }

    #[test]
    fn a_gpu_that_ignores_masks_is_refused() {
        let error = refused(|_| BITS.to_vec());
        assert!(error.contains("used 16 SMs, whichever"), "{error}");
    }

    #[test]
    fn masks_that_are_not_kept_are_refused() {
        // A mask of two TPCs leaves a third.
        let more = |tpcs: &[u32]| [tpcs, &[40][..usize::from(tpcs.len() == 2)]].concat();
        assert!(refused(more).contains("TPC"), "{}", refused(more));
        // Alone, a TPC is another one.
        let other = |tpcs: &[u32]| match tpcs {
            [18] => vec![9],
            _ => tpcs.to_vec(),
        };
        assert!(refused(other).contains("alone"), "{}", refused(other));
        // TPC 0 is lost beside another.
        let lost = |tpcs: &[u32]| match tpcs {
            [0, 9] => vec![9],
            _ => tpcs.to_vec(),
        };
        assert!(refused(lost).contains("beside TPC 9"), "{}", refused(lost));
        // The mask has fewer bits than the GPU has TPCs.
        let narrow = |tpcs: &[u32]| tpcs.iter().copied().filter(|tpc| *tpc < 64).collect();
        assert!(
            refused(narrow).contains("14 of 16 SMs"),
            "{}",
            refused(narrow)
        );
    }
}
