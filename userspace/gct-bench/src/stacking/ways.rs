// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists the ways in which the three programs share the GPU: what one would pick without gctgroup,
//! and limits of groups.

use gct_hw::daemon::Daemon;
use gct_hw::kit::RunEnv;
use gct_hw::mps::Mps;

/// What a program is there for. Each has a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    A,
    B,
    BestEffort,
}

impl Role {
    pub(super) const ALL: [Self; 3] = [Self::A, Self::B, Self::BestEffort];

    /// Returns the role of a model: a service has the same one in every scene.
    pub(super) fn of(model: &str) -> Self {
        match model {
            "resnet50" | "detector" => Self::A,
            model if ALL_B.contains(&model) => Self::B,
            _ => Self::BestEffort,
        }
    }

    pub(super) const fn group(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::BestEffort => "last",
        }
    }

    /// Returns the value of this role, of those of all.
    fn among<T: Copy>(self, [a, b, best_effort]: [T; 3]) -> T {
        match self {
            Self::A => a,
            Self::B => b,
            Self::BestEffort => best_effort,
        }
    }
}

/// Which TPCs a limit is about: from one part of the list to another, in percent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tpcs(usize, usize);

impl Tpcs {
    fn of<'a>(self, tpcs: &'a [&'a str]) -> &'a [&'a str] {
        let at = |percent: usize| tpcs.len() * percent / 100;
        tpcs.get(at(self.0)..at(self.1)).unwrap_or_default()
    }
}

/// Limits of the groups while the programs run, and which of them run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// Whether the streams of A and B have the highest priority, or those of A alone.
    pub(super) high_priority: bool,
    pub(super) a_alone: bool,
    /// Whether the best-effort program runs.
    pub(super) best_effort: bool,
    /// `compute.priority` of each role.
    priorities: [&'static str; 3],
    /// `compute.weight` of B and of best effort. Nothing takes it back, so these come last.
    weights: Option<[&'static str; 2]>,
    quotas: Option<[Tpcs; 3]>,
    /// `tpc.mask` of each role; and whether it takes TPCs of each GPC in turn.
    masks: Option<[Tpcs; 3]>,
    spread: bool,
    /// `atom.duration` of best effort. Without an earlier rank beside it, nothing else makes its
    /// work short.
    atoms: &'static str,
}

/// The models of B.
pub(super) const ALL_B: [&str; 2] = ["bert", "prefill"];
/// Numbers of TPCs that belong to one GPC, on Hopper.
const TPCS_OF_GPC: u32 = 9;

/// Returns TPCs in another order: one of each GPC in turn.
pub(crate) fn across_gpcs<'a>(tpcs: &[&'a str]) -> Vec<&'a str> {
    let mut order = tpcs.to_vec();
    order.sort_by_key(|tpc| tpc.parse().unwrap_or(0) % TPCS_OF_GPC);
    order
}

const SAME: [&str; 3] = ["8"; 3];
const PLAIN: Setting = Setting {
    name: "",
    high_priority: false,
    a_alone: false,
    best_effort: true,
    priorities: SAME,
    weights: None,
    quotas: None,
    masks: None,
    spread: false,
    atoms: "off",
};
/// B and best effort have what A leaves, 50 to 15.
const WEIGHTED: Setting = Setting {
    priorities: ["0", "1", "1"],
    weights: Some(["770", "230"]),
    ..PLAIN
};
const ORDERED: Setting = Setting {
    priorities: ["0", "1", "15"],
    ..PLAIN
};

impl Setting {
    /// Returns all files to write: group, file and value.
    pub(super) fn files(&self, tpcs: &[&str]) -> Vec<(&'static str, &'static str, String)> {
        let mut files = Vec::new();
        for role in Role::ALL {
            let group = role.group();
            files.push((group, "tpc.mask", "all".into()));
            files.push((group, "tpc.quota", "none".into()));
            let priority = role.among(self.priorities);
            files.push((group, "compute.priority", priority.into()));
        }
        let order = match self.spread {
            true => across_gpcs(tpcs),
            false => tpcs.to_vec(),
        };
        for (role, part) in Role::ALL.into_iter().zip(self.masks.into_iter().flatten()) {
            files.push((role.group(), "tpc.mask", part.of(&order).join(",")));
        }
        for (role, part) in Role::ALL.into_iter().zip(self.quotas.into_iter().flatten()) {
            files.push((role.group(), "tpc.quota", part.of(tpcs).len().to_string()));
        }
        let last = Role::BestEffort.group();
        files.push((last, "atom.duration", self.atoms.into()));
        let weights = self.weights.into_iter().flatten();
        for (role, weight) in [Role::B, Role::BestEffort].into_iter().zip(weights) {
            files.push((role.group(), "compute.weight", weight.into()));
        }
        files
    }
}

