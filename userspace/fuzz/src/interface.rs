// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fuzzes text, paths and ioctl arguments from user space.

use gct_core::iface::door::Request;
use gct_core::iface::value::Format;
use gct_core::iface::{parse, path, show};
use gct_core::rmapi;
use gct_core::text::Text;

/// Writes to the tree's files: what a file accepts, it shows as text of the same meaning.
pub fn interface(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else {
        return;
    };
    let format = Format::VALUES[usize::from(*choice) % Format::VALUES.len()];
    if let Ok(value) = parse::value(format, text) {
        // A list of every second TPC is the longest text.
        let mut shown = Text::<1024>::EMPTY;
        show::value(&value, &mut shown).expect("room for any value");
        let again = parse::value(format, shown.as_str().as_bytes());
        assert_eq!(again, Ok(value), "{:?}", shown.as_str());
    }
    let _ = parse::command(text);
    let _ = parse::name(text);
    let _ = parse::pid(text);
    let _ = parse::cgroup(text);
    let _ = parse::version(text);
    let _ = parse::stat_line(text);
    let _ = gct_core::text::number(text);
    if let Ok((dir, entry)) = path::file(text) {
        assert_eq!(dir.place(), Some(entry.place));
        let above = text.len() - entry.name.len();
        assert_eq!(path::dir(&text[..above.saturating_sub(1)]), Ok(dir));
    }
    let _ = path::dir(text);
    if let Some(bytes) = text.first_chunk() {
        if let Ok(request) = Request::from_bytes(bytes) {
            assert_eq!(&request.to_bytes(), bytes);
        }
    }
}

/// Decodes the argument of an RM ioctl: no decoded part leaves the argument, and the status can be
/// replaced.
pub fn rmapi(data: &[u8]) {
    let Some((escape, bytes)) = data.split_first() else {
        return;
    };
    let escape = u32::from(*escape);
    let Ok(Some(call)) = rmapi::decode(escape, bytes) else {
        return;
    };
    let _ = call.lookup();
    assert_eq!(call.returned(escape, bytes, 0), call);
    let mut changed = bytes.to_vec();
    if rmapi::set_status(escape, &mut changed, !call.status) {
        let again = rmapi::decode(escape, &changed);
        let again = again.expect("as long as before").expect("the same escape");
        assert_eq!(again.status, !call.status);
        assert_eq!((again.client, again.object), (call.client, call.object));
    }
}
