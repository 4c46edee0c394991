// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Signals the device's one MSI message through an eventfd.

use fakegpu_core::platform::Interrupts;
use std::fs::File;
use std::io::Write;
use std::sync::Mutex;

/// The eventfd, once the guest has enabled the message.
#[derive(Default)]
pub(crate) struct Msi {
    event: Mutex<Option<File>>,
}

impl Msi {
    /// Connects the message to `event`, or disconnects it.
    pub(crate) fn connect(&self, event: Option<File>) {
        if let Ok(mut slot) = self.event.lock() {
            *slot = event;
        }
    }
}

impl Interrupts for Msi {
    fn raise(&self, vector: u32) {
        if vector != 0 {
            return;
        }
        if let Ok(slot) = self.event.lock() {
            if let Some(mut event) = slot.as_ref() {
                // A full counter means that the guest has not yet taken the last message, so
                // nothing is lost.
                let _ = event.write_all(&1u64.to_ne_bytes());
            }
        }
    }
}
