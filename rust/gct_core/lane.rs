// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Carries out what happens to the submissions of a channel, between its tenant and the GPU.
//!
//! Terminology
//!   lane         the state of one channel between the tenant's ring and the real ring
//!   tenant's     ring and USERD that the tenant writes; the GPU does not read them
//!   real         ring and USERD that the GPU reads; the tenant does not write them
//!   view         a run of words of 32 bits that the backend has resolved, accessed by index
//!   piece        a launch or an atom that is published as one unit
//!   frame        GPU-readable memory for one segment that replaces a tenant's, and for its QMDs
//!   fence        the condition on a word under which a piece has ended
//!
//! The backend brings memory and time: it maps the views, translates GPU addresses, rings the
//! doorbell, and passes the time in. It also owns all storage. Nothing here allocates, waits, knows
//! a pointer or trusts a word.
//!
//! | module | contents |
//! |---|---|
//! | [`words`] | the traits of a backend: words of memory, and storage |
//! | [`ring`] | the indices of the real ring, and the tenant's index for each |
//! | [`in_flight`] | the pieces on the GPU, and which of them have ended |
//! | [`scratch`] | frames |
//! | [`split`] | a launch that is split into atoms, in a frame |

pub mod in_flight;
mod queue;
pub mod ring;
pub mod scratch;
pub mod split;
pub mod words;

#[cfg(test)]
mod testing;
