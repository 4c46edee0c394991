// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Determines the layout version of a QMD.

use super::{joins, with_layout, Field, Layout};
use super::{v02_03, v02_04, v03_00, v04_00, v04_01, v05_00, v05_01};
use crate::submit::reason::Reason;

/// A known layout version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 2.3: Turing's last; Ampere's classes take it, too.
    V02_03,
    /// 2.4: A100.
    V02_04,
    /// 3.0: GA10x, Ada.
    V03_00,
    /// 4.0: Hopper.
    V04_00,
    /// 4.1: Hopper's layout on Blackwell.
    V04_01,
    /// 5.0: Blackwell.
    V05_00,
    /// 5.1: several programs in one launch on Blackwell.
    V05_01,
}

/// Generations by the QMD versions that they accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The GPU is unknown.
    Unknown,
    /// Ampere and Ada: 2.3, 2.4 and 3.0.
    Ampere,
    /// Hopper: 3.0 and 4.0.
    Hopper,
    /// Blackwell: 4.1, 5.0 and 5.1.
    Blackwell,
}

impl Family {
    /// Returns the family of a channel class (`..6F`) or a compute class (`..C0`).
    pub const fn of_class(class: u16) -> Self {
        match class {
            0xc56f | 0xc6c0 | 0xc7c0 | 0xc9c0 => Self::Ampere,
            0xc86f | 0xcbc0 => Self::Hopper,
            0xc96f | 0xca6f | 0xcdc0 | 0xcec0 => Self::Blackwell,
            _ => Self::Unknown,
        }
    }
}

/// The byte of minor and major version in versions 2 to 4.
const BYTE_04: Field = Field {
    name: "QMD_VERSION",
    hi: v04_00::QMD_MAJOR_VERSION.hi,
    lo: v04_00::QMD_MINOR_VERSION.lo,
    count: 1,
    stride: 0,
};

/// The same byte in version 5.
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
    assert!(BYTE_04.hi == v02_03::QMD_MAJOR_VERSION.hi && BYTE_04.lo == v02_03::QMD_VERSION.lo);
    assert!(
        BYTE_04.hi == v04_01::QMD_MAJOR_VERSION.hi && BYTE_04.lo == v04_01::QMD_MINOR_VERSION.lo
    );
    assert!(
        BYTE_05.hi == v05_01::QMD_MAJOR_VERSION.hi && BYTE_05.lo == v05_01::QMD_MINOR_VERSION.lo
    );
};

