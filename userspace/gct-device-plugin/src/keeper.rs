// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Looks at the tree every few seconds: which slots there are, which GPUs are healthy, and which
//! groups belong to containers that are gone.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, PoisonError};

use anyhow::{bail, Result};
use gct_client::one_line;
use gct_kubelet::group::PodContainer;
use tokio::sync::watch;

use crate::cdi::Host;
use crate::gpus::{self, Fault, Gpu, Offer};
use crate::groups;
use crate::inventory::{self, Offered, Offers};
use crate::mps::Watch;
use crate::nvml;
use crate::profiles::{Apart, Profile, Sharing};
use crate::service::{SlotState, Tenants};

/// What is wrong with each GPU of the tree, if something is.
type Health = BTreeMap<u32, Option<Fault>>;

/// What is wrong with a GPU that the tree does not show, or no longer.
const GONE: &str = "not-in-tree";

/// Keeps slots, specs and groups up to date.
#[derive(Debug)]
pub struct Keeper {
    /// What the specs need.
    pub host: Arc<Host>,
    /// The profiles, each with the slots that its service announces.
    pub profiles: Vec<(Profile, watch::Sender<Vec<SlotState>>)>,
    /// Who is on which GPU.
    pub tenants: Tenants,
    /// The GPUs of claims and of annotations, and where they are announced.
    pub apart: Vec<(Apart, watch::Sender<Vec<Offer>>)>,
    /// The GPUs that were ever seen.
    known: BTreeMap<u32, Gpu>,
    offers: Offers,
    mps: Watch,
    nvml: nvml::Watch,
    said: BTreeSet<String>,
}

impl Keeper {
    /// Returns a keeper that has seen nothing yet.
    pub fn new(
        host: Arc<Host>,
        profiles: Vec<(Profile, watch::Sender<Vec<SlotState>>)>,
        tenants: Tenants,
        apart: Vec<(Apart, watch::Sender<Vec<Offer>>)>,
    ) -> Self {
        let driver = host.driver.clone();
        Self {
            mps: Watch::new(Arc::clone(&host.mps)),
            nvml: nvml::Watch::start(move || driver.nvml()),
            host,
            profiles,
            tenants,
            apart,
            known: BTreeMap::new(),
            offers: Offers::new(),
            said: BTreeSet::new(),
        }
    }

    /// Does one pass. `pods` are the kubelet's containers, if it answered.
    ///
    /// # Errors
    ///
    /// Fails if profiles promise more than a GPU has, which then does not offer them; and if a spec
    /// cannot be written. All devices are unhealthy then.
    pub fn pass(&mut self, pods: Option<&HashSet<PodContainer>>) -> Result<()> {
        let mut messages = BTreeSet::new();
        let seen = self.look(&mut messages);
        if seen.is_err() {
            self.announce(&Health::new());
        }
        match groups::reconcile(&self.host.places, pods) {
            Ok(report) => {
                report
                    .removed
                    .iter()
                    .for_each(|group| log(&format!("removed group {group}")));
                report
                    .restored
                    .iter()
                    .for_each(|group| log(&format!("restored group {group}")));
                messages.extend(report.failures);
                *self.tenants.lock().unwrap_or_else(PoisonError::into_inner) = report.running;
            }
            Err(error) => {
                messages.insert(format!("groups: {}", one_line(error.as_ref())));
            }
        }
        let seen = seen.and_then(|mistakes| match &mistakes[..] {
            [] => Ok(()),
            _ => bail!(mistakes.join("; ")),
        });
        if let Err(error) = &seen {
            messages.insert(one_line(error.as_ref()));
        }
        messages
            .difference(&self.said)
            .for_each(|message| log(message));
        self.said = messages;
        seen
    }

