// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads what a QMD launches: geometry, resources, its waits, and the effects that happen once.

use super::qmd::{
    with_layout, DependentFields, Field, LatchFields, Layout, ReleaseFields, TypeField, Version,
};
use super::reason::Reason;
use crate::units::{volume, Sat};

/// Kind of work that a QMD describes (`QMD_TYPE` since Hopper; before, only queues and grids
/// differ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 0: a circular queue of work.
    Queue,
    /// 1: `GRID_NULL`: no blocks, only what happens at completion.
    Null,
    /// 2: `GRID_CTA`: a grid of blocks.
    Grid,
    /// 3: `GRID_GPC_CGA`: a grid of clusters.
    Cluster,
    /// 4: `GRID_GPU_CGA`: a cooperative launch, all blocks resident at once.
    Cooperative,
    /// 5: `GRID_GPU_GPC_CGA`: a cooperative launch of clusters.
    CooperativeCluster,
    /// 6 and 7: not documented.
    Undocumented(u8),
}

impl Kind {
    const fn of_type(value: u32) -> Self {
        match value {
            0 => Self::Queue,
            1 => Self::Null,
            2 => Self::Grid,
            3 => Self::Cluster,
            4 => Self::Cooperative,
            5 => Self::CooperativeCluster,
            // CAST: three bits.
            other => Self::Undocumented(other as u8),
        }
    }

    /// Returns the name in NVIDIA's header, without its prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "QUEUE",
            Self::Null => "GRID_NULL",
            Self::Grid => "GRID_CTA",
            Self::Cluster => "GRID_GPC_CGA",
            Self::Cooperative => "GRID_GPU_CGA",
            Self::CooperativeCluster => "GRID_GPU_GPC_CGA",
            Self::Undocumented(_) => "undocumented",
        }
    }
}

/// `GRID_NULL` as a value of `QMD_TYPE`.
pub const TYPE_NULL: u32 = 1;

/// What happens to a dependent QMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DependentAction {
    /// 0: for a queue.
    IncrementPut,
    /// 1: it is scheduled.
    Schedule,
    /// 3: it is copied and scheduled.
    InvalidateCopySchedule,
    /// 4: its dependence counter is decremented.
    DecrementDependence,
    /// 2, 5, 6 and 7: not documented.
    Undocumented(u8),
}

/// `SCHEDULE` as a value of `DEPENDENT_QMD_ACTION`.
pub const ACTION_SCHEDULE: u32 = 1;

/// `DECREMENT_DEPENDENCE` as a value of `DEPENDENT_QMD_ACTION`.
pub const ACTION_DECREMENT_DEPENDENCE: u32 = 4;

impl DependentAction {
    const fn of_field(value: u32) -> Self {
        match value {
            0 => Self::IncrementPut,
            1 => Self::Schedule,
            3 => Self::InvalidateCopySchedule,
            4 => Self::DecrementDependence,
            // CAST: three bits.
            other => Self::Undocumented(other as u8),
        }
    }
}

/// A semaphore write at completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Its address.
    pub va: u64,
    /// Its payload.
    pub payload: u64,
    /// Words of the structure: 1, 2 or 4; 0 for an undocumented value.
    pub words: u8,
    /// The reduction that combines the payload with memory, if any.
    pub reduction: Option<u8>,
    /// Whether a system membar comes first.
    pub membar: bool,
}

/// Another QMD that acts on this one's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependent {
    /// Its address; `None` where the layout has none.
    pub va: Option<u64>,
    /// What happens to it.
    pub action: DependentAction,
    /// Whether it is fetched early.
    pub prefetch: bool,
}

/// A change of one of the work distributor's reference counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Number of the counter.
    pub id: u8,
    /// Amount of the change.
    pub delta: u16,
    /// Whether it is incremented at the start.
    pub increment: bool,
    /// Whether it is decremented at the end.
    pub decrement: bool,
}

/// Effects that happen exactly once for one launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Semaphore releases.
    pub releases: [Option<Release>; 3],
    /// Dependent QMDs.
    pub dependents: [Option<Dependent>; 2],
    /// Number of the latch that it arrives at.
    pub arrive_latch: Option<u32>,
    /// The reference counter that it changes.
    pub reference: Option<Reference>,
    /// Whether the stored QMD is restored to run again.
    pub self_copy: bool,
    /// Whether its program may let dependents start early.
    pub pre_exit: bool,
}

/// Conditions that a launch waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Number of the latch that it waits for.
    pub latch: Option<u32>,
    /// Whether a copying PCAS leaves it unscheduled until another QMD or PCAS schedules it.
    pub requires_pcas: bool,
    /// Decrements that it waits for.
    pub dependences: u32,
}

