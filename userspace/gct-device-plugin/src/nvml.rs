// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks NVML what the tree does not know of a GPU: its compute capability, and whether the driver
//! wants it recovered.
//!
//! A call about a GPU that fell off its bus may never return, so a thread asks. A pass of the
//! keeper orders a look and uses the last one; the first pass alone waits for its own.
//!
//! The library comes from the driver's root file system, which is the administrator's. While it is
//! open it has the driver's nodes open, and `nvidia-smi --gpu-reset` refuses a GPU that is in use.
//! So it is closed after a look that found a GPU to recover.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
use nvml_wrapper::{Device, Nvml};

/// Most time that the first pass waits. NVML initialises idle GPUs, each in one or two seconds.
const FIRST_WAIT: Duration = Duration::from_secs(10);
/// Time after which a look that has not ended is reported.
const SILENCE: Duration = Duration::from_secs(60);
/// How many times as long as a look took NVML stays closed when a GPU is to be recovered.
const CLOSED: u32 = 5;

/// The actions of `nvmlDeviceGpuRecoveryAction_t` (NVML of r615), from 1. 0 is none.
const ACTIONS: [&str; 7] = [
    "gpu-reset",
    "node-reboot",
    "drain-p2p",
    "drain-and-reset",
    "recover-imex-domain",
    "bus-reset",
    "system-reboot",
];
/// What a GPU has that the driver cannot reach any more.
const LOST: &str = "gpu-lost";

/// What NVML says of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its compute capability, such as `9.0`.
    pub capability: Option<String>,
    /// What it needs before it may be used again, if it needs something.
    pub needs: Option<String>,
}

/// Facts by PCI address, or why there are none.
type Report = Result<BTreeMap<String, Facts>, String>;

/// The thread that asks NVML, seen from the keeper.
#[derive(Debug)]
pub struct Watch {
    orders: Sender<Vec<String>>,
    reports: Receiver<Report>,
    /// When the look was ordered that is still to come.
    asked: Option<Instant>,
    /// Whether a look has ended.
    has_heard: bool,
    last: BTreeMap<String, Facts>,
    /// Why the last look found nothing. What one before it found holds.
    error: Option<String>,
}

impl Watch {
    /// Starts the thread. `library` finds NVML: it is there once a driver is loaded.
    pub fn start(library: impl Fn() -> Option<PathBuf> + Send + 'static) -> Self {
        let (orders, for_thread) = mpsc::channel();
        let (from_thread, reports) = mpsc::channel();
        // Without a thread the receivers are dropped, and nothing is ever heard.
        let _ = thread::Builder::new().spawn(move || run(&library, &for_thread, &from_thread));
        Self {
            orders,
            reports,
            asked: None,
            has_heard: false,
            last: BTreeMap::new(),
            error: None,
        }
    }

