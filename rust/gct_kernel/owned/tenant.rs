// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives a lane the words of its tenant's segments, and of their copies.
//!
//! A tenant's memory is mapped for the kernel in windows, when a segment in them is first needed.
//! The worker does that without a lock, because the resource manager takes locks of its own.

use super::client::{Client, Refused};
use super::ear::Ear;
use super::kit::{Kit, Shown};
use super::view::{ReadView, View};
use core::cell::Cell;
use gct_core::lane::words::Words;
use gct_core::owned::maps::{Change, Mapping, Window, MAPPINGS_MAX, WINDOWS_MAX};
use gct_core::owned::{kit, WHOLE_SLOTS};
use gct_core::rmapi::Handle;
use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, Mutex, MutexGuard};

/// What an open file has mapped for the GPU.
#[pin_data]
pub(super) struct Tenant {
    pub(super) ear: Ear,
    #[pin]
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    mappings: KVVec<Mapping>,
    windows: KVVec<Opened>,
    /// Changes of `mappings`, and the number of the next window.
    changes: u64,
    numbers: u64,
    /// Windows that were closed.
    closed: u64,
    /// Lanes that may need windows.
    lanes: usize,
}

impl Inner {
    /// Returns how many windows were closed.
    pub(super) fn closed(&self) -> u64 {
        self.closed
    }

    /// Takes a window out. The caller drops it without the lock.
    fn remove(&mut self, at: usize) -> Option<Opened> {
        self.closed = self.closed.wrapping_add(1);
        self.windows.remove(at).ok()
    }
}

/// A window, with its view unless the resource manager refused it.
struct Opened {
    number: u64,
    window: Window,
    gpu: u32,
    shown: Option<Shown>,
}

impl Tenant {
    pub(super) fn new() -> Result<Arc<Self>, Refused> {
        let ear = Ear::new()?;
        let tenant = Arc::pin_init(
            pin_init!(Self {
                ear,
                inner <- new_mutex!(Inner {
                    mappings: KVVec::new(),
                    windows: KVVec::new(),
                    changes: 0,
                    numbers: 0,
                    closed: 0,
                    lanes: 0,
                }, "gct::tenant"),
            }),
            GFP_KERNEL_ACCOUNT,
        );
        tenant.map_err(|_| Refused)
    }

    /// Locks what the tenant has mapped, for a turn of a lane, unless a thread of its own has.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        self.inner.try_lock()
    }

    /// Runs `query` with the mappings.
    pub(super) fn with_mappings<T>(&self, query: impl FnOnce(&[Mapping]) -> T) -> T {
        query(&self.inner.lock().mappings)
    }

    /// Records a change.
    pub(super) fn changed(&self, change: &Change) {
        let mut inner = self.inner.lock();
        super::retain(&mut inner.mappings, |old| !old.is_gone_after(change));
        if let Change::Added(mapping) = change {
            if inner.mappings.len() < MAPPINGS_MAX {
                // Without the entry a channel there stays native, and `unowned` counts it.
                let _ = inner.mappings.push(*mapping, GFP_KERNEL_ACCOUNT);
            }
        }
        inner.changes = inner.changes.wrapping_add(1);
        drop(inner);
        self.close_stale();
    }

    /// Drops the records of what went with an object.
    pub(super) fn freed(&self, client: Handle, object: Handle) {
        let mut inner = self.inner.lock();
        super::retain(&mut inner.mappings, |old| !old.goes_with(client, object));
        inner.changes = inner.changes.wrapping_add(1);
        drop(inner);
        self.close_stale();
    }

    /// Closes windows whose mapping is gone.
    fn close_stale(&self) {
        while let Some(closed) = self.take(|inner, opened| !opened.window.is_in(&inner.mappings)) {
            drop(closed);
        }
    }

    /// Takes out the first window for which `goes` is true. The caller drops it without the lock.
    fn take(&self, goes: impl Fn(&Inner, &Opened) -> bool) -> Option<Opened> {
        let mut inner = self.inner.lock();
        let at = inner
            .windows
            .iter()
            .position(|opened| goes(&inner, opened))?;
        inner.remove(at)
    }

    /// Adds a lane. With the first one the tenant's doorbells are heard.
    pub(super) fn lane_begins(&self) {
        let mut inner = self.inner.lock();
        inner.lanes = inner.lanes.saturating_add(1);
        if inner.lanes == 1 {
            self.ear.listen(true);
        }
    }

    /// Removes a lane, which nobody serves any more. `is_last` says that none is left on its GPU,
    /// whose windows go then.
    pub(super) fn lane_ends(&self, gpu: u32, is_last: bool) {
        let mut inner = self.inner.lock();
        inner.lanes = inner.lanes.saturating_sub(1);
        if inner.lanes == 0 {
            self.ear.listen(false);
        }
        drop(inner);
        while let Some(closed) = self.take(|_, opened| is_last && opened.gpu == gpu) {
            drop(closed);
        }
    }

    /// Opens the window for `bytes` at a GPU address of a client. The caller may call the resource
    /// manager.
    pub(super) fn open(&self, gpu: &Arc<Client>, wanted: &Wanted) {
        // Asked for again if a thread of the tenant's has it locked.
        let Some(inner) = self.inner.try_lock() else {
            return;
        };
        let Wanted {
            client,
            address,
            bytes,
        } = *wanted;
        let window = Window::of(&inner.mappings, client, address, bytes);
        let changes = inner.changes;
        drop(inner);
        let Ok(window) = window else { return };
        let shown = Shown::new(gpu.clone(), &window).ok();
        let Some(mut inner) = self.inner.try_lock() else {
            return;
        };
        // Otherwise the window may show what is mapped there no more.
        let holds = inner.changes == changes && inner.lanes > 0;
        let oldest = match inner.windows.len() < WINDOWS_MAX || !holds {
            true => None,
            false => inner.remove(0),
        };
        let opened = Opened {
            number: inner.numbers,
            window,
            gpu: gpu.id(),
            shown,
        };
        inner.numbers = inner.numbers.wrapping_add(1);
        let unused = match holds && inner.windows.reserve(1, GFP_KERNEL_ACCOUNT).is_ok() {
            true => inner
                .windows
                .push_within_capacity(opened)
                .err()
                .map(|e| e.0),
            false => Some(opened),
        };
        drop(inner);
        drop((oldest, unused));
    }
}

