// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides who may use what of a GPU, and when. Each policy is one pure file and the same in every
//! backend.
//!
//! | module | decides |
//! |---|---|
//! | [`ahead`] | how much managed memory is evicted before its room is needed |
//! | [`arrivals`] | when an idle tenant usually comes back |
//! | [`balance`] | how much memory an owner may have while others need some |
//! | [`clock`] | at which clock the GPU runs within the slips of its processes |
//! | [`doorbell`] | whether doorbells fault while no processor is spare |
//! | [`native`] | whether the channels of a process stay native in the user-space mode |
//! | [`pace`] | how many atoms a launch is split into, and whether the next one is released |
//! | [`patience`] | when a wait ends although nothing has happened |
//! | [`pauses`] | when channels are off the GPU whose submissions nobody sees |
//! | [`placement`] | which pieces of pageable memory are on the GPU |
//! | [`poll`] | how long the backend polls before it sleeps |
//! | [`poll_backoff`] | whether it may take a processor for polling |
//! | [`precedence`] | whose waiting launches the GPU starts first |
//! | [`predict`] | how long a launch will take |
//! | [`prefetch`] | what moves ahead of the launches that use it |
//! | [`repeats`] | whether a program still repeats a step, and when that is looked at |
//! | [`scale`] | how many TPCs a launch needs to stay within a slip |
//! | [`share`] | whose turn it is, by weight and duty cycle |
//! | [`shortest`] | whose time slices are short, so that shorter requests wait less |
//! | [`size`] | how large a GPU a tenant is shown |
//! | [`slo`] | how hard others are pressed, so that a service keeps its goal |
//! | [`tide`] | which TPCs a right-sized tenant leaves to others while it works |
//! | [`tpc`] | which TPCs a tenant may use now, and whether it must wait |
//! | [`transfer`] | how many bytes of a copy are released at once |

pub mod ahead;
pub mod arrivals;
pub mod balance;
pub mod clock;
pub mod doorbell;
pub mod native;
pub mod pace;
pub mod patience;
pub mod pauses;
pub mod placement;
pub mod poll;
pub mod poll_backoff;
pub mod precedence;
pub mod predict;
pub mod prefetch;
pub mod repeats;
pub mod scale;
pub mod share;
pub mod shortest;
pub mod size;
pub mod slo;
pub mod tide;
pub mod tpc;
pub mod transfer;
