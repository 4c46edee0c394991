// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes and removes groups in a thread of its own, in the order in which the runtime says what
//! happens. The runtime waits for answers, and the tree may take its time.
//!
//! ```text
//! adoption    refused when too many wait
//! release     never refused, and after the adoption that came before it
//! ```
//!
//! What waits is bounded: a container has one release that waits, and none unless it has a group or
//! its adoption waits. The runtime reports the end of every container of the node.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{ensure, Result};

/// Most adoptions that wait.
const ADOPTIONS_MAX: usize = 1024;

type Job = Box<dyn FnOnce() + Send>;

enum Kind {
    Adoption,
    Release,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Kind, String, Job)>,
    /// How many adoptions of a container wait or run.
    adoptions: HashMap<String, usize>,
    /// Containers whose release waits, with no adoption behind it.
    releases: HashSet<String>,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let mut queue = self.lock();
            let (kind, id, job) = loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.is_closed {
                    return;
                }
                let woken = self.changed.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
            };
            // One that comes while this runs may be about a later group.
            if matches!(kind, Kind::Release) {
                queue.releases.remove(&id);
            }
            drop(queue);
            // A job that panics has said so. The others must be done all the same.
            let _ = catch_unwind(AssertUnwindSafe(job));
            if matches!(kind, Kind::Adoption) {
                self.lock().adopted(&id);
            }
        }
    }
}

impl Queue {
    fn adopted(&mut self, id: &str) {
        if let Some(count) = self.adoptions.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                self.adoptions.remove(id);
            }
        }
    }
}

/// The thread, until this value is dropped. What waits when the process ends is done by the next
/// one's first pass.
pub(super) struct Worker {
    shared: Arc<Shared>,
}

impl Worker {
    /// Starts the thread.
    pub(super) fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        thread::spawn(move || own.run());
        Self { shared }
    }

    /// Has a container adopted.
    ///
    /// # Errors
    ///
    /// Fails if too many wait.
    pub(super) fn adopt(&self, id: &str, job: impl FnOnce() + Send + 'static) -> Result<()> {
        let mut queue = self.shared.lock();
        let waiting: usize = queue.adoptions.values().sum();
        ensure!(
            waiting < ADOPTIONS_MAX,
            "{waiting} others wait to be adopted"
        );
        *queue.adoptions.entry(id.to_owned()).or_default() += 1;
        // A release that waits comes before this, and not after it.
        queue.releases.remove(id);
        let job = (Kind::Adoption, id.to_owned(), Box::new(job) as Job);
        queue.jobs.push_back(job);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Has a container released, if it has a group or its adoption waits.
    pub(super) fn release(&self, id: &str, has_group: bool, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.lock();
        let is_known = has_group || queue.adoptions.contains_key(id);
        if is_known && queue.releases.insert(id.to_owned()) {
            let job = (Kind::Release, id.to_owned(), Box::new(job) as Job);
            queue.jobs.push_back(job);
            self.shared.changed.notify_one();
        }
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting = self.shared.lock().jobs.len();
        f.debug_struct("Worker").field("waiting", &waiting).finish()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{channel, Receiver, Sender};

    /// A worker whose first job has begun, and ends when the sender is dropped.
    fn busy() -> (Worker, Sender<()>, Sender<String>, Receiver<String>) {
        let worker = Worker::start();
        let (tree, waits) = channel::<()>();
        let (begins, begun) = channel();
        let job = move || {
            begins.send(()).unwrap();
            let _ = waits.recv();
        };
        worker.release("first", true, job);
        begun.recv().unwrap();
        let (done, seen) = channel();
        (worker, tree, done, seen)
    }

    fn job(done: &Sender<String>, what: &str, id: &str) -> impl FnOnce() + Send + 'static {
        let (done, says) = (done.clone(), format!("{what} {id}"));
        move || done.send(says).unwrap()
    }

    #[test]
    fn a_release_comes_after_its_adoption_and_is_never_lost() {
        let (worker, tree, done, seen) = busy();
        let ids: Vec<String> = (0..=ADOPTIONS_MAX).map(|n| format!("c{n}")).collect();
        let adopt = |id: &String| worker.adopt(id, job(&done, "adopt", id)).is_ok();
        let (adopted, refused): (Vec<&String>, Vec<&String>) = ids.iter().partition(|id| adopt(id));
        assert_eq!(refused, [&ids[ADOPTIONS_MAX]]);
        // Nothing is full for these, and each is done once.
        for id in ids.iter().chain(&ids) {
            worker.release(id, false, job(&done, "release", id));
        }
        worker.release("bound", true, job(&done, "release", "bound"));
        drop((tree, done));
        let of = |what: &str| {
            adopted
                .iter()
                .map(move |id| format!("{what} {id}"))
                .collect()
        };
        let (adoptions, releases): (Vec<_>, Vec<_>) = (of("adopt"), of("release"));
        let bound = vec!["release bound".to_owned()];
        let seen: Vec<String> = seen.iter().collect();
        assert_eq!(seen, [adoptions, releases, bound].concat());
    }

    #[test]
    fn a_container_that_nobody_knows_costs_no_job() {
        let (worker, tree, done, seen) = busy();
        worker.release("other", false, job(&done, "release", "other"));
        drop((tree, done));
        assert_eq!(seen.iter().count(), 0);
    }

    #[test]
    fn a_release_behind_a_second_adoption_is_another() {
        let (worker, tree, done, seen) = busy();
        let release = || worker.release("c", true, job(&done, "release", "c"));
        release();
        worker.adopt("c", job(&done, "adopt", "c")).unwrap();
        release();
        release();
        drop((tree, done));
        let seen: Vec<String> = seen.iter().collect();
        assert_eq!(seen, ["release c", "adopt c", "release c"]);
    }
}
