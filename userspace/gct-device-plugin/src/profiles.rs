// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the file of profiles.
//!
//! ```toml
//! [profile.small]
//! slots = 4                       # containers on one GPU
//! place = "pack"                  # or "spread", the default
//! gpus = [0, 1]                   # by default all
//! share = "mps"                   # side by side; or "turns", the default
//! gmem.limit = "20G"              # limits of each container on its GPU, as in the tree
//! tpc.quota = 16
//!
//! [dra]                           # GPUs for claims, and for no profile
//! gpus = [2, 3]                   # by default all
//! share = "mps"                   # as for profiles
//!
//! [nri]                           # GPUs for pods with annotations, and for nobody else
//! gpus = [4]                      # by default all
//! slots = 32                      # containers on one GPU
//! gmem.limit = "40G"              # the most that annotations may ask for
//! gmem.low = "10G"                # the most that they may be guaranteed; by default nothing
//! gmem.pageable = 1               # any other limit: that of each of their containers
//! ```

use std::fs;
use std::path::Path;

use anyhow::{bail, ensure, Context, Result};
use gct_client::{Content, Tree};
use gct_core::iface::files::{self, Entry, Mode};
use gct_core::iface::{File, Place, Value};
use toml::{Table, Value as Toml};

mod meets;

/// Prefix of the names of resources, and vendor of the CDI devices.
pub const VENDOR: &str = "gctgroup.dev";

/// Most slots of a profile on a GPU. The kubelet gets a line for each.
const SLOTS_MAX: u32 = 1024;
/// Most containers on a GPU by annotations, by default.
const ANNOTATED_SLOTS: u32 = 32;
/// Longest name of a profile. With its annotation's prefix it fits in 63 characters.
const NAME_MAX: usize = 40;

/// How GPUs are chosen for containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The GPU with the fewest tenants first.
    #[default]
    Spread,
    /// The GPU with the most tenants first.
    Pack,
}

/// How the containers of a GPU share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// One after the other, in time slices.
    #[default]
    Turns,
    /// Side by side, as clients of an MPS server.
    Mps,
}

impl Sharing {
    /// Checks that limits mean something to containers that share this way.
    ///
    /// # Errors
    ///
    /// Names one that does not.
    pub fn check(self, limits: &[Limit]) -> Result<()> {
        let bounds_turns = |limit: &Limit| limit.entry.file == File::ComputeTimeslice;
        ensure!(
            self == Self::Turns || !limits.iter().any(bounds_turns),
            "compute.timeslice bounds turns, and containers under MPS take none"
        );
        Ok(())
    }
}

/// A limit: a file of a group's directory on a GPU, and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The file.
    pub entry: &'static Entry,
    /// Its content.
    pub content: Content,
}

/// What a pod asks for by one resource name.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// How many containers share a GPU under this profile.
    pub slots: u32,
    /// How GPUs are chosen.
    pub place: Placement,
    /// The GPUs that may be used; `None` for all.
    pub gpus: Option<Vec<u32>>,
    /// Whether the memory limits may exceed the GPU's memory.
    pub overcommit: bool,
    /// How its containers share a GPU, with those of other profiles, too.
    pub share: Sharing,
    /// The limits of a container, in the order in which they are written.
    pub limits: Vec<Limit>,
}

impl Profile {
    /// Returns the name of its resource.
    pub fn resource(&self) -> String {
        format!("{VENDOR}/{}", self.name)
    }

    /// Returns the limit on memory in bytes, if there is one.
    pub fn memory(&self) -> Option<u64> {
        match self.content(File::GmemLimit)? {
            Content::Value(Value::BytesOrMax(bytes)) => bytes.map(|bytes| bytes.get()),
            _ => None,
        }
    }

    /// Returns the TPCs that each container is guaranteed.
    pub fn quota(&self) -> u64 {
        match self.content(File::TpcQuota) {
            Some(Content::Value(Value::TpcsOrNone(Some(tpcs)))) => u64::from(tpcs.get()),
            _ => 0,
        }
    }

    fn content(&self, file: File) -> Option<&Content> {
        let limit = self.limits.iter().find(|limit| limit.entry.file == file)?;
        Some(&limit.content)
    }
}

/// GPUs that are no profile's, because others are given shares of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Apart {
    /// Who is given shares: `claims` or `annotations`.
    pub whose: &'static str,
    /// Their indices; `None` for all.
    pub gpus: Option<Vec<u32>>,
    /// How the containers of a GPU share it.
    pub share: Sharing,
}

