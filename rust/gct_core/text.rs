// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines short text of bounded length, stored in place, and parses numbers.

use crate::error::Error;
use crate::units::Sat;
use core::fmt;

/// Up to `N` bytes of UTF-8.
#[derive(Clone, Copy)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// The empty text.
    pub const EMPTY: Self = Self {
        bytes: [0; N],
        len: 0,
    };

    /// Copies `text`, or returns `None` when it is longer than `N` bytes.
    pub fn new(text: &str) -> Option<Self> {
        let mut copy = Self::EMPTY;
        copy.bytes
            .get_mut(..text.len())?
            .copy_from_slice(text.as_bytes());
        copy.len = text.len();
        Some(copy)
    }

    /// Copies untrusted text: up to `N` bytes, and only until the first byte that is not printable
    /// ASCII.
    pub fn from_untrusted(bytes: &[u8]) -> Self {
        let mut copy = Self::EMPTY;
        for (to, from) in copy.bytes.iter_mut().zip(bytes) {
            if !(b' '..=b'~').contains(from) {
                break;
            }
            *to = *from;
            copy.len = (Sat(copy.len) + Sat(1)).0;
        }
        copy
    }

    /// Copies an untrusted path, as much as fits. Bytes that are not printable ASCII become blanks,
    /// so no name is lost or made equal to a plain one.
    pub fn from_path(bytes: &[u8]) -> Self {
        let mut copy = Self::EMPTY;
        for (to, from) in copy.bytes.iter_mut().zip(bytes) {
            *to = if from.is_ascii_graphic() { *from } else { b' ' };
            copy.len = (Sat(copy.len) + Sat(1)).0;
        }
        copy
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        // INVARIANT: `bytes[..len]` is UTF-8, so the default is never used.
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// Returns the bytes of the text.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Returns whether the text is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<const N: usize> PartialEq for Text<N> {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl<const N: usize> Eq for Text<N> {}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Appends text that fits. On an error the earlier text stays.
impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len.checked_add(text.len()).ok_or(fmt::Error)?;
        self.bytes
            .get_mut(self.len..end)
            .ok_or(fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// Room for a text whose length is not known before. It counts what does not fit.
#[derive(Debug)]
pub struct Room<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl<'a> Room<'a> {
    /// Takes room for a text.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, length: 0 }
    }

    /// Returns the length of the whole text.
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Returns the whole text, or `None` if it did not fit.
    pub fn text(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length)
    }
}

impl fmt::Write for Room<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(text.as_bytes()) {
            *to = *from;
        }
        self.length = self.length.saturating_add(text.len());
        Ok(())
    }
}

/// Parses a decimal number, which consists of digits alone.
///
/// # Errors
///
/// [`Error::Syntax`] for the form, [`Error::Range`] if it exceeds 64 bits.
pub fn number(text: &[u8]) -> Result<u64, Error> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(Error::Syntax);
    }
    text.iter().try_fold(0u64, |number, digit| {
        number
            .checked_mul(10)
            .and_then(|tens| tens.checked_add(u64::from(digit.wrapping_sub(b'0'))))
            .ok_or(Error::Range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write;

    #[test]
    fn holds_up_to_its_length() {
        assert_eq!(Text::<3>::new("abc").map(|t| t.len), Some(3));
        assert_eq!(Text::<3>::new("abcd"), None);
        assert!(Text::<3>::EMPTY.is_empty());
        assert_eq!(Text::<0>::new("").unwrap().as_str(), "");
    }

    #[test]
    fn untrusted_text_ends_at_the_first_odd_byte() {
        assert_eq!(Text::<8>::from_untrusted(b"H100\0junk").as_str(), "H100");
        assert_eq!(Text::<8>::from_untrusted(b"a\nb").as_str(), "a");
        assert_eq!(Text::<2>::from_untrusted(b"abc").as_str(), "ab");
        assert_eq!(Text::<2>::from_untrusted(&[0xff]).as_str(), "");
        assert_eq!(Text::<4>::from_path(b"/a\xff\nb").as_str(), "/a  ");
    }

    #[test]
    fn room_counts_what_does_not_fit() {
        let mut bytes = [0; 4];
        let mut room = Room::new(&mut bytes);
        assert!(write!(room, "{}", 12).is_ok());
        assert_eq!((room.length(), room.text()), (2, Some(&b"12"[..])));
        assert!(room.write_str("34").is_ok());
        assert_eq!((room.length(), room.text()), (4, Some(&b"1234"[..])));
        assert!(room.write_str("56").and(room.write_str("7")).is_ok());
        assert_eq!((room.length(), room.text()), (7, None));
        assert_eq!(Room::new(&mut []).text(), Some(&b""[..]));
    }

    #[test]
    fn writing_past_the_end_fails_and_keeps_the_rest() {
        let mut text = Text::<4>::EMPTY;
        assert!(write!(text, "{}", 123).is_ok());
        assert!(text.write_str("45").is_err());
        assert_eq!(text.as_str(), "123");
    }
}
