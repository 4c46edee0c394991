// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::nv::nvos32;
use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// Returns a structure of `size` bytes with some 32-bit words set.
fn bytes(size: usize, words: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for (offset, word) in words {
        bytes[*offset..*offset + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[test]
fn a_client_is_allocated_and_freed() {
    let alloc = bytes(32, &[(8, 0xc1d0_0018), (12, 0x41)]);
    let call = decode(escape::ALLOC, &alloc).unwrap().unwrap();
    assert_eq!((call.client, call.parent, call.object), (0, 0, 0xc1d0_0018));
    assert!(matches!(
        call.action,
        Action::Alloc {
            class: Class::Client,
            ..
        }
    ));
    assert!(call.succeeded());
    assert_eq!(call.lookup(), None);

    let free = bytes(16, &[(0, 7), (4, 8), (8, 9), (12, 0x57)]);
    let call = decode(escape::FREE, &free).unwrap().unwrap();
    assert_eq!((call.client, call.parent, call.object), (7, 8, 9));
    assert_eq!((call.action, call.succeeded()), (Action::Free, false));
}

#[test]
fn both_forms_of_alloc_differ_in_where_the_status_is() {
    for (size, status) in [(32, 28), (48, 40)] {
        let call = bytes(
            size,
            &[(0, 1), (4, 2), (8, 3), (12, 0xa06c), (status, 0x1f)],
        );
        let call = decode(escape::ALLOC, &call).unwrap().unwrap();
        assert_eq!(call.status, 0x1f, "{size}");
        assert!(matches!(
            call.action,
            Action::Alloc {
                class: Class::ChannelGroup,
                ..
            }
        ));
    }
}

#[test]
fn questions_point_into_the_tenants_parameters_or_go_to_the_resource_manager() {
    let lookup = |words: &[(usize, u32)]| {
        let call = decode(escape::ALLOC, &bytes(32, words)).unwrap();
        call.unwrap().lookup()
    };
    let address = 0x7f_0000_1000;
    assert_eq!(
        lookup(&[(0, 1), (8, 3), (12, 0x80), (16, 0x1000), (20, 0x7f)]),
        Some(Lookup::GpuOfInstance(Some(Hint { address, bytes: 4 })))
    );
    let address = address + 64;
    assert_eq!(
        lookup(&[(0, 1), (8, 3), (12, 0x40), (16, 0x1000), (20, 0x7f)]),
        Some(Lookup::Bytes(Hint { address, bytes: 8 }))
    );
    assert_eq!(
        lookup(&[(0, 1), (8, 3), (12, 0x2080)]),
        Some(Lookup::GpuOfSubdevice)
    );
    // Without parameters a device is the first.
    let first = Some(Lookup::GpuOfInstance(None));
    assert_eq!(lookup(&[(0, 1), (8, 3), (12, 0x80)]), first);
    let object = bytes(20, &[(0, 1), (4, 1), (8, 3), (12, 0x80)]);
    let call = decode(escape::ALLOC_OBJECT, &object).unwrap().unwrap();
    assert_eq!((call.client, call.parent, call.object), (1, 1, 3));
    assert_eq!(call.lookup(), first);
    let of_group = lookup(&[(0, 1), (8, 3), (12, 0xa06c), (16, 0x1000)]);
    let (address, bytes) = (0x100c, 4);
    assert_eq!(of_group, Some(Lookup::Engine(Hint { address, bytes })));
    assert_eq!(lookup(&[(0, 1), (8, 3), (12, 0xa06c)]), None);
    assert_eq!(lookup(&[(0, 1), (8, 3), (12, 0xc86f), (16, 1)]), None);
    let wraps = lookup(&[(12, 0x40), (16, u32::MAX), (20, u32::MAX)]);
    assert_eq!(wraps, None);
}

#[test]
fn what_rm_ioctl_returns_outweighs_the_structure() {
    let call = decode(escape::FREE, &[0; 16]).unwrap().unwrap();
    let returned = |bytes: &[u8], result| call.returned(escape::FREE, bytes, result);
    assert!(returned(&[0; 16], 0).succeeded());
    // `NV_ERR_INVALID_ARGUMENT`, of an ioctl on the wrong file.
    assert_eq!(returned(&[0; 16], 0x1f).status, 0x1f);
    assert_eq!(returned(&bytes(16, &[(12, 0x57)]), 0).status, 0x57);
}

#[test]
fn what_the_resource_manager_wrote_back_is_read() {
    for (number, size, object, status) in [
        (escape::ALLOC, 32, 8, 28),
        (escape::ALLOC, 48, 8, 40),
        (escape::ALLOC_OBJECT, 20, 8, 16),
        (escape::DUP_OBJECT, 28, 8, 24),
        (escape::ALLOC_MEMORY, 56, 8, 40),
        (
            escape::VID_HEAP_CONTROL,
            184,
            nvos32::MEMORY,
            nvos32::STATUS,
        ),
    ] {
        // For the last, 2 is the function that allocates.
        let before = bytes(size, &[(0, 1), (8, 2)]);
        let after = bytes(size, &[(0, 1), (8, 2), (object, 77), (status, 0x1f)]);
        let call = decode(number, &before).unwrap().unwrap();
        let expected = decode(number, &after).unwrap().unwrap();
        assert_eq!((expected.object, expected.status), (77, 0x1f));
        assert_ne!(call, expected, "{number:#x} {size}");
        assert_eq!(call.returned(number, &after, 0), expected);
    }
}

#[test]
fn memory_is_what_the_resource_manager_made_of_it() {
    // The tenant asks for memory anywhere; the resource manager chooses the host's.
    let asked = bytes(184, &[(0, 1), (8, 2), (nvos32::ATTR, 3 << 25)]);
    let made = [(0, 1), (8, 2), (nvos32::MEMORY, 3), (nvos32::ATTR, 1 << 25)];
    let made = bytes(184, &made);
    let call = decode(escape::VID_HEAP_CONTROL, &asked).unwrap().unwrap();
    let class_of = |call: Call| match call.action {
        Action::Alloc { class, .. } => class,
        action => panic!("{action:?}"),
    };
    assert_eq!(class_of(call), Class::DeviceMemory);
    let call = call.returned(escape::VID_HEAP_CONTROL, &made, 0);
    assert_eq!((class_of(call), call.object), (Class::OtherMemory, 3));
    // A free remains a free, whatever the structure contains afterwards.
    let free = decode(escape::VID_HEAP_CONTROL, &bytes(184, &[(8, 3)]))
        .unwrap()
        .unwrap();
    assert_eq!(free.action, Action::Free);
    assert_eq!(
        free.returned(escape::VID_HEAP_CONTROL, &made, 0).action,
        Action::Free
    );
}

#[test]
fn dup_names_both_clients() {
    let dup = bytes(28, &[(0, 1), (4, 2), (8, 3), (12, 4), (16, 5), (24, 6)]);
    let call = decode(escape::DUP_OBJECT, &dup).unwrap().unwrap();
    let action = Action::Dup {
        source_client: 4,
        source: 5,
    };
    assert_eq!(
        (call.client, call.parent, call.object, call.status),
        (1, 2, 3, 6)
    );
    assert_eq!(call.action, action);
}

#[test]
fn video_heap_sizes_count_where_there_is_device_memory() {
    let alloc = |function, size_at, flags, attr| {
        let words = [
            (0, 1),
            (4, 2),
            (8, function),
            (20, 0),
            (44, 9),
            (52, flags),
            (56, attr),
            (size_at, 4096),
        ];
        decode(escape::VID_HEAP_CONTROL, &bytes(184, &words)).unwrap()
    };
    let device = Action::Alloc {
        class: Class::DeviceMemory,
        bytes: Some(4096),
        params: 0,
    };
    let other = Action::Alloc {
        class: Class::OtherMemory,
        bytes: Some(0),
        params: 0,
    };
    for (function, size_at) in [(2, 88), (6, 88), (14, 80)] {
        let call = alloc(function, size_at, 0, 0).unwrap();
        assert_eq!((call.client, call.parent, call.object), (1, 2, 9));
        assert_eq!(call.action, device, "{function}");
        assert_eq!(alloc(function, size_at, 0x8_0000, 0).unwrap().action, other);
        assert_eq!(alloc(function, size_at, 0, 1 << 25).unwrap().action, other);
    }
    assert_eq!(alloc(3, 88, 0, 0).unwrap().action, Action::Free);
    for function in [0, 1, 4, 5, 27, u32::MAX] {
        assert_eq!(alloc(function, 88, 0, 0), None, "{function}");
    }
}

#[test]
fn alloc_memory_takes_no_device_memory() {
    // `NV01_MEMORY_LOCAL_USER` maps all device memory and allocates none.
    for number in [0x3e, 0x71, 0x40] {
        let call = bytes(
            56,
            &[(0, 1), (4, 2), (8, 3), (12, number), (32, 0xfff), (40, 5)],
        );
        let call = decode(escape::ALLOC_MEMORY, &call).unwrap().unwrap();
        let action = Action::Alloc {
            class: Class::OtherMemory,
            bytes: Some(0),
            params: 0,
        };
        assert_eq!((call.action, call.status), (action, 5), "{number:#x}");
    }
}

#[test]
fn only_exact_sizes_are_decoded() {
    for (escape, sizes) in [
        (escape::FREE, &[16][..]),
        (escape::ALLOC, &[32, 48]),
        (escape::ALLOC_OBJECT, &[20]),
        (escape::DUP_OBJECT, &[28]),
        (escape::ALLOC_MEMORY, &[56]),
        (escape::VID_HEAP_CONTROL, &[184]),
        (escape::CONTROL, &[32]),
        (0x35, &[]),
    ] {
        for size in 0..256 {
            let decoded = decode(escape, &vec![0; size]);
            assert_eq!(decoded.is_ok(), sizes.contains(&size), "{escape:#x} {size}");
        }
    }
}

#[test]
fn controls_that_undo_a_limit_are_told_from_the_others() {
    let control = |command| {
        let call = bytes(32, &[(0, 1), (4, 2), (8, command), (16, 64), (28, 3)]);
        decode(escape::CONTROL, &call).unwrap()
    };
    let list = Hint {
        address: 64,
        bytes: 536,
    };
    for (command, overrides) in [
        (0xa06c_0103, Overrides::Timeslice),
        (0x0080_170f, Overrides::TimesliceOfChannel),
        (0xa06c_0101, Overrides::Schedule),
        (0xa06f_0103, Overrides::Schedule),
        // A channel of Hopper accepts these, too.
        (0xa16f_0103, Overrides::Schedule),
        (0xa26f_0103, Overrides::Schedule),
        (0xb06f_0103, Overrides::Schedule),
        (0xc06f_0103, Overrides::Schedule),
        (0xc36f_0103, Overrides::Schedule),
        (0x906f_0102, Overrides::Schedule),
        (0xc36f_0102, Overrides::Schedule),
        (0x506f_0105, Overrides::Schedule),
        (0x0080_1705, Overrides::ScheduleAny),
        (0x2080_110b, Overrides::Channels(Some(list))),
    ] {
        let call = control(command).unwrap();
        assert_eq!((call.client, call.object, call.status), (1, 2, 3));
        assert_eq!(call.action, Action::Control(overrides));
    }
    let enables = control(0x2080_110b).unwrap();
    assert_eq!(enables.params(), Some(list));
    for command in [0, 0xa06c_0104, 0xa06c_0105, 0x2080_0142, 0x906f_0101] {
        assert_eq!(control(command), None);
    }
}

#[test]
fn classes_of_a_real_program() {
    // The classes that libcuda allocates on an H200.
    for (number, class) in [
        (0x41, Class::Client),
        (0x80, Class::Device),
        (0x2080, Class::Subdevice),
        (0xa06c, Class::ChannelGroup),
        (0xc86f, Class::Channel),
        (0x9067, Class::ContextShare),
        (0x40, Class::DeviceMemory),
        (0x3e, Class::OtherMemory),
        (0xc661, Class::Usermode),
        (0xcbc0, Class::Other),
        (0x90f1, Class::Space),
    ] {
        assert_eq!(Class::from_number(number), class, "{number:#x}");
        assert_eq!(class.is_tracked(), class != Class::Other);
    }
}

proptest! {
    #[test]
    fn any_bytes_get_an_answer(escape in 0x20u32..0x60, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(Some(call)) = decode(escape, &bytes) {
            if let Some(Lookup::Bytes(hint) | Lookup::GpuOfInstance(Some(hint))) = call.lookup() {
                prop_assert!(hint.bytes == 4 || hint.bytes == 8);
            }
        }
    }
}

#[test]
fn a_status_is_written_where_it_is_read() {
    for (number, size) in [
        (escape::FREE, 16),
        (escape::ALLOC, 32),
        (escape::ALLOC, 48),
        (escape::ALLOC_OBJECT, 20),
        (escape::DUP_OBJECT, 28),
        (escape::ALLOC_MEMORY, 56),
        (escape::VID_HEAP_CONTROL, 184),
    ] {
        // For the last, 2 is the function that allocates.
        let mut call = bytes(size, &[(8, 2)]);
        assert!(set_status(number, &mut call, NO_MEMORY));
        let decoded = decode(number, &call).unwrap().unwrap();
        assert_eq!(decoded.status, NO_MEMORY, "{number:#x} {size}");
    }
    assert!(!set_status(escape::FREE, &mut [0; 15], NO_MEMORY));
    assert!(!set_status(0x2c, &mut [0; 48], NO_MEMORY));
}

/// Checks the filter of the C interface, with which other ioctls cost two compares.
#[test]
fn gct_h_passes_the_escapes_and_controls_that_are_decoded() {
    let header = include_str!("../../include/gct.h");
    let number = |text: &str| {
        let hex = text.trim_start_matches("0x").trim_end_matches('u');
        u32::from_str_radix(hex, 16).unwrap()
    };
    let word_after = |line: &str, start: &str| {
        let rest = line.trim().strip_prefix(start)?;
        Some(number(rest.split([' ', ':']).next()?))
    };
    let cases: Vec<u32> = header
        .lines()
        .filter_map(|line| word_after(line, "case "))
        .collect();
    let decoded = |command: u32| {
        // While somebody is governed, all controls pass. Modes are checked only then.
        let overrides = Overrides::by_command(command, 0);
        overrides.is_some_and(|overrides| !matches!(overrides, Overrides::Mode(..)))
            || Share::by_command(command).is_some()
            || command == query::FB_INFO
    };
    // The comparison ignores the generation in controls of channels.
    let names = |case: u32, command| case == command || nv::is_of_any_generation(command, case);
    let all = || nv::NUMBERS.iter().chain(nv::SOME_NUMBERS);
    for (name, command) in all() {
        let passed = cases.iter().any(|case| names(*case, *command));
        assert_eq!(passed, decoded(*command), "{name}");
    }
    for case in cases {
        let known = all().any(|(_, command)| names(case, *command));
        assert!(known, "{case:#x}");
    }
    assert!(decoded(0xc36f_0103) && !decoded(0xc36f_0108));

    let escapes = [
        ("ALLOC_MEMORY ", escape::ALLOC_MEMORY),
        ("ALLOC_OBJECT ", escape::ALLOC_OBJECT),
        ("FREE ", escape::FREE),
        ("CONTROL ", escape::CONTROL),
        ("ALLOC ", escape::ALLOC),
        ("DUP_OBJECT ", escape::DUP_OBJECT),
        ("VID_HEAP_CONTROL ", escape::VID_HEAP_CONTROL),
        ("REGISTER_FD ", escape::REGISTER_FD),
    ];
    for (name, value) in escapes {
        let start = std::format!("#define GCT_ESCAPE_{name}");
        let found: Vec<u32> = header
            .lines()
            .filter_map(|line| word_after(line, &start))
            .collect();
        assert_eq!(found, [value], "{name}");
    }
}