impl Apart {
    /// Returns whether shares of a GPU may be given.
    pub fn may_use(&self, gpu: u32) -> bool {
        self.gpus.as_ref().is_none_or(|gpus| gpus.contains(&gpu))
    }
}

/// What annotations of pods may ask for.
#[derive(Clone, Debug, PartialEq)]
pub struct Annotations {
    /// The GPUs.
    pub apart: Apart,
    /// The most containers on one GPU.
    pub slots: u32,
    /// Most bytes of a container's `gmem.limit`; `None` for the GPU's memory.
    pub limit: Option<u64>,
    /// Most bytes of a container's `gmem.low`; `None` guarantees nothing, whatever is asked for.
    pub low: Option<u64>,
    /// The other limits of each container, in the order in which they are written.
    pub others: Vec<Limit>,
}

/// The content of a file of profiles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// The profiles.
    pub profiles: Vec<Profile>,
    /// The GPUs of claims, if there are any.
    pub claims: Option<Apart>,
    /// What annotations may ask for, if they may.
    pub annotations: Option<Annotations>,
}

/// Reads a file of profiles.
///
/// # Errors
///
/// Names the profile and the key that is wrong.
pub fn read(path: &Path) -> Result<Config> {
    let text =
        fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    config(&text).with_context(|| format!("{} is not a file of profiles", path.display()))
}

/// Parses the profiles in the text of such a file.
///
/// # Errors
///
/// Those of [`read`].
pub fn parse(text: &str) -> Result<Vec<Profile>> {
    config(text).map(|config| config.profiles)
}

fn config(text: &str) -> Result<Config> {
    let table: Table = text.parse()?;
    let mut config = Config::default();
    for (key, value) in table {
        match (key.as_str(), value) {
            ("profile", Toml::Table(named)) => {
                for (name, value) in named {
                    let profile =
                        profile(&name, value).with_context(|| format!("profile {name}"))?;
                    config.profiles.push(profile);
                }
            }
            ("dra", Toml::Table(mut table)) => {
                let gpus = gpus(&mut table).context("dra")?;
                let share = share(&mut table).context("dra")?;
                if let Some((key, _)) = table.iter().next() {
                    bail!("dra: {key} is unknown");
                }
                config.claims = Some(Apart {
                    whose: "claims",
                    gpus,
                    share,
                });
            }
            ("nri", Toml::Table(table)) => {
                config.annotations = Some(annotations(table).context("nri")?);
            }
            _ => bail!("{key} is unknown: write [profile.NAME], [dra] or [nri]"),
        }
    }
    ensure!(
        !config.profiles.is_empty() || config.claims.is_some() || config.annotations.is_some(),
        "there is no [profile.NAME], no [dra] and no [nri]"
    );
    meets::check(&config)?;
    Ok(config)
}

/// Takes the way of sharing out of a table.
fn share(table: &mut Table) -> Result<Sharing> {
    match table.remove("share").as_ref().map(Toml::as_str) {
        None | Some(Some("turns")) => Ok(Sharing::Turns),
        Some(Some("mps")) => Ok(Sharing::Mps),
        Some(_) => bail!("share is \"turns\" or \"mps\""),
    }
}

/// Takes the number of containers on a GPU out of a table.
fn slots(table: &mut Table) -> Result<Option<u32>> {
    let Some(slots) = table.remove("slots") else {
        return Ok(None);
    };
    let slots = slots.as_integer();
    let slots = slots.and_then(|slots| u32::try_from(slots).ok());
    let slots = slots.filter(|slots| (1..=SLOTS_MAX).contains(slots));
    slots
        .with_context(|| format!("slots is a number from 1 to {SLOTS_MAX}"))
        .map(Some)
}

/// Takes the list of GPUs out of a table.
fn gpus(table: &mut Table) -> Result<Option<Vec<u32>>> {
    let Some(gpus) = table.remove("gpus") else {
        return Ok(None);
    };
    let gpus = gpus.as_array().into_iter().flatten();
    let gpus: Option<Vec<u32>> = gpus
        .map(|gpu| u32::try_from(gpu.as_integer()?).ok())
        .collect();
    let gpus = gpus.filter(|gpus| !gpus.is_empty());
    gpus.context("gpus is a list of indices, such as [0, 1]")
        .map(Some)
}

