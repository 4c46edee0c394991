// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Looks at the tree every few seconds: which slots there are, which GPUs are healthy, and which
//! groups belong to containers that are gone.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, PoisonError};

use anyhow::Result;
use gct_client::one_line;
use gct_kubelet::group::PodContainer;
use tokio::sync::watch;

use crate::cdi::Host;
use crate::gpus::{self, Gpu};
use crate::groups;
use crate::inventory::{self, Offers};
use crate::mps::Watch;
use crate::profiles::{Claims, Profile};
use crate::service::{SlotState, Tenants};

/// Keeps slots, specs and groups up to date.
#[derive(Debug)]
pub struct Keeper {
    /// What the specs need.
    pub host: Arc<Host>,
    /// The profiles, each with the slots that its service announces.
    pub profiles: Vec<(Profile, watch::Sender<Vec<SlotState>>)>,
    /// Who is on which GPU.
    pub tenants: Tenants,
    /// The GPUs of claims, and where the healthy ones are announced.
    pub claims: Option<(Claims, watch::Sender<Vec<Gpu>>)>,
    /// The GPUs that were ever seen.
    known: BTreeMap<u32, Gpu>,
    offers: Offers,
    mps: Watch,
    said: BTreeSet<String>,
}

impl Keeper {
    /// Returns a keeper that has seen nothing yet.
    pub fn new(
        host: Arc<Host>,
        profiles: Vec<(Profile, watch::Sender<Vec<SlotState>>)>,
        tenants: Tenants,
        claims: Option<(Claims, watch::Sender<Vec<Gpu>>)>,
    ) -> Self {
        Self {
            mps: Watch::new(Arc::clone(&host.mps)),
            host,
            profiles,
            tenants,
            claims,
            known: BTreeMap::new(),
            offers: Offers::new(),
            said: BTreeSet::new(),
        }
    }

    /// Does one pass. `pods` are the kubelet's containers, if it answered.
    ///
    /// # Errors
    ///
    /// Fails if the profiles promise more than the GPUs have, and if a spec cannot be written. All
    /// devices are unhealthy then.
    pub fn pass(&mut self, pods: Option<&HashSet<PodContainer>>) -> Result<()> {
        let mut messages = BTreeSet::new();
        let seen = self.look(&mut messages);
        if seen.is_err() {
            self.announce(&BTreeSet::new());
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
        if let Err(error) = &seen {
            messages.insert(one_line(error.as_ref()));
        }
        messages
            .difference(&self.said)
            .for_each(|message| log(message));
        self.said = messages;
        seen
    }

    fn look(&mut self, messages: &mut BTreeSet<String>) -> Result<()> {
        let tree = self.host.places.tree();
        let present = match gpus::read(&tree) {
            Ok(present) => present,
            Err(error) => {
                messages.insert(one_line(&error));
                self.announce(&BTreeSet::new());
                return Ok(());
            }
        };
        let mut healthy: BTreeSet<u32> = BTreeSet::new();
        for gpu in &present {
            match gpus::fault(gpu, &self.host.devices) {
                None => {
                    healthy.insert(gpu.index);
                }
                Some(fault) => {
                    messages.insert(format!("GPU {} is unhealthy: {fault}", gpu.index));
                }
            }
        }
        self.known
            .extend(present.into_iter().map(|gpu| (gpu.index, gpu)));
        let known: Vec<Gpu> = self.known.values().cloned().collect();
        let profiles: Vec<Profile> = self
            .profiles
            .iter()
            .map(|(profile, _)| profile.clone())
            .collect();
        let (offers, notes) = inventory::offers(&profiles, &known)?;
        messages.extend(notes);
        for profile in &profiles {
            let on = known
                .iter()
                .filter(|gpu| offers[&profile.name].contains(&gpu.index));
            self.host.write(profile, &on.collect::<Vec<_>>())?;
        }
        if let Some((claims, _)) = &self.claims {
            inventory::apart(claims, &offers)?;
            for gpu in known.iter().filter(|gpu| claims.may_use(gpu.index)) {
                let advice = gpu.advice();
                let note = |advice| format!("claims: not on GPU {}; {advice}", gpu.index);
                messages.extend(advice.map(note));
            }
        }
        for gpu in inventory::under_mps(&profiles, &offers) {
            if !healthy.contains(&gpu) {
                continue;
            }
            if let Err(error) = self.mps.keep(gpu) {
                messages.insert(format!("GPU {gpu} is unhealthy: {error:#}"));
                healthy.remove(&gpu);
            }
        }
        self.offers = offers;
        self.announce(&healthy);
        Ok(())
    }

    /// Tells the kubelet the slots and the API server the GPUs of claims, if they have changed.
    fn announce(&self, healthy: &BTreeSet<u32>) {
        if let Some((claims, sender)) = &self.claims {
            let is_meant = |gpu: &&Gpu| claims.may_use(gpu.index) && healthy.contains(&gpu.index);
            let gpus: Vec<Gpu> = self.known.values().filter(is_meant).cloned().collect();
            sender.send_if_modified(|old| {
                let is_new = *old != gpus;
                *old = gpus;
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
                is_healthy: healthy.contains(&slot.gpu),
                numa_node: self.known.get(&slot.gpu).and_then(Gpu::numa_node),
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

fn log(message: &str) {
    eprintln!("gct-device-plugin: {message}");
}
