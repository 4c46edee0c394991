// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests a process on two GPUs. Ordinary memory stands for the driver's mappings.

mod trace;

use super::*;
use crate::channel::{GP_GET, GP_PUT};
use crate::places::{DOORBELLS_MAX, DOORBELL_BYTES};
use crate::tests::device;
use core::sync::atomic::Ordering;
use gct_core::rmapi::channel::Mapping as Announcement;
use gct_core::submit::gpfifo::{Entry, Segment};

const CLIENT: u32 = 0xc1d0_0019;
const RINGS_LEN: usize = 2 << 20;
/// Where USERD begins in the memory of the rings.
const USERD: usize = 0x2000;

fn object(handle: u32) -> Object {
    Object {
        client: CLIENT,
        handle,
    }
}

fn alloc(handle: u32, class: u32, channel: Option<ChannelParams>) -> Made {
    Made {
        object: object(handle),
        parent: 1,
        class,
        channel,
    }
}

/// Records a mapping of an object at an address.
fn map_at(session: &mut Session, memory: u32, (at, len): (usize, usize), gpu: Option<u32>) {
    let announcement = Announcement {
        client: CLIENT,
        memory,
        offset: 0,
        len: len as u64,
        fd: 9,
    };
    session.announced(announcement);
    session.mapped(9, at, len, gpu);
}

/// Maps an object of a GPU, as the driver does. Returns its address.
fn map(session: &mut Session, memory: u32, len: usize, gpu: u32) -> usize {
    let at = device(len);
    map_at(session, memory, (at, len), Some(gpu));
    at
}

/// Returns the parameters of a channel whose ring is at the start of an object's memory.
fn channel(rings: usize, memory: u32) -> ChannelParams {
    ChannelParams {
        error_memory: 0,
        ring_va: rings as u64,
        entries: 8,
        userd_memory: memory,
        userd_offset: USERD as u64,
    }
}

/// Opens a GPU as libcuda does: maps a usermode object and the rings, and makes a channel. Returns
/// the address of the rings.
fn open(session: &mut Session, governors: &mut Governors, gpu: u32) -> usize {
    let handle = |number: u32| gpu * 0x100 + number;
    session.made(alloc(handle(1), 0xc661, None));
    map(session, handle(1), DOORBELL_BYTES, gpu);
    let rings = map(session, handle(2), RINGS_LEN, gpu);
    let params = channel(rings, handle(2));
    session.made(alloc(handle(3), 0xc86f, Some(params)));
    session.set_token(object(handle(3)), handle(7));
    governors.prepare(gpu);
    rings
}

