// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Changes the clocks of GPUs in a thread of its own: a call may take some 50 ms, and one to a GPU
//! that fell off its bus may never return.
//!
//! The thread gives each GPU its highest clock back before its first change, because a daemon may
//! have been killed, and at the end.

mod nvml;

pub(crate) use nvml::open;

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// How long a change of the clock takes (LithOS, section 5.6).
const SWITCH: Duration = Duration::from_millis(50);

/// How long the end of the daemon waits for the clocks.
const END: Duration = Duration::from_secs(5);

/// What sets clocks. Errors are for the log.
pub(crate) trait Device {
    /// Returns the clocks of the GPU at a PCI address, in MHz.
    fn supported(&mut self, pci: &str) -> Result<Vec<u32>, String>;

    /// Keeps its clock between two of them.
    fn keep(&mut self, pci: &str, least: u32, most: u32) -> Result<(), String>;

    /// Ends that.
    fn release(&mut self, pci: &str) -> Result<(), String>;

    /// Returns the processes with a context.
    fn processes(&mut self, pci: &str) -> Result<Vec<u32>, String>;
}

/// What the thread is to do with a GPU, by its number of the resource manager.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// Find the clocks of the GPU at a PCI address.
    Find(String),
    /// Make this the highest clock, in MHz.
    Keep(u32),
    /// Give the highest clock back.
    Release,
    /// List the processes with a context.
    List,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// Its clocks, in MHz, from the lowest one; at least one.
    Found(Vec<u32>),
    /// The clock is changed.
    Changed,
    /// It is not, or the highest one was given back in its place.
    Refused(String),
    /// The processes; an error if they cannot be seen.
    Processes(Result<Vec<u32>, String>),
}

/// A GPU that the thread knows.
#[derive(Debug)]
struct Gpu {
    pci: String,
    lowest: u32,
    /// Whether its clock is kept low.
    kept: bool,
}

/// The thread, seen from the daemon.
#[derive(Debug)]
pub(crate) struct Worker {
    orders: Option<Sender<(u32, Order)>>,
    reports: Receiver<(u32, Report)>,
}

impl Worker {
    /// Starts the thread, which opens its device first. Without one it gives up with a message.
    pub(crate) fn start<D: Device>(
        open: impl FnOnce() -> Result<D, String> + Send + 'static,
    ) -> Self {
        let (orders, for_thread) = mpsc::channel();
        let (from_thread, reports) = mpsc::channel();
        std::thread::spawn(move || match open() {
            Ok(device) => run(device, &for_thread, &from_thread),
            Err(error) => tracing::warn!("cannot change clocks: {error}; slip.power stays off"),
        });
        Self {
            orders: Some(orders),
            reports,
        }
    }

    /// Orders something.
    pub(crate) fn order(&self, gpu: u32, order: Order) {
        if let Some(orders) = &self.orders {
            // Fails if there is no device, which the thread has said.
            let _ = orders.send((gpu, order));
        }
    }

    /// Returns the next report, if there is one.
    pub(crate) fn report(&self) -> Option<(u32, Report)> {
        self.reports.try_recv().ok()
    }
}

impl Drop for Worker {
    /// Waits until all GPUs have their highest clock again.
    fn drop(&mut self) {
        self.orders = None;
        let end = Instant::now() + END;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.reports.recv_timeout(left) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    return tracing::error!("NVML does not answer; a clock may be low still");
                }
            }
        }
    }
}

/// Carries out orders until the daemon ends.
fn run<D: Device>(mut device: D, orders: &Receiver<(u32, Order)>, reports: &Sender<(u32, Report)>) {
    let mut gpus = BTreeMap::new();
    for (number, order) in orders {
        if let Some(report) = carry_out(&mut device, &mut gpus, number, order) {
            // Fails once the daemon waits no longer.
            let _ = reports.send((number, report));
        }
    }
    for gpu in gpus.values().filter(|gpu| gpu.kept) {
        if let Err(error) = device.release(&gpu.pci) {
            tracing::error!("the clock of {} stays low: {error}", gpu.pci);
        }
    }
}