fn annotations(mut table: Table) -> Result<Annotations> {
    let mut found = Annotations {
        apart: Apart {
            whose: "annotations",
            gpus: gpus(&mut table)?,
            share: Sharing::Turns,
        },
        slots: slots(&mut table)?.unwrap_or(ANNOTATED_SLOTS),
        limit: None,
        low: None,
        others: Vec::new(),
    };
    limits("", table, &mut found.others)?;
    let mut take = |file| -> Option<Content> {
        let at = found
            .others
            .iter()
            .position(|limit| limit.entry.file == file)?;
        Some(found.others.remove(at).content)
    };
    let bytes = |content| match content {
        Content::Value(Value::BytesOrMax(bytes)) => bytes.map(|bytes| bytes.get()),
        _ => None,
    };
    found.limit = take(File::GmemLimit).and_then(bytes);
    // All within a container's gmem.limit, where this is `max`.
    found.low = take(File::GmemLow).map(|low| bytes(low).unwrap_or(u64::MAX));
    ensure!(
        take(File::ComputeMax).is_none(),
        "compute.max is what annotations ask for"
    );
    found
        .others
        .sort_by_key(|limit| limit.entry.file != File::TpcMask);
    Ok(found)
}

fn profile(name: &str, value: Toml) -> Result<Profile> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    ensure!(
        name.len() <= NAME_MAX
            && name.bytes().all(inner)
            && name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.ends_with(|last: char| last.is_ascii_alphanumeric()),
        "a name is a letter, then letters, digits, '-' and '_', at most {NAME_MAX}"
    );
    let Toml::Table(mut table) = value else {
        bail!("a profile is a table: write [profile.{name}]");
    };
    let mut profile = Profile {
        name: name.to_owned(),
        slots: 1,
        place: Placement::Spread,
        gpus: None,
        overcommit: false,
        share: Sharing::Turns,
        limits: Vec::new(),
    };
    profile.slots = slots(&mut table)?.unwrap_or(1);
    if let Some(place) = table.remove("place") {
        profile.place = match place.as_str() {
            Some("spread") => Placement::Spread,
            Some("pack") => Placement::Pack,
            _ => bail!("place is \"spread\" or \"pack\""),
        };
    }
    profile.gpus = gpus(&mut table)?;
    if let Some(overcommit) = table.remove("overcommit") {
        profile.overcommit = overcommit
            .as_bool()
            .context("overcommit is true or false")?;
    }
    profile.share = share(&mut table)?;
    limits("", table, &mut profile.limits)?;
    profile.share.check(&profile.limits)?;
    // A quota is reserved within the mask, so the mask comes first.
    profile
        .limits
        .sort_by_key(|limit| limit.entry.file != File::TpcMask);
    Ok(profile)
}

/// Adds the limits of a table. Dots in a key make tables in TOML.
fn limits(prefix: &str, table: Table, found: &mut Vec<Limit>) -> Result<()> {
    for (key, value) in table {
        let file = format!("{prefix}{key}");
        let text = match value {
            Toml::Table(table) => {
                limits(&format!("{file}."), table, found)?;
                continue;
            }
            Toml::String(text) => text,
            Toml::Integer(number) => number.to_string(),
            Toml::Boolean(on) => u8::from(on).to_string(),
            _ => bail!("{file} is no text and no number"),
        };
        found.push(limit(&file, &text)?);
    }
    Ok(())
}

