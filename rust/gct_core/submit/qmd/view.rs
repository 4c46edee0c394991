// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists a QMD's fields by name, for printing.

use super::{Field, Version};

/// One instance of a field, with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The field, with all its instances.
    pub field: &'static Field,
    /// The index of this instance.
    pub index: u8,
    /// Its value.
    pub value: u32,
}

/// The words of one QMD, and the version to read them by.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    words: &'a [u32],
    version: Version,
}

impl<'a> View<'a> {
    /// Views the QMD at the start of `words`; `None` when they are too few.
    pub fn new(words: &'a [u32], version: Version) -> Option<Self> {
        let words = words.get(..version.words())?;
        Some(Self { words, version })
    }

    /// Returns the version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the QMD's words.
    pub fn words(&self) -> &'a [u32] {
        self.words
    }

    /// Returns the value of instance `index` of the field with the header's `name`.
    pub fn get(&self, name: &str, index: u8) -> Option<u32> {
        let field = self.version.field(name)?;
        (index < field.count).then(|| field.nth(index).get(self.words))
    }

    /// Returns every instance of every field, in the order of [`Version::fields`].
    pub fn fields(&self) -> impl Iterator<Item = Instance> + 'a {
        let words = self.words;
        self.version.fields().flat_map(move |field| {
            (0..field.count).map(move |index| Instance {
                field,
                index,
                value: field.nth(index).get(words),
            })
        })
    }
}
