// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the launches in what a tenant writes into a channel.
//!
//! A [`Tracker`] belongs to one channel and keeps what segments leave behind: which class each subchannel has, the
//! registers that a later method uses, and a burst that goes on in the next segment. It believes nothing that it has not
//! seen: a launch is a PCAS that schedules a QMD whose words are all in this segment and were not changed since. Anything
//! else is reported with the reason, and is to be passed through.
//!
//! The cost is one pass over the headers; data words are skipped, not read.

mod found;
mod subchannel;
mod uploads;

use super::class::{self, Action};
use super::limits::SEGMENT_WORDS_MAX;
use super::method::{self, Burst, Opcode, Refused, Rest, Walk};
use super::qmd::{Family, Version};
use super::stats::{Counters, Reason};
use found::Table;
use subchannel::{Role, Subchannel};
use uploads::Uploads;

pub use found::{Found, Registers, Source};

/// A semaphore operation of the host or of a compute class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Semaphore {
    /// Where.
    pub va: u64,
    /// With which value.
    pub payload: u64,
    /// The word that executed it, as its class defines it.
    pub execute: u32,
}

/// What a scan of one segment found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// How many entries of the caller's table are filled.
    pub found: usize,
    /// How many did not fit.
    pub missed: usize,
    /// Where and why the rest was not understood.
    pub refused: Option<Refused>,
}

/// What is known of one channel.
#[derive(Clone, Debug)]
pub struct Tracker {
    family: Family,
    subchannels: [Subchannel; 8],
    uploads: Uploads,
    rest: Option<Rest>,
    host: [u32; 4],
    last_release: Option<Semaphore>,
    last_acquire: Option<Semaphore>,
    /// Whether everything is read burst by burst.
    #[cfg(test)]
    pub(crate) plain: bool,
}

/// The methods that a host executes itself end here.
const HOST_END: u16 = 0x100;

/// The first header of an upload as CUDA writes it, on subchannel 0: the destination.
const UPLOAD_FORM: u32 = method::incr(0, class::OFFSET_OUT_UPPER, 2);

/// Its other headers: length, launch, and the data's without its count.
const UPLOAD_FORMS: [u32; 3] = [
    method::incr(0, class::LINE_LENGTH_IN, 2),
    method::incr(0, class::LAUNCH_DMA, 1),
    method::non_incr(0, class::LOAD_INLINE_DATA, 0),
];

/// The words of an upload before its data.
const UPLOAD_HEADERS: usize = 9;

/// The first header of a PCAS as CUDA writes it, on subchannel 0.
const PCAS_FORM: u32 = method::incr(0, class::SEND_PCAS_A, 1);

/// Its second header.
const PCAS_ACTION_FORM: u32 = method::incr(0, class::SEND_SIGNALING_PCAS2_B, 1);

/// The header of a semaphore report as CUDA writes it, on subchannel 0.
const REPORT_FORM: u32 = method::incr(0, class::SET_REPORT_SEMAPHORE_A, 4);

/// Where a PCAS is sent.
struct Call {
    at: u32,
    end: u32,
    subchannel: usize,
    ends_burst: bool,
}

impl Tracker {
    /// A channel of the given class (`0xc86f` on Hopper; 0 when it is not known) of which nothing was seen yet.
    pub fn new(channel_class: u16) -> Self {
        let mut subchannels = [Subchannel::new(Role::Other); 8];
        for (index, role) in [
            (class::SUBCHANNEL_COMPUTE, Role::Compute),
            (class::SUBCHANNEL_I2M, Role::Upload),
        ] {
            // Before a SET_OBJECT was seen, the binding that every driver uses is assumed.
            if let Some(subchannel) = subchannels.get_mut(usize::from(index)) {
                *subchannel = Subchannel::new(role);
            }
        }
        Self {
            family: Family::of_class(channel_class),
            subchannels,
            uploads: Uploads::new(),
            rest: None,
            host: [0; 4],
            last_release: None,
            last_acquire: None,
            #[cfg(test)]
            plain: false,
        }
    }

    #[cfg(test)]
    fn is_plain(&self) -> bool {
        self.plain
    }

    #[cfg(not(test))]
    const fn is_plain(&self) -> bool {
        false
    }