    /// Looks at the GPUs. Returns what profiles promise and a GPU cannot keep.
    fn look(&mut self, messages: &mut BTreeSet<String>) -> Result<Vec<String>> {
        let tree = self.host.places.tree();
        let mut present = match gpus::read(&tree, &self.host.sys) {
            Ok(present) => present,
            Err(error) => {
                messages.insert(one_line(&error));
                self.announce(&Health::new());
                return Ok(Vec::new());
            }
        };
        let addresses = present.iter().map(|gpu| gpu.pci.clone()).collect();
        let (mut facts, error) = self.nvml.look(addresses);
        messages.extend(error);
        let mut health = Health::new();
        for gpu in &mut present {
            let facts = facts.remove(&gpu.pci).unwrap_or_default();
            gpu.capability = facts.capability;
            let needs = || facts.needs.map(Fault::Needs);
            let fault = gpus::fault(gpu, &self.host.devices).or_else(needs);
            health.insert(gpu.index, fault);
        }
        self.known
            .extend(present.into_iter().map(|gpu| (gpu.index, gpu)));
        let known: Vec<Gpu> = self.known.values().cloned().collect();
        let profiles: Vec<Profile> = self
            .profiles
            .iter()
            .map(|(profile, _)| profile.clone())
            .collect();
        let Offered {
            offers,
            notes,
            mistakes,
        } = inventory::offers(&profiles, &known);
        messages.extend(notes);
        for profile in &profiles {
            let on = known
                .iter()
                .filter(|gpu| offers[&profile.name].contains(&gpu.index));
            self.host.write(profile, &on.collect::<Vec<_>>())?;
        }
        for (apart, _) in &self.apart {
            let meant = known.iter().filter(|gpu| apart.may_use(gpu.index));
            messages.extend(meant.filter_map(|gpu| unknown_tpcs(apart, gpu)));
        }
        let mut under_mps = inventory::under_mps(&profiles, &offers);
        for (apart, _) in &self.apart {
            let meant = known.iter().filter(|gpu| apart.may_use(gpu.index));
            let meant = meant.filter(|_| apart.share == Sharing::Mps);
            under_mps.extend(meant.map(|gpu| gpu.index));
        }
        for gpu in under_mps {
            if !is_healthy(&health, gpu) {
                continue;
            }
            if let Err(error) = self.mps.keep(gpu) {
                health.insert(gpu, Some(Fault::Mps(format!("{error:#}"))));
            }
        }
        for (gpu, fault) in &health {
            let note = |fault| format!("GPU {gpu} is unhealthy: {fault}");
            messages.extend(fault.as_ref().map(note));
        }
        self.offers = offers;
        self.announce(&health);
        Ok(mistakes)
    }

    /// Tells the kubelet the slots, the API server the GPUs of claims, and the runtime's plugin
    /// those of annotations, if they have changed.
    fn announce(&self, health: &Health) {
        for (apart, sender) in &self.apart {
            let gpus = self.known.values().filter(|gpu| apart.may_use(gpu.index));
            let offers = gpus.map(|gpu| Offer {
                gpu: gpu.clone(),
                fault: match health.get(&gpu.index) {
                    Some(fault) => fault.as_ref().map(Fault::word),
                    None => Some(GONE.to_owned()),
                },
            });
            let offers: Vec<Offer> = offers.collect();
            sender.send_if_modified(|old| {
                let is_new = *old != offers;
                *old = offers;
                is_new
            });
        }
        for (profile, sender) in &self.profiles {
            let gpus = self
                .offers
                .get(&profile.name)
                .map_or(&[][..], Vec::as_slice);
            let slots = inventory::slots(profile, gpus).map(|slot| SlotState {
                slot,
                is_healthy: is_healthy(health, slot.gpu),
                numa_node: self.known.get(&slot.gpu).and_then(|gpu| gpu.numa_node),
            });
            let slots: Vec<SlotState> = slots.collect();
            sender.send_if_modified(|old| {
                let is_new = *old != slots;
                *old = slots;
                is_new
            });
        }
    }
}

/// Says it if what is enforced on a GPU waits for its TPCs.
fn unknown_tpcs(apart: &Apart, gpu: &Gpu) -> Option<String> {
    let advice = gpu.advice()?;
    let (whose, index) = (apart.whose, gpu.index);
    // A claim would consume no TPCs, and have no quota ever. Annotations ask for none.
    let without = match whose {
        "claims" => "not",
        _ => "no limit on TPCs",
    };
    Some(format!("{whose}: {without} on GPU {index}; {advice}"))
}

fn is_healthy(health: &Health, gpu: u32) -> bool {
    health.get(&gpu).is_some_and(Option::is_none)
}

fn log(message: &str) {
    eprintln!("gct-device-plugin: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_tpcs_are_said_for_claims_and_for_annotations() {
        let mut gpu = Gpu {
            features: ["channel.owned".to_owned()].into(),
            ..Gpu::default()
        };
        let said = |gpu: &Gpu| {
            ["claims", "annotations"].map(|whose| {
                let apart = Apart {
                    whose,
                    ..Apart::default()
                };
                unknown_tpcs(&apart, gpu).unwrap_or_default()
            })
        };
        let [claims, annotations] = said(&gpu);
        assert!(
            claims.starts_with("claims: not on GPU 0; its TPCs are unknown"),
            "{claims}"
        );
        let says = "annotations: no limit on TPCs on GPU 0; its TPCs are unknown";
        assert!(annotations.starts_with(says), "{annotations}");
        gpu.tpcs = Some(66);
        assert_eq!(said(&gpu), ["", ""]);
    }
}
