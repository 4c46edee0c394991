// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A process on two GPUs, whose mappings are ordinary memory.

use super::*;
use gct_core::rmapi::own::Mapping as Announcement;
use gct_core::submit::gpfifo::{Entry, Segment};

const CLIENT: u32 = 0xc1d0_0019;
const RINGS_LEN: usize = 2 << 20;
const DOORBELL_LEN: usize = 0x10000;
/// Where USERD begins in the memory of the rings.
const USERD: usize = 0x2000;

/// A shared anonymous mapping stands in for the driver's.
pub(super) fn device(len: usize) -> usize {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { sys::mmap(core::ptr::null_mut(), len, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

fn object(handle: u32) -> Object {
    Object {
        client: CLIENT,
        handle,
    }
}

/// What libcuda does on one GPU: a usermode object and the rings are mapped, a channel is made.
/// Returns where the rings are.
fn open(session: &mut Session, governors: &mut Governors, gpu: u32) -> usize {
    let handle = |number: u32| gpu * 0x100 + number;
    let map = |memory: u32, len: usize| {
        Call::Map(Announcement {
            client: CLIENT,
            memory,
            offset: 0,
            len: len as u64,
            fd: 9,
        })
    };
    let alloc = |handle, class, channel| Call::Alloc {
        object: object(handle),
        parent: 1,
        class,
        channel,
    };
    session.learn(alloc(handle(1), 0xc661, None), governors);
    session.learn(map(handle(1), DOORBELL_LEN), governors);
    session.mapped(9, device(DOORBELL_LEN), DOORBELL_LEN, Some(gpu));
    let rings = device(RINGS_LEN);
    session.learn(map(handle(2), RINGS_LEN), governors);
    session.mapped(9, rings, RINGS_LEN, Some(gpu));
    let params = ChannelParams {
        ring_va: rings as u64,
        entries: 8,
        userd_memory: handle(2),
        userd_offset: USERD as u64,
    };
    session.learn(alloc(handle(3), 0xc86f, Some(params)), governors);
    let token = Call::Token {
        channel: object(handle(3)),
        token: handle(7),
    };
    session.learn(token, governors);
    governors.prepare(gpu);
    rings
}

/// The tenant adds entry `number` to the ring at an address, whose USERD is at another.
pub(super) fn submit(session: &Session, at: usize, userd: usize, number: u32) {
    let ring = session.rings.iter().find(|r| r.shadow.contains(at));
    let shadow = &ring.unwrap().shadow;
    let segment = Segment {
        va: 0x7000_0000,
        words: 1,
        subroutine: false,
        wait: false,
        conditional: false,
    };
    let entry = shadow.entry(at + 8 * number as usize).unwrap();
    let word = Entry::Segment(segment).encode();
    entry.tenant.store(word, Ordering::Relaxed);
    let put = shadow.word(userd + 0x8c).unwrap();
    put.tenant.store(number + 1, Ordering::Release);
}

/// What was written to the register of each GPU's doorbell.
pub(super) fn rung(session: &Session) -> Vec<(u32, u32)> {
    let register = |d: &Doorbell| {
        let pair = d.shadow.word(d.shadow.tenant() + DOORBELL).unwrap();
        (d.gpu, pair.real.load(Ordering::Relaxed))
    };
    session.doorbells.iter().map(register).collect()
}

#[test]
fn each_gpu_has_its_doorbell_and_its_governor() {
    let (mut session, mut governors) = (Session::new(), Governors::new());
    let first = open(&mut session, &mut governors, 1);
    let second = open(&mut session, &mut governors, 4);
    assert_eq!(session.channels.len(), 2);
    assert_eq!(session.gpus().collect::<Vec<_>>(), [1, 4]);

    submit(&session, first, first + USERD, 0);
    assert_eq!(session.publish(&mut governors), 1);
    assert_eq!(rung(&session), [(1, 0x107), (4, 0)]);
    submit(&session, second, second + USERD, 0);
    assert_eq!(session.publish(&mut governors), 1);
    assert_eq!(rung(&session), [(1, 0x107), (4, 0x407)]);

    // One is frozen: the other goes on.
    let frozen = crate::limits::Limits {
        frozen: true,
        ..crate::limits::Limits::NONE
    };
    governors.prepare(1).set_limits(frozen);
    submit(&session, first, first + USERD, 1);
    submit(&session, second, second + USERD, 1);
    assert_eq!(session.publish(&mut governors), 1);
    assert!(session.pending_on(1) && !session.pending_on(4) && session.pending());
}

#[test]
fn a_channel_without_a_doorbell_of_its_gpu_is_left_alone() {
    let (mut session, mut governors) = (Session::new(), Governors::new());
    let rings = device(RINGS_LEN);
    session.mappings.push(Mapping {
        memory: object(2),
        offset: 0,
        addr: rings,
        len: RINGS_LEN,
        gpu: Some(0),
    });
    let params = ChannelParams {
        ring_va: rings as u64,
        entries: 8,
        userd_memory: 2,
        userd_offset: USERD as u64,
    };
    let channel = Call::Alloc {
        object: object(3),
        parent: 1,
        class: 0xc86f,
        channel: Some(params),
    };
    session.learn(channel, &mut governors);
    assert!(!session.managed());
}
