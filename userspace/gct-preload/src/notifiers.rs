// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Watches the error notifiers of this process's channels.
//!
//! libcuda gives each channel a page of memory. When the resource manager ends the channel, it
//! writes the reason there. All channels of a group end together, so they count as one fault. A
//! check costs one load for each channel, in the thread that maintains the daemon's connection.

use crate::rm::Object;
use core::sync::atomic::{AtomicU32, Ordering};
use gct_core::rmapi::channel;

/// Bytes of a channel's first notifier, which reports errors.
const BYTES: usize = 16;

/// The error notifier of a channel.
#[derive(Debug)]
struct Notifier {
    channel: Object,
    group: u32,
    at: usize,
    gpu: u32,
    ended: bool,
}

/// The error notifiers of this process's channels.
#[derive(Debug, Default)]
pub(crate) struct Notifiers(Vec<Notifier>);

impl Notifiers {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Watches the notifier at `at` of a channel of a group on a GPU.
    ///
    /// # Safety
    ///
    /// A mapping of at least [`BYTES`] begins at `at`, which is page-aligned. It stays mapped until
    /// [`Notifiers::unmapped`] is called for it.
    pub(crate) unsafe fn watch(&mut self, channel: Object, group: u32, at: usize, gpu: u32) {
        self.0.push(Notifier {
            channel,
            group,
            at,
            gpu,
            ended: false,
        });
    }

    /// Forgets the channels for which `keep` is false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(Object) -> bool) {
        self.0.retain(|notifier| keep(notifier.channel));
    }

    /// Forgets the notifiers in `[addr, addr + len)`, which is about to be unmapped.
    pub(crate) fn unmapped(&mut self, addr: usize, len: usize) {
        let touched = |at: usize| at < addr.saturating_add(len) && addr < at.saturating_add(BYTES);
        self.0.retain(|notifier| !touched(notifier.at));
    }

    /// Returns whether the resource manager has ended a channel.
    pub(crate) fn has_ended(&self, of: Object) -> bool {
        let mut here = self.0.iter().filter(|notifier| notifier.channel == of);
        here.any(|notifier| channel::notified_error(notifier.words()).is_some())
    }

    /// Returns the new faults since the last call, as GPU and Xid.
    pub(crate) fn look(&mut self) -> Vec<(u32, u32)> {
        let mut faults: Vec<(u32, u32, Object)> = Vec::new();
        let ended = |n: &Notifier| (n.channel.client, n.group);
        let known: Vec<_> = self.0.iter().filter(|n| n.ended).map(ended).collect();
        for notifier in self.0.iter_mut().filter(|notifier| !notifier.ended) {
            let Some(xid) = channel::notified_error(notifier.words()) else {
                continue;
            };
            notifier.ended = true;
            let (client, handle) = ended(notifier);
            let group = Object { client, handle };
            if !known.contains(&(client, handle)) && faults.iter().all(|fault| fault.2 != group) {
                faults.push((notifier.gpu, xid, group));
            }
        }
        faults.into_iter().map(|(gpu, xid, _)| (gpu, xid)).collect()
    }
}

impl Notifier {
    fn words(&self) -> [u32; 4] {
        let first = self.at as *const AtomicU32;
        core::array::from_fn(|n| {
            // SAFETY: by `watch`, four aligned words lie there; the driver writes them at any time.
            unsafe { &*first.add(n) }.load(Ordering::Acquire)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Page([AtomicU32; 4]);

    fn channel(handle: u32) -> Object {
        Object { client: 1, handle }
    }

    #[test]
    fn a_group_that_ends_is_one_fault_and_is_told_once() {
        let pages: [Page; 3] = core::array::from_fn(|_| Page([const { AtomicU32::new(0) }; 4]));
        let mut notifiers = Notifiers::new();
        for (n, page) in (0..).zip(&pages) {
            // Two channels of one group on the first GPU, one of another on the second.
            // SAFETY: the pages live as long as `notifiers`.
            unsafe { notifiers.watch(channel(n), 10 + n / 2, page.0.as_ptr() as usize, n / 2) };
        }
        let end = |page: &Page, xid| {
            page.0[2].store(xid, Ordering::Relaxed);
            page.0[3].store(0xffff_0001, Ordering::Release);
        };
        assert_eq!(notifiers.look(), []);
        end(&pages[0], 31);
        assert_eq!(notifiers.look(), [(0, 31)]);
        end(&pages[1], 31);
        end(&pages[2], 43);
        assert_eq!(
            notifiers.look(),
            [(1, 43)],
            "the rest of the group is no other"
        );
        assert_eq!(notifiers.look(), []);
    }

    #[test]
    fn what_is_unmapped_or_freed_is_not_looked_at() {
        let mut notifiers = Notifiers::new();
        let page = Page([const { AtomicU32::new(u32::MAX) }; 4]);
        let at = page.0.as_ptr() as usize;
        for (handle, at) in [(1, 0x1000), (2, 0x2000), (3, at)] {
            // SAFETY: the first two are forgotten before they are looked at, `page` is there.
            unsafe { notifiers.watch(channel(handle), 9, at, 0) };
        }
        notifiers.unmapped(0x800, 0x801);
        notifiers.retain(|of| of != channel(2));
        assert_eq!(notifiers.look(), [(0, u32::MAX)]);
    }
}
