// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the calls that hand a QMD to the scheduler, and the QMDs that are only stored.

use super::uploads::StoredQmd;
use super::{Pass, QmdCall, Registers, Source, Tracker};
use crate::submit::launch::Nature;
use crate::submit::method::{Burst, Opcode};
use crate::submit::methods::{self, Action};
use crate::submit::qmd::{Family, Version};
use crate::submit::reason::Reason;
use crate::units::Sat;

/// Where a PCAS is sent.
pub(super) struct Call {
    pub(super) at: u32,
    pub(super) end: u32,
    pub(super) subchannel: usize,
    pub(super) alone: bool,
}

/// Describes a PCAS on the QMD at `qmd_va`, whose words are `here`, with its `nature`.
#[inline(always)]
pub(super) fn called(
    call: &Call,
    action: Action,
    qmd_va: u64,
    here: Result<(u32, Version), Reason>,
    nature: Option<Nature>,
    registers: Registers,
) -> QmdCall {
    let (at, version, reason, source) = match here {
        Ok((at, version)) => (at, Some(version), None, Source::Upload),
        Err(reason) => (0, None, Some(reason), Source::Elsewhere),
    };
    let schedules = action.schedules();
    QmdCall {
        qmd_va,
        at,
        version,
        nature,
        source: if schedules { source } else { Source::Touch },
        action,
        call_at: call.at,
        call_end: call.end,
        // CAST: three bits.
        subchannel: call.subchannel as u8,
        alone: call.alone,
        crowded: false,
        registers,
        reason,
    }
}

impl Tracker {
    /// Reads a burst that covers methods of an inline QMD.
    pub(super) fn inline_burst(&mut self, burst: &Burst, pass: &mut Pass<'_, '_>) {
        for index in 0..burst.count {
            let method = burst.method_of(index);
            if method >= methods::LOAD_INLINE_QMD_DATA {
                break;
            }
            self.write(burst, method, index, pass);
        }
        let Some(subchannel) = self.subchannels.get(usize::from(burst.subchannel & 7)) else {
            return;
        };
        let skipped = (Sat(methods::LOAD_INLINE_QMD_DATA) - Sat(burst.method)).0 / 4;
        let skipped = u32::from(skipped);
        let first = burst.position_of(skipped);
        let whole = burst.method <= methods::LOAD_INLINE_QMD_DATA
            && (Sat(burst.count) - Sat(skipped)).0 >= subchannel.inline_words();
        // One that the last segment began has no header here.
        let alone = burst.opcode == Opcode::Incr
            && burst.data != burst.at
            && burst.method == methods::SET_INLINE_QMD_ADDRESS_A
            && burst.count == (Sat(skipped) + Sat(subchannel.inline_words())).0;
        let mut call = QmdCall {
            source: Source::Inline,
            action: Action::InvalidateCopySchedule,
            call_at: burst.at,
            call_end: burst.end(),
            subchannel: burst.subchannel,
            alone,
            registers: subchannel.inline_registers(&self.uploads),
            ..QmdCall::default()
        };
        match subchannel.inline_va() {
            _ if !whole => call.reason = Some(Reason::Fragmented),
            Err(reason) => call.reason = Some(reason),
            Ok(va) => {
                call.qmd_va = va;
                call.at = first;
                call.read_version(pass.words, self.family);
            }
        }
        pass.count_launch(call.reason);
        pass.table.push(call);
    }

    /// Reads a PCAS with an action.
    pub(super) fn pcas(&mut self, call: &Call, action: Action, pass: &mut Pass<'_, '_>) {
        let Some(subchannel) = self.subchannels.get(call.subchannel) else {
            return;
        };
        let (qmd_va, here) = match subchannel.pcas_va() {
            Ok(va) => (va, self.uploads.find(va, pass.words, self.family)),
            Err(reason) => (0, Err(reason)),
        };
        let nature = here.ok().and_then(|(at, version)| {
            // CAST: widening on every machine that has GPUs.
            Nature::of(pass.words.get(at as usize..)?, version)
        });
        let registers = subchannel.registers(&self.uploads);
        if action == Action::Nop {
            return;
        }
        pass.count_call(action, here.err());
        pass.table
            .push(called(call, action, qmd_va, here, nature, registers));
    }

    /// Reports the uploads that look like a QMD and that no call of this segment scheduled, as the
    /// head of a graph is.
    #[inline(never)]
    pub(super) fn report_stored<'a, 'b>(&self, mut pass: Pass<'a, 'b>) -> Pass<'a, 'b> {
        // Newest first: an older one at the same address is overwritten.
        let first = pass.table.len();
        for stored in self.uploads.unused_qmds() {
            if !pass.table.names(stored.va, first) {
                pass.report_stored(&stored, self.family);
            }
        }
        pass
    }

    /// Reports such an upload that has left the ring. The head of a graph that forks is the third
    /// upload of all (H100).
    #[cold]
    #[inline(never)]
    pub(super) fn report_evicted(&mut self, pass: &mut Pass<'_, '_>) {
        if let Some(stored) = self.uploads.take_evicted() {
            pass.report_stored(&stored, self.family);
        }
    }
}

impl Pass<'_, '_> {
    /// Reports an upload if it looks like a QMD.
    fn report_stored(&mut self, stored: &StoredQmd, family: Family) {
        // CAST: widening on every machine that has GPUs.
        let here = self.words.get(stored.at as usize..);
        let here = here.and_then(|here| here.get(..stored.words));
        match Version::of(here.unwrap_or(&[]), family) {
            Ok(version) if version.words() == stored.words => self.table.push(QmdCall {
                qmd_va: stored.va,
                at: stored.at,
                version: Some(version),
                nature: here.and_then(|qmd| Nature::of(qmd, version)),
                source: Source::Stored,
                ..QmdCall::default()
            }),
            _ => (),
        }
    }
}