impl Version {
    /// All versions.
    pub const ALL: &'static [Self] = &[
        Self::V02_03,
        Self::V02_04,
        Self::V03_00,
        Self::V04_00,
        Self::V04_01,
        Self::V05_00,
        Self::V05_01,
    ];

    /// Determines the version of the QMD at the start of `words`.
    ///
    /// # Errors
    ///
    /// [`Reason::Version`] for a version that this family does not accept, [`Reason::Ambiguous`]
    /// when two are possible.
    #[inline]
    pub fn of(words: &[u32], family: Family) -> Result<Self, Reason> {
        // Fast path: the version of every launch on Hopper.
        let is_hopper = family == Family::Hopper && BYTE_04.get(words) == Self::V04_00.byte();
        if is_hopper && words.len() >= v04_00::WORDS {
            return Ok(Self::V04_00);
        }
        Self::of_any(words, family)
    }

    /// Returns the QMD at `at` if [`of`](Self::of) finds version 4.0 there, as for nearly every QMD
    /// on Hopper.
    #[inline(always)]
    pub(crate) fn v04_00_at(
        words: &[u32],
        at: u32,
        family: Family,
    ) -> Option<&[u32; v04_00::WORDS]> {
        // CAST: widening on every machine that has GPUs.
        let at = at as usize;
        let qmd = words.get(at..at + v04_00::WORDS)?.first_chunk()?;
        let is_here = family == Family::Hopper && BYTE_04.get(qmd) == Self::V04_00.byte();
        is_here.then_some(qmd)
    }

    #[cold]
    #[inline(never)]
    fn of_any(words: &[u32], family: Family) -> Result<Self, Reason> {
        let (old, new): (&[Self], &[Self]) = match family {
            Family::Ampere => (&[Self::V02_04, Self::V03_00, Self::V02_03], &[]),
            Family::Hopper => (&[Self::V04_00, Self::V03_00], &[]),
            Family::Blackwell => (&[Self::V04_01], &[Self::V05_00, Self::V05_01]),
            Family::Unknown => (
                &[
                    Self::V02_03,
                    Self::V02_04,
                    Self::V03_00,
                    Self::V04_00,
                    Self::V04_01,
                ],
                &[Self::V05_00, Self::V05_01],
            ),
        };
        let version = match (
            Self::named(BYTE_04.get(words), old),
            Self::named(BYTE_05.get(words), new),
        ) {
            (Some(_), Some(_)) => return Err(Reason::Ambiguous),
            (old, new) => old.or(new),
        };
        match version {
            Some(version) if words.len() >= version.words() => Ok(version),
            _ => Err(Reason::Version),
        }
    }

    /// Returns the one of `candidates` that a byte names.
    #[inline]
    fn named(byte: u32, candidates: &[Self]) -> Option<Self> {
        let mut candidates = candidates.iter().copied();
        candidates.find(|version| version.byte() == byte)
    }

    /// Returns major and minor number as they are stored.
    #[inline]
    const fn byte(self) -> u32 {
        // CAST: widening, `From` is not `const`.
        let (major, minor) = self.number();
        (major as u32) << 4 | minor as u32
    }

    /// Returns whether a split launch may have a join. Before version 4.0 its last atom has the
    /// effects instead.
    pub const fn joins(self) -> bool {
        with_layout!(self, L => joins::<L>())
    }

    /// Returns the size of a QMD in 32-bit words.
    #[inline]
    pub const fn words(self) -> usize {
        match self {
            Self::V02_03 => v02_03::WORDS,
            Self::V02_04 => v02_04::WORDS,
            Self::V03_00 => v03_00::WORDS,
            Self::V04_00 => v04_00::WORDS,
            Self::V04_01 => v04_01::WORDS,
            Self::V05_00 => v05_00::WORDS,
            Self::V05_01 => v05_01::WORDS,
        }
    }

    /// Returns every field of this version, first those that an earlier one has.
    pub fn fields(self) -> impl Iterator<Item = &'static Field> {
        let (own, shared) = with_layout!(self, L => (L::FIELDS, L::SHARED));
        let shared = shared.into_iter().flat_map(move |shared| {
            let is_kept = move |field: &&Field| {
                let mut others = own
                    .iter()
                    .map(|own| own.name)
                    .chain(shared.without.iter().copied());
                field.lo < shared.end && others.all(|name| name != field.name)
            };
            shared.fields.iter().filter(is_kept)
        });
        shared.chain(own)
    }

    /// Returns the field with the header's name.
    pub fn field(self, name: &str) -> Option<&'static Field> {
        self.fields().find(|field| field.name == name)
    }

    /// Returns the header's prefix of each name.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::V02_03 => v02_03::PREFIX,
            Self::V02_04 => v02_04::PREFIX,
            Self::V03_00 => v03_00::PREFIX,
            Self::V04_00 => v04_00::PREFIX,
            Self::V04_01 => v04_01::PREFIX,
            Self::V05_00 => v05_00::PREFIX,
            Self::V05_01 => v05_01::PREFIX,
        }
    }

    /// Returns major and minor number.
    #[inline]
    pub const fn number(self) -> (u8, u8) {
        match self {
            Self::V02_03 => (2, 3),
            Self::V02_04 => (2, 4),
            Self::V03_00 => (3, 0),
            Self::V04_00 => (4, 0),
            Self::V04_01 => (4, 1),
            Self::V05_00 => (5, 0),
            Self::V05_01 => (5, 1),
        }
    }
}
