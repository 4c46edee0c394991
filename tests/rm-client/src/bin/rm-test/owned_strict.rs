// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests `channel.strict`: a channel whose submissions no limit can bind is stopped, and nobody
//! else.

use crate::gpus::{me, session};
use crate::launch::{finish, recorder, same_grids, Place, PROGRAMS};
use crate::limits::{path, set};
use crate::owned::{admit, count, join, no_worker};
use crate::owned_launch::{disabled, member, MASK, NAME};
use crate::owned_slots::{acquire, put, QMD_AT};
use crate::process::Child;
use crate::submit::{queue, release};
use crate::tree::{self, eventually, Group};
use gct_core::submit::limits::SLOT_WORDS;
use gct_core::submit::method::{immediate, incr};
use gct_core::submit::qmd::{v04_00, Field};
use gct_ktap::{same, During, Outcome, Stop, Test};
use rm_client::{Engine, Grid, Handle, Launcher, Mapping, Memory, Session};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("owned_strict_stops_what_cannot_be_bound", stops),
    ("owned_strict_spares_channels_from_before", spares),
    ("owned_strict_remembers_what_nobody_saw", remembers),
    ("owned_strict_runs_what_cuda_launches", cuda),
    ("owned_strict_hostile_companion", companion),
    ("owned_strict_fills_without_a_macro", fills),
    ("owned_strict_alone_owns_channels", alone),
];

pub(crate) const STRICT: &str = "channel.strict";
const LIST: &str = "0-31";
/// `ROBUST_CHANNEL_PREEMPTIVE_REMOVAL`, and the status of an error.
pub(crate) const REMOVAL: u32 = 45;
pub(crate) const ERROR: u32 = 0xffff;
/// Bytes of memory for descriptors, and offsets of words in it and of a descriptor that no channel
/// uploads.
pub(crate) const BYTES: u64 = 0x1_0000;
const GATE: u64 = 0x8000;
const UNSEEN: u64 = 0x9000;
const PROGRAM: u32 = 0x5000;
/// `QMD_TYPE` of a launch whose blocks must all be resident, and how many grids of them there are.
const COOPERATIVE: u32 = 4;
const COOPERATIVE_SIZE: [Field; 3] = [
    v04_00::GPU_CGA_WIDTH,
    v04_00::GPU_CGA_HEIGHT,
    v04_00::GPU_CGA_DEPTH,
];

/// A member with one channel group, and memory for descriptors.
pub(crate) struct Tenant {
    pub(crate) session: Session,
    notifier: Mapping,
    group: Handle,
    share: Handle,
    pub(crate) words: Mapping,
    pub(crate) address: u64,
}

impl Tenant {
    pub(crate) fn new(session: Session) -> Result<Self, Stop> {
        let memory = session.gpu().alloc_memory(Memory::Host, BYTES)?;
        let address = session.map_on_gpu(memory, BYTES)?;
        // CAST: 64 KiB.
        let words = session
            .gpu()
            .map_memory(Memory::Host, memory, BYTES as usize)?;
        let group = session.group(Engine::Compute)?;
        Ok(Self {
            notifier: session.map_notifier()?,
            share: session.context_share(group)?,
            group,
            words,
            address,
            session,
        })
    }

    /// Opens a channel in the group. It works.
    pub(crate) fn channel(&self) -> Result<Launcher, Stop> {
        let mut launcher = self.session.launcher(self.group, self.share)?;
        self.session.schedule(self.group, true)?;
        self.launches(&mut launcher)?;
        Ok(launcher)
    }

    pub(crate) fn grid(&self) -> Grid {
        Grid {
            descriptor: self.address,
            program: PROGRAM,
            size: [100, 1, 1],
            disabled: 0,
            release: None,
        }
    }