fn carry_out<D: Device>(
    device: &mut D,
    gpus: &mut BTreeMap<u32, Gpu>,
    number: u32,
    order: Order,
) -> Option<Report> {
    if let Order::Find(pci) = order {
        let found = device.release(&pci).and_then(|()| device.supported(&pci));
        return match found {
            Ok(mut clocks) => {
                clocks.sort_unstable();
                clocks.retain(|clock| *clock > 0);
                let lowest = *clocks.first()?;
                let kept = false;
                gpus.insert(number, Gpu { pci, lowest, kept });
                Some(Report::Found(clocks))
            }
            Err(error) => {
                tracing::warn!("cannot change the clock of {pci}: {error}; slip.power stays off");
                None
            }
        };
    }
    let gpu = gpus.get_mut(&number)?;
    let changed = match order {
        Order::Find(_) => return None,
        Order::List => return Some(Report::Processes(device.processes(&gpu.pci))),
        Order::Keep(most) => {
            gpu.kept = true;
            device.keep(&gpu.pci, gpu.lowest.min(most), most)
        }
        Order::Release => device.release(&gpu.pci).map(|()| gpu.kept = false),
    };
    Some(match changed {
        Ok(()) => {
            std::thread::sleep(SWITCH);
            Report::Changed
        }
        Err(error) => {
            if let Err(again) = device.release(&gpu.pci) {
                tracing::error!("the clock of {} may be low: {again}", gpu.pci);
            }
            Report::Refused(error)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A device that writes down what is called.
    #[derive(Clone, Default)]
    struct Fake {
        calls: Arc<Mutex<Vec<String>>>,
        fails: &'static str,
    }

    impl Fake {
        fn call(&self, call: String) -> Result<(), String> {
            let fails = !self.fails.is_empty() && call.starts_with(self.fails);
            self.calls.lock().unwrap().push(call);
            match fails {
                true => Err("no".into()),
                false => Ok(()),
            }
        }
    }

    impl Device for Fake {
        fn supported(&mut self, pci: &str) -> Result<Vec<u32>, String> {
            self.call(format!("supported {pci}"))
                .map(|()| vec![900, 300, 600])
        }

        fn keep(&mut self, pci: &str, least: u32, most: u32) -> Result<(), String> {
            self.call(format!("keep {pci} {least} {most}"))
        }

        fn release(&mut self, pci: &str) -> Result<(), String> {
            self.call(format!("release {pci}"))
        }

        fn processes(&mut self, pci: &str) -> Result<Vec<u32>, String> {
            self.call(format!("processes {pci}")).map(|()| vec![7])
        }
    }

    /// Returns the reports and the calls of these orders.
    fn carry(fails: &'static str, orders: &[Order]) -> (Vec<Report>, Vec<String>) {
        let fake = Fake {
            fails,
            ..Fake::default()
        };
        let calls = fake.calls.clone();
        let worker = Worker::start(|| Ok(fake));
        orders
            .iter()
            .for_each(|order| worker.order(3, order.clone()));
        let mut reports = Vec::new();
        while reports.len() < orders.len() {
            let report = worker.reports.recv_timeout(Duration::from_secs(20));
            reports.push(report.unwrap().1);
        }
        drop(worker);
        let calls = calls.lock().unwrap().clone();
        (reports, calls)
    }

    fn find() -> Order {
        Order::Find("a".into())
    }

    #[test]
    fn a_clock_that_was_lowered_is_given_back_at_the_end() {
        let (reports, calls) = carry("", &[find(), Order::Keep(600), Order::List]);
        let found = Report::Found(vec![300, 600, 900]);
        let processes = Report::Processes(Ok(vec![7]));
        assert_eq!(reports, [found, Report::Changed, processes]);
        let kept = [
            "release a",
            "supported a",
            "keep a 300 600",
            "processes a",
            "release a",
        ];
        assert_eq!(calls, kept);
        let (_, calls) = carry("", &[find(), Order::Keep(600), Order::Release]);
        assert_eq!(calls[2..], ["keep a 300 600", "release a"], "once");
        let (_, calls) = carry("", &[find()]);
        assert_eq!(calls, ["release a", "supported a"]);
    }

    #[test]
    fn a_refused_change_gives_the_highest_clock_back() {
        let (reports, calls) = carry("keep", &[find(), Order::Keep(600)]);
        assert_eq!(reports[1], Report::Refused("no".into()));
        assert_eq!(calls[2..], ["keep a 300 600", "release a", "release a"]);
    }

    #[test]
    fn a_gpu_whose_clock_cannot_be_given_back_is_left_alone() {
        for fails in ["release", "supported"] {
            let fake = Fake {
                fails,
                ..Fake::default()
            };
            let calls = fake.calls.clone();
            let worker = Worker::start(|| Ok(fake));
            worker.order(3, find());
            worker.order(3, Order::Keep(600));
            // It carries out what was ordered.
            drop(worker);
            let calls = calls.lock().unwrap().clone();
            assert!(
                !calls.iter().any(|call| call.starts_with("keep")),
                "{calls:?}"
            );
        }
        let worker = Worker::start(|| Err::<Fake, _>("no library".into()));
        worker.order(3, find());
        assert_eq!(worker.report(), None);
    }
}
