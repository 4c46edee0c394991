// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the reasons why the library of the user-space mode does not manage a channel.

use crate::policy::native::Native;

/// Defines the reasons and their names in the statistics.
macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $name:literal;)*) => {
        /// The reason why a channel is not managed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason {
            $($(#[$doc])* $reason,)*
        }

        impl Reason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$reason),*];

            /// The number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the name after `unmanaged.` in the statistics.
            pub const fn name(self) -> &'static str {
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
    /// The process has limits on memory, and nobody has limits on launches
    /// ([`Native::MemoryOnly`](crate::policy::native::Native::MemoryOnly)).
    MemoryOnly = "memory_only";
    /// The GPU has no limits on launches
    /// ([`Native::Untested`](crate::policy::native::Native::Untested)).
    Untested = "untested";
    /// The process has an earlier channel on the GPU that is native.
    BesideNative = "beside_native";
}

impl Reason {
    /// Returns whether the channel could be managed, and nothing needed that when it was made.
    pub const fn is_native(self) -> bool {
        matches!(self, Self::MemoryOnly | Self::Untested | Self::BesideNative)
    }
}

impl From<Native> for Reason {
    fn from(native: Native) -> Self {
        match native {
            Native::MemoryOnly => Self::MemoryOnly,
            Native::Untested => Self::Untested,
        }
    }
}
