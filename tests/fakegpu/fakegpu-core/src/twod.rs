// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models the 2D engine's notifier (class FERMI_TWOD_A). By it RM's watchdog sees that graphics
//! channels still run.

use crate::abi::{self, NvNotification};
use crate::bits::Bits;
use crate::gmmu::{AddressSpace, Fault};
use crate::host::execute::Work;
use crate::host::methods::Method;

/// The class of the 2D engine.
pub const FERMI_TWOD_A: u32 = 0x902d;

/// NV902D_* methods.
mod nv902d {
    pub(super) const SET_NOTIFY_A: u16 = 0x104;
    pub(super) const SET_NOTIFY_B: u16 = 0x108;
    pub(super) const NOTIFY: u16 = 0x10c;
}

/// The two halves of an address.
const LOW: Bits = Bits::new(31, 0);
const HIGH: Bits = Bits::new(56, 32);

/// The 2D engine's state of one channel.
#[derive(Clone, Debug, Default)]
pub struct TwoD {
    notifier_va: u64,
}

impl TwoD {
    /// Executes a method. Drawing has no effect.
    ///
    /// # Errors
    /// [`Fault`] if the notifier is not in memory.
    pub fn execute(
        &mut self,
        work: &mut Work<'_>,
        space: AddressSpace,
        method: Method,
    ) -> Result<(), Fault> {
        let data = u64::from(method.data);
        match method.method {
            nv902d::SET_NOTIFY_A => self.notifier_va = HIGH.put(self.notifier_va, data),
            nv902d::SET_NOTIFY_B => self.notifier_va = LOW.put(self.notifier_va, data),
            nv902d::NOTIFY => {
                // All fields but the time are zero: done, no error.
                let mut notification = [0; NvNotification::SIZE];
                // PANIC: the field lies in the structure.
                abi::set(
                    &mut notification,
                    NvNotification::timeStamp,
                    work.clock.now_ns(),
                )
                .expect("a notification has a time");
                space.write(work.memory, self.notifier_va, &notification)?;
            }
            _ => {}
        }
        Ok(())
    }
}
