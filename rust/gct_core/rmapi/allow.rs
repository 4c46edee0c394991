// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which controls and classes of the resource manager (RM) a governed tenant may use.
//!
//! ```text
//! governed   a file whose process has, or may get, channels that the driver owns, and a file that
//!            shares objects with another process (`engine::governed`)
//! rule       what is done with a control of a governed file, and why
//! unknown    a control without a rule: refused
//! ```
//!
//! RM refuses its privileged controls to tenants. Its open ones (`RMCTRL_FLAGS_NON_PRIVILEGED` in
//! the export tables) are open to everybody, and some move a channel to another ring, make a page
//! writable or stop a neighbour. So each open control of the drivers 535 to 595 has a rule here.
//! `ci/test-patches.sh` compares the numbers with the export tables of each driver whose source is
//! unpacked. `gctgroup-docs/controls.md` is made from this table.
//!
//! A control is allowed if it only answers ([`Rule::Query`]), sets what is its caller's alone and
//! no limit concerns ([`Rule::Own`]), or was recorded of a program that computes
//! ([`Rule::Recorded`]). It is refused if it could do more, and if nobody was seen to need it.

mod objects;
mod root;
mod subdevice;

use super::nv::{self, nvos02_with_fd, nvos05, nvos21, nvos30, nvos38, nvos54, nvos64};
use super::{escape, word, Handle, Overrides, Share};

/// Declares [`Rule`] with its names and reasons.
macro_rules! rules {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $refuses:literal, $reason:literal;)*) => {
        /// What is done with a control or a class of a governed file, and why.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $(#[doc = $reason] $variant,)*
        }

        impl Rule {
            /// Every rule, in the order of the counts.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Number of rules.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the name in `compute.stat` and in the documentation.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns whether it refuses.
            pub const fn refuses(self) -> bool {
                match self {
                    $(Self::$variant => $refuses,)*
                }
            }

            /// Returns the reason.
            pub const fn reason(self) -> &'static str {
                match self {
                    $(Self::$variant => $reason,)*
                }
            }
        }
    };
}

rules! {
    Query = "query", false, "It answers, and changes nothing.";
    Own = "own", false, "It sets something of its caller's objects that no limit concerns.";
    Recorded = "recorded", false, "Programs that compute were recorded with it, or NVIDIA's tools. It concerns no limit.";
    Followed = "followed", false, "gctgroup follows it: it may run where no limit forbids it.";
    Checked = "checked", false, "It may run with the parameters that CUDA and MPS give it.";
    Ring = "ring", true, "It moves a channel to another ring, engine or context, or gives the GPU an address to write to without asking the page tables.";
    Tables = "tables", true, "It changes page tables, or says where the driver's pages are.";
    Schedule = "schedule", true, "It decides when channels run.";
    Launches = "launches", true, "It decides which TPCs a launch has.";
    Debugger = "debugger", true, "It writes to a context, stops it, or reads pages that are not the tenant's.";
    Deferred = "deferred", true, "The firmware carries it out later, when a channel says so.";
    Profiler = "profiler", true, "It writes registers, or takes counters that all tenants share.";
    Neighbours = "neighbours", true, "It shows or changes what others do.";
    Machine = "machine", true, "It changes the GPU or the host for all.";
    Display = "display", true, "It is for displays.";
    Internal = "internal", true, "RM sends it to itself.";
    Serialized = "serialized", true, "Its parameters are in a form that gctgroup does not read.";
    Unused = "unused", true, "No program that computes was seen to need it.";
    Unknown = "unknown", true, "It is not in the table.";
}

/// Declares a table of rules and the names of its controls, in the order of the numbers.
macro_rules! controls {
    ($table:ident: $($number:literal $name:ident $rule:ident)*) => {
        pub(super) const $table: super::Table = super::Table {
            rules: &[$(($number, super::Rule::$rule),)*],
            names: &[$(stringify!($name),)*],
        };
    };
}

use controls;

/// Rules of controls, sorted by number, and their names in NVIDIA's headers. A name that begins
/// with UNNAMED is ours.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Number and rule of each control.
    pub rules: &'static [(u32, Rule)],
    /// The name of each.
    pub names: &'static [&'static str],
}

/// All tables of controls, in the order of their numbers.
pub const TABLES: [Table; 3] = [root::ROOT, subdevice::SUBDEVICE, objects::OBJECTS];