    /// Fails unless a launch of the channel runs under the mask.
    pub(crate) fn launches(&self, launcher: &mut Launcher) -> Outcome {
        let recorder = recorder()?;
        let mark = recorder.mark()?;
        launcher.submit(&self.grid().words());
        finish(launcher)?;
        let launches = recorder.launches_since(mark)?;
        let mask = disabled(LIST)?;
        let masks: Vec<_> = launches.iter().map(|launch| launch.mask_words()).collect();
        same("masks", masks, vec![mask.to_vec()])
    }

    /// Returns what the error notifier says: number and status.
    pub(crate) fn notified(&self) -> (u32, u32) {
        let word = |at| self.notifier.u32(at).load(Ordering::Acquire);
        (word(8), word(12) >> 16)
    }

    pub(crate) fn forget_notification(&self) {
        for at in (0..16).step_by(4) {
            self.notifier.u32(at).store(0, Ordering::SeqCst);
        }
    }
}

/// Returns how many channels of this process were refused.
pub(crate) fn refused() -> Result<u64, Stop> {
    tree::stat(&path(&me(), "compute.events")?, "refused")
}

/// Submits something that no limit can bind.
type Bad = fn(&Tenant, &mut Launcher);

/// Submits a grid with a changed descriptor.
fn changed(tenant: &Tenant, launcher: &mut Launcher, change: fn(&mut Vec<u32>)) {
    let mut words = tenant.grid().words();
    change(&mut words);
    launcher.submit(&words);
}

const BAD: &[(&str, Bad)] = &[
    ("unmapped memory", |_, launcher| {
        launcher.submit_at(0x7f_dead_0000, 16);
    }),
    ("a long segment whose end is not mapped", |_, launcher| {
        let address = launcher.address();
        launcher.submit_at(address, 300_000);
    }),
    ("an entry with a reserved bit", |_, launcher| {
        let address = launcher.address();
        launcher.submit_at(address | 1 << 40, 16);
    }),
    ("a reserved header", |_, launcher| {
        launcher.submit(&[6 << 29])
    }),
    ("a descriptor elsewhere", |tenant, launcher| {
        // CAST: below 2^40.
        let at = ((tenant.address + UNSEEN) >> 8) as u32;
        launcher.submit(&[incr(1, 0x2b4, 1), at, incr(1, 0x2c0, 1), 0xa]);
    }),
    ("a macro", |_, launcher| {
        launcher.submit(&[incr(1, 0x3800, 1), 0])
    }),
    ("a macro behind its scratch", |_, launcher| {
        launcher.submit(&[incr(1, 0x37fc, 2), 0, 0])
    }),
    ("methods that begin anew", |_, launcher| {
        launcher.submit(&[incr(1, 0x3ffc, 2), 0, 0])
    }),
    ("methods from the shadow", |_, launcher| {
        launcher.submit(&[immediate(1, 0x124, 3)])
    }),
    ("a call for queues", |tenant, launcher| {
        // CAST: below 2^40.
        let at = (tenant.address >> 8) as u32;
        launcher.submit(&[incr(1, 0x2b4, 2), at, 0]);
    }),
    ("a macro that fills", |tenant, launcher| {
        // CAST: the halves of an address.
        let [low, high] = [tenant.address as u32, (tenant.address >> 32) as u32];
        let upload = [incr(1, 0x188, 2), high, low, incr(1, 0x180, 2), 4, 1];
        let call = [incr(1, 0x1b0, 1), 0x41, immediate(1, 0x3800, 1)];
        launcher.submit(&[&upload[..], &call].concat());
    }),
    ("relative addresses", |tenant, launcher| {
        let words = tenant.grid().words();
        launcher.submit(&[&[incr(1, 0x29c, 1), 1 << 24][..], &words].concat());
    }),
    ("relative addresses for others", |_, launcher| {
        launcher.submit(&[incr(1, 0x29c, 1), 1 << 24]);
    }),
    ("an inline descriptor", |tenant, launcher| {
        let words = tenant.grid().words();
        // CAST: below 2^40.
        let at = [(tenant.address >> 40) as u32, (tenant.address >> 8) as u32];
        let head = [incr(1, 0x318, 2), at[0], at[1], incr(1, 0x320, 96)];
        launcher.submit(&[&head[..], &words[QMD_AT..QMD_AT + 96]].concat());
    }),
    ("an unknown version", |tenant, launcher| {
        changed(tenant, launcher, |words| {
            put(words, v04_00::QMD_MAJOR_VERSION, 9);
        });
    }),
    ("a queue", |tenant, launcher| {
        changed(tenant, launcher, |words| put(words, v04_00::QMD_TYPE, 0));
    }),
    ("a dependent", |tenant, launcher| {
        changed(tenant, launcher, |words| {
            put(words, v04_00::DEPENDENT_QMD_ENABLE, 1);
            put(words, v04_00::DEPENDENT_QMD_ACTION, 1);
        });
    }),
    ("a companion that its launch starts", |tenant, launcher| {
        changed(tenant, launcher, |words| {
            put(words, v04_00::QMD_TYPE, 1);
            put(words, v04_00::DEPENDENCE_COUNTER, 1);
        });
    }),
    ("a launch that waits", |tenant, launcher| {
        changed(tenant, launcher, |words| {
            put(words, v04_00::DEPENDENCE_COUNTER, 1);
        });
    }),
    ("a launch that runs again", |tenant, launcher| {
        changed(tenant, launcher, |words| {
            put(words, v04_00::SELF_COPY_ON_COMPLETION, 1);
        });
    }),
    ("another action", |tenant, launcher| {
        changed(tenant, launcher, |words| {
            *words.last_mut().expect("a call") = 9
        });
    }),
    ("an increment", |tenant, launcher| {
        changed(tenant, launcher, |words| {
            words.extend([incr(1, 0x2c0, 1), 0xc]);
        });
    }),
    ("three releases", |tenant, launcher| {
        changed(tenant, launcher, |words| {
            for release in 0..3 {
                put(words, v04_00::RELEASE_ENABLE.nth(release), 1);
            }
        });
    }),
    (
        "blocks that do not fit into the mask together",
        |tenant, launcher| {
            changed(tenant, launcher, |words| {
                put(words, v04_00::QMD_TYPE, COOPERATIVE);
                put(words, v04_00::GRID_WIDTH, 1_000_000);
                for size in COOPERATIVE_SIZE {
                    put(words, size, 1);
                }
            });
        },
    ),
    ("more launches than slots", |tenant, launcher| {
        let words = tenant.grid().words();
        launcher.submit(&words.repeat(40));
    }),
];

