// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Returns what the limits of a process show it of a GPU's memory.

use crate::ids::{FileId, GpuId, Owner, ProcKey};
use crate::rmapi::memory_info::MemoryView;
use crate::rmapi::Handle;
use crate::state::State;

impl State<'_> {
    /// Returns the memory that the process of a file sees on the GPU of an object, or `None` if no
    /// `gmem.limit` binds it.
    pub fn memory_view(&self, file: FileId, client: Handle, object: Handle) -> Option<MemoryView> {
        let gpu = self.gpu_of_object(file, client, object)?;
        let proc = self.files.get(&file)?.proc;
        self.memory_view_of(proc, gpu)
    }

    fn memory_view_of(&self, proc: ProcKey, gpu: GpuId) -> Option<MemoryView> {
        let group = self.group_of(proc).map(Owner::Group);
        let owners = [Some(Owner::Proc(proc)), group].into_iter().flatten();
        let pools = owners.filter_map(|owner| self.pools.get(&(owner, gpu)));
        let views = pools.filter_map(|pool| {
            let limit = pool.settings.gmem_limit?;
            Some(MemoryView::new(limit, pool.usage.now().all_memory()))
        });
        views.reduce(MemoryView::and)
    }
}