/// Adds entry `number` to the tenant's ring.
fn submit(session: &Session, at: usize, userd: usize, number: u32) {
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

/// Returns the value in each GPU's doorbell register.
fn rung(session: &Session) -> Vec<(u32, u32)> {
    let register = |d: &Doorbell| {
        let pair = d.shadow.word(d.shadow.tenant() + DOORBELL).unwrap();
        (d.gpu, pair.real.load(Ordering::Relaxed))
    };
    session.doorbells.iter().map(register).collect()
}

/// Maps what a channel needs on a GPU, and makes a channel under a rule for new ones.
fn open_under(session: &mut Session, gpu: u32, rule: Option<Native>) -> u32 {
    let handle = |number: u32| gpu * 0x100 + number;
    if !session.mappings.iter().any(|m| m.gpu == Some(gpu)) {
        session.made(alloc(handle(1), 0xc661, None));
        map(session, handle(1), DOORBELL_BYTES, gpu);
        map(session, handle(2), RINGS_LEN, gpu);
    }
    let rings = session
        .mappings
        .iter()
        .find(|m| m.memory == object(handle(2)));
    let params = channel(rings.unwrap().addr, handle(2));
    let number = 3 + session.nodes.len() as u32;
    let made = alloc(handle(number), 0xc86f, Some(params));
    session.learn(
        Effect::Made(made),
        |asked| rule.filter(|_| asked == Some(gpu)),
        || true,
    );
    handle(number)
}

#[test]
fn the_first_channel_on_a_gpu_decides_for_the_others() {
    let (mut session, mut governors) = (Session::new(), Governors::new());
    let memory = Some(Native::MemoryOnly);
    let first = open_under(&mut session, 1, memory);
    let second = open_under(&mut session, 1, None);
    assert!(!session.managed() && session.rings.is_empty() && session.doorbells.is_empty());
    assert!(session.has_native());
    // Another GPU has mappings of its own, and what is shadowed there stays so.
    open_under(&mut session, 2, None);
    open_under(&mut session, 2, memory);
    assert_eq!(session.gpus().collect::<Vec<_>>(), [2]);
    for gone in [first, second] {
        assert!(session.has_native());
        session.freed(object(gone), &mut governors);
    }
    assert!(!session.has_native());
    open_under(&mut session, 1, None);
    assert_eq!(session.gpus().collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn errors_of_a_native_channel_are_reported() {
    let mut session = Session::new();
    let rings = map(&mut session, 2, RINGS_LEN, 1);
    let error = device(4096);
    map_at(&mut session, 9, (error, 4096), None);
    let mut params = channel(rings, 2);
    params.error_memory = 9;
    let made = alloc(3, 0xc86f, Some(params));
    session.learn(Effect::Made(made), |_| Some(Native::Untested), || true);
    assert_eq!(session.faults(), []);
    for (word, value) in [(2, 31), (3, 0xffff_0001)] {
        // SAFETY: inside the mapping, which nobody unmaps.
        unsafe { (error as *mut u32).add(word).write_volatile(value) };
    }
    assert_eq!(session.faults(), [(1, 31)]);
}

#[test]
fn no_thread_is_started_for_a_native_channel() {
    let mut session = Session::new();
    let made = alloc(3, 0xc86f, Some(channel(0x20_0000, 2)));
    let rule = |gpu: Option<u32>| gpu.is_none().then_some(Native::Untested);
    session.learn(Effect::Made(made), rule, || panic!("a thread"));
    assert!(session.has_native());
}

#[test]
fn each_gpu_has_its_doorbell_and_its_governor() {
    let (mut session, mut governors) = (Session::new(), Governors::new());
    let first = open(&mut session, &mut governors, 1);
    let second = open(&mut session, &mut governors, 4);
    assert_eq!(session.channels.len(), 2);
    assert_eq!(session.gpus().collect::<Vec<_>>(), [1, 4]);

    submit(&session, first, first + USERD, 0);
    assert_eq!(session.publish(&mut governors, crate::sys::now_ns(), 0), 1);
    assert_eq!(rung(&session), [(1, 0x107), (4, 0)]);
    submit(&session, second, second + USERD, 0);
    assert_eq!(session.publish(&mut governors, crate::sys::now_ns(), 0), 1);
    assert_eq!(rung(&session), [(1, 0x107), (4, 0x407)]);

    // One is frozen, and the other continues.
    let frozen = crate::limits::LaunchLimits {
        frozen: true,
        ..crate::limits::LaunchLimits::NONE
    };
    governors.prepare(1).set_limits(frozen);
    submit(&session, first, first + USERD, 1);
    submit(&session, second, second + USERD, 1);
    assert_eq!(session.publish(&mut governors, crate::sys::now_ns(), 0), 1);
    assert!(session.pending_on(1) && !session.pending_on(4) && session.is_unfinished());
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
        let mut session = Session::new();
        for (handle, len) in (10..).zip(doorbells) {
            session.made(alloc(handle, 0xc661, None));
            map(&mut session, handle, *len, 0);
        }
        let rings = map(&mut session, 2, RINGS_LEN, 0);
        let params = channel(rings, 2);
        session.made(alloc(3, 0xc86f, Some(params)));
        assert_eq!(session.managed(), managed, "{} doorbells", doorbells.len());
    }
}

/// Returns an object as one of another client of the process.
fn of(client: u32, made: Made) -> Made {
    Made {
        object: Object {
            client,
            handle: made.object.handle,
        },
        ..made
    }
}

/// Returns a word at the program's address.
fn word(at: usize) -> &'static AtomicU32 {
    // SAFETY: mapped by these tests, which never unmap what they look at.
    unsafe { AtomicU32::from_ptr(at as *mut u32) }
}

#[test]
fn a_channel_that_takes_a_slot_again_starts_anew() {
    let (mut session, mut governors) = (Session::new(), Governors::new());
    let rings = open(&mut session, &mut governors, 0);
    for number in 0..3 {
        submit(&session, rings, rings + USERD, number);
    }
    assert_eq!(session.publish(&mut governors, crate::sys::now_ns(), 0), 3);
    for again in [true, false] {
        if again {
            session.freed(object(3), &mut governors);
        }
        // The resource manager initializes a channel like this.
        let shadow = &session.rings[0].shadow;
        for at in [GP_GET, GP_PUT] {
            let real = shadow.word(rings + USERD + at).unwrap().real;
            real.store(0, Ordering::Relaxed);
        }
        let params = channel(rings, 2);
        session.made(alloc(3, 0xc86f, Some(params)));
        assert_eq!(session.channels.len(), 1);
        session.set_token(object(3), 7);
        assert_eq!(
            session.publish(&mut governors, crate::sys::now_ns(), 0),
            0,
            "nothing is submitted"
        );
        submit(&session, rings, rings + USERD, 0);
        assert_eq!(session.publish(&mut governors, crate::sys::now_ns(), 0), 1);
    }
}

/// Returns an address at which nothing is mapped, so that the kernel refuses to move it.
fn unmapped(len: usize) -> usize {
    let at = device(len);
    // SAFETY: a mapping of this test, which nothing uses.
    assert_eq!(unsafe { sys::munmap(at as *mut _, len) }, 0);
    at
}

#[test]
fn each_channel_that_is_left_alone_has_its_reason() {
    struct Case {
        doorbells: Vec<(usize, usize)>,
        rings: usize,
        gpu: Option<u32>,
        class: u32,
        params: fn(ChannelParams) -> ChannelParams,
    }
    let doorbell = |len| (device(len), len);
    let usual = || Case {
        doorbells: vec![doorbell(DOORBELL_BYTES)],
        rings: device(RINGS_LEN),
        gpu: Some(0),
        class: 0xc86f,
        params: |params| params,
    };
    let cases = [
        (usual(), None),
        (
            Case {
                class: 0x1_c86f,
                ..usual()
            },
            Some(Reason::UnknownClass),
        ),
        (
            Case {
                params: |params| ChannelParams {
                    userd_memory: 3,
                    ..params
                },
                ..usual()
            },
            Some(Reason::UnmappedUserd),
        ),
        (
            Case {
                gpu: None,
                ..usual()
            },
            Some(Reason::SystemMemory),
        ),
        (
            Case {
                params: |params| ChannelParams {
                    entries: 0,
                    ..params
                },
                ..usual()
            },
            Some(Reason::UnusualLayout),
        ),
        (
            Case {
                doorbells: Vec::new(),
                ..usual()
            },
            Some(Reason::NoDoorbell),
        ),
        (
            Case {
                doorbells: vec![doorbell(4096)],
                ..usual()
            },
            Some(Reason::UnusualDoorbell),
        ),
        (
            Case {
                doorbells: (0..=DOORBELLS_MAX)
                    .map(|_| doorbell(DOORBELL_BYTES))
                    .collect(),
                ..usual()
            },
            Some(Reason::TooManyDoorbells),
        ),
        (
            Case {
                doorbells: vec![(unmapped(DOORBELL_BYTES), DOORBELL_BYTES)],
                ..usual()
            },
            Some(Reason::MoveRefused),
        ),
        (
            Case {
                rings: unmapped(RINGS_LEN),
                ..usual()
            },
            Some(Reason::MoveRefused),
        ),
    ];
    for (case, reason) in cases {
        let mut session = Session::new();
        for (handle, doorbell) in (10..).zip(case.doorbells) {
            session.made(alloc(handle, 0xc661, None));
            map_at(&mut session, handle, doorbell, Some(0));
        }
        map_at(&mut session, 2, (case.rings, RINGS_LEN), case.gpu);
        let params = (case.params)(channel(case.rings, 2));
        let channel = session.shadow_channel(object(3), case.class, params);
        assert_eq!(channel.err(), reason);
    }
}

#[test]
fn nothing_of_a_channel_that_is_left_alone_is_replaced() {
    let strange = |rings: usize| {
        let usual = channel(rings, 2);
        [
            ChannelParams {
                entries: 0,
                ..usual
            },
            ChannelParams {
                ring_va: (rings + RINGS_LEN) as u64,
                ..usual
            },
            ChannelParams {
                userd_offset: RINGS_LEN as u64,
                ..usual
            },
        ]
    };
    for which in 0..3 {
        let mut session = Session::new();
        session.made(alloc(1, 0xc661, None));
        let doorbell = map(&mut session, 1, DOORBELL_BYTES, 0);
        let rings = map(&mut session, 2, RINGS_LEN, 0);
        let params = strange(rings)[which];
        session.made(alloc(3, 0xc86f, Some(params)));
        assert!(!session.managed());
        assert!(session.rings.is_empty() && session.doorbells.is_empty());
        // A managed channel follows. The first client still rings its real doorbells.
        let others = map(&mut session, 12, RINGS_LEN, 0);
        let params = channel(others, 12);
        session.made(alloc(13, 0xc86f, Some(params)));
        assert!(session.managed() && !session.shadows(doorbell));
        assert!(!session.arm(true), "polled");
    }
}

#[test]
fn a_client_rings_by_itself_without_moving_another() {
    let (mut session, mut governors) = (Session::new(), Governors::new());
    open(&mut session, &mut governors, 0);
    // A graphics library in the same process does this.
    const OTHER: u32 = 0xc1d0_0020;
    session.made(of(OTHER, alloc(50, 0xc661, None)));
    let announcement = Announcement {
        client: OTHER,
        memory: 50,
        offset: 0,
        len: DOORBELL_BYTES as u64,
        fd: 11,
    };
    session.announced(announcement);
    assert!(session.announces_doorbell(11));
    let doorbell = device(DOORBELL_BYTES);
    session.mapped(11, doorbell, DOORBELL_BYTES, Some(0));
    let params = channel(0, 99);
    session.made(of(OTHER, alloc(51, 0xc86f, Some(params))));
    assert!(!session.shadows(doorbell), "its own");
    assert!(session.arm(true), "the first client's is shadowed still");
    session.arm(false);
}

#[test]
fn a_userd_beside_managed_ones_is_copied_for_who_is_left_alone() {
    let (mut session, mut governors) = (Session::new(), Governors::new());
    let rings = open(&mut session, &mut governors, 0);
    let userd = rings + 2 * USERD;
    let params = ChannelParams {
        ring_va: 0x7_0000_0000,
        userd_offset: 2 * USERD as u64,
        ..channel(rings, 2)
    };
    session.made(alloc(4, 0xc86f, Some(params)));
    session.set_token(object(4), 0x44);
    word(userd + GP_PUT).store(5, Ordering::Relaxed);
    session.publish(&mut governors, crate::sys::now_ns(), 0);
    assert!(session.is_unfinished(), "it must be looked at");
    let shadow = &session.rings[0].shadow;
    let real = |at: usize| shadow.word(userd + at).unwrap().real;
    assert_eq!(real(GP_PUT).load(Ordering::Relaxed), 5);
    assert_eq!(rung(&session), [(0, 0x44)]);
    real(GP_GET).store(5, Ordering::Relaxed);
    session.publish(&mut governors, crate::sys::now_ns(), 0);
    assert_eq!(word(userd + GP_GET).load(Ordering::Relaxed), 5);
    session.freed(object(4), &mut governors);
    session.publish(&mut governors, crate::sys::now_ns(), 0);
    assert!(!session.is_unfinished());
    assert!(!session.arm(true), "the managed one is not heard");
    session.freed(object(3), &mut governors);
    assert!(session.arm(true), "there is nobody to hear");
}

#[test]
fn whatever_touches_a_mapping_is_known() {
    let (mut session, mut governors) = (Session::new(), Governors::new());
    let page = sys::PAGE;
    // No other mapping is known, so none can lie beside it.
    let rings = map(&mut session, 2, RINGS_LEN, 0);
    assert!(session.knows(rings + RINGS_LEN - page, page));
    assert!(session.knows(rings - page, 2 * page) && session.knows(rings + page, page));
    assert!(!session.knows(rings - page, page) && !session.knows(rings + RINGS_LEN, page));
    let rings = open(&mut session, &mut governors, 0);
    session.unmapped(rings + page, page);
    assert!(session.rings.is_empty() && session.channels.is_empty());
}