    /// The generation of the GPU, as far as classes have told.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The class that SET_OBJECT bound to a subchannel; 0 when none was seen.
    pub fn class_of(&self, subchannel: u8) -> u16 {
        self.subchannels
            .get(usize::from(subchannel))
            .map_or(0, |subchannel| subchannel.class)
    }

    /// The last semaphore release of the last segment scanned.
    pub fn last_release(&self) -> Option<Semaphore> {
        self.last_release
    }

    /// The last semaphore acquire of the last segment scanned.
    pub fn last_acquire(&self) -> Option<Semaphore> {
        self.last_acquire
    }

    /// Reads the next segment of the channel and fills `found` with its launches, in order of their calls.
    ///
    /// Everything that is not understood is counted in `counters`.
    pub fn scan(&mut self, words: &[u32], found: &mut [Found], counters: &mut Counters) -> Scan {
        counters.segments = counters.segments.wrapping_add(1);
        self.last_release = None;
        self.last_acquire = None;
        let Some(length) = u32::try_from(words.len())
            .ok()
            .filter(|length| *length <= SEGMENT_WORDS_MAX)
        else {
            counters.keep(Reason::SegmentTooLong);
            self.rest = None;
            return Scan::default();
        };
        counters.words = counters.words.wrapping_add(u64::from(length));
        self.uploads.clear();
        let mut scan = Scan::default();
        let mut pass = Pass {
            words,
            table: Table::new(found),
            counters,
        };
        let mut walk = Walk::resume(words, self.rest.take());
        loop {
            if walk.is_at_header() && !self.is_plain() {
                let at = self.known_forms(walk.position(), &mut pass);
                walk.seek(at);
            }
            match walk.next() {
                Some(Ok(burst)) => self.burst(&burst, &mut pass),
                Some(Err(refused)) => {
                    pass.counters.keep(refused.reason);
                    scan.refused = Some(refused);
                }
                None => break,
            }
        }
        self.rest = walk.rest();
        if scan.refused.is_some() {
            self.forget_registers();
        }
        self.report_stored(&mut pass);
        scan.found = pass.table.len();
        scan.missed = pass.table.missed();
        for _ in 0..scan.missed {
            pass.counters.keep(Reason::TableFull);
        }
        scan
    }

    /// Takes the sequences that nearly all words of a CUDA launch consist of in one step each: an upload, a PCAS, a
    /// semaphore report. Returns where the first word lies that is none of them. What this does is what the single bursts
    /// would do (a test compares); whatever differs in one bit is left to them.
    #[inline]
    fn known_forms(&mut self, mut at: u32, pass: &mut Pass<'_, '_>) -> u32 {
        let mut tail = match usize::try_from(at) {
            Ok(at) => pass.words.get(at..).unwrap_or(&[]),
            Err(_) => &[],
        };
        // Each turn takes at least four words.
        while let Some(header) = tail.first() {
            let on = header & method::SUBCHANNEL;
            let taken = match header ^ on {
                UPLOAD_FORM => self.known_upload(at, on, tail),
                PCAS_FORM => self.known_pcas(at, on, tail, pass),
                REPORT_FORM => self.known_report(on, tail),
                _ => None,
            };
            let Some(taken) = taken else {
                break;
            };
            // CAST: at most the words of one upload.
            at = at.wrapping_add(taken as u32);
            tail = tail.get(taken..).unwrap_or(&[]);
        }
        at
    }

    /// The subchannel of a known form, if its class has these methods.
    #[inline(always)]
    fn engine(&mut self, on: u32) -> Option<(&mut Subchannel, &mut Uploads)> {
        // CAST: three bits.
        let index = (on >> method::SUBCHANNEL_SHIFT) as usize;
        let subchannel = self.subchannels.get_mut(index)?;
        (subchannel.role != Role::Other).then_some((subchannel, &mut self.uploads))
    }

