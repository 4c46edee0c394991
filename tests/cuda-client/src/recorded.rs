// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the software GPU recorded of launches.

use crate::group::read;
use fakegpu_record::{Event, Recorder};
use gct_core::mask::TpcMask;
use gct_ktap::{failed, holds, Outcome, Stop};
use std::collections::BTreeSet;

/// Returns the launches with blocks that a piece of work makes.
pub(crate) fn launches(work: impl FnOnce() -> Outcome) -> Result<Vec<Event>, Stop> {
    let recorder = Recorder::open(0)?;
    let mark = recorder.mark()?;
    work()?;
    let events = recorder.since(mark)?.into_iter();
    let launches = events.filter(|event| event.kind == "launch" && event.grid != [0; 3]);
    let launches: Vec<_> = launches.collect();
    holds("launches", !launches.is_empty())?;
    Ok(launches)
}

/// Returns the TPCs of a list.
pub(crate) fn tpcs(list: &str) -> Result<BTreeSet<usize>, Stop> {
    let mask = TpcMask::parse(list.trim().as_bytes());
    let mask = mask.map_err(|_| failed(format!("{list} is no list")))?;
    Ok((0..256).filter(|tpc| mask.has(*tpc)).collect())
}

/// Returns the words that disable TPCs.
pub(crate) fn words(tpcs: &BTreeSet<usize>) -> Vec<u32> {
    let mut words = vec![0; 8];
    for tpc in tpcs {
        words[tpc / 32] |= 1 << (tpc % 32);
    }
    words
}

/// Returns the words that disable all TPCs of the GPU outside of a list.
pub(crate) fn disabled(list: &str) -> Result<Vec<u32>, Stop> {
    let existing = tpcs(&read("gpus/0", "tpcs.list")?)?;
    Ok(words(&(&existing - &tpcs(list)?)))
}

/// Returns the different masks of launches.
pub(crate) fn masks(launches: &[Event]) -> BTreeSet<Vec<u32>> {
    launches.iter().map(Event::mask_words).collect()
}

/// Returns how many blocks of a launch ran.
pub(crate) fn blocks(launch: &Event) -> u64 {
    let span = |text: &str| {
        let (start, end) = text.split_once(',')?;
        Some(end.parse::<u64>().ok()? - start.parse::<u64>().ok()?)
    };
    let of_box = |text: &String| {
        let spans = text.split('x').map(|text| text.trim_matches(['[', ')']));
        spans.map(|text| span(text).unwrap_or(0)).product::<u64>()
    };
    launch.blocks.iter().map(of_box).sum()
}
