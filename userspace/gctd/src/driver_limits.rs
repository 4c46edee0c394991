// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Has the driver itself limit the device memory of cgroups, in a thread of its own: a call to a
//! GPU that fell off its bus may never return.
//!
//! The thread makes the driver's limits those that the daemon wants. It looks again every [`LOOK`]:
//! a cgroup may come later than its limit, and one that is made anew has none.
//!
//! Limits outlive the daemon, as groups do: the next one has the same groups.

mod nvml;

pub(crate) use nvml::load;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time between two looks at cgroups.
const LOOK: Duration = Duration::from_secs(5);

/// A GPU's PCI address, and the directory of a cgroup.
pub(crate) type Place = (String, PathBuf);
/// The limits that are wanted, in bytes.
pub(crate) type Wanted = BTreeMap<Place, u64>;

/// What sets limits. Errors are for the log.
pub(crate) trait Device {
    /// Limits the memory that processes of a cgroup may have on the GPU at a PCI address; `None`
    /// ends the limit.
    fn limit(&mut self, pci: &str, cgroup: &Path, most: Option<u64>) -> Result<(), String>;
}

/// The thread, seen from the daemon.
#[derive(Debug)]
pub(crate) struct Worker {
    /// What is wanted, and the thread has not seen yet. A newer one takes its place: a call that
    /// never returns leaves one behind it.
    newest: Arc<Mutex<Option<Wanted>>>,
    bell: SyncSender<()>,
}

impl Worker {
    /// Starts the thread.
    pub(crate) fn start<D: Device + Send + 'static>(device: D) -> Self {
        let newest = Arc::<Mutex<Option<Wanted>>>::default();
        let (bell, rings) = mpsc::sync_channel(1);
        let for_thread = Arc::clone(&newest);
        std::thread::spawn(move || run(device, &for_thread, &rings));
        Self { newest, bell }
    }

    /// Says which limits are wanted from now on.
    pub(crate) fn want(&self, wanted: Wanted) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(wanted);
        // A bell that has rung and was not heard yet is enough.
        let _ = self.bell.try_send(());
    }
}

fn run<D: Device>(device: D, newest: &Mutex<Option<Wanted>>, bell: &Receiver<()>) {
    let mut limits = Limits::new(device);
    let mut wanted = Wanted::new();
    loop {
        if bell.recv_timeout(LOOK) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let newer = newest.lock().unwrap_or_else(PoisonError::into_inner).take();
        wanted = newer.unwrap_or(wanted);
        limits.follow(&wanted);
    }
}

/// A limit that the driver has.
#[derive(Debug)]
struct Set {
    most: u64,
    /// Which cgroup of that name it is.
    cgroup: (u64, u64),
}

/// The limits that the driver has.
#[derive(Debug)]
struct Limits<D> {
    device: D,
    set: BTreeMap<Place, Set>,
    /// What was said of a place, so that it is said once.
    said: BTreeSet<(Place, String)>,
}

/// Returns which cgroup has a directory, if one has.
fn cgroup(path: &Path) -> Option<(u64, u64)> {
    let facts = path.metadata().ok()?;
    Some((facts.dev(), facts.ino()))
}

impl<D: Device> Limits<D> {
    fn new(device: D) -> Self {
        Self {
            device,
            set: BTreeMap::new(),
            said: BTreeSet::new(),
        }
    }

    /// Makes the driver's limits those that are wanted, as far as their cgroups exist.
    fn follow(&mut self, wanted: &Wanted) {
        // A limit goes with its cgroup.
        self.set
            .retain(|(_, path), set| cgroup(path) == Some(set.cgroup));
        self.said
            .retain(|(place, _)| wanted.contains_key(place) || self.set.contains_key(place));
        let ended: Vec<Place> = self.set.keys().cloned().collect();
        for place in ended.iter().filter(|place| !wanted.contains_key(place)) {
            if self.order(place, None) {
                self.set.remove(place);
            }
        }
        for (place, most) in wanted {
            let Some(cgroup) = cgroup(&place.1) else {
                continue;
            };
            let is_set = self.set.get(place).is_some_and(|set| set.most == *most);
            if !is_set && self.order(place, Some(*most)) {
                let most = *most;
                self.set.insert(place.clone(), Set { most, cgroup });
            }
        }
    }

