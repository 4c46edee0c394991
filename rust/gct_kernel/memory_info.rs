// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shows a tenant its `gmem.limit` in the resource manager's answers about device memory.
//!
//! The answer is edited in the tenant's memory, after the resource manager has written it there.
//! Other threads of the tenant may read it before, or write to it meanwhile. What enforces the
//! limit is the charge of each allocation.

use crate::state::Glue;
use crate::uvm;
use gct_core::ids::FileId;
use gct_core::rmapi::memory_info::{Answered, MemoryView};
use gct_core::rmapi::query;
use kernel::uaccess::{UserPtr, UserSlice};

/// Edits the answer to an ioctl that asked for facts about device memory. Does nothing for any
/// other ioctl, for a refused one, and for a tenant without a limit.
pub(crate) fn show(glue: &Glue, file: FileId, escape: u32, bytes: &[u8], result: u32) {
    let Some(answered) = Answered::decode(escape, bytes).filter(|_| result == 0) else {
        return;
    };
    uvm::settle(glue);
    let view = glue.locked(|state| state.memory_view(file, answered.client, answered.object));
    if let Some(view) = view {
        edit(&answered, &view);
    }
}

fn edit(answered: &Answered, view: &MemoryView) {
    let mut room = [0; query::FB_BYTES[0]];
    let Some(params) = room.get_mut(..answered.bytes) else {
        return;
    };
    let Ok(address) = usize::try_from(answered.address) else {
        return;
    };
    let slice = UserSlice::new(UserPtr::from_addr(address), answered.bytes);
    let (mut reader, mut writer) = slice.reader_writer();
    // If another thread has unmapped the memory, nobody reads the answer there.
    if reader.read_slice(params).is_ok() {
        view.show(params);
        let _ = writer.write_slice(params);
    }
}
