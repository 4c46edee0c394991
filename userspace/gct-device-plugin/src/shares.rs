// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Adds up the shares that a container has of one GPU.
//!
//! A profile gives a container one share of a GPU. Claims give one for each request, and the
//! scheduler may take several from the same GPU:
//!
//! ```text
//! gmem.limit, tpc.quota    the sum over all shares: each was taken from the GPU's capacity
//! any other limit          the same in all shares: the container's group has one
//! ```

use anyhow::{bail, ensure, Context, Result};

use crate::records::{Limits, Share};

/// The limits of which a container has the sum of its shares'.
const SUMMED: [&str; 2] = ["gmem.limit", "tpc.quota"];

/// Adds a share to those that a container has of a GPU. Returns whether it was not there yet.
///
/// # Errors
///
/// Fails unless each of them is another device of a claim.
pub fn add(shares: &mut Vec<Share>, share: &Share) -> Result<bool> {
    if shares.contains(share) {
        return Ok(false);
    }
    let is_apart = |other: &Share| {
        other.claim.is_some() && share.claim.is_some() && other.claim != share.claim
    };
    if let Some(other) = shares.iter().find(|other| !is_apart(other)) {
        bail!(
            "the container has a share of it already, under profile {}",
            other.profile
        );
    }
    shares.push(share.clone());
    Ok(true)
}

/// Returns the limits of all shares of a GPU together, in the order in which they are written.
///
/// # Errors
///
/// Names a limit in which the shares differ.
pub fn limits(shares: &[Share]) -> Result<Limits> {
    let Some((first, others)) = shares.split_first() else {
        return Ok(Limits::new());
    };
    let mut total = first.limits.clone();
    for share in others {
        join(&mut total, &share.limits)?;
    }
    Ok(total)
}

/// Adds the limits of one share to those of others.
fn join(total: &mut Limits, share: &Limits) -> Result<()> {
    for (file, value) in share {
        ensure!(
            value_of(total, file).is_some(),
            differ(file, "not set", value)
        );
    }
    for (file, value) in total {
        let other = value_of(share, file).with_context(|| differ(file, value, "not set"))?;
        if SUMMED.contains(&file.as_str()) {
            let sum = sum(value, other);
            *value = sum.with_context(|| format!("{file} of {value} and {other} has no sum"))?;
        } else {
            ensure!(value == other, differ(file, value, other));
        }
    }
    Ok(())
}

fn value_of<'a>(limits: &'a Limits, file: &str) -> Option<&'a String> {
    let limit = limits.iter().find(|(other, _)| other == file)?;
    Some(&limit.1)
}

fn differ(file: &str, one: &str, other: &str) -> String {
    format!(
        "{file} is {one} in one share and {other} in another: \
         give all requests of a container the same DeviceClass"
    )
}

fn sum(one: &str, other: &str) -> Option<String> {
    let (one, other): (u64, u64) = (one.parse().ok()?, other.parse().ok()?);
    Some(one.checked_add(other)?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(claim: Option<&str>, limits: &[(&str, &str)]) -> Share {
        let limits = limits.iter();
        Share {
            profile: "small".to_owned(),
            limits: limits
                .map(|(file, value)| ((*file).to_owned(), (*value).to_owned()))
                .collect(),
            mps: false,
            claim: claim.map(str::to_owned),
            slots: None,
        }
    }

    #[test]
    fn memory_and_tpcs_add_up_and_the_rest_is_the_same() {
        let shares = [
            share(
                None,
                &[
                    ("tpc.mask", "0-31"),
                    ("gmem.limit", "5"),
                    ("tpc.quota", "8"),
                ],
            ),
            share(
                None,
                &[
                    ("tpc.quota", "4"),
                    ("tpc.mask", "0-31"),
                    ("gmem.limit", "7"),
                ],
            ),
        ];
        let total = [
            ("tpc.mask", "0-31"),
            ("gmem.limit", "12"),
            ("tpc.quota", "12"),
        ];
        assert_eq!(limits(&shares).unwrap(), share(None, &total).limits);
        assert_eq!(limits(&shares[..1]).unwrap(), shares[0].limits);
        assert_eq!(limits(&[]).unwrap(), Limits::new());
    }

    #[test]
    fn shares_that_differ_are_refused() {
        let max = u64::MAX.to_string();
        for (one, other, says) in [
            (
                &[("compute.priority", "1")][..],
                &[("compute.priority", "2")][..],
                "1 in one share and 2",
            ),
            (
                &[("compute.priority", "1")],
                &[],
                "1 in one share and not set",
            ),
            (&[], &[("gmem.limit", "1")], "not set in one share and 1"),
            (&[("tpc.quota", "1")], &[], "the same DeviceClass"),
            (&[("tpc.quota", "none")], &[("tpc.quota", "1")], "no sum"),
            (&[("gmem.limit", &max)], &[("gmem.limit", "1")], "no sum"),
        ] {
            let shares = [share(None, one), share(None, other)];
            let error = limits(&shares).unwrap_err().to_string();
            assert!(error.contains(says), "{error}, not {says}");
        }
    }

    #[test]
    fn a_container_has_one_share_of_a_profile_and_several_of_claims() {
        let limits = &[("tpc.quota", "8")];
        for (first, second, is_both) in [
            (Some("u1-0"), Some("u1-1"), true),
            (Some("u1-0"), Some("u2-0"), true),
            (None, Some("u1-0"), false),
            (Some("u1-0"), None, false),
        ] {
            let mut shares = Vec::new();
            assert!(add(&mut shares, &share(first, limits)).unwrap());
            assert!(!add(&mut shares, &share(first, limits)).unwrap(), "twice");
            assert_eq!(add(&mut shares, &share(second, limits)).is_ok(), is_both);
        }
        let mut shares = vec![share(Some("u1-0"), limits)];
        let changed = share(Some("u1-0"), &[("tpc.quota", "9")]);
        assert!(add(&mut shares, &changed).is_err());
        assert_eq!(shares.len(), 1);
    }
}
