// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fuzzes the engine: any sequence of events leaves a consistent state.

use gct_core::check::invariants;
use gct_core::engine::Ticket;
use gct_core::error::Error;
use gct_core::features::FeatureSet;
use gct_core::gpu::{Backend, GpuFacts, PciAddress};
use gct_core::host::Host;
use gct_core::ids::{FileId, GpuId, GroupId, ProcKey};
use gct_core::iface::Name;
use gct_core::rmapi::{self, escape, Call};
use gct_core::state::State;
use gct_core::units::Bytes as Size;

/// Maximum number of events per input. The time to check them grows with the square.
const EVENTS_MAX: usize = 64;

/// The tables, which grow when the engine asks for it.
struct Store(Host);

impl Store {
    fn new(seed: u64) -> Self {
        Self(Host::new([seed; 2]))
    }

    fn check(&mut self) {
        let (state, members) = self.0.parts();
        assert_eq!(invariants(&state, &members), Ok(()));
    }

    /// Grows the tables and tries again, as every caller of the engine does.
    fn retry<T>(
        &mut self,
        mut event: impl FnMut(&mut State<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for _ in 0..20 {
            match event(&mut self.0.state()) {
                Err(Error::NeedSlots(need)) => self.0.grow(need).expect("a need is larger storage"),
                other => return other,
            }
        }
        panic!("storage never suffices");
    }
}

/// Objects that an input has created so far.
#[derive(Default)]
struct Made {
    files: Vec<FileId>,
    groups: Vec<GroupId>,
    gpus: Vec<GpuId>,
    /// Managed memory, with the file of its process.
    managed: Vec<(FileId, Ticket)>,
}

/// Reads bytes one after another; zeros at the end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let index = usize::from(self.next());
        from.get(index.checked_rem(from.len())?).copied()
    }
}

/// Runs a sequence of events, each decoded from a few bytes.
pub fn engine(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut store = Store::new(u64::from(bytes.next()));
    let mut made = Made::default();
    for _ in 0..EVENTS_MAX {
        if bytes.0.is_empty() {
            break;
        }
        event(&mut store, &mut made, &mut bytes);
        while store.0.state().next_effect().is_some() {}
        store.check();
    }
}

fn event(store: &mut Store, made: &mut Made, bytes: &mut Bytes<'_>) {
    match bytes.next() % 12 {
        0 => {
            let facts = facts(bytes);
            let gpu = store.retry(|state| state.gpu_add(&facts, FeatureSet::NONE));
            made.gpus.extend(gpu.ok());
        }
        1 => {
            let rm_id = u32::from(bytes.next() % 4);
            let _ = store.retry(|state| state.gpu_remove(rm_id));
        }
        2 => {
            let name = ["a", "b", "c", "d"][usize::from(bytes.next() % 4)];
            let name = Name::new(name).expect("a letter is a name");
            let group = store.retry(|state| state.group_create(&name));
            made.groups.extend(group.ok());
        }
        3 => {
            if let Some(group) = bytes.pick(&made.groups) {
                let _ = store.retry(|state| state.group_remove(group, 0));
            }
        }
        4 | 5 => {
            let proc = ProcKey {
                tgid: u32::from(bytes.next() % 4),
                start_time_ns: 1,
            };
            // No process is a member by pid here.
            let opened = store.retry(|state| state.file_open(proc, b"/tenants/a", None));
            made.files.extend(opened.ok());
        }
        6 => {
            if let Some(file) = bytes.pick(&made.files) {
                made.managed.retain(|(of, ticket)| {
                    if *of == file {
                        store.0.state().uncharge_ticket(file, *ticket);
                    }
                    *of != file
                });
                store.0.state().file_close(file);
            }
        }
        10 => manage(store, made, bytes),
        11 => {
            // This includes charges that were already uncharged.
            if let Some((file, ticket)) = bytes.pick(&made.managed) {
                store.0.state().uncharge_ticket(file, ticket);
            }
        }
        _ => call(store, made, bytes),
    }
}

/// Charges managed memory, before or after its allocation, on any GPU that ever existed.
fn manage(store: &mut Store, made: &mut Made, bytes: &mut Bytes<'_>) {
    let (Some(file), Some(gpu)) = (bytes.pick(&made.files), bytes.pick(&made.gpus)) else {
        return;
    };
    let size = Size(u64::MAX >> (bytes.next() % 64));
    let ticket = match bytes.next() % 2 {
        0 => store.retry(|state| state.try_charge_managed(file, gpu, size)),
        _ => store.retry(|state| state.charge_managed(file, gpu, size).map(Some)),
    };
    let ticket = ticket.ok().flatten();
    made.managed.extend(ticket.map(|ticket| (file, ticket)));
}

fn facts(bytes: &mut Bytes<'_>) -> GpuFacts {
    let pci = PciAddress {
        domain: 0,
        bus: bytes.next() % 8,
        slot: 0,
        function: 0,
    };
    GpuFacts::new(u32::from(bytes.next() % 4), pci, Backend::Kernel)
}

/// Issues an ioctl on a file, with handles from a small range so that they collide.
fn call(store: &mut Store, made: &Made, bytes: &mut Bytes<'_>) {
    let Some(file) = bytes.pick(&made.files) else {
        return;
    };
    let escapes = [
        escape::ALLOC,
        escape::ALLOC,
        escape::FREE,
        escape::DUP_OBJECT,
    ];
    let escape = bytes.pick(&escapes).unwrap_or(escape::ALLOC);
    let mut argument = [0; 64];
    for word in argument.chunks_exact_mut(4).take(6) {
        word[0] = bytes.next() % 8;
    }
    if escape == escape::ALLOC {
        let classes = [0x41_u32, 0x80, 0x2080, 0xa06c, 0xc86f, 0x40, 0x3e];
        let class = bytes.pick(&classes).unwrap_or(0x41);
        argument[12..16].copy_from_slice(&class.to_le_bytes());
    }
    // Each escape has its own size; some have two.
    let decoded = [16, 28, 32, 48]
        .into_iter()
        .find_map(|size| rmapi::decode(escape, &argument[..size]).ok().flatten());
    let Some(call) = decoded else {
        return;
    };
    let Ok(mut ticket) = store.retry(|state| state.call_enter(file, &call)) else {
        return;
    };
    let answer = call.lookup().map(|_| u64::from(bytes.next()));
    let asked = Some(u64::from(bytes.next()));
    let charge = store.retry(|state| state.call_try_charge(file, &call, asked));
    let mut fits = charge != Ok(None);
    if let Ok(Some(charge)) = charge {
        ticket = match call.allocates_memory() {
            true => ticket.with_charge(charge),
            false => ticket,
        };
    }
    fits &= !store.0.state().outgrows_limit(file, &call, ticket, answer);
    let status = if fits { call.status } else { rmapi::NO_MEMORY };
    let call = Call { status, ..call };
    let left = store.retry(|state| state.call_leave(file, &call, ticket, answer));
    if left.is_err() {
        store.0.state().uncharge_ticket(file, ticket);
    }
}
