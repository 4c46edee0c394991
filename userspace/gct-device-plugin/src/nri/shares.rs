// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides what a container is given of what its pod's annotations ask for.
//!
//! ```text
//! gmem.limit    limit                                  refused above the administrator's
//! gmem.low      request, refused above the administrator's; 0 if there is none
//! compute.max   portion * PERIOD in each PERIOD        takes from nobody but the container
//! others        the administrator's
//! ```
//!
//! What a container keeps is taken from others, so no annotation guarantees anything unless the
//! administrator says how much one may.

use anyhow::{bail, ensure, Context, Result};
use gct_core::iface::{files, File};

use super::annotations::{quoted, Ask, Memory, WHOLE};
use crate::gpus::Gpu;
use crate::profiles::{self, Annotations, Limit};

/// Microseconds in which a portion of the GPU's time is had. A container that has used its portion
/// waits so long at most.
const PERIOD: u64 = 20_000;
/// The least quota of `compute.max`.
const QUOTA_MIN: u64 = 20;

/// Returns the GPUs and limits for what is asked. `gpus` are the healthy ones of annotations.
///
/// # Errors
///
/// Says what cannot be had.
pub fn shares(asks: &[Ask], allowed: &Annotations, gpus: &[Gpu]) -> Result<Vec<(Gpu, Vec<Limit>)>> {
    let mut shares: Vec<(Gpu, Vec<Limit>)> = Vec::new();
    for ask in asks {
        let gpu = find(ask.gpu.as_deref(), gpus)?;
        let index = gpu.index;
        ensure!(
            shares.iter().all(|(other, _)| other.index != index),
            "GPU {index} is named twice"
        );
        let limits = limits(ask, allowed, gpu).with_context(|| format!("GPU {index}"))?;
        shares.push((gpu.clone(), limits));
    }
    Ok(shares)
}

fn find<'a>(name: Option<&str>, gpus: &'a [Gpu]) -> Result<&'a Gpu> {
    match (name, gpus) {
        (None, [gpu]) => Ok(gpu),
        (None, []) => bail!("no GPU of [nri] is healthy"),
        (None, _) => bail!("several GPUs are for annotations, and none is named for the container"),
        (Some(name), _) => {
            let is_it =
                |gpu: &&Gpu| gpu.uuid.as_deref() == Some(name) || gpu.index.to_string() == name;
            let found = gpus.iter().find(is_it);
            found.with_context(|| format!("{} is no healthy GPU for annotations", quoted(name)))
        }
    }
}