/// How programs are started, and the settings that can be measured with them.
#[derive(Debug)]
pub(super) struct Way {
    /// Whether they are clients of MPS, and the parts of its threads that each role may use.
    mps: bool,
    percentages: Option<[u8; 3]>,
    pub(super) grouped: bool,
    /// Whether the limits of its only setting are written before the programs start. Programs see
    /// as many SMs as they are granted then, and libraries choose their kernels by that.
    pub(super) before: bool,
    pub(super) settings: &'static [Setting],
}

const NATIVE: Way = Way {
    mps: false,
    percentages: None,
    grouped: false,
    before: false,
    settings: &[Setting {
        name: "time slicing",
        ..PLAIN
    }],
};
const BY_TURNS: Way = Way {
    grouped: true,
    settings: &[
        Setting {
            name: "gct priority by turns",
            ..ORDERED
        },
        Setting {
            name: "gct equal services by turns",
            priorities: ["0", "0", "15"],
            ..PLAIN
        },
        Setting {
            name: "gct weights by turns",
            ..WEIGHTED
        },
    ],
    ..NATIVE
};
const SIDE_BY_SIDE: Way = Way {
    mps: true,
    settings: &[
        Setting {
            name: "gct masks of 4/7 and 3/7",
            best_effort: false,
            masks: Some([Tpcs(0, 57), Tpcs(57, 100), Tpcs(0, 100)]),
            ..PLAIN
        },
        Setting {
            name: "gct priority",
            ..ORDERED
        },
        Setting {
            name: "gct quotas",
            quotas: Some([Tpcs(0, 35), Tpcs(0, 50), Tpcs(0, 15)]),
            atoms: "100us",
            ..PLAIN
        },
        // B's requests do with fewer TPCs, and A's have to be on time.
        Setting {
            name: "gct quotas of 50% 35% 15%",
            quotas: Some([Tpcs(0, 50), Tpcs(0, 35), Tpcs(0, 15)]),
            atoms: "100us",
            ..PLAIN
        },
        Setting {
            name: "gct quotas and priority",
            quotas: Some([Tpcs(0, 50), Tpcs(0, 50), Tpcs(0, 0)]),
            ..ORDERED
        },
        Setting {
            name: "gct weights",
            ..WEIGHTED
        },
    ],
    ..BY_TURNS
};
const MPS: Way = Way {
    mps: true,
    settings: &[
        Setting {
            name: "MPS",
            ..PLAIN
        },
        Setting {
            name: "MPS prio",
            high_priority: true,
            ..PLAIN
        },
    ],
    ..NATIVE
};
/// All ways, the first with the programs that ran alone.
pub(super) const WAYS: [Way; 11] = [
    NATIVE,
    BY_TURNS,
    SIDE_BY_SIDE,
    Way {
        before: true,
        settings: &[Setting {
            name: "gct masks of 35% 45% 20%",
            masks: Some([Tpcs(0, 35), Tpcs(35, 80), Tpcs(80, 100)]),
            spread: true,
            ..PLAIN
        }],
        ..SIDE_BY_SIDE
    },
    Way {
        before: true,
        settings: &[Setting {
            name: "gct quotas from the start",
            quotas: Some([Tpcs(0, 35), Tpcs(0, 50), Tpcs(0, 15)]),
            atoms: "100us",
            ..PLAIN
        }],
        ..SIDE_BY_SIDE
    },
    // A may use all TPCs, and its launches go first there.
    Way {
        before: true,
        settings: &[Setting {
            name: "gct masks of 100% 75% 25% and A prio",
            high_priority: true,
            a_alone: true,
            masks: Some([Tpcs(0, 100), Tpcs(0, 75), Tpcs(75, 100)]),
            spread: true,
            ..PLAIN
        }],
        ..SIDE_BY_SIDE
    },
    MPS,
    // LithOS's limits.
    Way {
        percentages: Some([75, 25, 0]),
        settings: &[Setting {
            name: "MPS 75% and 25%",
            best_effort: false,
            ..PLAIN
        }],
        ..MPS
    },
    Way {
        percentages: Some([50, 50, 0]),
        settings: &[Setting {
            name: "MPS 50% and 50%",
            best_effort: false,
            ..PLAIN
        }],
        ..MPS
    },
    Way {
        percentages: Some([35, 50, 15]),
        settings: &[Setting {
            name: "MPS 35% and 50% and 15%",
            ..PLAIN
        }],
        ..MPS
    },
    Way {
        percentages: Some([100, 75, 25]),
        settings: &[Setting {
            name: "MPS 100% and 75% and 25% and A prio",
            high_priority: true,
            a_alone: true,
            ..PLAIN
        }],
        ..MPS
    },
];

