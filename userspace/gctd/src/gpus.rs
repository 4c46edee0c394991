// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the GPUs that the driver lists in /proc, and asks the resource manager about them.

use gct_core::gpu::{Backend, GpuFacts, PciAddress, PciIds, Uuid};
use gct_core::text::Text;
use gctd_ipc::driver::{self, Facts};
use gctd_ipc::selftest::{self, Missing, Selftest};
use std::fs;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The directory in which the driver lists its GPUs.
pub const DEFAULT_DIRECTORY: &str = "/proc/driver/nvidia/gpus";

/// Most time to wait for the resource manager. It initialises an idle GPU first, which takes one
/// or two seconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two queries of a GPU. It doubles while they fail.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Asks the resource manager about `/dev/nvidia<minor>`, as [`driver::ask`] does.
pub type Ask = fn(u32) -> Option<Facts>;

/// Returns the GPUs in order of PCI address.
pub(crate) fn find(directory: &Path) -> Vec<GpuFacts> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut gpus: Vec<GpuFacts> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let text = fs::read_to_string(entry.path().join("information")).ok()?;
            facts(&name, &text)
        })
        .collect();
    gpus.sort_by_key(|gpu| gpu.pci);
    gpus
}

/// A query of the resource manager about a GPU, repeated until it answers.
///
/// The first one is waited for. A GPU that is sick takes seconds to fail, so later ones are not,
/// and they come less and less often.
#[derive(Debug)]
pub(crate) struct Query {
    due: Instant,
    /// The time between the last two; zero before the first has failed.
    pause: Duration,
    /// When it was asked, and where the answer comes.
    asked: Option<(Instant, Receiver<Option<Facts>>)>,
}

/// What a look at a [`Query`] found.
#[derive(Debug)]
pub(crate) enum Look {
    /// It is not due, or not answered yet.
    Later,
    /// The resource manager does not know the GPU, or cannot start it.
    Failed,
    /// There was no answer in [`TIMEOUT`], so there will be none.
    Hung,
    /// The resource manager has described it.
    Answered(Facts),
}

impl Query {
    /// Creates a query that is due.
    pub(crate) fn new() -> Self {
        Self {
            due: Instant::now(),
            pause: Duration::ZERO,
            asked: None,
        }
    }

    /// Returns whether an answer is expected.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Asks if that is due, and takes the answer.
    pub(crate) fn look(&mut self, ask: Ask, minor: u32) -> Look {
        let is_first = self.pause.is_zero();
        let (since, receiver) = match self.asked.take() {
            Some(asked) => asked,
            None if Instant::now() < self.due => return Look::Later,
            None => (Instant::now(), start(ask, minor)),
        };
        let patience = if is_first { TIMEOUT } else { Duration::ZERO };
        match receiver.recv_timeout(patience) {
            Ok(Some(facts)) => Look::Answered(facts),
            Ok(None) => {
                self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
                self.due = Instant::now() + self.pause;
                Look::Failed
            }
            Err(RecvTimeoutError::Timeout) if since.elapsed() < TIMEOUT => {
                self.asked = Some((since, receiver));
                Look::Later
            }
            Err(_) => Look::Hung,
        }
    }
}

/// Asks the resource manager about a GPU.
///
/// A GPU that fell off its bus may block the caller for ever, so a thread of its own asks.
fn start(ask: Ask, minor: u32) -> Receiver<Option<Facts>> {
    let (sender, receiver) = mpsc::channel();
    let answer = move || {
        // Fails if the caller has given up.
        let _ = sender.send(ask(minor));
    };
    // Without a thread the sender is dropped, which the receiver notices.
    let _ = std::thread::Builder::new().spawn(answer);
    receiver
}

/// Returns what was found exact on a GPU under the driver that is loaded. Says what is wrong with
/// a result that cannot be used.
pub(crate) fn selftest(gpus: &Path, results: &Path, uuid: [u8; 16]) -> Option<Selftest> {
    let version = fs::read_to_string(gpus.with_file_name("version")).ok()?;
    let driver = selftest::driver_version(&version)?;
    match Selftest::read(results, &Uuid(uuid).to_string(), driver) {
        Ok(found) => Some(found),
        Err(Missing::Untested) => None,
        Err(Missing::Damaged(path, why)) => {
            let path = path.display();
            tracing::warn!("{path} cannot be used: {why}; run gctctl selftest");
            None
        }
    }
}

/// Parses the `information` file of a GPU.
fn facts(directory: &str, information: &str) -> Option<GpuFacts> {
    let field = |name| driver::field(information, name);
    let minor = field("Device Minor")?.parse().ok()?;
    let pci = pci(directory)?;
    let mut facts = GpuFacts::new(rm_id(&pci), pci, Backend::User);
    facts.minor = minor;
    facts.name = Text::from_untrusted(field("Model").unwrap_or_default().as_bytes());
    facts.uuid = field("GPU UUID").and_then(uuid);
    facts.ids = ids(directory);
    Some(facts)
}

/// Returns the resource manager's id of a GPU: domain, bus and device of its PCI address.
fn rm_id(pci: &PciAddress) -> u32 {
    pci.domain << 16 | u32::from(pci.bus) << 8 | u32::from(pci.slot)
}

/// Parses a PCI address such as `0000:04:00.0`.
pub(crate) fn pci(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.split_once('.')?;
    let mut parts = rest.split(':');
    let mut part = || u32::from_str_radix(parts.next()?, 16).ok();
    let (domain, bus, slot) = (part()?, part()?, part()?);
    Some(PciAddress {
        domain,
        bus: u8::try_from(bus).ok()?,
        slot: u8::try_from(slot).ok()?,
        function: u8::from_str_radix(function, 16).ok()?,
    })
}

/// Parses `GPU-` and 32 hexadecimal digits with dashes. The driver prints question marks until it
/// knows the UUID.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.strip_prefix("GPU-")?.replace('-', "");
    let number = u128::from_str_radix(&digits, 16).ok()?;
    (digits.len() == 32).then(|| number.to_be_bytes())
}

/// Reads the PCI ids from sysfs; zeros without them.
fn ids(address: &str) -> PciIds {
    let read = |file: &str| {
        let path = format!("/sys/bus/pci/devices/{}/{file}", address.to_lowercase());
        let text = fs::read_to_string(path).unwrap_or_default();
        u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap_or(0)
    };
    PciIds {
        vendor: read("vendor"),
        device: read("device"),
        subsystem_vendor: read("subsystem_vendor"),
        subsystem_device: read("subsystem_device"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: &str = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 50\n\
        GPU UUID: \t GPU-00112233-4455-6677-8899-aabbccddeeff\n\
        Bus Location: \t 0000:04:00.0\nDevice Minor: \t 3\n";

    #[test]
    fn the_information_file_is_parsed() {
        let gpu = facts("0000:04:00.0", H200).unwrap();
        assert_eq!((gpu.minor, gpu.name.as_str()), (3, "NVIDIA H200"));
        assert_eq!(gpu.pci.to_string(), "0000:04:00.0");
        assert_eq!(gpu.rm_id, 0x400);
        assert_eq!(gpu.uuid.unwrap()[15], 0xff);
    }

    #[test]
    fn unknown_fields_are_left_out() {
        let early = H200.replace("00112233-4455", "????????-????");
        assert_eq!(facts("0:4:0.0", &early).unwrap().uuid, None);
        for (directory, text) in [("x", H200), ("0:4", H200), ("0:4:0.0", "Model: x\n")] {
            assert!(facts(directory, text).is_none(), "{directory}");
        }
    }
}
