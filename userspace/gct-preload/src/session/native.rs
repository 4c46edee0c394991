// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Leaves channels native that nobody needs to see.
//!
//! Nothing of a native channel is shadowed, and no thread is started for it. The first channel of a
//! process on a GPU decides for those after it:
//!
//! - A later channel usually lies in the same mapping as the native one, and rings by the same
//!   doorbell page. A mapping can be replaced only before a channel lives in it.
//! - A process of which a limit binds some channels and not others would be slowed down, and not
//!   limited.

use super::Session;
use crate::rm::Object;
use gct_core::policy::native::Native;
use gct_core::rmapi::channel::ChannelParams;
use gct_core::unmanaged::Reason;

/// The native channels, each with the N of its `/dev/nvidiaN`, if that is known.
#[derive(Debug, Default)]
pub(super) struct Natives(Vec<(Object, Option<u32>)>);

impl Natives {
    /// Creates an empty set.
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Removes the channels that no longer exist.
    pub(super) fn retain(&mut self, kept: impl Fn(Object) -> bool) {
        self.0.retain(|(channel, _)| kept(*channel));
    }

    fn are_on(&self, gpu: Option<u32>) -> bool {
        self.0.iter().any(|(_, on)| *on == gpu)
    }
}

impl Session {
    /// Returns why a new channel stays native, and remembers it then. Returns `None` if it is to be
    /// managed. `rule` gets the GPU, if it is known.
    pub(super) fn stays_native(
        &mut self,
        channel: Object,
        params: &ChannelParams,
        rule: impl FnOnce(Option<u32>) -> Option<Native>,
    ) -> Option<Reason> {
        let gpu = self.userd(channel, params).and_then(|(userd, _)| userd.gpu);
        if self.is_shadowed_on(gpu) {
            return None;
        }
        let beside = self.natives.are_on(gpu).then_some(Reason::BesideNative);
        let reason = rule(gpu).map(Reason::from).or(beside)?;
        self.natives.0.push((channel, gpu));
        Some(reason)
    }

    /// Returns whether any channel is native.
    pub(crate) fn has_native(&self) -> bool {
        !self.natives.0.is_empty()
    }

    /// Returns whether rings or doorbells of a GPU, or of any if it is unknown, are shadowed.
    fn is_shadowed_on(&self, gpu: Option<u32>) -> bool {
        let is_it = |of: u32| gpu.is_none_or(|gpu| gpu == of);
        self.rings.iter().any(|ring| is_it(ring.gpu))
            || self.doorbells.iter().any(|doorbell| is_it(doorbell.gpu))
    }
}
