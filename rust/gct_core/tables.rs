// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds the tables of a [`State`](crate::state::State) in memory that the caller allocates.
//!
//! The caller implements [`Memory`], keeps one [`Tables`] under one lock, and borrows a `State`
//! from it while it holds the lock. The core never allocates:
//!
//! ```text
//! grow:                                     shrink:
//!     lock; operation -> NeedSlots(need)        lock; State::has_spare()?
//!     unlock; Storage::allocate(need)           Tables::pop
//!     lock; Tables::push; operation again       unlock; free the page
//! ```
//!
//! An operation that returns [`Error::NeedSlots`] has changed nothing. A storage is one page,
//! however large the table is.
//!
//! ```text
//! branch  an array of pages
//! page    an array of slots
//! slot    tables find slot i in branches[i / SLOTS / BRANCH][i / SLOTS % BRANCH][i % SLOTS]
//! ```
//!
//! Only the types that hold memory are generic. The code that moves entries is not, so it is part
//! of the core's object file and passes the object gate.

use crate::dirs::{Dir, DirPath, Queue};
use crate::error::{Need, Table};
use crate::failures::Failures;
use crate::ids::{FileId, GpuId, GroupId, GroupSlots, Owner, ProcKey, Sequence, UserId};
use crate::limits;
use crate::objects::{Object, ObjectKey};
use crate::plan::Plan;
use crate::records::{File, Gpu, Group, PathHash, Pid, Pool, Proc, User};
use crate::table::{Link, Meta, Paged, Slot};
use crate::units::Sat;
use core::ops::DerefMut;

/// The allocator of the caller.
pub trait Memory {
    /// An array; empty by default.
    type Slots<T>: Default + DerefMut<Target = [T]>;
    /// The reason why an allocation fails.
    type Error;

    /// Allocates `count` empty elements that live as long as the tables.
    ///
    /// # Errors
    ///
    /// Those of the allocator.
    fn slots<T: Default>(count: usize) -> Result<Self::Slots<T>, Self::Error>;

    /// Allocates a page of `count` empty elements, and charges it to the task that needs it.
    ///
    /// # Errors
    ///
    /// Those of the allocator.
    fn page<T: Default>(count: usize) -> Result<Self::Slots<T>, Self::Error>;
}

/// Storage in pieces that the owner adds and removes one by one.
pub trait Pieces<T> {
    /// Returns a piece; empty if it is absent.
    fn piece(&self, at: usize) -> &[T];

    /// Returns a piece for writing.
    fn piece_mut(&mut self, at: usize) -> &mut [T];
}

/// Bytes of a page: one page of memory, so no allocation needs contiguous pages.
const PAGE_BYTES: usize = 4096;

/// Pages in one branch.
const BRANCH: usize = 128;

/// Buckets in one page.
const BUCKETS: usize = PAGE_BYTES / size_of::<Link>();

/// Returns `n / d`, rounded up. [`usize::div_ceil`] contains a check for zero that may panic.
fn ceil(n: usize, d: usize) -> usize {
    let sum = Sat(n) + (Sat(d) - Sat(1));
    sum.0.checked_div(d).unwrap_or(0)
}

/// An array of pages; absent pages are empty.
type Branch<M, K, V> = <M as Memory>::Slots<<M as Memory>::Slots<Slot<K, V>>>;

/// A page of slots, with the page of buckets and the branch that it is the first to need.
pub struct Page<M: Memory, K, V> {
    slots: M::Slots<Slot<K, V>>,
    buckets: M::Slots<Link>,
    branch: Branch<M, K, V>,
}

/// The slots of a table, found through branches, and its buckets. Growing moves nothing.
struct Pages<M: Memory, K, V> {
    branches: M::Slots<Branch<M, K, V>>,
    buckets: M::Slots<M::Slots<Link>>,
    pages: usize,
}

impl<M: Memory, K, V> Page<M, K, V> {
    /// Slots in one page.
    const SLOTS: usize = match PAGE_BYTES / size_of::<Slot<K, V>>() {
        0 => 1,
        many => many,
    };

    /// Returns whether page `page` is the first of a branch, and whether it needs a new page of
    /// buckets.
    fn begins(page: usize) -> [bool; 2] {
        let more = Self::bucket_pages(page.saturating_add(1)) > Self::bucket_pages(page);
        [page % BRANCH == 0, more]
    }

    /// Returns how many pages of buckets `pages` pages of slots need.
    fn bucket_pages(pages: usize) -> usize {
        ceil((Sat(pages) * Sat(Self::SLOTS)).0, BUCKETS)
    }