    #[inline(always)]
    fn known_upload(&mut self, at: u32, on: u32, tail: &[u32]) -> Option<usize> {
        let [_, upper, lower, length_header, length, lines, launch_header, launch, data_header] =
            *tail.first_chunk()?;
        let count = data_header >> method::COUNT_SHIFT & method::COUNT;
        let headers = [
            length_header,
            launch_header,
            data_header & !method::COUNT_BITS,
        ];
        // CAST: at most 13 bits.
        let end = (count as usize).wrapping_add(UPLOAD_HEADERS);
        if headers != UPLOAD_FORMS.map(|form| on | form) || end > tail.len() {
            return None;
        }
        let (subchannel, uploads) = self.engine(on)?;
        subchannel.set_upload([upper, lower, length, lines]);
        // CAST: nine.
        subchannel.begin(
            uploads,
            launch,
            Some((at.wrapping_add(UPLOAD_HEADERS as u32), count)),
        );
        Some(end)
    }

    #[inline(always)]
    fn known_pcas(
        &mut self,
        at: u32,
        on: u32,
        tail: &[u32],
        pass: &mut Pass<'_, '_>,
    ) -> Option<usize> {
        let [_, address, action_header, action] = *tail.first_chunk()?;
        if action_header != on | PCAS_ACTION_FORM {
            return None;
        }
        let (subchannel, _) = self.engine(on)?;
        subchannel.set(class::SEND_PCAS_A, address);
        let call = Call {
            at: at.wrapping_add(2),
            end: at.wrapping_add(4),
            // CAST: three bits.
            subchannel: (on >> method::SUBCHANNEL_SHIFT) as usize,
            ends_burst: true,
        };
        self.pcas(&call, Action::of_pcas2(action), pass);
        Some(4)
    }

    #[inline(always)]
    fn known_report(&mut self, on: u32, tail: &[u32]) -> Option<usize> {
        let [_, upper, lower, payload, execute] = *tail.first_chunk()?;
        let (subchannel, _) = self.engine(on)?;
        let report = subchannel.set_report_all(upper, lower, payload, execute);
        self.last_release = Some(report);
        Some(5)
    }

    /// After words that were not understood no register is known.
    fn forget_registers(&mut self) {
        self.rest = None;
        for subchannel in &mut self.subchannels {
            subchannel.forget();
        }
    }

    #[inline]
    fn burst(&mut self, burst: &Burst, pass: &mut Pass<'_, '_>) {
        let method = burst.method;
        if method < HOST_END {
            return self.host(burst, pass);
        }
        let Some(subchannel) = self.subchannels.get_mut(usize::from(burst.subchannel & 7)) else {
            return;
        };
        if subchannel.role == Role::Other {
            return;
        }
        match burst.opcode {
            Opcode::NonIncr if method == class::LOAD_INLINE_DATA => {
                self.uploads.data(burst.data, burst.count);
            }
            Opcode::Incr | Opcode::Immediate => self.registers(burst, pass),
            Opcode::NonIncr => self.repeated(burst, method, 0, pass),
            Opcode::OneIncr => {
                if burst.count != 0 {
                    self.write(burst, method, 0, pass);
                    self.repeated(burst, burst.method_of(1), 1, pass);
                }
            }
        }
    }

    /// Words from `from` on that all go to one method.
    fn repeated(&mut self, burst: &Burst, method: u16, from: u32, pass: &mut Pass<'_, '_>) {
        if method == class::LOAD_INLINE_DATA {
            let count = burst.count.saturating_sub(from);
            return self.uploads.data(burst.data.wrapping_add(from), count);
        }
        if !subchannel::is_tracked(method) {
            return;
        }
        // Bounded by the burst's words, of which each is visited once.
        for index in from..burst.count {
            self.write(burst, method, index, pass);
        }
    }

    /// Words that go to one method after another.
    fn registers(&mut self, burst: &Burst, pass: &mut Pass<'_, '_>) {
        if burst.opcode == Opcode::Immediate {
            return self.write_value(burst, burst.method, u32::from(burst.immediate), true, pass);
        }
        if burst.method <= class::LOAD_INLINE_QMD_DATA_LAST
            && burst.method_of(burst.count) > class::LOAD_INLINE_QMD_DATA
        {
            return self.inline_burst(burst, pass);
        }
        for index in 0..burst.count {
            let method = burst.method_of(index);
            if method > class::SET_REPORT_SEMAPHORE_D && method < class::CALL_MME_MACRO {
                break;
            }
            if subchannel::is_tracked(method) {
                self.write(burst, method, index, pass);
            }
        }
    }

