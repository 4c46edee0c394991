// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads what a pod's annotations ask for one of its containers.
//!
//! ```text
//! nvidia.com/container.NAME.gpu-memory.request|limit    quantity      NVIDIA's gpu-fractioning
//! nvidia.com/container.NAME.gpu-compute.portion         (0, 1]        of the GPU's time
//! nvidia.com/container.NAME.gpu-compute.mode            time-slicing
//! nvidia.com/container.NAME.gpus.devices                UUID|index, ..
//! gpu-memory  | gpu-fraction                            MiB | (0, 1] of its memory       KAI
//! gpu-fraction-container-name                           NAME
//! hami.io/vgpu-devices-allocated                        UUID,NVIDIA,MiB,percent:..;      HAMi
//! ```
//!
//! The pod's author can write all of them, and schedulers write some. So nothing here is a right:
//! `shares.rs` says what is given.

use std::collections::HashMap;

use anyhow::{bail, ensure, Context, Result};

use crate::dra::quantity;

/// Millionths, the unit of portions.
pub const WHOLE: u32 = 1_000_000;

const MIB: u64 = 1 << 20;
/// Most characters of a value that an error quotes.
const QUOTED_MAX: usize = 64;
const NVIDIA: &str = "nvidia.com/container.";
const KAI_MEMORY: &str = "gpu-memory";
const KAI_FRACTION: &str = "gpu-fraction";
const KAI_CONTAINER: &str = "gpu-fraction-container-name";
const HAMI: &str = "hami.io/vgpu-devices-allocated";
/// The variable in which KAI names a container's GPUs, and images say `all`.
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES=";

/// An amount of a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// So many bytes.
    Bytes(u64),
    /// So many millionths.
    Portion(u32),
}

/// What is asked for on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The GPU, by index or UUID; `None` where nobody names one.
    pub gpu: Option<String>,
    /// What is to be guaranteed.
    pub request: Memory,
    /// The most.
    pub limit: Memory,
    /// The most of the GPU's time, in millionths.
    pub portion: Option<u32>,
}

type Map = HashMap<String, String>;

/// Returns what a pod asks for a container, on each GPU; nothing for most containers.
///
/// # Errors
///
/// Names the annotation, and what it accepts.
pub fn asks(pod: &Map, container: &str, env: &[String]) -> Result<Vec<Ask>> {
    let dialects = [
        ("nvidia.com/container", nvidia(pod, container, env)?),
        (KAI_FRACTION, kai(pod, container, env)?),
        (HAMI, hami(pod)?),
    ];
    let mut said = dialects.into_iter().filter(|(_, asks)| !asks.is_empty());
    let Some((name, asks)) = said.next() else {
        return Ok(Vec::new());
    };
    if let Some((other, _)) = said.next() {
        bail!("the annotations of {name} and of {other} both ask for container {container}");
    }
    Ok(asks)
}

fn nvidia(pod: &Map, container: &str, env: &[String]) -> Result<Vec<Ask>> {
    let prefix = format!("{NVIDIA}{container}.");
    let (mut request, mut limit, mut portion, mut devices) = (None, None, None, None);
    let mut last = None;
    for (key, value) in pod {
        let Some(what) = key.strip_prefix(&prefix) else {
            continue;
        };
        let parsed = match what {
            "gpu-memory.request" => bytes(value).map(|bytes| request = Some(bytes)),
            "gpu-memory.limit" => bytes(value).map(|bytes| limit = Some(bytes)),
            "gpu-compute.portion" => fraction(value).map(|part| portion = Some(part)),
            "gpu-compute.mode" => mode(value),
            "gpus.devices" => {
                devices = names(value);
                Ok(())
            }
            _ => bail!("there is no annotation {key}"),
        };
        parsed.with_context(|| format!("annotation {key}"))?;
        last = Some(key);
    }
    let Some(key) = last else {
        return Ok(Vec::new());
    };
    let Some(least) = request.or(limit) else {
        bail!("{key} needs {prefix}gpu-memory.request or .limit beside it");
    };
    // As NVIDIA's: one that is left out is the other.
    let most = limit.unwrap_or(least);
    ensure!(
        least <= most,
        "{prefix}gpu-memory.request is more than its limit"
    );
    let gpus = devices.or_else(|| visible(env));
    on_each(gpus, Memory::Bytes(least), Memory::Bytes(most), portion)
}

/// These are the pod's, and meant for one container: that of the name, or else the one to which KAI
/// gave GPUs. The runtime does not tell which container is the pod's first.
fn kai(pod: &Map, container: &str, env: &[String]) -> Result<Vec<Ask>> {
    let memory = match (pod.get(KAI_MEMORY), pod.get(KAI_FRACTION)) {
        (None, None) => return Ok(Vec::new()),
        (Some(_), Some(_)) => {
            bail!("annotations {KAI_MEMORY} and {KAI_FRACTION} exclude each other")
        }
        (Some(mib), None) => mebibytes(mib).context(KAI_MEMORY).map(Memory::Bytes),
        (None, Some(part)) => fraction(part).context(KAI_FRACTION).map(Memory::Portion),
    };
    let gpus = visible(env);
    let is_meant = match pod.get(KAI_CONTAINER) {
        Some(name) => name == container,
        None => gpus.is_some(),
    };
    match is_meant {
        true => {
            let memory = memory.context("annotation")?;
            on_each(gpus, memory, memory, None)
        }
        false => Ok(Vec::new()),
    }
}