/// Parses a limit. A freeze and a peak are no limits of a profile.
///
/// # Errors
///
/// Names the file, and what it accepts.
pub fn limit(file: &str, text: &str) -> Result<Limit> {
    let others = [File::ComputeFreeze, File::GmemPeak];
    let entry = files::find(Place::Pool, file)
        .filter(|entry| entry.mode == Mode::ReadWrite && !others.contains(&entry.file))
        .with_context(|| format!("there is no limit {file}"))?;
    let content = Tree::parse(entry, text)?;
    Ok(Limit { entry, content })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_has_limits_of_the_tree() {
        let text = "[profile.small]\nslots = 4\nplace = 'pack'\ngpus = [1]\novercommit = true\n\
                    share = 'mps'\ntpc.quota = 8\ngmem.limit = '20G'\ntpc.mask = '0-9'\n\
                    [profile.plain]\ngpus = [0]\n";
        let profiles = parse(text).unwrap();
        assert_eq!(profiles.len(), 2);
        let small = profiles
            .iter()
            .find(|profile| profile.name == "small")
            .unwrap();
        assert_eq!((small.slots, small.place), (4, Placement::Pack));
        assert_eq!(
            (small.gpus.as_deref(), small.overcommit),
            (Some(&[1][..]), true)
        );
        assert_eq!((small.memory(), small.quota()), (Some(20 << 30), 8));
        assert_eq!(small.share, Sharing::Mps);
        assert_eq!(small.limits[0].entry.name, "tpc.mask");
        assert_eq!(small.resource(), "gctgroup.dev/small");
        let plain = profiles
            .iter()
            .find(|profile| profile.name == "plain")
            .unwrap();
        assert_eq!((plain.slots, plain.memory(), plain.quota()), (1, None, 0));
        assert_eq!(plain.share, Sharing::Turns);
    }

    #[test]
    fn annotations_have_maxima_and_limits() {
        let nri = |text: &str| config(text).unwrap().annotations.unwrap();
        let found = nri(
            "[nri]\ngpus = [1]\nslots = 4\ngmem.limit = '40G'\ngmem.low = '10G'\n\
                         gmem.pageable = 1\ntpc.mask = '0-9'\n[dra]\ngpus = [0]",
        );
        assert_eq!((found.limit, found.low), (Some(40 << 30), Some(10 << 30)));
        let others: Vec<&str> = found.others.iter().map(|limit| limit.entry.name).collect();
        assert_eq!(others, ["tpc.mask", "gmem.pageable"]);
        assert!(found.apart.may_use(1) && !found.apart.may_use(0));
        let all = nri("[nri]");
        assert_eq!((all.limit, all.low, all.others), (None, None, vec![]));
        assert_eq!((found.slots, all.slots), (4, 32));
        assert_eq!(nri("[nri]\ngmem.low = 'max'").low, Some(u64::MAX));
    }

    #[test]
    fn every_mistake_names_its_profile_and_key() {
        let long = format!("[profile.{}]", "a".repeat(NAME_MAX + 1));
        for (text, says) in [
            ("", "no [profile.NAME]"),
            ("[profiles.a]", "profiles is unknown"),
            ("profile = 1", "write [profile.NAME], [dra] or [nri]"),
            ("[nri]\ngpus = 1", "nri: gpus is a list"),
            ("[nri]\nslots = 0", "nri: slots is a number from 1 to 1024"),
            ("[nri]\ngmem.high = 1", "nri: there is no limit gmem.high"),
            ("[nri]\ncompute.max = '1000 2000'", "compute.max is what"),
            (
                "[nri]\ngpus = [1]\n[dra]",
                "GPU 1 is for claims and for annotations: give them different gpus",
            ),
            ("[nri]\ngpus = [1]\n[dra]\ngpus = [0, 1]", "different gpus"),
            (
                "[dra]\n[profile.a]",
                "every GPU is for claims and for profile a",
            ),
            (
                "[nri]\n[profile.a]\ngpus = [3]",
                "GPU 3 is for annotations and for profile a",
            ),
            (
                "[dra]\ngpus = [1]\n[profile.a]\ncompute.weight = 2",
                "GPU 1 is for claims and for profile a",
            ),
            (
                "[profile.a]\nshare = 'mps'\n[profile.b]\ngpus = [2]",
                "profiles a and b share GPU 2 in different ways",
            ),
            ("[dra]\nslots = 1", "dra: slots is unknown"),
            ("[dra]\ngpus = 1", "gpus is a list"),
            ("[profile]\na = 1", "profile a: a profile is a table"),
            ("[profile.\"a.b\"]", "profile a.b: a name is"),
            ("[profile.a-]", "a name is"),
            ("[profile.1a]", "a name is"),
            (&long, "a name is"),
            ("[profile.a]\nslots = 0", "slots is a number from 1"),
            ("[profile.a]\nslots = 1025", "slots is a number from 1"),
            ("[profile.a]\nplace = 'near'", "place is"),
            ("[profile.a]\ngpus = 0", "gpus is a list"),
            ("[profile.a]\ngpus = [-1]", "gpus is a list"),
            ("[profile.a]\novercommit = 1", "overcommit is"),
            ("[profile.a]\nshare = 'both'", "share is"),
            ("[dra]\nshare = 1", "dra: share is"),
            (
                "[profile.a]\nshare = 'mps'\ncompute.timeslice = '2ms'",
                "containers under MPS take none",
            ),
            ("[profile.a]\ngmem.limits = 1", "no limit gmem.limits"),
            ("[profile.a]\ncompute.freeze = 1", "no limit compute.freeze"),
            (
                "[profile.a]\ngmem.limit = '-1'",
                "gmem.limit does not accept",
            ),
            (
                "[profile.a]\ncompute.weight = 0",
                "compute.weight does not accept",
            ),
            ("[profile.a]\ngmem.limit = 1.5", "no text and no number"),
        ] {
            let error = format!("{:#}", parse(text).expect_err(text));
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
