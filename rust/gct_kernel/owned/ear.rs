// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hears the doorbells of tenants.

use super::client::Refused;
use super::{record_if_wanted, shadow};
use crate::bindings::{self, gct_ear};
use crate::rm;
use crate::state::Glue;
use core::ptr::NonNull;
use gct_core::ids::FileId;
use gct_core::owned::bells::{is_doorbell, CpuMapping};

/// Whether the worker hears when the tenant of an open file rings.
pub(super) struct Ear(NonNull<gct_ear>);

// SAFETY: C counts the references, and loads and stores the words of an ear that change as a whole.
unsafe impl Send for Ear {}
// SAFETY: as above.
unsafe impl Sync for Ear {}

impl Ear {
    pub(super) fn new() -> Result<Self, Refused> {
        // SAFETY: has no preconditions but that the caller may sleep, as all of `owned` may.
        let ear = unsafe { bindings::gct_helper_ear_new() };
        NonNull::new(ear).map(Self).ok_or(Refused)
    }

    /// Has the tenant's rings heard, or not any more. Its doorbells are revoked only meanwhile.
    pub(super) fn listen(&self, listens: bool) {
        // SAFETY: the ear lives as long as `self`.
        unsafe { bindings::gct_helper_ear_listen(self.0.as_ptr(), listens) }
    }

    /// Returns whether the tenant's next ring wakes a sleeping worker, as far as is known.
    pub(super) fn hears(&self) -> bool {
        // SAFETY: as above.
        unsafe { bindings::gct_helper_ear_hears(self.0.as_ptr()) }
    }

    /// Returns how often the tenant's rings were heard.
    pub(super) fn rings(&self) -> u32 {
        // SAFETY: as above.
        unsafe { bindings::gct_helper_ear_rings(self.0.as_ptr()) }
    }

    /// Learns that the tenant has submitted, and that nothing was heard of it behind so many rings.
    pub(super) fn missed(&self, rings: u32) {
        // SAFETY: as above.
        unsafe { bindings::gct_helper_ear_missed(self.0.as_ptr(), rings) }
    }

    /// Hears a doorbell that the current process maps by a descriptor of a file.
    fn follow(&self, descriptor: i32, by: FileId) {
        // SAFETY: as above. Any numbers are valid: the driver looks them up.
        unsafe { bindings::gct_helper_bell_follow(descriptor, by.raw(), self.0.as_ptr()) }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and put once. Bells have references of their own.
        unsafe { bindings::gct_helper_ear_put(self.0.as_ptr()) }
    }
}

/// Follows memory, or hears a doorbell, that an ioctl has prepared to map for the CPU by the file
/// `by`. The tenant may have put another file in its descriptor's place by now. Then its rings are
/// not heard, and its memory has a mapping that cannot be replaced.
pub(crate) fn mapped(glue: &Glue, file: FileId, bytes: &[u8], by: Option<FileId>, result: u32) {
    let mapping = CpuMapping::decode(bytes).filter(|_| result == 0);
    let Some(mapping) = mapping else { return };
    let Some(record) = record_if_wanted(glue, file) else {
        return;
    };
    if shadow::mapped(&record, &mapping, by) || !mapping.may_be_doorbell() {
        return;
    }
    let Some(by) = by else { return };
    if rm::class_of(mapping.client, mapping.object).is_ok_and(is_doorbell) {
        record.tenant.ear.follow(mapping.descriptor, by);
    }
}