/// A launch, read from its QMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Layout version of the QMD.
    pub version: Version,
    /// Kind of work.
    pub kind: Kind,
    /// Width, height and depth; in clusters for [`Kind::Cluster`].
    pub grid: [u32; 3],
    /// First block of a schedule without a copy.
    pub resume: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks of a cluster, for the cluster kinds.
    pub cluster: Option<[u32; 3]>,
    /// Blocks of a cooperative launch, for the cooperative kinds.
    pub gang: Option<[u32; 3]>,
    /// Registers of a thread.
    pub registers: u32,
    /// Shared memory of a block in bytes.
    pub shared_memory_bytes: u32,
    /// Address where the program starts.
    pub program: u64,
    /// Whether the blocks run one after another.
    pub sequential: bool,
    /// Effects that happen once.
    pub effects: Effects,
    /// Conditions that it waits for.
    pub waits: Waits,
}

/// Returns the values of three fields. `map` of an array is a call with checks of its own.
#[inline(always)]
pub(super) fn triple([x, y, z]: [Field; 3], qmd: &[u32]) -> [u32; 3] {
    [x.get(qmd), y.get(qmd), z.get(qmd)]
}

fn wide(fields: [Field; 2], qmd: &[u32]) -> u64 {
    let [lower, upper] = fields;
    u64::from(upper.get(qmd)) << 32 | u64::from(lower.get(qmd))
}

fn release(fields: &ReleaseFields, qmd: &[u32]) -> Option<Release> {
    let (lower, upper) = fields.payload;
    let words = match (
        fields.structure_size.get(qmd),
        fields.structure_size.width(),
    ) {
        (0, _) => 4,
        (1, _) => 1,
        (2, _) => 2,
        _ => 0,
    };
    fields.enable.is_set(qmd).then(|| Release {
        va: wide(fields.address, qmd),
        payload: u64::from(upper.map_or(0, |field| field.get(qmd))) << 32
            | u64::from(lower.get(qmd)),
        words,
        // CAST: three bits.
        reduction: fields
            .reduction_enable
            .is_set(qmd)
            .then(|| fields.reduction_op.get(qmd) as u8),
        membar: fields.membar.is_set(qmd),
    })
}

fn dependent(fields: &DependentFields, qmd: &[u32]) -> Option<Dependent> {
    fields.enable.is_set(qmd).then(|| Dependent {
        va: fields.pointer.map(|field| u64::from(field.get(qmd)) << 8),
        action: fields.action.map_or(DependentAction::Schedule, |field| {
            DependentAction::of_field(field.get(qmd))
        }),
        prefetch: fields.prefetch.is_some_and(|field| field.is_set(qmd)),
    })
}

/// Returns the kind of launch that `qmd` describes.
#[inline]
pub(crate) fn kind<L: Layout>(qmd: &[u32]) -> Kind {
    match L::TYPE {
        TypeField::Typed(field) => Kind::of_type(field.get(qmd)),
        TypeField::Queue(field) if field.is_set(qmd) => Kind::Queue,
        TypeField::Queue(_) => Kind::Grid,
    }
}

/// What nearly every decision on a QMD asks first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nature {
    /// The kind of work.
    pub kind: Kind,
    /// Whether it is a node of a graph: another QMD schedules it, and it runs again.
    pub node: bool,
}

impl Nature {
    /// Reads the nature of a QMD.
    #[inline]
    pub(crate) fn read<L: Layout>(qmd: &[u32]) -> Self {
        Self {
            kind: kind::<L>(qmd),
            node: L::REQUIRE_SCHEDULING_PCAS.is_set(qmd)
                && L::SELF_COPY_ON_COMPLETION.is_some_and(|field| field.is_set(qmd)),
        }
    }

    /// Reads the nature of the QMD at the start of `words`; `None` when they are too few.
    pub(crate) fn of(words: &[u32], version: Version) -> Option<Self> {
        with_layout!(version, L => Some(Self::read::<L>(words.get(..L::WORDS)?)))
    }
}

pub(super) fn effects<L: Layout>(qmd: &[u32]) -> Effects {
    let mut effects = Effects::default();
    for (slot, fields) in effects.releases.iter_mut().zip(L::RELEASES) {
        *slot = release(fields, qmd);
    }
    for (slot, fields) in effects.dependents.iter_mut().zip(L::DEPENDENTS) {
        *slot = dependent(fields, qmd);
    }
    if let Some(latch) = L::LATCH {
        effects.arrive_latch = latch.arrive.is_set(qmd).then(|| latch.arrive_id.get(qmd));
        effects.pre_exit = latch.pre_exit.is_set(qmd) || latch.pre_exit_at_last.is_set(qmd);
    }
    let increment = L::REFERENCE.increment.is_set(qmd);
    let decrement = L::REFERENCE.decrement.is_set(qmd);
    effects.reference = (increment || decrement).then(|| Reference {
        // CAST: six and eight bits.
        id: L::REFERENCE.id.get(qmd) as u8,
        delta: (L::REFERENCE.delta_minus_one.get(qmd) & 0xff) as u16 + 1,
        increment,
        decrement,
    });
    effects.self_copy = L::SELF_COPY_ON_COMPLETION.is_some_and(|field| field.is_set(qmd));
    effects
}