/// Ranges of controls without a row of their own, by first and last number, sorted. A row in
/// [`TABLES`] comes first.
pub const RANGES: &[(u32, u32, Rule)] = &[
    (0x0002_0000, 0x0002_ffff, Rule::Unused), // NV01_CONTEXT_DMA
    (0x0004_0000, 0x0004_ffff, Rule::Unused), // NV01_TIMER
    (0x000f_0000, 0x000f_ffff, Rule::Machine), // FABRIC_MANAGER_SESSION
    (0x0073_0000, 0x0073_ffff, Rule::Display), // NV04_DISPLAY_COMMON
    (0x00f1_0000, 0x00f1_ffff, Rule::Machine), // NV_IMEX_SESSION
    (0x00fe_0000, 0x00fe_ffff, Rule::Tables), // NV_MEMORY_MAPPER
    (0x0100_0000, 0x0100_ffff, Rule::Machine), // LOCK_STRESS_OBJECT
    (0x2080_0a00, 0x2080_0aff, Rule::Internal),
    // Without export tables: the firmware answers. NVIDIA's tools read clocks, temperatures,
    // performance and power by these four categories. What sets there has bit 14, and RM refuses it
    // to tenants.
    (0x2080_8500, 0x2080_85ff, Rule::Recorded), // thermal
    (0x2080_9000, 0x2080_90ff, Rule::Recorded), // clocks
    (0x2080_a000, 0x2080_a0ff, Rule::Recorded), // performance
    (0x2080_a600, 0x2080_a6ff, Rule::Recorded), // power
    (0x208f_0000, 0x208f_ffff, Rule::Machine),  // NV20_SUBDEVICE_DIAG
    (0x30f1_0000, 0x30f1_ffff, Rule::Display),  // NV30_GSYNC
    (0x402c_0000, 0x402c_ffff, Rule::Machine),  // NV40_I2C
    (0x5070_0000, 0x5070_ffff, Rule::Display),  // NV50_DISPLAY
    (0x5080_0000, 0x5080_ffff, Rule::Deferred), // NV50_DEFERRED_API_CLASS
    (0x83de_0000, 0x83de_ffff, Rule::Debugger), // GT200_DEBUGGER
    (0x9072_0000, 0x9072_ffff, Rule::Display),  // GF100_DISP_SW
    (0x9074_0000, 0x9074_ffff, Rule::Deferred), // GF100_TIMED_SEMAPHORE_SW
    (0x90cc_0000, 0x90cc_ffff, Rule::Profiler), // GF100_PROFILER
    (0xa080_0000, 0xa081_ffff, Rule::Machine),  // KEPLER_DEVICE_VGPU, NVA081_VGPU_CONFIG
    (0xa083_0000, 0xa083_ffff, Rule::Display),  // NVA083_GRID_DISPLAYLESS
    (0xa084_0000, 0xa084_ffff, Rule::Machine),  // NVA084_KERNEL_HOST_VGPU_DEVICE
    (0xb0cc_0000, 0xb0cc_ffff, Rule::Profiler), // MAXWELL_PROFILER
    (0xc370_0000, 0xc370_ffff, Rule::Display),  // NVC370_DISPLAY
    (0xc372_0000, 0xc372_ffff, Rule::Display),  // NVC372_DISPLAY_SW
    (0xc763_0000, 0xc763_ffff, Rule::Neighbours), // MMU_VIDMEM_ACCESS_BIT_BUFFER
    (0xcbca_0000, 0xcbca_ffff, Rule::Profiler), // NV_COUNTER_COLLECTION_UNIT
];

/// Classes that a governed tenant may not allocate, sorted. They give rights over channels, page
/// tables or registers that no control asks for again. Classes are not allowed one by one as
/// controls are: each generation of GPUs has new ones for the same engines, which libcuda
/// allocates, and what an object can do is asked of its controls and methods.
pub const CLASSES: &[(u32, Rule)] = &[
    (0x003f, Rule::Tables),   // NV01_MEMORY_LOCAL_PRIVILEGED: the GPU's registers
    (0x007d, Rule::Deferred), // NV04_SOFTWARE_TEST: methods that RM carries out
    (0x00f3, Rule::Tables),   // NV01_MEMORY_FLA: memory at any address of the GPU's, of whomever
    (0x00fe, Rule::Tables),   // NV_MEMORY_MAPPER: maps and unmaps when a semaphore says so
    (0x402c, Rule::Machine),  // NV40_I2C
    (0x5080, Rule::Deferred), // NV50_DEFERRED_API_CLASS: controls that a channel's methods send
    (0x844c, Rule::Profiler), // G84_PERFBUFFER
    (0x9074, Rule::Deferred), // GF100_TIMED_SEMAPHORE_SW: methods that RM carries out
];