    fn allocate(need: &Need) -> Result<Self, M::Error> {
        let [branch, buckets] = Self::begins(need.piece);
        Ok(Self {
            slots: M::page(Self::SLOTS)?,
            buckets: match buckets {
                true => M::page(BUCKETS)?,
                false => Default::default(),
            },
            branch: match branch {
                true => M::page(BRANCH)?,
                false => Default::default(),
            },
        })
    }

    /// Returns whether this has exactly the parts that page `page` needs.
    fn fits(&self, page: usize) -> bool {
        Self::begins(page) == [!self.branch.is_empty(), !self.buckets.is_empty()]
    }
}

impl<M: Memory, K, V> Pages<M, K, V> {
    /// Creates an empty table of at most `slots_max` slots.
    fn new(slots_max: usize) -> Result<Self, M::Error> {
        let pages = ceil(slots_max, Page::<M, K, V>::SLOTS);
        Ok(Self {
            branches: M::slots(ceil(pages, BRANCH))?,
            buckets: M::slots(Page::<M, K, V>::bucket_pages(pages))?,
            pages: 0,
        })
    }

    /// Appends a page. Returns it instead if it does not fit, or if there are `need.slots` slots
    /// and a page for each of the `growing` operations.
    fn push(
        &mut self,
        need: &Need,
        growing: Sat<usize>,
        page: Page<M, K, V>,
    ) -> Option<Page<M, K, V>> {
        let at = self.pages;
        let others = growing * Sat(Page::<M, K, V>::SLOTS);
        if Sat(self.capacity()) >= Sat(need.slots) + others || !page.fits(at) {
            return Some(page);
        }
        if !page.buckets.is_empty() {
            *self.buckets.get_mut(Page::<M, K, V>::bucket_pages(at))? = page.buckets;
        }
        let branch = self.branches.get_mut(at / BRANCH)?;
        if !page.branch.is_empty() {
            *branch = page.branch;
        }
        *branch.get_mut(at % BRANCH)? = page.slots;
        self.pages = at.saturating_add(1);
        None
    }

    /// Removes the last page, with the parts that it was the first to need.
    fn pop(&mut self) -> Option<Page<M, K, V>> {
        let at = self.pages.checked_sub(1)?;
        let [starts_branch, starts_buckets] = Page::<M, K, V>::begins(at);
        let branch = self.branches.get_mut(at / BRANCH)?;
        let slots = core::mem::take(branch.get_mut(at % BRANCH)?);
        let branch = match starts_branch {
            true => core::mem::take(branch),
            false => Default::default(),
        };
        let buckets = match starts_buckets {
            true => core::mem::take(self.buckets.get_mut(Page::<M, K, V>::bucket_pages(at))?),
            false => Default::default(),
        };
        self.pages = at;
        Some(Page {
            slots,
            buckets,
            branch,
        })
    }
}

impl<M: Memory, K, V> Paged<K, V> for Pages<M, K, V> {
    fn page(&self) -> usize {
        Page::<M, K, V>::SLOTS
    }

    fn capacity(&self) -> usize {
        (Sat(self.pages) * Sat(Page::<M, K, V>::SLOTS)).0
    }

    fn slot(&self, at: usize) -> Option<&Slot<K, V>> {
        let page = at / Page::<M, K, V>::SLOTS;
        let branch = self.branches.get(page / BRANCH)?;
        branch.get(page % BRANCH)?.get(at % Page::<M, K, V>::SLOTS)
    }

    fn slot_mut(&mut self, at: usize) -> Option<&mut Slot<K, V>> {
        let page = at / Page::<M, K, V>::SLOTS;
        let branch = self.branches.get_mut(page / BRANCH)?;
        branch
            .get_mut(page % BRANCH)?
            .get_mut(at % Page::<M, K, V>::SLOTS)
    }

    fn first(&self, bucket: usize) -> Link {
        let page = self.buckets.get(bucket / BUCKETS);
        let first = page.and_then(|page| page.get(bucket % BUCKETS));
        first.copied().unwrap_or(Link::NONE)
    }

    fn set_first(&mut self, bucket: usize, link: Link) {
        let page = self.buckets.get_mut(bucket / BUCKETS);
        if let Some(first) = page.and_then(|page| page.get_mut(bucket % BUCKETS)) {
            *first = link;
        }
    }
}

