// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the reasons why a channel is left alone.

/// Defines the reasons and their names in the statistics.
macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $name:literal;)*) => {
        /// The reason why a channel is left alone.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Reason {
            $($(#[$doc])* $reason,)*
        }

        impl Reason {
            /// All reasons, in the order of their numbers.
            pub(crate) const ALL: &[Self] = &[$(Self::$reason),*];

            /// Returns the name after `unmanaged.` in the statistics.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)*
                }
            }
        }
    };
}

reasons! {
    /// The system allows no worker thread.
    NoWorker = "no_worker";
    /// The number of the channel's class is wider than 16 bits.
    UnknownClass = "unknown_class";
    /// The USERD lies in no mapping that this process has made.
    UnmappedUserd = "unmapped_userd";
    /// The USERD lies in system memory.
    SystemMemory = "system_memory";
    /// Ring and USERD do not lie in one mapping, or the ring has an unusual size or alignment.
    UnusualLayout = "unusual_layout";
    /// The process has mapped no doorbell page of the GPU.
    NoDoorbell = "no_doorbell";
    /// A doorbell page has an unusual size.
    UnusualDoorbell = "unusual_doorbell";
    /// The process has mapped more doorbell pages than the fault handler has slots for.
    TooManyDoorbells = "too_many_doorbells";
    /// The kernel refused to move a mapping.
    MoveRefused = "move_refused";
}