    /// A burst that covers methods of an inline QMD.
    fn inline_burst(&mut self, burst: &Burst, pass: &mut Pass<'_, '_>) {
        for index in 0..burst.count {
            let method = burst.method_of(index);
            if method >= class::LOAD_INLINE_QMD_DATA {
                break;
            }
            self.write(burst, method, index, pass);
        }
        let Some(subchannel) = self.subchannels.get(usize::from(burst.subchannel & 7)) else {
            return;
        };
        let skipped = u32::from(class::LOAD_INLINE_QMD_DATA.saturating_sub(burst.method)) / 4;
        let first = burst.data.wrapping_add(skipped);
        let whole = burst.method <= class::LOAD_INLINE_QMD_DATA
            && burst.count.saturating_sub(skipped) >= subchannel.inline_words();
        let mut found = Found {
            source: Source::Inline,
            action: Action::InvalidateCopySchedule,
            call_at: burst.at,
            call_end: burst.end(),
            subchannel: burst.subchannel,
            ..Found::default()
        };
        match subchannel.inline_va() {
            _ if !whole => found.reason = Some(Reason::Fragmented),
            Err(reason) => found.reason = Some(reason),
            Ok(va) => {
                found.qmd_va = va;
                found.at = first;
                found.read_version(pass.words, self.family);
            }
        }
        pass.launch(found);
    }

    #[inline]
    fn write(&mut self, burst: &Burst, method: u16, index: u32, pass: &mut Pass<'_, '_>) {
        let at = burst.data.wrapping_add(index);
        let last = index.wrapping_add(1) == burst.count && burst.missing == 0;
        if let Some(value) = pass.word(at) {
            if method == class::LOAD_INLINE_DATA {
                return self.uploads.data(at, 1);
            }
            self.write_value(burst, method, value, last, pass);
        }
    }

    /// One register of an engine is written; `last` says that the burst ends with it.
    fn write_value(
        &mut self,
        burst: &Burst,
        method: u16,
        value: u32,
        last: bool,
        pass: &mut Pass<'_, '_>,
    ) {
        let Some(subchannel) = self.subchannels.get_mut(usize::from(burst.subchannel & 7)) else {
            return;
        };
        let action = match method {
            class::LAUNCH_DMA => return subchannel.begin(&mut self.uploads, value, None),
            class::SEND_SIGNALING_PCAS2_B => Action::of_pcas2(value),
            class::SEND_SIGNALING_PCAS_B => Action::of_pcas(value),
            class::SET_REPORT_SEMAPHORE_D | class::REPORT_SEMAPHORE_EXECUTE => {
                subchannel.set(method, value);
                self.last_release = Some(subchannel.report(method, value));
                return;
            }
            class::CALL_MME_MACRO.. => return pass.counters.keep(Reason::Macro),
            _ => return subchannel.set(method, value),
        };
        let call = Call {
            at: burst.at,
            end: burst.end(),
            subchannel: usize::from(burst.subchannel & 7),
            ends_burst: last,
        };
        self.pcas(&call, action, pass);
    }

    /// A PCAS with an action was sent.
    #[inline]
    fn pcas(&mut self, call: &Call, action: Action, pass: &mut Pass<'_, '_>) {
        let Some(subchannel) = self.subchannels.get(call.subchannel) else {
            return;
        };
        let mut found = Found {
            source: Source::Elsewhere,
            action,
            call_at: call.at,
            call_end: call.end,
            // CAST: three bits.
            subchannel: call.subchannel as u8,
            registers: subchannel.registers(),
            ends_burst: call.ends_burst,
            ..Found::default()
        };
        match subchannel.pcas_va() {
            Err(reason) => found.reason = Some(reason),
            Ok(va) => {
                found.qmd_va = va;
                match self.uploads.find(va, pass.words, self.family) {
                    Ok((at, version)) => {
                        found.source = Source::Upload;
                        found.at = at;
                        found.version = Some(version);
                    }
                    Err(reason) => found.reason = Some(reason),
                }
                found.shared = pass.table.share(va);
            }
        }
        if action.schedules() {
            pass.launch(found);
        } else if action != Action::Nop {
            found.source = Source::Touch;
            pass.table.push(found);
        }
    }