/// Words that a lane needs, and that no window shows.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    client: Handle,
    address: u64,
    bytes: u64,
}

/// The memory of a lane, for one turn.
pub(super) struct Memory<'a> {
    tenant: &'a Inner,
    kit: &'a Kit,
    client: Handle,
    gpu: u32,
    wanted: Cell<Option<Wanted>>,
    /// Words that the lane looked for and does not wait for: those that its work releases.
    missed: Cell<Option<Wanted>>,
}

impl<'a> Memory<'a> {
    pub(super) fn new(tenant: &'a Inner, kit: &'a Kit, client: Handle) -> Self {
        Self {
            tenant,
            kit,
            client,
            gpu: kit.client().id(),
            wanted: Cell::new(None),
            missed: Cell::new(None),
        }
    }

    /// Returns words for which a window is to be opened, first those that the lane waits for.
    pub(super) fn wanted(&self) -> Option<Wanted> {
        self.wanted.get().or(self.missed.get())
    }

    /// Returns whether a run can still be accessed.
    pub(super) fn shows(&self, run: &Run) -> bool {
        self.view(run).is_some()
    }

    /// Returns words that a window can show, if the tenant has mapped them.
    fn mapped(&self, va: u64, bytes: u64) -> Option<Wanted> {
        let window = Window::of(&self.tenant.mappings, self.client, va, bytes);
        window.ok().filter(|_| va % 4 == 0)?;
        Some(Wanted {
            client: self.client,
            address: va,
            bytes,
        })
    }

    /// Returns the window that shows the words, and their offset in it.
    fn window(&self, va: u64, bytes: u64) -> Option<(&Opened, u64)> {
        let mut all = self.tenant.windows.iter();
        all.find_map(|opened| {
            let offset = opened.window.offset_of(self.client, va, bytes);
            let offset = offset.filter(|_| opened.gpu == self.gpu)?;
            Some((opened, offset))
        })
    }

    /// Returns the view of a run, and the run's offset there in bytes.
    fn view(&self, run: &Run) -> Option<(&ReadView, u32)> {
        let view: &ReadView = match run.of {
            Of::Copies | Of::Slots => &self.kit.ring,
            Of::Progress | Of::Done => &self.kit.progress,
            Of::Tenant(number) => {
                let mut all = self.tenant.windows.iter();
                let opened = all.find(|opened| opened.number == number)?;
                &opened.shown.as_ref()?.view
            }
        };
        Some((view, run.offset))
    }

    /// Returns the view of `count` words of a run, and their offset there in bytes.
    fn words(&self, run: &Run, index: usize, count: usize) -> Option<(&ReadView, u32)> {
        let (view, offset) = self.view(run)?;
        Some((view, offset.checked_add(run.bytes_before(index, count)?)?))
    }

    /// Returns the driver's own view of them, to store there. Nothing is stored in a tenant's
    /// memory, which has no such view.
    fn own_words(&self, run: &Run, index: usize, count: usize) -> Option<(&View, u32)> {
        let view = match run.of {
            Of::Copies | Of::Slots => &self.kit.ring,
            Of::Done => &self.kit.progress,
            Of::Progress | Of::Tenant(_) => return None,
        };
        Some((
            view,
            run.offset.checked_add(run.bytes_before(index, count)?)?,
        ))
    }
}

