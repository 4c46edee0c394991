// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes a descriptor into the fields that the scheduler acts on.

use std::fmt;

use crate::memory::GuestMemory;
use crate::qmd::{get, Layout, ReleaseBits, MASK_WORDS, WORDS_MAX};

/// The kind of launch that a descriptor describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A queue filled by the GPU.
    Queue,
    /// No blocks, only effects.
    Null,
    /// Blocks.
    Blocks,
    /// Clusters of blocks.
    Clusters,
    /// Blocks that are all resident together.
    Cooperative,
    /// Clusters that are all resident together.
    CooperativeClusters,
    /// A value that no header names.
    Unknown(u32),
}

/// The TPCs that a launch may not use. A set bit disables a TPC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mask(pub [u32; MASK_WORDS]);

impl Mask {
    /// Returns whether every TPC disabled in `other` is disabled here.
    #[must_use]
    pub fn contains(&self, other: &Mask) -> bool {
        self.0
            .iter()
            .zip(other.0)
            .all(|(own, other)| other & !own == 0)
    }

    /// Returns the TPCs that either mask disables.
    #[must_use]
    pub fn union(&self, other: &Mask) -> Mask {
        let mut all = *self;
        all.0
            .iter_mut()
            .zip(other.0)
            .for_each(|(own, other)| *own |= other);
        all
    }
}

/// A kernel and its arguments: the part that stays the same when a launch is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kernel {
    /// Address of the first instruction.
    pub program: u64,
    /// Constant bank 0 as the descriptor stores its address.
    pub constants: u64,
    /// Threads of a block.
    pub threads: [u32; 3],
    /// Blocks of a cluster; 0 without clusters.
    pub cluster: [u32; 3],
}

/// A semaphore release at completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    /// The address.
    pub address: u64,
    /// The payload.
    pub payload: u64,
    /// `RELEASE_STRUCTURE_SIZE`: 0 four words with a time stamp, 1 one word, 2 two words.
    pub size: u32,
    /// `RELEASE_REDUCTION_OP` if the release is a reduction.
    pub reduction: Option<u32>,
    /// Whether the payload has 64 bits.
    pub payload64: bool,
}

/// An action of completion on another descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dependent {
    /// `DEPENDENT_QMD_ACTION`.
    pub action: u32,
    /// The other descriptor's address; `None` if the layout's header names no pointer.
    pub qmd: Option<u64>,
}

/// A reference count, raised at the start or lowered at completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// The number of the count.
    pub id: u32,
    /// The amount.
    pub delta: u32,
    /// Whether the start of the grid raises it.
    pub raise: bool,
    /// Whether the end of the grid lowers it.
    pub lower: bool,
}

/// A decoded descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Major and minor version.
    pub version: (u32, u32),
    /// The kind of launch.
    pub kind: Kind,
    /// Number of decrements that a copy waits for.
    pub counter: u32,
    /// Whether a copy waits for a SCHEDULE.
    pub require_scheduling: bool,
    /// Whether completion arms the descriptor again.
    pub self_copy: bool,
    /// Its place among launches that wait, 0 first.
    pub group: u32,
    /// Disabled TPCs; empty if the mask is not valid.
    pub mask: Mask,
    /// Grid in blocks or clusters.
    pub grid: [u32; 3],
    /// The resume point.
    pub resume: [u32; 3],
    /// The kernel.
    pub kernel: Kernel,
    /// Releases that are enabled.
    pub releases: Vec<Release>,
    /// Dependents that are enabled.
    pub dependents: Vec<Dependent>,
    /// The latch that completion signals.
    pub arrive: Option<u32>,
    /// The latch that it waits for.
    pub wait: Option<u32>,
    /// Whether dependents are signalled before the blocks have ended.
    pub pre_exit: bool,
    /// Its reference count, if it touches one.
    pub reference: Option<Reference>,
}

/// The reason why a descriptor could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Its memory is not mapped.
    Fault,
    /// The model does not know its version.
    Version,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fault => "its memory is not mapped",
            Self::Version => "its version is not known",
        })
    }
}

impl Descriptor {
    /// Reads the descriptor at `address`.
    ///
    /// # Errors
    ///
    /// [`Unreadable`].
    pub fn read(memory: &mut impl GuestMemory, address: u64) -> Result<Self, Unreadable> {
        let mut words = [0; WORDS_MAX];
        let (short, long) = words.split_at_mut(64);
        read_words(memory, address, short)?;
        let layout = Layout::of(short).ok_or(Unreadable::Version)?;
        if layout.words > short.len() {
            read_words(memory, address.wrapping_add(256), long)?;
        }
        Ok(Self::decode(layout, &words))
    }