/// Returns the rule of a control.
pub fn control(command: u32) -> Rule {
    // RM answers it without looking further (`NVXXXX_CTRL_CMD_NULL`).
    if command & 0xffff == 0 {
        return Rule::Query;
    }
    // The generation of a channel's control is not compared.
    match Overrides::by_command(command, 0) {
        Some(Overrides::Mode(..)) => return Rule::Checked,
        Some(_) => return Rule::Followed,
        None => {}
    }
    if Share::by_command(command).is_some() {
        return Rule::Followed;
    }
    let row = TABLES
        .iter()
        .find_map(|table| rule_in(table.rules, command));
    row.unwrap_or_else(|| rule_of_range(command))
}

/// Returns the rule of a class. A class without one may be allocated.
pub fn class(number: u32) -> Option<Rule> {
    rule_in(CLASSES, number)
}

fn rule_in(rules: &[(u32, Rule)], number: u32) -> Option<Rule> {
    let at = rules.binary_search_by_key(&number, |(number, _)| *number);
    at.ok().and_then(|at| rules.get(at)).map(|(_, rule)| *rule)
}

fn rule_of_range(command: u32) -> Rule {
    let at = RANGES.partition_point(|(_, last, _)| *last < command);
    let range = RANGES.get(at).filter(|(first, ..)| *first <= command);
    range.map_or(Rule::Unknown, |(_, _, rule)| *rule)
}

/// What an ioctl asks of RM, as far as rules concern it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The calling client.
    pub client: Handle,
    /// The object that is controlled, or below which one is allocated.
    pub object: Handle,
    /// The number of the control or the class, or that of an ioctl which is neither.
    pub number: u32,
    /// Its rule.
    pub rule: Rule,
}

/// Returns what an ioctl's structure asks, if a rule refuses it to governed files.
///
/// RM reads the strings that name its keys (ACCESS_REGISTRY) from the caller's memory with its
/// locks held: while a page of that does not come, nobody else gets an answer of RM. For the end of
/// channels (IDLE_CHANNELS) it waits with a GPU's lock, and as long as the caller says.
///
/// Memory of the host has an ioctl of its own (ALLOC_MEMORY), which pins the caller's pages. In an
/// ALLOC of its class RM takes the address of an array in the kernel from the caller.
///
/// RM takes parameters in a second form, serialized by FINN. gctgroup does not read that form, so
/// nothing whose parameters it reads may have it. libcuda does not use it on these platforms.
pub fn refused(escape: u32, bytes: &[u8]) -> Option<Asked> {
    let number = |offset: usize| {
        let bytes = bytes.get(offset..offset.checked_add(4)?)?;
        u32::try_from(word(bytes)?).ok()
    };
    let has = |flags: usize, flag: u32| Some(number(flags)? & flag != 0);
    let whole = match (escape, bytes.len()) {
        (escape::ACCESS_REGISTRY, nvos38::SIZE) => {
            Some((nvos38::CLIENT, nvos38::OBJECT, Rule::Machine))
        }
        (escape::IDLE_CHANNELS, nvos30::SIZE) => {
            Some((nvos30::CLIENT, nvos30::DEVICE, Rule::Schedule))
        }
        _ => None,
    };
    if let Some((client, object, rule)) = whole {
        return Some(Asked {
            client: number(client)?,
            object: number(object)?,
            number: escape,
            rule,
        });
    }
    let [client, object, named] = match (escape, bytes.len()) {
        (escape::CONTROL, nvos54::SIZE) => [nvos54::CLIENT, nvos54::OBJECT, nvos54::COMMAND],
        (escape::ALLOC, nvos21::SIZE | nvos64::SIZE) => {
            [nvos21::ROOT, nvos21::PARENT, nvos21::CLASS]
        }
        (escape::ALLOC_OBJECT, nvos05::SIZE) => [nvos05::ROOT, nvos05::PARENT, nvos05::CLASS],
        (escape::ALLOC_MEMORY, nvos02_with_fd::SIZE) => [
            nvos02_with_fd::ROOT,
            nvos02_with_fd::PARENT,
            nvos02_with_fd::CLASS,
        ],
        _ => return None,
    };
    let named = number(named)?;
    let rule = match (escape, bytes.len()) {
        (escape::CONTROL, _) => match control(named) {
            Rule::Followed | Rule::Checked
                if has(nvos54::FLAGS, nv::NVOS54_FLAGS_FINN_SERIALIZED)? =>
            {
                Rule::Serialized
            }
            rule => rule,
        },
        (escape::ALLOC, nvos64::SIZE) if has(nvos64::FLAGS, nv::NVOS64_FLAGS_FINN_SERIALIZED)? => {
            Rule::Serialized
        }
        (escape::ALLOC, _) if named == nv::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR => Rule::Machine,
        _ => class(named)?,
    };
    rule.refuses().then_some(Asked {
        client: number(client)?,
        object: number(object)?,
        number: named,
        rule,
    })
}

#[cfg(test)]
mod tests;
