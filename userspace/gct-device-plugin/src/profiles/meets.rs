// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks, when the file is read, that whoever may use a GPU can use it beside all others that may.
//!
//! What a GPU enforces grows: with the first program that uses it, or a self-test that passes. So
//! this asks what the file allows, and not what a GPU of now offers.

use anyhow::{bail, Result};

use super::{Config, Profile};

/// A list of GPUs; `None` for all.
type Gpus<'a> = Option<&'a [u32]>;

/// Checks all pairs of a file.
///
/// # Errors
///
/// Names the two, and a GPU that both may use.
pub(super) fn check(config: &Config) -> Result<()> {
    let annotations = config.annotations.as_ref();
    let apart = config.claims.iter();
    let apart: Vec<(&str, Gpus<'_>)> = apart
        .chain(annotations.map(|annotations| &annotations.apart))
        .map(|apart| (apart.whose, apart.gpus.as_deref()))
        .collect();
    if let [(claims, one), (annotations, other)] = apart[..] {
        is_apart(claims, one, annotations, other)?;
    }
    for profile in &config.profiles {
        let name = format!("profile {}", profile.name);
        for (whose, gpus) in &apart {
            is_apart(whose, *gpus, &name, profile.gpus.as_deref())?;
        }
    }
    for (n, profile) in config.profiles.iter().enumerate() {
        for other in config.profiles.iter().skip(n + 1) {
            agree(profile, other)?;
        }
    }
    Ok(())
}

/// Checks that no GPU is given in shares by two: nobody would count both.
fn is_apart(whose: &str, gpus: Gpus<'_>, other: &str, others: Gpus<'_>) -> Result<()> {
    if let Some(gpu) = common(gpus, others) {
        bail!("{gpu} is for {whose} and for {other}: give them different gpus");
    }
    Ok(())
}

/// Checks that two profiles share a GPU in the same way.
fn agree(one: &Profile, other: &Profile) -> Result<()> {
    let gpu = common(one.gpus.as_deref(), other.gpus.as_deref());
    if let Some(gpu) = gpu.filter(|_| one.share != other.share) {
        bail!(
            "profiles {} and {} share {gpu} in different ways: \
             give them the same share or different gpus",
            one.name,
            other.name
        );
    }
    Ok(())
}

/// Returns the name of a GPU that is in both lists.
fn common(one: Gpus<'_>, other: Gpus<'_>) -> Option<String> {
    let index = match (one, other) {
        (None, None) => return Some("every GPU".to_owned()),
        (Some(gpus), None) | (None, Some(gpus)) => gpus.first(),
        (Some(gpus), Some(others)) => gpus.iter().find(|gpu| others.contains(gpu)),
    };
    index.map(|index| format!("GPU {index}"))
}
