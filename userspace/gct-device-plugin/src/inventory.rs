// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which profiles a GPU offers, and names their devices.
//!
//! Terminology
//!   slot    the right of one container to share a GPU under a profile
//!   device  what the kubelet hands out: a slot, named `gpu<index>-<slot>`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use anyhow::{bail, ensure, Result};

use crate::gpus::Gpu;
use crate::profiles::{Apart, Profile, Sharing};

/// A slot of a profile on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// The GPU's index.
    pub gpu: u32,
    /// The slot's number.
    pub number: u32,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gpu{}-{}", self.gpu, self.number)
    }
}

impl FromStr for Slot {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (gpu, number) = text
            .strip_prefix("gpu")
            .and_then(|text| text.split_once('-'))
            .ok_or(())?;
        let slot = Self {
            gpu: gpu.parse().map_err(|_| ())?,
            number: number.parse().map_err(|_| ())?,
        };
        (slot.to_string() == text).then_some(slot).ok_or(())
    }
}

/// The GPUs that offer each profile, by the profile's name.
pub type Offers = BTreeMap<String, Vec<u32>>;

/// Returns which GPUs offer which profile, and for each GPU that does not why.
///
/// # Errors
///
/// Fails if the profiles of a GPU promise more than it has: then some containers could not start,
/// or would have less than their profile says.
pub fn offers(profiles: &[Profile], gpus: &[Gpu]) -> Result<(Offers, Vec<String>)> {
    let mut offers = Offers::new();
    let mut notes = Vec::new();
    for profile in profiles {
        let mut on = Vec::new();
        for gpu in gpus.iter().filter(|gpu| may_use(profile, gpu)) {
            match missing(profile, gpu) {
                None => on.push(gpu.index),
                Some(file) => {
                    let advice = gpu.advice().map(|advice| format!("; {advice}"));
                    notes.push(format!(
                        "profile {}: not on GPU {}, which does not enforce {file}{}",
                        profile.name,
                        gpu.index,
                        advice.unwrap_or_default()
                    ));
                }
            }
        }
        offers.insert(profile.name.clone(), on);
    }
    for gpu in gpus {
        let on = |profile: &&Profile| offers[&profile.name].contains(&gpu.index);
        let on: Vec<&Profile> = profiles.iter().filter(on).collect();
        agree(gpu, &on)?;
        fits(gpu, &on)?;
    }
    Ok((offers, notes))
}

fn may_use(profile: &Profile, gpu: &Gpu) -> bool {
    let gpus = profile.gpus.as_ref();
    gpus.is_none_or(|gpus| gpus.contains(&gpu.index))
}

/// Returns a limit that the GPU does not enforce.
fn missing(profile: &Profile, gpu: &Gpu) -> Option<&'static str> {
    let mut files = profile.limits.iter().map(|limit| limit.entry.name);
    files.find(|file| !gpu.features.contains(*file))
}

/// Checks that the profiles of a GPU share it in the same way.
fn agree(gpu: &Gpu, profiles: &[&Profile]) -> Result<()> {
    for pair in profiles.windows(2) {
        let [one, other] = pair else { continue };
        ensure!(
            one.share == other.share,
            "profiles {} and {} share GPU {} in different ways: \
             give them the same share or different gpus",
            one.name,
            other.name,
            gpu.index
        );
    }
    Ok(())
}

/// Checks that no GPU is offered both by profiles and to others: nobody would count both.
///
/// # Errors
///
/// Names a GPU that is.
pub fn apart(others: &Apart, offers: &Offers) -> Result<()> {
    for (name, gpus) in offers {
        if let Some(gpu) = gpus.iter().find(|gpu| others.may_use(**gpu)) {
            let whose = others.whose;
            bail!("GPU {gpu} is for {whose} and for profile {name}: give them different gpus");
        }
    }
    Ok(())
}

/// Returns the GPUs of profiles whose containers run side by side.
pub fn under_mps(profiles: &[Profile], offers: &Offers) -> BTreeSet<u32> {
    let profiles = profiles
        .iter()
        .filter(|profile| profile.share == Sharing::Mps);
    let gpus = profiles.filter_map(|profile| offers.get(&profile.name));
    gpus.flatten().copied().collect()
}

/// Checks that all slots of the GPU can be taken at the same time.
fn fits(gpu: &Gpu, profiles: &[&Profile]) -> Result<()> {
    let (mut tpcs, mut memory) = (0u64, 0u64);
    for profile in profiles {
        let slots = u64::from(profile.slots);
        tpcs = tpcs.saturating_add(slots.saturating_mul(profile.quota()));
        if !profile.overcommit {
            memory = memory.saturating_add(slots.saturating_mul(profile.memory().unwrap_or(0)));
        }
    }
    let index = gpu.index;
    if let Some(total) = gpu.tpcs {
        ensure!(
            tpcs <= total,
            "the quotas of all slots of GPU {index} are {tpcs} TPCs, and it has {total}: \
             lower slots or tpc.quota, or give profiles different gpus"
        );
    }
    if let Some(total) = gpu.memory {
        ensure!(
            memory <= total,
            "the memory of all slots of GPU {index} is {memory} bytes, and it has {total}: \
             lower slots or gmem.limit, or say overcommit = true"
        );
    }
    Ok(())
}

