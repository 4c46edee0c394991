// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which layout version a QMD has.

use super::{v02_04, v03_00, v04_00, v05_00, with_layout, Field, Layout};
use crate::submit::stats::Reason;

/// A layout version that is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 2.4: A100.
    V02_04,
    /// 3.0: GA10x, Ada.
    V03_00,
    /// 4.0: Hopper.
    V04_00,
    /// 5.0: Blackwell.
    V05_00,
}

/// The generations that differ in the QMD versions they accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Nothing is known of the GPU.
    Unknown,
    /// Ampere and Ada: 2.4 and 3.0.
    Ampere,
    /// Hopper: 3.0 and 4.0.
    Hopper,
    /// Blackwell: 5.0.
    Blackwell,
}

impl Family {
    /// The family of a channel class (`..6F`) or a compute class (`..C0`).
    pub const fn of_class(class: u16) -> Self {
        match class {
            0xc56f | 0xc6c0 | 0xc7c0 | 0xc9c0 => Self::Ampere,
            0xc86f | 0xcbc0 => Self::Hopper,
            0xc96f | 0xca6f | 0xcdc0 | 0xcec0 => Self::Blackwell,
            _ => Self::Unknown,
        }
    }
}

/// Versions 2 to 4 keep minor and major version in one byte.
const BYTE_04: Field = Field {
    name: "QMD_VERSION",
    hi: v04_00::QMD_MAJOR_VERSION.hi,
    lo: v04_00::QMD_MINOR_VERSION.lo,
    count: 1,
    stride: 0,
};

/// Version 5 keeps them in another.
const BYTE_05: Field = Field {
    name: "QMD_VERSION",
    hi: v05_00::QMD_MAJOR_VERSION.hi,
    lo: v05_00::QMD_MINOR_VERSION.lo,
    count: 1,
    stride: 0,
};

const _: () = {
    assert!(BYTE_04.hi == v03_00::QMD_MAJOR_VERSION.hi && BYTE_04.lo == v03_00::QMD_VERSION.lo);
    assert!(BYTE_04.hi == v02_04::QMD_MAJOR_VERSION.hi && BYTE_04.lo == v02_04::QMD_VERSION.lo);
};

impl Version {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::V02_04, Self::V03_00, Self::V04_00, Self::V05_00];

    /// The version of the QMD that `words` begins with, given what is known of the GPU.
    ///
    /// # Errors
    ///
    /// [`Reason::Version`] when it is none that this family accepts, [`Reason::Ambiguous`] when it could be two.
    #[inline]
    pub fn of(words: &[u32], family: Family) -> Result<Self, Reason> {
        // What every launch on Hopper has, before the general way.
        let is_hopper = family == Family::Hopper && BYTE_04.get(words) == Self::V04_00.byte();
        if is_hopper && words.len() >= v04_00::WORDS {
            return Ok(Self::V04_00);
        }
        Self::of_any(words, family)
    }

    /// Whether this is what nearly every QMD on Hopper is: [`of`](Self::of) says 4.0 of the words at `at`.
    #[inline(always)]
    pub(crate) fn is_v04_00_at(words: &[u32], at: u32, family: Family) -> bool {
        // CAST: widening on every machine that has GPUs.
        let at = at as usize;
        let qmd = words.get(at..at + v04_00::WORDS);
        family == Family::Hopper && qmd.is_some_and(|qmd| BYTE_04.get(qmd) == Self::V04_00.byte())
    }

    #[cold]
    #[inline(never)]
    fn of_any(words: &[u32], family: Family) -> Result<Self, Reason> {
        let version = match family {
            Family::Ampere => Self::old(words, &[Self::V02_04, Self::V03_00]),
            Family::Hopper => Self::old(words, &[Self::V04_00, Self::V03_00]),
            Family::Blackwell => Self::new(words),
            Family::Unknown => match (
                Self::old(words, &[Self::V02_04, Self::V03_00, Self::V04_00]),
                Self::new(words),
            ) {
                (Some(_), Some(_)) => return Err(Reason::Ambiguous),
                (old, new) => old.or(new),
            },
        };
        match version {
            Some(version) if words.len() >= version.words() => Ok(version),
            _ => Err(Reason::Version),
        }
    }

    /// Which of `candidates` the byte of versions 2 to 4 names.
    #[inline]
    fn old(words: &[u32], candidates: &[Self]) -> Option<Self> {
        let byte = BYTE_04.get(words);
        candidates
            .iter()
            .copied()
            .find(|version| version.byte() == byte)
    }

    /// Whether the byte of version 5 names it.
    #[inline]
    fn new(words: &[u32]) -> Option<Self> {
        (BYTE_05.get(words) == Self::V05_00.byte()).then_some(Self::V05_00)
    }

    /// Major and minor number as they are stored.
    #[inline]
    const fn byte(self) -> u32 {
        // CAST: widening, `From` is not `const`.
        let (major, minor) = self.number();
        (major as u32) << 4 | minor as u32
    }

    /// The size of a QMD in 32-bit words.
    #[inline]
    pub const fn words(self) -> usize {
        match self {
            Self::V02_04 => v02_04::WORDS,
            Self::V03_00 => v03_00::WORDS,
            Self::V04_00 => v04_00::WORDS,
            Self::V05_00 => v05_00::WORDS,
        }
    }

    /// Every field of this version.
    pub fn fields(self) -> &'static [Field] {
        with_layout!(self, L => L::FIELDS)
    }

    /// The field with the header's name.
    pub fn field(self, name: &str) -> Option<&'static Field> {
        self.fields().iter().find(|field| field.name == name)
    }

    /// What the header puts before each name.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::V02_04 => v02_04::PREFIX,
            Self::V03_00 => v03_00::PREFIX,
            Self::V04_00 => v04_00::PREFIX,
            Self::V05_00 => v05_00::PREFIX,
        }
    }

    /// Major and minor number.
    #[inline]
    pub const fn number(self) -> (u8, u8) {
        match self {
            Self::V02_04 => (2, 4),
            Self::V03_00 => (3, 0),
            Self::V04_00 => (4, 0),
            Self::V05_00 => (5, 0),
        }
    }
}
