// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that messages keep their form, and that sides of different versions understand each other.

use super::*;
use crate::versions::VERSIONS;
use proptest::prelude::*;

fn ioctl() -> Ioctl {
    Ioctl {
        escape: 0x2b,
        bytes: vec![1, 2, 3],
        hint: Some(u64::MAX),
    }
}

const PAGED: Paged = Paged {
    device: 2,
    host: 300,
};

/// Returns each request in the order of the enum, with its bytes.
fn requests() -> Vec<(Request, &'static [u8])> {
    let managed = Managed {
        number: 1,
        bytes: 1 << 20,
    };
    let path = || "web/0".to_owned();
    vec![
        (
            Request::Hello {
                versions: Versions::from(18 << 16 | 19),
                tenant: true,
            },
            &[0, 147, 128, 72, 1],
        ),
        (
            Request::Enter(ioctl()),
            &[
                1, 43, 3, 1, 2, 3, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1,
            ],
        ),
        (
            Request::Charge(ioctl()),
            &[
                2, 43, 3, 1, 2, 3, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1,
            ],
        ),
        (
            Request::Leave {
                ioctl: ioctl(),
                granted: Some(7),
            },
            &[
                3, 43, 3, 1, 2, 3, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 1, 7,
            ],
        ),
        (Request::ChargeManaged(managed), &[4, 1, 128, 128, 64]),
        (Request::AddManaged(managed), &[5, 1, 128, 128, 64]),
        (Request::UnchargeManaged { number: 300 }, &[6, 172, 2]),
        (
            Request::IsPageable { bus_id: path() },
            &[7, 5, 119, 101, 98, 47, 48],
        ),
        (
            Request::Repage {
                minor: 1,
                paged: PAGED,
                spare: 3,
                is_last: true,
            },
            &[8, 1, 2, 172, 2, 3, 1],
        ),
        (Request::PageableRoom { minor: 1, spare: 3 }, &[9, 1, 3]),
        (
            Request::AddPaged {
                minor: 1,
                paged: PAGED,
            },
            &[10, 1, 2, 172, 2],
        ),
        (
            Request::OpenPage {
                client: 300,
                object: 2,
            },
            &[11, 172, 2, 2],
        ),
        (Request::PageMapped { minor: 1 }, &[12, 1]),
        (Request::Peers { minor: 1 }, &[13, 1]),
        (
            Request::Ack {
                minor: 1,
                generation: 300,
                refused: Some(2),
            },
            &[14, 1, 172, 2, 1, 2],
        ),
        (
            Request::List { path: path() },
            &[15, 5, 119, 101, 98, 47, 48],
        ),
        (
            Request::Read { path: path() },
            &[16, 5, 119, 101, 98, 47, 48],
        ),
        (Request::More, &[17]),
        (
            Request::Write {
                path: path(),
                bytes: vec![9, 8],
            },
            &[18, 5, 119, 101, 98, 47, 48, 2, 9, 8],
        ),
        (
            Request::MemoryView {
                client: 300,
                object: 2,
            },
            &[19, 172, 2, 2],
        ),
        (Request::DependableTpcs { minor: 1 }, &[20, 1]),
    ]
}

/// Returns each reply in the order of the enum, with its bytes.
fn replies() -> Vec<(Reply, &'static [u8])> {
    let view = MemoryView {
        limit: 300,
        left: 2,
    };
    vec![
        (
            Reply::Hello {
                versions: Versions::only(18),
            },
            &[0, 18],
        ),
        (Reply::Done, &[1]),
        (Reply::Granted(300), &[2, 172, 2]),
        (Reply::Error { errno: 71 }, &[3, 142, 1]),
        (
            Reply::Page {
                minor: 1,
                slot: Some((2, 300)),
            },
            &[4, 1, 1, 2, 172, 2],
        ),
        (
            Reply::Peers(vec![(2, 300), (3, 4)]),
            &[5, 2, 2, 172, 2, 3, 4],
        ),
        (Reply::Pageable(Some(1)), &[6, 1, 1]),
        (Reply::Repaged(Some(PAGED)), &[7, 1, 2, 172, 2]),
        (
            Reply::Text {
                bytes: vec![9, 8],
                more: true,
            },
            &[8, 2, 9, 8, 1],
        ),
        (Reply::MemoryView(Some(view)), &[9, 1, 172, 2, 2]),
        (
            Reply::DependableTpcs([1, 2, 3, 300]),
            &[10, 1, 2, 3, 172, 2],
        ),
    ]
}

/// Checks that each message has these bytes, and behind them nothing but appended fields, all 0.
///
/// A change that fails here is not append-only.
#[track_caller]
fn keeps_its_form<T>(messages: &[(T, &[u8])])
where
    T: Serialize + DeserializeOwned + PartialEq + core::fmt::Debug,
{
    for (at, (message, bytes)) in messages.iter().enumerate() {
        let encoded = encode(message);
        assert_eq!(
            encoded.first().copied(),
            u8::try_from(at).ok(),
            "{message:?}"
        );
        let appended = encoded.strip_prefix(*bytes);
        assert!(
            appended.is_some_and(|fields| fields.iter().all(|byte| *byte == 0)),
            "{message:?} is {encoded:?}"
        );
        let speaks_18 = VERSIONS.common(Versions::only(18)).is_some();
        assert!(
            !speaks_18 || encoded == *bytes,
            "version 18 refuses {encoded:?}"
        );
        assert_eq!(decode::<T>(bytes).as_ref(), Some(message));
    }
    let next = u8::try_from(messages.len()).unwrap();
    assert_eq!(decode::<T>(&[next]), None, "a message without an example");
}

#[test]
fn messages_keep_their_form() {
    keeps_its_form(&requests());
    keeps_its_form(&replies());
}

/// Checks that an older side leaves out what a newer one appends, and that a newer one reads 0
/// where an older one wrote nothing.
#[test]
fn messages_of_other_versions_are_understood() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Newer {
        Message {
            number: u32,
            text: String,
            hint: Option<u64>,
            masks: [u64; 4],
            flag: bool,
            list: Vec<(u8, u32)>,
        },
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Older {
        Message { number: u32 },
    }
    let newer = |text: &str, hint, masks, flag, list| Newer::Message {
        number: 300,
        text: text.into(),
        hint,
        masks,
        flag,
        list,
    };
    let older = Older::Message { number: 300 };
    let full = newer("web", Some(7), [u64::MAX; 4], true, vec![(1, 2)]);
    assert_eq!(decode(&encode(&full)).as_ref(), Some(&older));
    let absent = newer("", None, [0; 4], false, vec![]);
    assert_eq!(decode(&encode(&older)), Some(absent));
    // A length beyond the packet is that of no message.
    let named = [0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f];
    assert_eq!(decode::<Newer>(&named), None);
    assert_eq!(decode::<Reply>(&[5, 0xff, 0xff, 0xff, 0xff, 0x0f]), None);
}

proptest! {
    /// Checks that arbitrary bytes either decode to a message that encodes again, or are refused.
    #[test]
    fn any_bytes_are_safe(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Some(request) = decode::<Request>(&bytes) {
            let again: Option<Request> = decode(&encode(&request));
            prop_assert_eq!(again, Some(request));
        }
        let _ = decode::<Reply>(&bytes);
    }
}