/// Returns the slots of a profile on the GPUs that offer it.
pub fn slots<'a>(profile: &Profile, gpus: &'a [u32]) -> impl Iterator<Item = Slot> + use<'a> {
    let numbers = 0..profile.slots;
    gpus.iter()
        .flat_map(move |gpu| numbers.clone().map(|number| Slot { gpu: *gpu, number }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles;

    fn gpu(index: u32) -> Gpu {
        Gpu {
            index,
            features: ["gmem.limit".to_owned(), "tpc.quota".to_owned()].into(),
            tpcs: Some(66),
            memory: Some(80 << 30),
            ..Gpu::default()
        }
    }

    fn offered(text: &str) -> Result<(Offers, Vec<String>)> {
        offers(&profiles::parse(text).unwrap(), &[gpu(0), gpu(1)])
    }

    #[test]
    fn a_device_is_named_in_one_way() {
        let slot = Slot { gpu: 1, number: 12 };
        assert_eq!(slot.to_string(), "gpu1-12");
        assert_eq!("gpu1-12".parse(), Ok(slot));
        for text in [
            "", "gpu", "gpu1", "gpu-1", "gpu01-1", "gpu1-+1", "1-1", "gpu1-1-1",
        ] {
            assert_eq!(text.parse::<Slot>(), Err(()), "{text}");
        }
    }

    #[test]
    fn a_gpu_without_a_client_yet_says_what_to_do() {
        let unused = Gpu {
            features: ["gmem.limit".to_owned(), "channel.owned".to_owned()].into(),
            tpcs: None,
            ..gpu(0)
        };
        let profiles = profiles::parse("[profile.a]\ntpc.quota = 8").unwrap();
        let (of_unused, notes) = offers(&profiles, std::slice::from_ref(&unused)).unwrap();
        assert_eq!(of_unused["a"], [] as [u32; 0]);
        assert!(notes[0].contains("run nvidia-smi"), "{}", notes[0]);
        // One whose TPCs are of no use to the driver.
        let mut other = unused;
        other.features.remove("channel.owned");
        let (_, notes) = offers(&profiles, &[other]).unwrap();
        assert!(!notes[0].contains("nvidia-smi"), "{}", notes[0]);
    }

    #[test]
    fn a_gpu_offers_what_it_enforces() {
        let text = "[profile.a]\nslots = 2\ngmem.limit = '1G'\n[profile.b]\ncompute.weight = 5\n\
                    [profile.c]\ngpus = [1, 7]\n";
        let (offers, notes) = offered(text).unwrap();
        assert_eq!(offers["a"], [0, 1]);
        assert_eq!(offers["b"], [] as [u32; 0]);
        assert_eq!(offers["c"], [1]);
        assert_eq!(notes.len(), 2);
        assert!(
            notes[0].contains("profile b: not on GPU 0") && notes[0].contains("compute.weight")
        );
        assert!(!notes[0].contains("nvidia-smi"));
        let profile = profiles::parse(text).unwrap().remove(0);
        let names: Vec<String> = slots(&profile, &offers["a"])
            .map(|slot| slot.to_string())
            .collect();
        assert_eq!(names, ["gpu0-0", "gpu0-1", "gpu1-0", "gpu1-1"]);
    }

    #[test]
    fn the_slots_of_all_profiles_fit_at_the_same_time() {
        let quotas =
            |a, b| format!("[profile.a]\nslots=4\ntpc.quota={a}\n[profile.b]\ntpc.quota={b}\n");
        assert!(offered(&quotas(8, 34)).is_ok());
        let error = offered(&quotas(8, 35)).unwrap_err().to_string();
        assert!(error.contains("GPU 0 are 67 TPCs"), "{error}");
        // On different GPUs they do.
        let apart = quotas(8, 35).replace("[profile.b]", "gpus=[0]\n[profile.b]\ngpus=[1]");
        assert!(offered(&apart).is_ok());
    }

    #[test]
    fn the_profiles_of_a_gpu_share_it_in_one_way() {
        let text = "[profile.a]\nshare='mps'\n[profile.b]\nshare='turns'\n";
        let error = offered(text).unwrap_err().to_string();
        assert!(error.contains("a and b share GPU 0"), "{error}");
        let apart = text
            .replace("'turns'", "'turns'\ngpus=[1]")
            .replace("'mps'", "'mps'\ngpus=[0]");
        let (offers, _) = offered(&apart).unwrap();
        let profiles = profiles::parse(&apart).unwrap();
        assert_eq!(under_mps(&profiles, &offers), BTreeSet::from([0]));
        let same = text.replace("turns", "mps");
        assert!(offered(&same).is_ok());
    }

    #[test]
    fn claims_and_profiles_have_different_gpus() {
        let (offers, _) = offered("[profile.a]\ngpus=[0]\n").unwrap();
        let claims = |gpus| Apart {
            whose: "claims",
            gpus,
            ..Apart::default()
        };
        assert!(apart(&claims(Some(vec![1])), &offers).is_ok());
        for both in [None, Some(vec![1, 0])] {
            let error = apart(&claims(both), &offers).unwrap_err().to_string();
            assert!(
                error.contains("GPU 0 is for claims and for profile a"),
                "{error}"
            );
        }
    }

    #[test]
    fn memory_is_overcommitted_only_if_the_profile_says_so() {
        let text = "[profile.a]\nslots=3\ngmem.limit='40G'\n";
        let error = offered(text).unwrap_err().to_string();
        assert!(error.contains("overcommit = true"), "{error}");
        assert!(offered(&format!("{text}overcommit = true\n")).is_ok());
        assert!(offered(&text.replace('3', "2")).is_ok());
    }
}