    /// Host methods: SET_OBJECT and semaphores.
    fn host(&mut self, burst: &Burst, pass: &mut Pass<'_, '_>) {
        if burst.opcode == Opcode::Immediate {
            return self.host_write(burst, burst.method, u32::from(burst.immediate));
        }
        let tracked = |method| method == class::SET_OBJECT || host_register(method).is_some();
        if burst.opcode == Opcode::NonIncr && !tracked(burst.method) {
            return;
        }
        for index in 0..burst.count {
            let method = burst.method_of(index);
            if method >= HOST_END {
                // The rest goes to the engine.
                let rest = Burst {
                    method,
                    data: burst.data.wrapping_add(index),
                    count: burst.count.wrapping_sub(index),
                    ..*burst
                };
                return self.burst(&rest, pass);
            }
            if let Some(value) = pass.word(burst.data.wrapping_add(index)) {
                self.host_write(burst, method, value);
            }
        }
    }

    fn host_write(&mut self, burst: &Burst, method: u16, value: u32) {
        if method == class::SET_OBJECT {
            // CAST: the class is the low half.
            let object = value as u16;
            if let Some(subchannel) = self.subchannels.get_mut(usize::from(burst.subchannel & 7)) {
                subchannel.bind(object);
            }
            if self.family == Family::Unknown {
                self.family = Family::of_class(object);
            }
            return;
        }
        if let Some(register) = host_register(method).and_then(|index| self.host.get_mut(index)) {
            *register = value;
        }
        let [low, high, payload, payload_high] = self.host;
        let semaphore = Semaphore {
            va: u64::from(high) << 32 | u64::from(low & !3),
            payload: u64::from(payload_high) << 32 | u64::from(payload),
            execute: value,
        };
        match (method, value & 7) {
            (class::SEM_EXECUTE, 1 | 6) => self.last_release = Some(semaphore),
            (class::SEM_EXECUTE, 0 | 2..=5) => self.last_acquire = Some(semaphore),
            (class::SEMAPHORED, 1 | 4) => self.last_acquire = Some(semaphore),
            (class::SEMAPHORED, _) => self.last_release = Some(semaphore),
            _ => {}
        }
    }

    /// Reports uploads that look like a QMD and that nothing in this segment scheduled: the head of a graph is one.
    #[inline]
    fn report_stored(&self, pass: &mut Pass<'_, '_>) {
        for upload in self.uploads.newest_first() {
            let Some((va, at, length)) = upload.unused_qmd() else {
                continue;
            };
            let here = usize::try_from(at)
                .ok()
                .and_then(|at| pass.words.get(at..)?.get(..length));
            let Ok(version) = Version::of(here.unwrap_or(&[]), self.family) else {
                continue;
            };
            if version.words() == length && !pass.table.names(va) {
                pass.table.push(Found {
                    qmd_va: va,
                    at,
                    version: Some(version),
                    source: Source::Stored,
                    ..Found::default()
                });
            }
        }
    }
}

/// Which of the four host semaphore registers a method writes: address low and high, payload low and high.
fn host_register(method: u16) -> Option<usize> {
    match method {
        class::SEMAPHOREB | class::SEM_ADDR_LO => Some(0),
        class::SEMAPHOREA | class::SEM_ADDR_HI => Some(1),
        class::SEMAPHOREC | class::SEM_PAYLOAD_LO => Some(2),
        class::SEM_PAYLOAD_HI => Some(3),
        _ => None,
    }
}

/// What one scan works on.
struct Pass<'a, 'b> {
    words: &'a [u32],
    table: Table<'a>,
    counters: &'b mut Counters,
}

impl Pass<'_, '_> {
    #[inline]
    fn word(&self, at: u32) -> Option<u32> {
        self.words.get(usize::try_from(at).ok()?).copied()
    }

    fn launch(&mut self, found: Found) {
        self.counters.launches = self.counters.launches.wrapping_add(1);
        if let Some(reason) = found.reason {
            self.counters.keep(reason);
        }
        self.table.push(found);
    }
}
