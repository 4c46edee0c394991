// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which profiles a GPU offers, and names their devices.
//!
//! Terminology
//!   slot    the right of one container to share a GPU under a profile
//!   device  what the kubelet hands out: a slot, named `gpu<index>-<slot>`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::gpus::Gpu;
use crate::profiles::{Profile, Sharing};

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

/// What the GPUs offer.
#[derive(Debug, Default)]
pub struct Offered {
    /// Who offers what.
    pub offers: Offers,
    /// For each GPU that does not offer a profile, why.
    pub notes: Vec<String>,
    /// The same for profiles that promise more than the GPU has: some containers could not start,
    /// or would have less than their profile says.
    pub mistakes: Vec<String>,
}

/// Returns which GPUs offer which profile.
pub fn offers(profiles: &[Profile], gpus: &[Gpu]) -> Offered {
    let mut found = Offered::default();
    for profile in profiles {
        let mut on = Vec::new();
        for gpu in gpus.iter().filter(|gpu| may_use(profile, gpu)) {
            match missing(profile, gpu) {
                None => on.push(gpu.index),
                Some(file) => {
                    let advice = gpu.advice().map(|advice| format!("; {advice}"));
                    found.notes.push(format!(
                        "profile {}: not on GPU {}, which does not enforce {file}{}",
                        profile.name,
                        gpu.index,
                        advice.unwrap_or_default()
                    ));
                }
            }
        }
        found.offers.insert(profile.name.clone(), on);
    }
    for gpu in gpus {
        withdraw(gpu, profiles, &mut found);
    }
    found
}