/// Consecutive words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    of: Of,
    /// Offset of the first word, in bytes.
    offset: u32,
    words: usize,
}

impl Run {
    /// Returns the bytes before a word, if `count` words from there on are of the run.
    fn bytes_before(&self, index: usize, count: usize) -> Option<u32> {
        (index.checked_add(count)? <= self.words).then_some(())?;
        u32::try_from(index).ok()?.checked_mul(4)
    }

    /// The memory for a channel's copies.
    pub(super) const COPIES: Self = Self {
        of: Of::Copies,
        // CAST: small constants.
        offset: kit::PAGE as u32,
        words: kit::COPIES_WORDS as usize,
    };
    /// The slots of its atoms.
    pub(super) const SLOTS: Self = Self {
        of: Of::Slots,
        // CAST: a small constant.
        offset: kit::SLOTS as u32,
        words: kit::SLOTS_WORDS,
    };
    /// The words that its atoms write.
    pub(super) const DONE: Self = Self {
        of: Of::Done,
        // CAST: a small constant.
        offset: kit::DONE as u32,
        words: kit::DONE_WORDS,
    };
    /// The slots of its launches that stay whole.
    pub(super) const WHOLE: Self = Self {
        of: Of::Slots,
        // CAST: a small constant.
        offset: kit::WHOLE as u32,
        words: kit::WHOLE_WORDS,
    };
    /// The words that these write.
    pub(super) const WHOLE_DONE: Self = Self {
        of: Of::Done,
        // CAST: small constants.
        offset: kit::WHOLE_DONE as u32,
        words: WHOLE_SLOTS as usize,
    };
    /// Its progress word.
    pub(super) const PROGRESS: Self = Self {
        of: Of::Progress,
        offset: 0,
        words: 1,
    };
}

/// What words belong to. The tenant's windows have numbers, so one that was closed is not found.
#[derive(Clone, Copy, Debug)]
enum Of {
    Copies,
    Slots,
    Progress,
    Done,
    Tenant(u64),
}

impl Words for Memory<'_> {
    type View = Run;

    fn find(&self, va: u64, count: usize) -> Option<Run> {
        let bytes = bytes_of(count)?;
        (va % 4 == 0).then_some(())?;
        let from = va.checked_sub(self.kit.copies_address());
        let inside = |from: &u64| {
            let end = from.checked_add(bytes);
            end.is_some_and(|end| end <= 4 * u64::from(kit::COPIES_WORDS))
        };
        let (of, offset) = match from.filter(inside) {
            Some(from) => (Of::Copies, kit::PAGE.checked_add(from)?),
            None => match self.window(va, bytes) {
                Some((opened, offset)) => (Of::Tenant(opened.number), offset),
                None => {
                    let missed = self.missed.get().or_else(|| self.mapped(va, bytes));
                    self.missed.set(missed);
                    return None;
                }
            },
        };
        Some(Run {
            of,
            offset: u32::try_from(offset).ok()?,
            words: count,
        })
    }

    fn is_coming(&self, va: u64, count: usize) -> bool {
        let Some(bytes) = bytes_of(count) else {
            return false;
        };
        if self.find(va, count).is_some() {
            return false;
        }
        let wanted = self.mapped(va, bytes);
        self.wanted.set(wanted.or(self.wanted.get()));
        wanted.is_some()
    }

    fn is_slow(&self, run: &Run) -> bool {
        let Of::Tenant(number) = run.of else {
            return false;
        };
        let mut all = self.tenant.windows.iter();
        let opened = all.find(|opened| opened.number == number);
        let shown = opened.and_then(|opened| opened.shown.as_ref());
        shown.is_some_and(|shown| shown.is_device)
    }

    fn load(&self, run: &Run, index: usize) -> Option<u32> {
        let (view, offset) = self.words(run, index, 1)?;
        view.read32(offset)
    }

    fn store(&self, run: &Run, index: usize, word: u32) -> bool {
        self.write(run, index, &[word])
    }

    fn read(&self, run: &Run, to: &mut [u32]) -> bool {
        let words = self.words(run, 0, to.len());
        words.is_some_and(|(view, offset)| view.read_words(offset, to))
    }

    fn write(&self, run: &Run, index: usize, words: &[u32]) -> bool {
        let to = self.own_words(run, index, words.len());
        to.is_some_and(|(view, offset)| view.write_words(offset, words))
    }
}

fn bytes_of(count: usize) -> Option<u64> {
    u64::try_from(count).ok()?.checked_mul(4)
}