fn waits<L: Layout>(qmd: &[u32]) -> Waits {
    let wait = |latch: LatchFields| latch.wait.is_set(qmd).then(|| latch.wait_id.get(qmd));
    Waits {
        latch: L::LATCH.and_then(wait),
        requires_pcas: L::REQUIRE_SCHEDULING_PCAS.is_set(qmd),
        dependences: L::DEPENDENCE_COUNTER.map_or(0, |field| field.get(qmd)),
    }
}

fn read<L: Layout>(qmd: &[u32]) -> Option<Launch> {
    let qmd = qmd.get(..L::WORDS)?;
    let kind = kind::<L>(qmd);
    let clusters = matches!(kind, Kind::Cluster | Kind::CooperativeCluster);
    let gang = matches!(kind, Kind::Cooperative | Kind::CooperativeCluster);
    Some(Launch {
        version: L::VERSION,
        kind,
        grid: triple(L::GRID, qmd),
        resume: triple(L::RESUME, qmd),
        block: triple(L::BLOCK, qmd),
        cluster: L::CLUSTER
            .filter(|_| clusters)
            .map(|fields| triple(fields, qmd)),
        gang: L::GANG.filter(|_| gang).map(|fields| triple(fields, qmd)),
        registers: L::REGISTERS.get(qmd),
        shared_memory_bytes: L::SHARED_MEMORY.get(qmd) << L::SHARED_MEMORY_SHIFT,
        program: wide(L::PROGRAM, qmd) << L::PROGRAM_SHIFT,
        sequential: L::SEQUENTIALLY_RUN_CTAS.is_some_and(|field| field.is_set(qmd)),
        effects: effects::<L>(qmd),
        waits: waits::<L>(qmd),
    })
}

/// Checks from its own fields whether a QMD can be split; of a version on which that was not
/// measured, if it is `tried`.
#[inline]
pub(crate) fn splittable<L: Layout>(qmd: &[u32], tried: bool) -> Result<(), Reason> {
    match kind::<L>(qmd) {
        Kind::Grid | Kind::Cluster => {}
        Kind::Queue => return Err(Reason::Queue),
        Kind::Null => return Err(Reason::Null),
        Kind::Cooperative | Kind::CooperativeCluster => return Err(Reason::Cooperative),
        Kind::Undocumented(_) => return Err(Reason::Kind),
    }
    if L::MASK.is_empty() {
        return Err(Reason::SubTasks);
    }
    if !L::SPLIT_MEASURED && !tried {
        return Err(Reason::NotMeasured);
    }
    if L::LATCH.is_some_and(|latch| latch.wait.is_set(qmd)) {
        return Err(Reason::WaitsOnLatch);
    }
    if L::REQUIRE_SCHEDULING_PCAS.is_set(qmd) {
        return Err(Reason::RequiresPcas);
    }
    if L::DEPENDENCE_COUNTER.is_some_and(|field| field.is_set(qmd)) {
        return Err(Reason::Dependences);
    }
    if L::SELF_COPY_ON_COMPLETION.is_some_and(|field| field.is_set(qmd)) {
        return Err(Reason::SelfCopy);
    }
    if L::SEQUENTIALLY_RUN_CTAS.is_some_and(|field| field.is_set(qmd)) {
        return Err(Reason::Sequential);
    }
    if L::LAUNCH_QUEUE.is_some_and(|field| field.is_set(qmd)) {
        return Err(Reason::LaunchQueue);
    }
    let [width, height, depth] = L::RESUME;
    let resumes = width.is_set(qmd) || height.is_set(qmd) || depth.is_set(qmd);
    if resumes || L::RESUME_STATE.iter().any(|field| field.is_set(qmd)) {
        return Err(Reason::Resumed);
    }
    Ok(())
}

impl Launch {
    /// Reads the QMD at the start of `words`; `None` when they are too few.
    pub fn read(words: &[u32], version: Version) -> Option<Self> {
        with_layout!(version, L => read::<L>(words))
    }

    /// Checks whether this launch can be split; of a version on which that was not measured, if it
    /// is `tried`.
    ///
    /// # Errors
    ///
    /// The first [`Reason`] against it in its QMD.
    pub fn splittable(words: &[u32], version: Version, tried: bool) -> Result<(), Reason> {
        with_layout!(version, L => splittable::<L>(words, tried))
    }

    /// Returns the grid in blocks, as the program sees it in `gridDim`.
    pub fn grid_in_blocks(&self) -> [u32; 3] {
        let blocks = |of: [u32; 3], each: [u32; 3]| {
            let [x, y, z] = of.map(Sat);
            let [width, height, depth] = each.map(Sat);
            [x * width, y * height, z * depth].map(|size| size.0)
        };
        match (self.gang, self.cluster) {
            (Some(gang), _) => blocks(self.grid, gang),
            (None, Some(cluster)) => blocks(self.grid, cluster),
            (None, None) => self.grid,
        }
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        volume(self.grid_in_blocks()).0
    }

    /// Returns the number of threads of a block.
    pub fn threads(&self) -> u64 {
        volume(self.block).0
    }
}
