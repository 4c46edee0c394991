// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges roots of page tables, which cannot be evicted and have a part of a limit only.

use super::{Gpu, Holder, Reserved};
use crate::state::Glue;
use gct_core::memory::{RootId, SlotId};

impl Gpu {
    /// Gives a root for page tables to an account. Must not sleep.
    pub(crate) fn take_table(&self, root: RootId, slot: SlotId) {
        self.table.lock().accounts().take_table(slot, root);
    }

    /// Charges an account for a root of page tables, like [`Gpu::reserve`], up to their part of a
    /// limit.
    pub(crate) fn reserve_table(&self, glue: &Glue, slot: SlotId, tried: Option<u32>) -> Reserved {
        let holder = self.table.lock().accounts().owner(slot);
        let admits = |holder: Holder| glue.locked(|state| state.admits_table(holder.file, self.id));
        match holder.is_none_or(admits) {
            true => self.reserve(glue, slot, tried),
            false => Reserved::Refused(None),
        }
    }
}
