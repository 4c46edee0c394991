// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks the kubelet every [`INTERVAL`] for its pods, beside the scrapes.
//!
//! A scrape uses the last answer and never waits for the kubelet. The answer stays when the kubelet
//! goes: a group is named after its own container, so an old answer lacks pods and names no wrong
//! one.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Error;
use gct_kubelet::group::{Containers, PodContainer};
use gct_kubelet::pods;
use tokio::time;

/// Time from an answer to the next question. The kubelet knows a container before its group exists.
const INTERVAL: Duration = Duration::from_secs(5);

/// What the kubelet said.
#[derive(Debug, Default)]
struct Heard {
    containers: Containers,
    /// Whether the last question was answered; `None` before the first.
    answers: Option<bool>,
}

/// The containers of the node's pods, as far as the kubelet named them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kubelet(Arc<Mutex<Heard>>);

impl Kubelet {
    /// Returns whether the kubelet answered the last question, `None` if it was asked none.
    pub(crate) fn answers(&self) -> Option<bool> {
        self.heard(|heard| heard.answers)
    }

    /// Returns the container that a group is named after, if it is known.
    pub(crate) fn of_group(&self, group: &str) -> Option<PodContainer> {
        self.heard(|heard| heard.containers.of_group(group).cloned())
    }

    /// Asks for ever at a socket.
    pub(crate) async fn ask(&self, socket: &Path) -> Infallible {
        loop {
            let answer = pods::list(socket).await;
            self.hear(answer.map(Containers::new), socket);
            time::sleep(INTERVAL).await;
        }
    }

    /// Keeps an answer. Prints when the kubelet begins to be silent, and when it answers again.
    fn hear(&self, answer: Result<Containers, pods::Error>, socket: &Path) {
        let before = self.heard(|heard| heard.answers.replace(answer.is_ok()));
        match answer {
            Ok(containers) => {
                self.heard(|heard| heard.containers = containers);
                if before == Some(false) {
                    eprintln!("gct-exporter: The kubelet answers again.");
                }
            }
            Err(error) if before != Some(false) => eprintln!(
                "gct-exporter: {}: {:#}. New groups have no labels of pods until it answers.",
                socket.display(),
                Error::from(error)
            ),
            Err(_) => {}
        }
    }

    fn heard<T>(&self, with: impl FnOnce(&mut Heard) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