    /// Orders a limit, or its end. Says why the driver refuses.
    fn order(&mut self, place: &Place, most: Option<u64>) -> bool {
        let (pci, path) = place;
        match self.device.limit(pci, path, most) {
            Ok(()) => true,
            Err(error) => {
                let path = path.display();
                let what = match most {
                    Some(most) => format!("limit {path} to {most} bytes on {pci}"),
                    None => format!("end the limit of {path} on {pci}"),
                };
                if self.said.insert((place.clone(), error.clone())) {
                    tracing::error!("the driver does not {what}: {error}");
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that writes down what is called.
    #[derive(Debug, Default)]
    struct Fake {
        calls: Vec<String>,
        refuses: bool,
    }

    impl Device for Fake {
        fn limit(&mut self, pci: &str, cgroup: &Path, most: Option<u64>) -> Result<(), String> {
            let name = cgroup.file_name().unwrap().to_str().unwrap();
            let most = most.map_or("max".to_owned(), |most| most.to_string());
            self.calls.push(format!("{pci} {name} {most}"));
            match self.refuses {
                true => Err("no".to_owned()),
                false => Ok(()),
            }
        }
    }

    /// A folder for cgroups.
    struct Cgroups(PathBuf);

    impl Cgroups {
        fn new(test: &str) -> Self {
            let name = format!("gctd-driver-limits-{test}-{}", std::process::id());
            let cgroups = Self(std::env::temp_dir().join(name));
            let _ = std::fs::remove_dir_all(&cgroups.0);
            std::fs::create_dir_all(&cgroups.0).unwrap();
            cgroups
        }

        fn make(&self, name: &str) {
            std::fs::create_dir(self.0.join(name)).unwrap();
        }

        fn wanted(&self, limits: &[(&str, u64)]) -> Wanted {
            let place = |name: &str| ("a".to_owned(), self.0.join(name));
            let limits = limits.iter();
            limits.map(|(name, most)| (place(name), *most)).collect()
        }
    }

    impl Drop for Cgroups {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_limit_is_set_once_changed_and_ended_before_its_cgroup_goes() {
        let cgroups = Cgroups::new("once");
        cgroups.make("x");
        let mut limits = Limits::new(Fake::default());
        for wanted in [&[("x", 5)][..], &[("x", 5)], &[("x", 7)], &[], &[]] {
            limits.follow(&cgroups.wanted(wanted));
        }
        assert_eq!(limits.device.calls, ["a x 5", "a x 7", "a x max"]);
    }

    #[test]
    fn a_cgroup_that_comes_late_or_anew_has_its_limit() {
        let cgroups = Cgroups::new("late");
        let mut limits = Limits::new(Fake::default());
        let wanted = cgroups.wanted(&[("x", 5)]);
        limits.follow(&wanted);
        assert_eq!(limits.device.calls, [""; 0]);
        cgroups.make("x");
        limits.follow(&wanted);
        // Another directory takes its place, so that it has another number.
        cgroups.make("other");
        std::fs::rename(cgroups.0.join("other"), cgroups.0.join("x")).unwrap();
        limits.follow(&wanted);
        assert_eq!(limits.device.calls, ["a x 5", "a x 5"]);
        std::fs::remove_dir(cgroups.0.join("x")).unwrap();
        limits.follow(&cgroups.wanted(&[]));
        assert_eq!(limits.device.calls.len(), 2, "it went with its cgroup");
    }

    #[test]
    fn a_refusal_is_said_once_and_tried_again() {
        let cgroups = Cgroups::new("refused");
        cgroups.make("x");
        let mut limits = Limits::new(Fake::default());
        limits.device.refuses = true;
        let wanted = cgroups.wanted(&[("x", 5)]);
        limits.follow(&wanted);
        limits.follow(&wanted);
        assert_eq!(limits.said.len(), 1);
        limits.device.refuses = false;
        limits.follow(&wanted);
        limits.device.refuses = true;
        limits.follow(&cgroups.wanted(&[]));
        limits.device.refuses = false;
        limits.follow(&cgroups.wanted(&[]));
        let calls = ["a x 5", "a x 5", "a x 5", "a x max", "a x max"];
        assert_eq!(limits.device.calls, calls);
        assert!(limits.set.is_empty());
        limits.follow(&cgroups.wanted(&[]));
        assert!(limits.said.is_empty(), "a place that is no more is kept");
    }

    /// A device whose calls wait for leave, as those of a GPU that hangs.
    struct Hangs(mpsc::Sender<u64>, Receiver<()>);

    impl Device for Hangs {
        fn limit(&mut self, _: &str, _: &Path, most: Option<u64>) -> Result<(), String> {
            self.0.send(most.unwrap_or(0)).unwrap();
            self.1.recv().map_err(|error| error.to_string())
        }
    }

    #[test]
    fn what_waits_for_a_driver_that_hangs_is_the_newest_alone() {
        let cgroups = Cgroups::new("hangs");
        cgroups.make("x");
        let ((called, calls), (leave, waits)) = (mpsc::channel(), mpsc::channel());
        let worker = Worker::start(Hangs(called, waits));
        worker.want(cgroups.wanted(&[("x", 1)]));
        assert_eq!(calls.recv(), Ok(1));
        for most in 2..100 {
            worker.want(cgroups.wanted(&[("x", most)]));
        }
        leave.send(()).unwrap();
        assert_eq!(calls.recv(), Ok(99));
        leave.send(()).unwrap();
        assert_eq!(calls.recv_timeout(Duration::from_millis(50)).ok(), None);
    }
}
