// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Policies: who may use what of a GPU, and when. One file each, pure, the same in every backend.
//!
//! | module | answers |
//! |---|---|
//! | [`predict`] | how long will this launch take? |
//! | [`doorbell`] | do doorbells fault where no processor is spare? |
//! | [`pace`] | into how many atoms is it split, and may the next one go now? |
//! | [`patience`] | when does a wait end though nothing has happened? |
//! | [`poll`] | for how long is work looked for before the backend sleeps? |
//! | [`size`] | how large a GPU is a tenant shown? |
//! | [`tpc`] | which TPCs may a tenant use now, and must it wait for another? |

pub mod arrivals;
pub mod doorbell;
pub mod pace;
pub mod patience;
pub mod poll;
pub mod poll_backoff;
pub mod predict;
pub mod size;
pub mod tpc;
