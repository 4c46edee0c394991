// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds what was seen of the requests of owners since the last look.

use gct_core::ids::{GpuId, Owner};
use gct_core::policy::slo::histogram::Histogram;
use gct_core::units::Ns;
use std::collections::BTreeMap;

/// An owner and a GPU.
pub(super) type Key = (Owner, GpuId);

/// The requests of each owner that have ended, and the age of the one that has not.
pub(super) type Seen = BTreeMap<Key, (Histogram, Ns)>;

/// No requests.
pub(super) const NONE: (Histogram, Ns) = (Histogram::NEW, Ns(0));