    /// Orders a look at the GPUs of these PCI addresses, and returns what the last one found.
    ///
    /// # Errors
    ///
    /// Says why nothing can be known. What was known before is returned all the same: a GPU that
    /// waits for its reset does so, too, while NVML cannot be opened.
    pub fn look(&mut self, gpus: Vec<String>) -> (BTreeMap<String, Facts>, Option<String>) {
        if self.asked.is_none() {
            self.asked = self.orders.send(gpus).is_ok().then(Instant::now);
        }
        let patience = match self.has_heard {
            true => Duration::ZERO,
            false => FIRST_WAIT,
        };
        match self.reports.recv_timeout(patience) {
            Ok(report) => {
                self.asked = None;
                self.error = report.map(|facts| self.last.extend(facts)).err();
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        self.has_heard = true;
        let is_silent = self.asked.is_some_and(|since| since.elapsed() > SILENCE);
        let silence = is_silent.then(|| "NVML does not answer".to_owned());
        (self.last.clone(), silence.or(self.error.clone()))
    }
}

/// Looks whenever that is ordered, until the keeper is gone.
fn run(
    library: &dyn Fn() -> Option<PathBuf>,
    orders: &Receiver<Vec<String>>,
    reports: &Sender<Report>,
) {
    let mut nvml = None;
    for gpus in orders {
        let started = Instant::now();
        let report = look(&mut nvml, library, &gpus);
        let is_well = |report: &Report| match report {
            Ok(facts) => facts.values().all(|facts| facts.needs.is_none()),
            Err(_) => false,
        };
        let mut rest = Duration::ZERO;
        if !is_well(&report) {
            nvml = None;
            rest = started.elapsed() * CLOSED;
        }
        if reports.send(report).is_err() {
            return;
        }
        thread::sleep(rest);
    }
}

fn look(nvml: &mut Option<Nvml>, library: &dyn Fn() -> Option<PathBuf>, gpus: &[String]) -> Report {
    let nvml = match nvml {
        Some(nvml) => nvml,
        // The driver's libraries are reported where containers lack them.
        None => match library() {
            None => return Ok(BTreeMap::new()),
            Some(path) => nvml.insert(open(&path)?),
        },
    };
    let facts = |pci: &String| Some((pci.clone(), facts(nvml, pci)?));
    Ok(gpus.iter().filter_map(facts).collect())
}

fn open(path: &Path) -> Result<Nvml, String> {
    let opened = Nvml::builder().lib_path(path.as_os_str()).init();
    opened.map_err(|error| format!("{} cannot be used: {error}", path.display()))
}

/// Returns what NVML says of a GPU, if it says something. A driver that does not know an answer
/// gives none.
fn facts(nvml: &Nvml, pci: &str) -> Option<Facts> {
    let device = match nvml.device_by_pci_bus_id(pci) {
        Ok(device) => device,
        Err(error) => {
            return Some(Facts {
                capability: None,
                needs: needs_after(&error)?,
            })
        }
    };
    let capability = device.cuda_compute_capability();
    let capability = capability.map(|version| format!("{}.{}", version.major, version.minor));
    let needs = recovery(&device).or_else(|error| needs_after(&error).ok_or(error));
    Some(Facts {
        capability: capability.ok(),
        needs: needs.ok()?,
    })
}

/// Returns the recovery action that the driver wants, if it wants one.
fn recovery(device: &Device<'_>) -> Result<Option<String>, NvmlError> {
    let samples = device.field_values_for(&[FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)])?;
    let sample = samples.into_iter().next().ok_or(NvmlError::NotFound)??;
    let action = match sample.value? {
        SampleValue::U32(action) => u64::from(action),
        SampleValue::U64(action) => action,
        _ => return Err(NvmlError::NotSupported),
    };
    Ok(name(action))
}

/// Returns the name of an action. One that is not known is one all the same.
fn name(action: u64) -> Option<String> {
    let at = action.checked_sub(1)?;
    let known = usize::try_from(at).ok().and_then(|at| ACTIONS.get(at));
    Some(known.map_or_else(|| format!("action-{action}"), |name| (*name).to_owned()))
}

/// Returns what a GPU needs of which NVML says this in place of an answer; `None` if that says
/// nothing, as a GPU does that is too sick to answer.
fn needs_after(error: &NvmlError) -> Option<Option<String>> {
    match error {
        NvmlError::GpuLost => Some(Some(LOST.to_owned())),
        NvmlError::ResetRequired => Some(Some(ACTIONS[0].to_owned())),
        // A driver that does not know the question.
        NvmlError::NotSupported | NvmlError::InvalidArg | NvmlError::NotFound => Some(None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_but_none_has_a_name() {
        assert_eq!(name(0), None);
        assert_eq!(name(1).as_deref(), Some("gpu-reset"));
        assert_eq!(name(7).as_deref(), Some("system-reboot"));
        assert_eq!(name(8).as_deref(), Some("action-8"));
    }

    #[test]
    fn a_library_that_is_none_is_an_error_and_no_library_is_not() {
        let mut none = Watch::start(|| None);
        assert_eq!(none.look(vec!["a".into()]), (BTreeMap::new(), None));
        let mut broken = Watch::start(|| Some("/dev/null".into()));
        let (facts, error) = broken.look(vec!["a".into()]);
        assert!(facts.is_empty());
        assert!(error.unwrap().starts_with("/dev/null cannot be used: "));
    }
}