/// Submits a launch that no limit can bind, and waits for its end. It is one of `counted` then.
fn passes(tenant: &Tenant, launcher: &mut Launcher, counted: u64) -> Outcome {
    changed(tenant, launcher, |words| {
        put(words, v04_00::SELF_COPY_ON_COMPLETION, 1);
    });
    finish(launcher)?;
    eventually("passed", &counted, || count("passed.self-copy"))
}

/// Under a mask and nothing else each stops its channel, whose notifier says so. Another one of the
/// same group goes on, and so does another process. The channel can be freed, and a new one works.
/// With 0 such a launch runs, and is counted, and `permissive` says so.
fn stops() -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = member(&group, LIST, |parent| {
        let tenant = Tenant::new(session(0)?)?;
        same("permissive", count("permissive")?, 0)?;
        let mut sibling = tenant.channel()?;
        for (number, (name, bad)) in (1..).zip(BAD) {
            let mut launcher = tenant.channel().during(name)?;
            tenant.forget_notification();
            bad(&tenant, &mut launcher);
            eventually(name, &(REMOVAL, ERROR), || Ok(tenant.notified()))?;
            eventually(name, &number, refused)?;
            let before = launcher.queue().payload(1);
            launcher.queue().submit_release(1, before + 1);
            tenant.launches(&mut sibling).during(name)?;
            thread::sleep(Duration::from_millis(20));
            same(name, launcher.queue().payload(1), before)?;
            let channel = launcher.queue().channel();
            tenant.session.gpu().client().free(channel).during(name)?;
            parent.step()?;
        }
        let mut launcher = tenant.channel()?;
        set(NAME, STRICT, "0")?;
        // One was refused.
        passes(&tenant, &mut launcher, 2)?;
        tenant.launches(&mut launcher)?;
        same("permissive", count("permissive")?, 1)?;
        same("refused", refused()?, BAD.len() as u64)
    })?;
    let other = session(0)?;
    let mut neighbour = queue(&other)?;
    for number in 1..=BAD.len() {
        child.next()?;
        // CAST: a few.
        release(&mut neighbour, 0, number as u32)?;
    }
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A mask that comes while a program runs ends none of its channels, those that come later
/// included: it has one with its own ring. When that is gone, what cannot be bound ends its
/// channel.
fn spares() -> Outcome {
    let group = Group::new(NAME)?;
    drop(session(0)?);
    let mut child = join(&group, |parent| {
        let tenant = Tenant::new(session(0)?)?;
        let mut earlier = queue(&tenant.session)?;
        release(&mut earlier, 0, 1)?;
        parent.step()?;
        let mut launcher = tenant.channel()?;
        passes(&tenant, &mut launcher, 1)?;
        release(&mut earlier, 0, 2)?;
        same("owned, native", (count("owned")?, count("native")?), (1, 1))?;
        same("permissive", count("permissive")?, 1)?;
        tenant.session.gpu().client().free(earlier.channel())?;
        same("permissive", count("permissive")?, 0)?;
        let mut number = 0;
        eventually("refused", &1, || {
            number += 1;
            // A work item has the worker know.
            if number % 20 == 1 {
                changed(&tenant, &mut launcher, |words| {
                    put(words, v04_00::SELF_COPY_ON_COMPLETION, 1);
                });
            }
            refused()
        })?;
        eventually("notified", &(REMOVAL, ERROR), || Ok(tenant.notified()))
    })?;
    child.next()?;
    set(NAME, MASK, LIST)?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// What a channel has set while its process was not strict stays in the context of its channel
/// group. So its owner is permissive while the group has a channel. Other groups are as they were
/// seen.
fn remembers() -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = member(&group, LIST, |_| {
        let tenant = Tenant::new(session(0)?)?;
        let free = |object| tenant.session.gpu().client().free(object).during("free");
        let is = |name: &str, expected: (u64, u64)| {
            same(name, (count("unseen")?, count("permissive")?), expected)
        };
        set(NAME, STRICT, "0")?;
        let [mut one, mut other] = [tenant.channel()?, tenant.channel()?];
        one.submit(&[incr(1, 0x29c, 1), 1 << 24]);
        finish(&mut one)?;
        set(NAME, STRICT, "default")?;
        is("relative addresses", (2, 1))?;
        free(one.queue().channel())?;
        is("without the channel", (1, 1))?;
        free(other.queue().channel())?;
        is("without channels", (0, 0))?;
        let elsewhere = Tenant::new(session(0)?)?;
        let _other = elsewhere.channel()?;
        is("another group", (0, 0))?;
        let _again = tenant.channel()?;
        is("the same group", (1, 1))?;
        free(tenant.group)?;
        is("without the group", (0, 0))
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Launches as CUDA submits them run under the mask, with their companions. Programmatic dependents
/// run one after the other, and so do a graph's chains.
fn cuda() -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = member(&group, LIST, |_| {
        let place = Place::new(session(0)?)?;
        let mask = disabled(LIST)?;
        for (name, texts, grids) in PROGRAMS {
            let launches = place.run(texts).during(name)?;
            same_grids(name, &launches, grids)?;
            let beside = matches!(*name, "two streams" | "graph with two ends");
            let mut ended = 0;
            for launch in launches {
                same(name, &launch.mask_words()[..], &mask[..])?;
                let in_turn = beside || launch.began >= ended;
                same(&format!("{name}: in turn"), in_turn, true)?;
                ended = launch.ns;
            }
        }
        same("passed", count("passed")?, 0)?;
        same("refused", refused()?, 0)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A tenant makes its companion a launch without a mask, once the companion's call was scanned. The
/// call is gone.
fn companion() -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = member(&group, LIST, |_| {
        let recorder = recorder()?;
        let tenant = Tenant::new(session(0)?)?;
        let mut launcher = tenant.channel()?;
        let mark = recorder.mark()?;
        let mut words = tenant.grid().words();
        let launch = words[QMD_AT..QMD_AT + 96].to_vec();
        put(&mut words, v04_00::QMD_TYPE, 1);
        put(&mut words, v04_00::DEPENDENCE_COUNTER, 2);
        put(&mut words, v04_00::GRID_WIDTH, 77);
        let (upload, call) = words.split_at(words.len() - 4);
        let decrement = [incr(1, 0x2c0, 1), 7];
        let gate = acquire(tenant.address + GATE);
        launcher.submit(&[upload, &gate, call, &decrement, &decrement].concat());
        let width = 4 * v04_00::GRID_WIDTH.word();
        eventually("the upload", &77, || {
            Ok(tenant.words.u32(width).load(Ordering::Acquire))
        })?;
        for (at, word) in launch.iter().enumerate() {
            tenant.words.u32(4 * at).store(*word, Ordering::SeqCst);
        }
        // CAST: an offset.
        tenant.words.u32(GATE as usize).store(1, Ordering::SeqCst);
        finish(&mut launcher)?;
        same("launches", recorder.launches_since(mark)?.len(), 0)?;
        same("refused", refused()?, 0)?;
        tenant.launches(&mut launcher)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A fill as CUDA has it is done, whatever code the tenant has loaded for the macro: no macro runs,
/// nor where it would be allowed to.
fn fills() -> Outcome {
    const FILLED: usize = 0x1000;
    let group = Group::new(NAME)?;
    let mut child = member(&group, LIST, |_| {
        let tenant = Tenant::new(session(0)?)?;
        let mut launcher = tenant.channel()?;
        let at = tenant.address + FILLED as u64;
        // CAST: the halves of an address.
        let [low, high] = [at as u32, (at >> 32) as u32];
        launcher.submit(&[incr(1, 0x114, 2), 0, 0x1234, incr(1, 0x11c, 2), 0, 0]);
        for (count, word) in [(1, 7), (250, 0x0909_0909), (1024, 11), (1000, 12)] {
            if word == 12 {
                set(NAME, STRICT, "0")?;
            }
            let upload = [incr(1, 0x180, 4), 4 * count, 1, high, low];
            let call = [incr(1, 0x1b0, 1), 0x41, incr(1, 0x3800, 2), count, word];
            launcher.submit(&[&upload[..], &call].concat());
            finish(&mut launcher)?;
            let words = (0..1025).map(|index| tenant.words.u32(FILLED + 4 * index));
            let filled = words.take_while(|at| at.load(Ordering::Acquire) == word);
            same("words", filled.count(), count as usize)?;
        }
        same("passed", count("passed")?, 0)?;
        same("refused", refused()?, 0)?;
        tenant.launches(&mut launcher)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// The switch alone makes channels the driver's, and stops one whose segments lie in memory that
/// the driver has not seen mapped.
fn alone() -> Outcome {
    let group = Group::new(NAME)?;
    drop(session(0)?);
    set(NAME, MASK, "all")?;
    set(NAME, STRICT, "1")?;
    let child = Child::fork(|parent| {
        let session = session(0)?;
        let memory = session.segment_memory()?;
        parent.step()?;
        let notifier = session.map_notifier()?;
        let tenant = session.group(Engine::Compute)?;
        let share = session.context_share(tenant)?;
        let mut launcher = session.launcher_with(tenant, share, memory)?;
        session.schedule(tenant, true)?;
        launcher.submit(&[0; SLOT_WORDS]);
        eventually("notified", &REMOVAL, || {
            Ok(notifier.u32(8).load(Ordering::Acquire))
        })?;
        same("owned", count("owned")?, 1)
    })?;
    admit(&group, child)
}
