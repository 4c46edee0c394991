// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks what annotations give a container against what they give all others of the node. Their
//! scheduler counts elsewhere, or not at all.

use super::*;

/// Checks that a GPU has no more containers by annotations than the administrator allows.
pub(super) fn check_slots(
    places: &Places,
    records: &Records,
    gpu: u32,
    share: &Share,
    group: &str,
) -> Result<()> {
    let Some(slots) = share.slots else {
        return Ok(());
    };
    let others = others(places, records, group)?;
    let others = others.filter(|other| annotated(other, gpu).next().is_some());
    let taken = others.count();
    ensure!(
        u64::try_from(taken)? < u64::from(slots),
        "GPU {gpu} has {taken} containers by annotations, and slots of [nri] allows no more"
    );
    Ok(())
}

/// Checks that the memory that annotations guarantee fits in a GPU, with that of the container of a
/// record.
pub(super) fn check_guarantee(
    places: &Places,
    tree: &Tree,
    records: &Records,
    gpu: u32,
    record: &Record,
) -> Result<()> {
    let own = guarantee(record, gpu);
    if own == 0 {
        return Ok(());
    }
    let others = others(places, records, &record.group)?;
    let taken = others.fold(0u64, |sum, other| {
        sum.saturating_add(guarantee(&other, gpu))
    });
    let total: u64 = match tree.read(&Target::Gpu(gpu), files::entry(File::GpuMemoryTotal))? {
        Content::Line(line) => line.parse()?,
        _ => bail!("the memory of GPU {gpu} is unknown"),
    };
    ensure!(
        taken.saturating_add(own) <= total,
        "GPU {gpu} has {total} bytes, of which {taken} are guaranteed to other containers: \
         {own} more cannot be"
    );
    Ok(())
}

/// Takes from shares what they guarantee. Returns whether they guaranteed anything.
pub(super) fn drop_guarantees<'a>(shares: impl Iterator<Item = &'a mut Share>) -> bool {
    let mut had = false;
    for (file, value) in shares.flat_map(|share| &mut share.limits) {
        let nothing = match files::find(Place::Pool, file).map(|entry| entry.file) {
            Some(File::GmemLow) => "0",
            Some(File::TpcQuota) => "none",
            _ => continue,
        };
        had |= value != nothing;
        nothing.clone_into(value);
    }
    had
}

/// Returns the records of other containers that are not gone.
fn others<'a>(
    places: &'a Places,
    records: &Records,
    group: &'a str,
) -> Result<impl Iterator<Item = Record> + use<'a>> {
    let all = records.all()?.into_iter();
    Ok(all.filter(move |other| other.group != group && !is_gone(places, other, None)))
}

/// Returns the shares of a GPU that a container has by annotations.
fn annotated(record: &Record, gpu: u32) -> impl Iterator<Item = &Share> {
    let shares = record.gpus.get(&gpu).into_iter().flatten();
    shares.filter(|share| share.profile == nri::PROFILE)
}

/// Returns the memory of a GPU that annotations guarantee a container.
fn guarantee(record: &Record, gpu: u32) -> u64 {
    let low = files::entry(File::GmemLow).name;
    let limits = annotated(record, gpu).flat_map(|share| &share.limits);
    let low = limits.filter(|(file, _)| file == low);
    low.filter_map(|(_, value)| value.parse::<u64>().ok()).sum()
}