fn limits(ask: &Ask, allowed: &Annotations, gpu: &Gpu) -> Result<Vec<Limit>> {
    let unknown = "its memory is unknown until a program has used it";
    let bytes = |memory| -> Result<u64> {
        match memory {
            Memory::Bytes(bytes) => Ok(bytes),
            Memory::Portion(part) => {
                let total = gpu.memory.context(unknown)?;
                let bytes = u128::from(total) * u128::from(part) / u128::from(WHOLE);
                Ok(u64::try_from(bytes)?)
            }
        }
    };
    let (request, limit) = (bytes(ask.request)?, bytes(ask.limit)?);
    let most = allowed.limit.into_iter().chain(gpu.memory).min();
    let most = most.context(unknown)?;
    ensure!(
        limit <= most,
        "{limit} bytes are asked for, and a container may have {most}"
    );
    let low = match allowed.low {
        None => 0,
        Some(most) => {
            ensure!(
                request <= most,
                "{request} bytes are to be guaranteed, and a container may be guaranteed {most}"
            );
            request
        }
    };
    let mut limits = allowed.others.clone();
    let mut add = |file, text: &str| -> Result<()> {
        limits.push(profiles::limit(files::entry(file).name, text)?);
        Ok(())
    };
    add(File::GmemLimit, &limit.to_string())?;
    add(File::GmemLow, &low.to_string())?;
    if let Some(part) = ask.portion.filter(|part| *part < WHOLE) {
        let quota = (PERIOD * u64::from(part) / u64::from(WHOLE)).max(QUOTA_MIN);
        add(File::ComputeMax, &format!("{quota} {PERIOD}"))?;
    }
    let missing = limits
        .iter()
        .find(|limit| !gpu.features.contains(limit.entry.name));
    match missing {
        Some(limit) => {
            let advice = gpu.advice().map(|advice| format!("; {advice}"));
            let name = limit.entry.name;
            bail!("it does not enforce {name}{}", advice.unwrap_or_default())
        }
        None => Ok(limits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32) -> Gpu {
        let features = ["gmem.limit", "gmem.low", "compute.max", "gmem.pageable"];
        Gpu {
            index,
            uuid: Some(format!("GPU-{index}")),
            memory: Some(80 << 30),
            features: features.map(str::to_owned).into(),
            ..Gpu::default()
        }
    }

    fn ask(gpu: Option<&str>, request: u64, limit: u64) -> Ask {
        Ask {
            gpu: gpu.map(str::to_owned),
            request: Memory::Bytes(request),
            limit: Memory::Bytes(limit),
            portion: None,
        }
    }

    fn allowed(limit: Option<u64>, low: Option<u64>) -> Annotations {
        Annotations {
            apart: profiles::Apart::default(),
            slots: 1,
            limit,
            low,
            others: vec![profiles::limit("gmem.pageable", "1").unwrap()],
        }
    }

    fn texts(asks: &[Ask], allowed: &Annotations, gpus: &[Gpu]) -> Result<Vec<String>> {
        let shares = shares(asks, allowed, gpus)?;
        let text = |(gpu, limits): &(Gpu, Vec<Limit>)| {
            let limits = limits
                .iter()
                .map(|limit| format!(" {}={}", limit.entry.name, limit.content));
            format!("{}{}", gpu.index, limits.collect::<String>())
        };
        Ok(shares.iter().map(text).collect())
    }

    #[test]
    fn a_request_guarantees_what_the_administrator_allows_and_else_nothing() {
        let asks = [ask(None, 1 << 30, 2 << 30)];
        let none = texts(&asks, &allowed(None, None), &[gpu(0)]).unwrap();
        assert_eq!(none, ["0 gmem.pageable=1 gmem.limit=2147483648 gmem.low=0"]);
        let some = texts(&asks, &allowed(None, Some(1 << 30)), &[gpu(0)]).unwrap();
        assert_eq!(
            some,
            ["0 gmem.pageable=1 gmem.limit=2147483648 gmem.low=1073741824"]
        );
        let error = texts(&asks, &allowed(None, Some(1)), &[gpu(0)]).unwrap_err();
        assert!(
            format!("{error:#}").contains("may be guaranteed 1"),
            "{error:#}"
        );
    }

    #[test]
    fn nobody_gets_more_than_a_container_may_have() {
        for (limit, allows, is_had) in [
            (80 << 30, None, true),
            ((80 << 30) + 1, None, false),
            (u64::MAX, None, false),
            (1 << 30, Some(1 << 30), true),
            ((1 << 30) + 1, Some(1 << 30), false),
            ((80 << 30) + 1, Some(u64::MAX), false),
        ] {
            let asks = [ask(None, 1, limit)];
            let given = texts(&asks, &allowed(allows, None), &[gpu(0)]);
            assert_eq!(given.is_ok(), is_had, "{limit} of {allows:?}: {given:?}");
        }
    }

    #[test]
    fn a_gpu_whose_memory_is_unknown_is_had_within_the_administrator_s_limit() {
        let unknown = Gpu {
            memory: None,
            ..gpu(0)
        };
        let given = |memory, allows| {
            let asks = [Ask {
                gpu: None,
                request: memory,
                limit: memory,
                portion: None,
            }];
            texts(
                &asks,
                &allowed(allows, None),
                std::slice::from_ref(&unknown),
            )
            .is_ok()
        };
        assert!(given(Memory::Bytes(1 << 30), Some(1 << 30)));
        assert!(!given(Memory::Bytes(1 << 30), None));
        assert!(!given(Memory::Portion(1), Some(1 << 30)));
    }

    #[test]
    fn portions_are_of_the_gpu_s_time_and_of_its_memory() {
        let with = |portion| {
            let half = Memory::Portion(WHOLE / 2);
            let asks = [Ask {
                gpu: None,
                request: half,
                limit: half,
                portion,
            }];
            texts(&asks, &allowed(None, None), &[gpu(0)])
                .unwrap()
                .remove(0)
        };
        let memory = "0 gmem.pageable=1 gmem.limit=42949672960 gmem.low=0";
        assert_eq!(with(None), memory);
        assert_eq!(with(Some(WHOLE)), memory);
        assert_eq!(
            with(Some(300_000)),
            format!("{memory} compute.max=6000 20000")
        );
        assert_eq!(with(Some(1)), format!("{memory} compute.max=20 20000"));
    }

    #[test]
    fn a_gpu_is_named_or_the_only_one() {
        let two = [gpu(0), gpu(1)];
        let named = |names: &[Option<&str>], gpus: &[Gpu]| {
            let asks: Vec<Ask> = names.iter().map(|name| ask(*name, 1, 1)).collect();
            match texts(&asks, &allowed(None, None), gpus) {
                Ok(texts) => texts.iter().map(|text| text[..1].to_owned()).collect(),
                Err(error) => format!("{error:#}"),
            }
        };
        assert_eq!(named(&[Some("GPU-1"), Some("0")], &two), "10");
        for (names, gpus, says) in [
            (&[None][..], &two[..], "several GPUs"),
            (&[None], &[], "no GPU of [nri] is healthy"),
            (&[Some("GPU-2")], &two, "\"GPU-2\" is no healthy GPU"),
            (&[Some("00")], &two, "\"00\" is no healthy GPU"),
            (&[Some("1"), Some("GPU-1")], &two, "GPU 1 is named twice"),
        ] {
            let error = named(names, gpus);
            assert!(error.contains(says), "{error}, not {says}");
        }
    }

    #[test]
    fn a_limit_that_nothing_enforces_is_refused() {
        let blind = Gpu {
            features: ["gmem.limit".to_owned()].into(),
            ..gpu(0)
        };
        let error = texts(&[ask(None, 1, 1)], &allowed(None, None), &[blind]).unwrap_err();
        assert!(
            format!("{error:#}").contains("does not enforce gmem."),
            "{error:#}"
        );
    }
}