impl Way {
    /// Returns the environment of a program.
    pub(super) fn env(&self, role: Role, daemon: Option<&Daemon>, mps: &Mps) -> RunEnv {
        let mut env = daemon.map_or_else(RunEnv::native, |daemon| daemon.group(role.group(), ""));
        let percent = self.percentages.map_or(0, |all| role.among(all));
        if percent > 0 {
            env = env.with("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent);
        }
        match self.mps {
            true => mps.client(env),
            false => env,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_client::Tree;
    use gct_core::iface::{files, Place};
    use std::collections::BTreeSet;

    #[test]
    fn groups_accept_every_setting() {
        let tpcs: Vec<String> = (0..66).map(|tpc| tpc.to_string()).collect();
        let tpcs: Vec<&str> = tpcs.iter().map(String::as_str).collect();
        for setting in WAYS.iter().flat_map(|way| way.settings) {
            let mut reserved = 0;
            for (_, file, value) in setting.files(&tpcs) {
                let entry = files::find(Place::Pool, file).unwrap();
                Tree::parse(entry, &value).unwrap();
                reserved += match file {
                    "tpc.quota" => value.parse().unwrap_or(0),
                    _ => 0,
                };
            }
            assert!(reserved <= tpcs.len(), "{}", setting.name);
        }
    }

    #[test]
    fn every_setting_has_a_name_of_its_own() {
        let all: Vec<&str> = WAYS
            .iter()
            .flat_map(|way| way.settings)
            .map(|s| s.name)
            .collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        // --mechanisms divides its names at commas.
        assert!(all.iter().all(|name| !name.contains(',')));
    }

    #[test]
    fn masks_take_tpcs_of_each_gpc_in_turn() {
        let tpcs = ["0", "1", "9", "10", "18", "19"];
        let spread = Setting {
            masks: Some([Tpcs(0, 50), Tpcs(50, 100), Tpcs(0, 100)]),
            spread: true,
            ..PLAIN
        };
        let masks = |setting: Setting| -> Vec<String> {
            let files = setting.files(&tpcs).into_iter();
            let masks = files.filter(|(_, file, value)| *file == "tpc.mask" && value != "all");
            masks.map(|(_, _, value)| value).collect()
        };
        assert_eq!(masks(spread), ["0,9,18", "1,10,19", "0,9,18,1,10,19"]);
        let packed = Setting {
            spread: false,
            ..spread
        };
        assert_eq!(masks(packed)[..2], ["0,1,9", "10,18,19"]);
    }

    #[test]
    fn limits_before_the_start_are_those_of_one_setting() {
        let before = WAYS.iter().filter(|way| way.before);
        assert!(before.map(|way| way.settings.len()).all(|count| count == 1));
    }

    #[test]
    fn masks_of_a_setting_are_disjoint() {
        let (a, b) = (Tpcs(0, 57), Tpcs(57, 100));
        let tpcs = ["0"; 66];
        assert_eq!((a.of(&tpcs).len(), b.of(&tpcs).len()), (37, 29));
    }
}