/// Takes from a GPU's offers those that it cannot keep when all slots are taken. What it no longer
/// offers takes no memory of it.
fn withdraw(gpu: &Gpu, profiles: &[Profile], found: &mut Offered) {
    for check in [tpcs, memory] {
        let offers = &found.offers;
        let on = |profile: &&Profile| offers[&profile.name].contains(&gpu.index);
        let on: Vec<&Profile> = profiles.iter().filter(on).collect();
        let Some((promise, mistake)) = check(gpu, &on) else {
            continue;
        };
        found.mistakes.push(mistake);
        for profile in on.iter().filter(|profile| promise(profile) > 0) {
            let gpus = found.offers.get_mut(&profile.name);
            gpus.into_iter()
                .for_each(|gpus| gpus.retain(|index| *index != gpu.index));
        }
    }
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

/// Returns the GPUs of profiles whose containers run side by side.
pub fn under_mps(profiles: &[Profile], offers: &Offers) -> BTreeSet<u32> {
    let profiles = profiles
        .iter()
        .filter(|profile| profile.share == Sharing::Mps);
    let gpus = profiles.filter_map(|profile| offers.get(&profile.name));
    gpus.flatten().copied().collect()
}

/// What all slots of a profile take of a GPU.
type Promise = fn(&Profile) -> u64;

fn sum(profiles: &[&Profile], promise: Promise) -> u64 {
    let promised = profiles.iter().map(|profile| promise(profile));
    promised.fold(0, u64::saturating_add)
}

/// Says it if the quotas of all slots exceed a GPU's TPCs.
fn tpcs(gpu: &Gpu, profiles: &[&Profile]) -> Option<(Promise, String)> {
    let promise: Promise = |profile| u64::from(profile.slots).saturating_mul(profile.quota());
    let (index, total, sum) = (gpu.index, gpu.tpcs?, sum(profiles, promise));
    let mistake = || {
        format!(
            "the quotas of all slots of GPU {index} are {sum} TPCs, and it has {total}: \
             lower slots or tpc.quota, or give profiles different gpus"
        )
    };
    (sum > total).then(|| (promise, mistake()))
}

/// Says it if the memory of all slots exceeds a GPU's.
fn memory(gpu: &Gpu, profiles: &[&Profile]) -> Option<(Promise, String)> {
    let promise: Promise = |profile| match profile.overcommit {
        true => 0,
        false => u64::from(profile.slots).saturating_mul(profile.memory().unwrap_or(0)),
    };
    let (index, total, sum) = (gpu.index, gpu.memory?, sum(profiles, promise));
    let mistake = || {
        format!(
            "the memory of all slots of GPU {index} is {sum} bytes, and it has {total}: \
             lower slots or gmem.limit, or say overcommit = true"
        )
    };
    (sum > total).then(|| (promise, mistake()))
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

    fn offered(text: &str) -> Offered {
        offers(&profiles::parse(text).unwrap(), &[gpu(0), gpu(1)])
    }

    fn mistakes(text: &str) -> String {
        offered(text).mistakes.join("; ")
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
        let found = offers(&profiles, std::slice::from_ref(&unused));
        assert_eq!(found.offers["a"], [] as [u32; 0]);
        assert!(found.notes[0].contains("run nvidia-smi"), "{found:?}");
        // One whose TPCs are of no use to the driver.
        let mut other = unused;
        other.features.remove("channel.owned");
        let found = offers(&profiles, &[other]);
        assert!(!found.notes[0].contains("nvidia-smi"), "{found:?}");
    }

    #[test]
    fn a_gpu_offers_what_it_enforces() {
        let text = "[profile.a]\nslots = 2\ngmem.limit = '1G'\n[profile.b]\ncompute.weight = 5\n\
                    [profile.c]\ngpus = [1, 7]\n";
        let Offered { offers, notes, .. } = offered(text);
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
        assert_eq!(mistakes(&quotas(8, 34)), "");
        let error = mistakes(&quotas(8, 35));
        assert!(error.contains("GPU 0 are 67 TPCs"), "{error}");
        // On different GPUs they do.
        let apart = quotas(8, 35).replace("[profile.b]", "gpus=[0]\n[profile.b]\ngpus=[1]");
        assert_eq!(mistakes(&apart), "");
    }

    #[test]
    fn a_mistake_that_shows_late_costs_the_profiles_concerned() {
        let text = "[profile.a]\nslots=4\ngmem.limit='1G'\n\
                    [profile.b]\ntpc.quota=40\n[profile.c]\ntpc.quota=40\ngpus=[0]\n";
        let profiles = profiles::parse(text).unwrap();
        let unused = Gpu {
            features: ["gmem.limit".to_owned(), "channel.owned".to_owned()].into(),
            tpcs: None,
            ..gpu(0)
        };
        let found = offers(&profiles, &[unused, gpu(1)]);
        assert_eq!(found.mistakes, [""; 0]);
        assert_eq!(
            (&found.offers["a"], &found.offers["b"]),
            (&vec![0, 1], &vec![1])
        );
        // Its first program has run.
        let found = offers(&profiles, &[gpu(0), gpu(1)]);
        assert!(found.mistakes[0].contains("GPU 0 are 80 TPCs"), "{found:?}");
        let on = ["a", "b", "c"].map(|name| found.offers[name].clone());
        assert_eq!(on, [vec![0, 1], vec![1], vec![]]);
    }

    #[test]
    fn what_quotas_have_withdrawn_takes_no_memory() {
        let text = "[profile.a]\nslots=4\ngmem.limit='10G'\n\
                    [profile.b]\nslots=2\ntpc.quota=40\ngmem.limit='30G'\n";
        let found = offers(&profiles::parse(text).unwrap(), &[gpu(0)]);
        assert_eq!(found.mistakes.len(), 1, "{found:?}");
        assert_eq!(
            (&found.offers["a"], &found.offers["b"]),
            (&vec![0], &vec![])
        );
    }

    #[test]
    fn the_gpus_of_profiles_under_mps_have_a_daemon() {
        let text = "[profile.a]\nshare='mps'\ngpus=[0]\n[profile.b]\ngpus=[1]\n";
        let offers = offered(text).offers;
        let profiles = profiles::parse(text).unwrap();
        assert_eq!(under_mps(&profiles, &offers), BTreeSet::from([0]));
    }

    #[test]
    fn memory_is_overcommitted_only_if_the_profile_says_so() {
        let text = "[profile.a]\nslots=3\ngmem.limit='40G'\n";
        let error = mistakes(text);
        assert!(error.contains("overcommit = true"), "{error}");
        assert_eq!(mistakes(&format!("{text}overcommit = true\n")), "");
        assert_eq!(mistakes(&text.replace('3', "2")), "");
    }
}