    /// Decodes `words`. Returns `None` if their version is unknown.
    #[must_use]
    pub fn of(words: &[u32]) -> Option<Self> {
        Layout::of(words).map(|layout| Self::decode(layout, words))
    }

    fn decode(layout: &Layout, words: &[u32]) -> Self {
        let three = |fields: [_; 3]| fields.map(|field| get(words, field));
        let flagged = |[valid, id]: [_; 2]| (get(words, valid) == 1).then(|| get(words, id));
        Self {
            version: layout.version,
            kind: kind(layout, words),
            counter: get(words, layout.counter),
            require_scheduling: get(words, layout.require_scheduling) == 1,
            self_copy: get(words, layout.self_copy) == 1,
            group: get(words, layout.group),
            mask: mask(layout, words),
            grid: three(layout.grid),
            resume: three(layout.resume),
            kernel: Kernel {
                program: Layout::wide(words, layout.program, layout.program_shift),
                constants: Layout::wide(words, layout.constants, 0),
                threads: three(layout.threads),
                cluster: three(layout.cluster),
            },
            releases: layout
                .releases
                .iter()
                .flatten()
                .filter(|release| get(words, release.enable) == 1)
                .map(|bits| release(bits, words))
                .collect(),
            dependents: layout
                .dependents
                .iter()
                .filter(|dependent| get(words, dependent.enable) == 1)
                .map(|dependent| Dependent {
                    action: get(words, dependent.action),
                    qmd: dependent
                        .pointer
                        .map(|pointer| u64::from(get(words, Some(pointer))) << 8),
                })
                .collect(),
            arrive: flagged(layout.arrive),
            wait: flagged(layout.wait),
            pre_exit: get(words, layout.pre_exit) == 1,
            reference: reference(layout, words),
        }
    }

    /// Returns whether the launch has blocks.
    #[must_use]
    pub fn runs_blocks(&self) -> bool {
        !matches!(self.kind, Kind::Null | Kind::Queue)
    }
}

fn read_words(
    memory: &mut impl GuestMemory,
    address: u64,
    into: &mut [u32],
) -> Result<(), Unreadable> {
    let mut bytes = [0; WORDS_MAX * 4];
    let bytes = bytes.get_mut(..into.len() * 4).ok_or(Unreadable::Fault)?;
    memory.read(address, bytes).map_err(|_| Unreadable::Fault)?;
    for (word, bytes) in into.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = bytes.try_into().map(u32::from_le_bytes).unwrap_or(0);
    }
    Ok(())
}

fn kind(layout: &Layout, words: &[u32]) -> Kind {
    if layout.kind.is_none() {
        return match get(words, layout.is_queue) {
            0 => Kind::Blocks,
            _ => Kind::Queue,
        };
    }
    match get(words, layout.kind) {
        0 => Kind::Queue,
        1 => Kind::Null,
        2 => Kind::Blocks,
        3 => Kind::Clusters,
        4 => Kind::Cooperative,
        5 => Kind::CooperativeClusters,
        other => Kind::Unknown(other),
    }
}

fn mask(layout: &Layout, words: &[u32]) -> Mask {
    if layout.mask_valid.is_some() && get(words, layout.mask_valid) == 0 {
        return Mask::default();
    }
    let mut mask = Mask::default();
    let mut first = 0;
    for part in layout.mask.into_iter().flatten() {
        let bits = get(words, Some(part));
        if let Some(word) = mask.0.get_mut(first / 32) {
            *word |= bits << (first % 32);
        }
        first += usize::from(part.hi - part.lo) + 1;
    }
    mask
}

fn release(bits: &ReleaseBits, words: &[u32]) -> Release {
    let payload64 = get(words, bits.payload64) == 1;
    let payload = Layout::wide(words, bits.payload, 0);
    Release {
        address: Layout::wide(words, bits.address, 0),
        payload: if payload64 {
            payload
        } else {
            payload & u64::from(u32::MAX)
        },
        size: get(words, bits.size),
        reduction: (get(words, bits.reduction) == 1).then(|| get(words, bits.reduction_op)),
        payload64,
    }
}

fn reference(layout: &Layout, words: &[u32]) -> Option<Reference> {
    let [id, delta, raise, lower] = layout.reference.map(|field| get(words, field));
    (raise == 1 || lower == 1).then_some(Reference {
        id,
        delta: delta + 1,
        raise: raise == 1,
        lower: lower == 1,
    })
}