/// What outlives a [`State`](crate::state::State) beside the tables.
#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) sequence: Sequence,
    pub(crate) failures: Failures,
    pub(crate) plan: Plan,
    pub(crate) queue: Queue,
    pub(crate) extra_aliases: Sat<usize>,
    pub(crate) reserved_objects: Sat<usize>,
    pub(crate) reserving_files: Sat<usize>,
    /// Operations that are allocating storage.
    pub(crate) growing: Sat<usize>,
    pub(crate) group_slots: GroupSlots,
    pub(crate) metas: Metas,
}

macro_rules! tables {
    ($($table:ident, $field:ident: $key:ty => $value:ty, $max:ident;)*) => {
        /// State of each table.
        #[derive(Debug)]
        pub(crate) struct Metas {
            $(pub(crate) $field: Meta,)*
        }

        impl Metas {
            fn new(seed: u64) -> Self {
                Self { $($field: Meta::new(Table::$table, limits::$max, seed),)* }
            }
        }

        /// The slots of every table.
        pub(crate) struct Stores<'a> {
            $(pub(crate) $field: &'a mut dyn Paged<$key, $value>,)*
        }

        /// The state of the core, except the [`members`](crate::members).
        pub struct Tables<M: Memory> {
            root: Root,
            $($field: Pages<M, $key, $value>,)*
        }

        impl<M: Memory> Tables<M> {
            /// Creates an empty state. `seed` is random and secret.
            ///
            /// # Errors
            ///
            /// Those of [`Memory::slots`], for the arrays of branches.
            pub fn new(seed: u64) -> Result<Self, M::Error> {
                let root = Root {
                    sequence: Sequence::new(),
                    failures: Failures::default(),
                    plan: Plan::NONE,
                    queue: Queue::new(),
                    extra_aliases: Sat(0),
                    reserved_objects: Sat(0),
                    reserving_files: Sat(0),
                    growing: Sat(0),
                    group_slots: GroupSlots::NONE,
                    metas: Metas::new(seed),
                };
                Ok(Self { root, $($field: Pages::new(limits::$max)?,)* })
            }

            pub(crate) fn parts(&mut self) -> (&mut Root, Stores<'_>) {
                (&mut self.root, Stores { $($field: &mut self.$field,)* })
            }

            /// Adds a page to a table. Returns it if no operation needs it. Each operation that is
            /// allocating may add one page, so a herd of them makes progress together.
            pub fn push(&mut self, need: &Need, storage: Storage<M>) -> Option<Storage<M>> {
                match storage {
                    $(Storage::$table(page) => {
                        self.$field.push(need, self.root.growing, page).map(Storage::$table)
                    })*
                }
            }

            /// Removes a page that no entry needs.
            pub(crate) fn take(&mut self, table: Table) -> Option<Storage<M>> {
                match table {
                    $(Table::$table => self.$field.pop().map(Storage::$table),)*
                    Table::Members => None,
                }
            }
        }

        /// A page of a table, without entries.
        pub enum Storage<M: Memory> {
            $(
                #[doc = concat!("For [`Table::", stringify!($table), "`].")]
                $table(Page<M, $key, $value>),
            )*
        }

        impl<M: Memory> Storage<M> {
            /// Allocates the page that a table needs; `None` for [`members`](crate::members).
            ///
            /// # Errors
            ///
            /// Those of [`Memory::page`].
            pub fn allocate(need: &Need) -> Result<Option<Self>, M::Error> {
                Ok(Some(match need.table {
                    $(Table::$table => Self::$table(Page::allocate(need)?),)*
                    Table::Members => return Ok(None),
                }))
            }
        }
    };
}

impl<M: Memory> core::fmt::Debug for Tables<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.root.fmt(f)
    }
}

impl<M: Memory> Tables<M> {
    /// Records that an operation is allocating. No page is spare until [`Tables::has_grown`].
    pub fn grows(&mut self) {
        self.root.growing += 1;
    }

    /// Records that an operation has ended its allocation.
    pub fn has_grown(&mut self) {
        self.root.growing -= 1;
    }
}

tables! {
    Gpus, gpus: GpuId => Gpu, GPUS_MAX;
    Groups, groups: GroupId => Group, GROUPS_MAX;
    Paths, paths: PathHash => GroupId, GROUPS_MAX;
    Procs, procs: ProcKey => Proc, PROCS_MAX;
    Pids, pids: u32 => Pid, PROCS_MAX;
    Users, users: UserId => User, PROCS_MAX;
    Pools, pools: (Owner, GpuId) => Pool, POOLS_MAX;
    Files, files: FileId => File, FILES_MAX;
    Objects, objects: ObjectKey => Object, OBJECTS_MAX;
    Dirs, dirs: DirPath => Dir, DIRS_MAX;
}
