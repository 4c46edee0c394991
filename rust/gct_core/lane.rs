// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Carries out what happens to the submissions of a channel, between its tenant and the GPU. The
//! kernel, the user-space library and simulations share this code.
//!
//! Terminology
//!   lane         the state of one channel between the tenant's ring and the real ring
//!   tenant's     ring and USERD that the tenant writes; the GPU does not read them
//!   real         ring and USERD that the GPU reads; the tenant does not write them
//!   view         a run of words of 32 bits that the backend has resolved, accessed by index
//!   piece        a launch, an atom, or a copy or part of one, that is published as one unit
//!   frame        GPU-readable memory for one segment that replaces a tenant's, and for its QMDs
//!   fence        the condition on a word under which a piece has ended
//!   seal         the work on a segment that is left for its release
//!
//! Flow of an entry:
//!
//! ```text
//! round (Lane::publish):
//!     remove the pieces whose fence is reached; their durations are learnt
//!     while the tenant's GP_PUT is ahead, or an entry waits:
//!         process:  read the segment once into the workspace, take room for its copy if the lane
//!                   has copies, scan it
//!                   last launch predicted to be too long, or a number of atoms ordered:
//!                       write it, split, into a frame                       -> atoms
//!                   copies predicted to be too long: take a frame         -> pieces
//!                   a graph under a strict limit: list its launches       -> launches
//!                   else                                                    -> one entry, sealed
//!         admit:    no neighbour must run first, the work in flight leaves room, and the
//!                   tenant's share is not used up; under a share, the first acquire of its
//!                   segment is reached, too; else stop
//!         release:  atoms: write the QMDs of the next one with the mask of now
//!                   launches: write the next one to a slot with the mask of now
//!                   copies: write the words of the next piece
//!                   seal:  mask the launches, in place or in slots; a graph's replay with other
//!                          masks gets a frame; write the copy
//!                   store the entry in the real ring; no room there: stop
//!     an entry still waits: write its copy, since the workspace is another's now
//!     GP_PUT and the doorbell, once; in a lane without copies after 1, 2, 4 .. entries, too
//!     ring crowded: real GP_GET, translated, to the tenant's
//! ```
//!
//! Whatever is not understood, does not fit or finds no frame is published as the tenant wrote it,
//! and counted.
//!
//! The backend brings memory and time: it maps the views, translates GPU addresses, rings the
//! doorbell, and passes the time in. It also owns all storage. Nothing here allocates, waits, knows
//! a pointer or trusts a word. The code is generic, so that a load of a word costs what it costs in
//! the backend.
//!
//! | bound | what happens beyond it |
//! |---|---|
//! | [`work::WORDS_MAX`] words of a segment | unchanged, `segment-too-long`, or in [`pieces`] |
//! | [`work::SLOW_WORDS_MAX`] words of a segment in the GPU | it is unchanged, `segment-too-slow` |
//! | [`work::LAUNCHES_MAX`] launches of a segment | the others are unchanged, `table-full` |
//! | [`split::ATOMS_MAX`] atoms of a launch | fewer, longer atoms |
//! | frames of a [`scratch::Scratch`] | the launch goes whole, `crowded` |
//! | [`in_flight::SUBMISSIONS_MAX`] pieces of a lane in flight | the others are not tracked |
//! | [`governor::KERNELS_MAX`] kernels and places of a tenant | the oldest are forgotten |
//! | [`LAWS_MAX`] kernels and graphs with a size | the oldest are learnt anew |
//! | [`governor::NODES_MAX`] nodes of its graphs | they keep their mask, or the oldest go |
//! | [`replays::STEPS_MAX`] launches of graphs in a segment, if they are listed | it is refused |
//! | [`roster::MEMBERS_MAX`] tenants that others see | further ones yield to these |
//!
//! All of these are lengths of storage, and a backend may choose smaller ones. Times are in
//! nanoseconds ([`Ns`](crate::units::Ns)) of one monotonic clock. No call fails: a word that cannot
//! be accessed counts as work that is not understood, or as a fence that is not reached.
//!
//! | module | contents |
//! |---|---|
//! | [`words`] | the traits of a backend: words of memory, the two sides of a channel, storage |
//! | [`ahead`] | entries that are published before they are read |
//! | [`channel`] | the lane: which entries are published, and when |
//! | [`decide`] | whether a piece goes now, on which TPCs, and if not, why and until when |
//! | `tenant` | the tenant's ring: entries in |
//! | `real` | the real ring: entries out, and GP_GET |
//! | [`ring`] | the indices of the real ring, and the tenant's index for each |
//! | [`work`] | the buffers, the backend's part of a round |
//! | [`next`] | the outcome for one entry |
//! | [`governor`] | one tenant's limits on one GPU: admission and release |
//! | [`limits`] | these limits |
//! | `nodes` | its nodes of CUDA graphs, and room for more |
//! | `ends` | who waits for the end of work, and what it teaches |
//! | [`split`] | a launch that is split into atoms, in a frame |
//! | [`scratch`] | frames |
//! | [`whole`] | slots of masked launches that stay whole |
//! | [`replays`] | launches of CUDA graphs, one by one |
//! | [`pieces`] | long segments, of lanes with copies |
//! | [`copies`] | copies of segments, which the GPU executes in place of the tenant's words |
//! | [`transfers`] | copies by a copy engine, whole or in pieces |
//! | [`leave`] | the end of a lane whose channel goes back to its tenant |
//! | `shares` | the tenant's time on the GPU, and its share of it |
//! | `sizing` | the TPCs that a launch needs within the slip of its tenant |
//! | [`standing`] | what tenants know of each other: limits and activity |
//! | [`roster`] | the tenants of a GPU that one thread serves |
//! | [`in_flight`] | the pieces on the GPU, and which of them have ended |
//!
//! [`LAWS_MAX`]: crate::policy::scale::LAWS_MAX

mod acquire;
mod admit;
pub mod ahead;
pub mod channel;
mod clock;
pub mod copies;
pub mod decide;
mod ends;
pub mod governor;
pub mod in_flight;
pub mod leave;
pub mod limits;
pub mod next;
mod nodes;
pub mod pieces;
mod queue;
mod real;
pub mod replays;
pub mod ring;
pub mod roster;
pub mod scratch;
mod seal;
mod segment;
pub mod selftest;
mod shares;
mod sizing;
pub mod split;
pub mod standing;
mod tenant;
pub mod transfers;
pub mod whole;
pub mod words;
pub mod work;

#[cfg(test)]
mod testing;