/// It has a part for each of the pod's containers, in an order that the runtime does not tell. So
/// it is understood in pods of one container.
fn hami(pod: &Map) -> Result<Vec<Ask>> {
    let Some(text) = pod.get(HAMI) else {
        return Ok(Vec::new());
    };
    let parts: Vec<&str> = text.strip_suffix(';').unwrap_or(text).split(';').collect();
    let [part] = parts[..] else {
        bail!("annotation {HAMI} is understood in pods of one container, and this has several");
    };
    let devices = part.split(':').filter(|device| !device.is_empty());
    let asks = devices.map(|device| {
        let wrong = || format!("annotation {HAMI} is UUID,NVIDIA,MiB,percent for each GPU");
        let fields: Vec<&str> = device.split(',').collect();
        let [gpu, kind, mib, percent] = fields[..] else {
            bail!(wrong());
        };
        ensure!(!gpu.is_empty() && kind.starts_with("NVIDIA"), wrong());
        let memory = Memory::Bytes(mebibytes(mib).with_context(wrong)?);
        let percent = whole(percent).filter(|percent| *percent <= 100);
        let percent = u32::try_from(percent.with_context(wrong)?)?;
        Ok(Ask {
            gpu: Some(gpu.to_owned()),
            request: memory,
            limit: memory,
            // 0 is no limit of HAMi's.
            portion: (percent > 0).then_some(percent * (WHOLE / 100)),
        })
    });
    asks.collect()
}

fn on_each(
    gpus: Option<Vec<String>>,
    request: Memory,
    limit: Memory,
    portion: Option<u32>,
) -> Result<Vec<Ask>> {
    let gpus = match gpus {
        Some(gpus) => gpus.into_iter().map(Some).collect(),
        None => vec![None],
    };
    let ask = |gpu| Ask {
        gpu,
        request,
        limit,
        portion,
    };
    Ok(gpus.into_iter().map(ask).collect())
}

/// Returns the GPUs that a container's environment names, but not those of images, which say `all`.
fn visible(env: &[String]) -> Option<Vec<String>> {
    let mut values = env
        .iter()
        .filter_map(|variable| variable.strip_prefix(VISIBLE));
    let value = values.next_back()?;
    (!["all", "none", "void"].contains(&value)).then(|| names(value))?
}

fn names(list: &str) -> Option<Vec<String>> {
    let names = list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(str::to_owned).collect();
    (!names.is_empty()).then_some(names)
}

/// Quotes the begin of a text of the pod's author, for an event and a log.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(QUOTED_MAX).collect::<String>())
}

/// Parses a quantity of at least 1 MiB. A part of a MiB counts as one, as for NVIDIA's.
fn bytes(text: &str) -> Result<u64> {
    let bytes = quantity::parse(text).filter(|bytes| *bytes >= MIB);
    let bytes = bytes.and_then(|bytes| bytes.div_ceil(MIB).checked_mul(MIB));
    bytes.with_context(|| {
        format!(
            "{} is no whole number of bytes, such as 8Gi, from 1Mi on",
            quoted(text)
        )
    })
}

fn mebibytes(text: &str) -> Result<u64> {
    let mib = whole(text).filter(|mib| *mib > 0);
    let bytes = mib.and_then(|mib| mib.checked_mul(MIB));
    bytes.with_context(|| format!("{} is no number of MiB", quoted(text)))
}

fn whole(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// Parses a decimal fraction above 0 and up to 1, in millionths. Further digits are cut off.
fn fraction(text: &str) -> Result<u32> {
    let parse = || {
        let (whole_part, digits) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole_part.is_empty() || digits.is_empty() || !is_number(digits) {
            return None;
        }
        let millionths: String = digits.chars().chain("000000".chars()).take(6).collect();
        let whole_part = u32::try_from(whole(whole_part)?).ok()?;
        let sum = whole_part.checked_mul(WHOLE)?;
        sum.checked_add(millionths.parse().ok()?)
    };
    let parsed = parse().filter(|part| (1..=WHOLE).contains(part));
    parsed.with_context(|| {
        format!(
            "{} is no fraction above 0 and up to 1, such as 0.5",
            quoted(text)
        )
    })
}

fn mode(text: &str) -> Result<()> {
    match text.trim() {
        "time-slicing" => Ok(()),
        "sm-sharing" => bail!("the GPUs of annotations are shared by turns, not by sm-sharing"),
        _ => bail!("{} is not time-slicing", quoted(text)),
    }
}

#[cfg(test)]
mod tests;
