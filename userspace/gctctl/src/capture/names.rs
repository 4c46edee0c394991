// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names methods, actions and sources as NVIDIA's class headers do.

use gct_core::submit::launch::DependentAction;
use gct_core::submit::methods::{self, Action};
use gct_core::submit::tracker::Source;

/// The subchannel on which CUDA binds its copy class.
const SUBCHANNEL_COPY: u8 = 4;

/// Methods of the copy classes, from `clc8b5.h`.
const COPY_METHODS: [(u16, &str); 17] = [
    (0x0240, "SET_SEMAPHORE_A"),
    (0x0244, "SET_SEMAPHORE_B"),
    (0x0248, "SET_SEMAPHORE_PAYLOAD"),
    (0x024c, "SET_SEMAPHORE_PAYLOAD_UPPER"),
    (0x0260, "SET_SRC_PHYS_MODE"),
    (0x0264, "SET_DST_PHYS_MODE"),
    (0x0300, "LAUNCH_DMA"),
    (0x0400, "OFFSET_IN_UPPER"),
    (0x0404, "OFFSET_IN_LOWER"),
    (0x0408, "OFFSET_OUT_UPPER"),
    (0x040c, "OFFSET_OUT_LOWER"),
    (0x0410, "PITCH_IN"),
    (0x0414, "PITCH_OUT"),
    (0x0418, "LINE_LENGTH_IN"),
    (0x041c, "LINE_COUNT"),
    (0x0700, "SET_REMAP_CONST_A"),
    (0x0704, "SET_REMAP_CONST_B"),
];

/// Returns the name of a method. `class` is the class bound to the subchannel, 0 if unknown.
pub(super) fn method(class: u16, subchannel: u8, offset: u16) -> Option<&'static str> {
    const HOST_END: u16 = 0x100;
    let copies = match class {
        0 => subchannel == SUBCHANNEL_COPY,
        class => class & 0xff == 0xb5,
    };
    if copies && offset >= HOST_END {
        let found = COPY_METHODS.iter().find(|(at, _)| *at == offset);
        return found.map(|(_, name)| *name);
    }
    methods::name_of(offset)
}

/// Returns the name of a PCAS action.
pub(super) fn action(action: Action) -> String {
    let name = match action {
        Action::Nop => "NOP",
        Action::Invalidate => "INVALIDATE",
        Action::Schedule => "SCHEDULE",
        Action::InvalidateCopySchedule => "INVALIDATE_COPY_SCHEDULE",
        Action::IncrementPut => "INCREMENT_PUT",
        Action::DecrementDependence => "DECREMENT_DEPENDENCE",
        Action::Prefetch => "PREFETCH",
        Action::PrefetchSchedule => "PREFETCH_SCHEDULE",
        Action::InvalidatePrefetchCopySchedule => "INVALIDATE_PREFETCH_COPY_SCHEDULE",
        Action::ForceRequireScheduling => "INVALIDATE_PREFETCH_COPY_FORCE_REQUIRE_SCHEDULING",
        Action::IncrementDependence => "INCREMENT_DEPENDENCE",
        Action::IncrementCwdRefCounter => "INCREMENT_CWD_REF_COUNTER",
        Action::Undocumented4
        | Action::Undocumented5
        | Action::UndocumentedE
        | Action::UndocumentedF => return format!("undocumented {:#x}", action.value()),
    };
    name.to_owned()
}

/// Returns the name of an action on a dependent.
pub(super) fn dependent_action(action: DependentAction) -> String {
    let name = match action {
        DependentAction::IncrementPut => "INCREMENT_PUT",
        DependentAction::Schedule => "SCHEDULE",
        DependentAction::InvalidateCopySchedule => "INVALIDATE_COPY_SCHEDULE",
        DependentAction::DecrementDependence => "DECREMENT_DEPENDENCE",
        DependentAction::Undocumented(value) => return format!("undocumented {value:#x}"),
    };
    name.to_owned()
}

/// Returns the name of a QMD's source.
pub(super) fn source(source: Source) -> &'static str {
    match source {
        Source::Upload => "upload",
        Source::Inline => "inline",
        Source::Stored => "stored",
        Source::Elsewhere => "elsewhere",
        Source::Touch => "touch",
    }
}
