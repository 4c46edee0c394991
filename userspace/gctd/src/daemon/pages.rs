// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives each process its page and its neighbours on a GPU.

use super::{Daemon, Session};
use crate::budget::FDS_PAGE;
use crate::tenants::PageReply;
use crate::wire::Wire;
use gct_core::error::Error;
use gct_core::ids::GpuId;
use gct_core::mask::TpcMask;
use gct_core::rmapi::memory_info::MemoryView;
use gctd_ipc::message::Reply;
use rustix::io::Errno;

impl Daemon {
    /// Returns the GPU of an object of a process, and creates the page there at the first call.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] for an unknown object, [`Error::NoSpace`] beyond a maximum.
    pub(crate) fn open_page(
        &mut self,
        session: &mut Session,
        client: u32,
        object: u32,
    ) -> Result<GpuId, Error> {
        let state = self.tables.state();
        let gpu = state.gpu_of_object(session.file, client, object);
        let gpu = gpu.ok_or(Error::Gone)?;
        let minor = state.gpu_minor(gpu).ok_or(Error::Gone)?;
        let (connection, key) = (session.connection, session.key);
        let known = self.tenants.gpus_of(connection).any(|known| known == gpu);
        if !known {
            if !self.budget.try_charge(&session.account, FDS_PAGE) {
                return Err(Error::NoSpace);
            }
            let (process, place) = ((key, session.account.uid), (gpu, minor));
            let state = self.tables.state();
            let opened = self.tenants.open(connection, process, place, &state);
            if opened.is_err() {
                self.budget.uncharge(&session.account, FDS_PAGE);
                return Err(Error::NoSpace);
            }
            self.charge_managed_on(session, gpu);
            self.restore_own(key);
            // Its limits are there when it maps the page.
            let pending = self.pending.is_active();
            let state = self.tables.state();
            self.tenants.publish_page(connection, gpu, &state, pending);
            self.apply_effects_later();
        }
        Ok(gpu)
    }

    /// Sends a page of a session, with its descriptors until the process has mapped it.
    ///
    /// # Errors
    ///
    /// Those of [`Wire::send_fds`].
    pub(crate) fn send_page(
        &mut self,
        session: &Session,
        gpu: GpuId,
        wire: &mut Wire,
    ) -> rustix::io::Result<()> {
        let page = self.tenants.page_reply(session.connection, gpu);
        // The session has the page: its GPU was returned by `open_page`.
        let PageReply { minor, slot, fds } = page.ok_or(Errno::NOENT)?;
        wire.send_fds(&Reply::Page { minor, slot }, &fds, &mut self.budget)
    }

    /// Sends a process its neighbours on a GPU.
    ///
    /// # Errors
    ///
    /// Those of [`Wire::send_fds`].
    pub(crate) fn send_neighbours(
        &mut self,
        session: &Session,
        minor: u32,
        wire: &mut Wire,
    ) -> rustix::io::Result<()> {
        let neighbours = self.tenants.neighbours(session.connection, minor);
        let (slots, fds): (_, Vec<_>) = neighbours.into_iter().unzip();
        wire.send_fds(&Reply::Peers(slots), &fds, &mut self.budget)
    }

    /// Seals the page and the pulse that a process has mapped. No further writer can map them,
    /// and neighbours may read the pulse.
    pub(crate) fn page_mapped(&mut self, session: &Session, minor: u32) -> Result<(), Error> {
        let sealed = self.tenants.seal(session.connection, minor);
        sealed.map_err(|_| Error::Access)?;
        let state = self.tables.state();
        self.tenants.publish_slot(session.connection, minor, &state);
        Ok(())
    }

    /// Returns the memory that the limits of a process show it of the GPU of one of its objects.
    pub(crate) fn memory_view(
        &mut self,
        session: &Session,
        client: u32,
        object: u32,
    ) -> Option<MemoryView> {
        self.tables
            .state()
            .memory_view(session.file, client, object)
    }

    /// Returns the TPCs of a GPU that a process is shown ([`gct_core::policy::size`]).
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] for an unknown GPU, [`Error::Unsupported`] if its TPCs are unknown: no
    /// launch is masked there.
    pub(crate) fn dependable_tpcs(
        &mut self,
        session: &Session,
        minor: u32,
    ) -> Result<TpcMask, Error> {
        let state = self.tables.state();
        let gpu = state.gpu_of_minor(minor).ok_or(Error::Gone)?;
        if !state.gpu_topology(gpu).is_known() {
            return Err(Error::Unsupported);
        }
        Ok(state.dependable_tpcs(session.key, gpu))
    }
}
