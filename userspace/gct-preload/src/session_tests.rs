// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A process on two GPUs, whose mappings are ordinary memory.

use super::*;
use gct_core::rmapi::own::Mapping as Announcement;
use gct_core::submit::gpfifo::{Entry, Segment};

const CLIENT: u32 = 0xc1d0_0019;
const RINGS_LEN: usize = 2 << 20;
/// Where USERD begins in the memory of the rings.
const USERD: usize = 0x2000;

/// A shared anonymous mapping stands in for the driver's.
pub(crate) fn device(len: usize) -> usize {
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

fn alloc(handle: u32, class: u32, channel: Option<ChannelParams>) -> Call {
    Call::Alloc {
        object: object(handle),
        parent: 1,
        class,
        channel,
    }
}

/// The driver maps an object of a GPU; returns where.
fn map(
    session: &mut Session,
    governors: &mut Governors,
    memory: u32,
    len: usize,
    gpu: u32,
) -> usize {
    let announcement = Announcement {
        client: CLIENT,
        memory,
        offset: 0,
        len: len as u64,
        fd: 9,
    };
    session.learn(Call::Map(announcement), governors);
    let at = device(len);
    session.mapped(9, at, len, Some(gpu));
    at
}

/// The parameters of a channel whose ring is at the beginning of an object's memory.
fn channel(rings: usize, memory: u32) -> ChannelParams {
    ChannelParams {
        ring_va: rings as u64,
        entries: 8,
        userd_memory: memory,
        userd_offset: USERD as u64,
    }
}

/// What libcuda does on one GPU: a usermode object and the rings are mapped, a channel is made.
/// Returns where the rings are.
fn open(session: &mut Session, governors: &mut Governors, gpu: u32) -> usize {
    let handle = |number: u32| gpu * 0x100 + number;
    session.learn(alloc(handle(1), 0xc661, None), governors);
    map(session, governors, handle(1), DOORBELL_BYTES, gpu);
    let rings = map(session, governors, handle(2), RINGS_LEN, gpu);
    let params = channel(rings, handle(2));
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
fn a_channel_whose_doorbells_cannot_be_managed_is_left_alone() {
    let usual = [DOORBELL_BYTES; DOORBELLS_MAX];
    for (doorbells, managed) in [
        (&usual[..0], false),
        (&usual[..1], true),
        (&[4096], false),
        (&usual, true),
        (&[DOORBELL_BYTES; DOORBELLS_MAX + 1], false),
    ] {
        let (mut session, mut governors) = (Session::new(), Governors::new());
        for (handle, len) in (10..).zip(doorbells) {
            session.learn(alloc(handle, 0xc661, None), &mut governors);
            map(&mut session, &mut governors, handle, *len, 0);
        }
        let rings = map(&mut session, &mut governors, 2, RINGS_LEN, 0);
        let params = channel(rings, 2);
        session.learn(alloc(3, 0xc86f, Some(params)), &mut governors);
        assert_eq!(session.managed(), managed, "{} doorbells", doorbells.len());
    }
}
