// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the gctgroup tree as OpenMetrics over HTTP.

mod convert;
mod kubelet;
mod metrics;
mod pod;
mod reader;
mod samples;
mod server;
mod text;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use gct_client::{Tree, DEFAULT_ROOT};
use gctd_ipc::paths::SocketPaths;
use tokio::net::TcpListener;
use tokio::runtime;

use crate::kubelet::Kubelet;
use crate::reader::Reader;

/// Threads that may wait for the tree. One reads; the others wait for its page.
const BLOCKING_THREADS: usize = 4;

/// Serves the gctgroup tree as OpenMetrics at /metrics.
#[derive(Debug, Parser)]
#[command(name = "gct-exporter", version)]
struct Options {
    /// Directory of the tree.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_ROOT)]
    root: PathBuf,

    /// Use the daemon of the user-space mode instead of the kernel's tree.
    #[arg(long, conflicts_with = "root")]
    user: bool,

    /// The daemon's directory; implies --user.
    #[arg(long, value_name = "DIR", conflicts_with = "root")]
    dir: Option<PathBuf>,

    /// Address and port to listen at. Port 0 takes a free one, which is printed.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9910")]
    listen: SocketAddr,

    /// Print the metrics once as Prometheus's text, for a textfile collector, and listen nowhere.
    #[arg(long, conflicts_with_all = ["listen", "pod_resources"])]
    once: bool,

    /// A directory as /proc: also count processes that have a GPU open and that gctd does not know.
    /// It takes the privilege to see the descriptors of all (CAP_SYS_PTRACE).
    #[arg(long, value_name = "DIR")]
    proc: Option<PathBuf>,

    #[command(flatten)]
    limits: Limits,

    /// Also give samples the labels of NVIDIA's DCGM exporter: UUID and modelName of the GPU,
    /// namespace, pod and container of the group.
    #[arg(long)]
    dcgm_labels: bool,

    /// The kubelet's socket of pods, /var/lib/kubelet/pod-resources/kubelet.sock: names namespace,
    /// pod and container of groups.
    #[arg(long, value_name = "SOCKET")]
    pod_resources: Option<PathBuf>,
}

/// How many owners have samples.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Limits {
    /// Most groups with samples, in the order of their names.
    #[arg(long = "groups-max", value_name = "COUNT", default_value_t = 512)]
    groups: usize,

    /// Most processes with samples, the lowest pids. Each process makes new series, so the default
    /// is none.
    #[arg(long = "processes-max", value_name = "COUNT", default_value_t = 0)]
    processes: usize,
}

impl Options {
    fn reader(&self, kubelet: Kubelet) -> Reader {
        Reader::new(self.tree(), self.limits, kubelet, self.proc.clone())
            .with_dcgm_labels(self.dcgm_labels)
    }

    fn tree(&self) -> Tree {
        match &self.dir {
            Some(directory) => Tree::of_daemon(SocketPaths::of(directory)),
            None if self.user => Tree::of_daemon(SocketPaths::from_environment()),
            None => Tree::of_kernel(&self.root, Some(SocketPaths::from_environment())),
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match options.once {
        true => print(&options),
        false => serve(&options).map(|never| match never {}),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gct-exporter: {}", gct_client::one_line(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Prints the metrics once. A tree that cannot be read has `gctgroup_up` 0, as when it is scraped.
fn print(options: &Options) -> anyhow::Result<()> {
    let mut reader = options.reader(Kubelet::default());
    let page = text::render(&reader.read())?;
    io::stdout().write_all(page.as_bytes())?;
    Ok(())
}

fn serve(options: &Options) -> anyhow::Result<std::convert::Infallible> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .context("The runtime cannot start")?;
    runtime.block_on(async {
        let listener = TcpListener::bind(options.listen).await;
        let listener = listener.with_context(|| {
            format!(
                "Cannot listen at {}; choose another address with --listen",
                options.listen
            )
        })?;
        eprintln!("gct-exporter: listening at {}", listener.local_addr()?);
        let kubelet = Kubelet::default();
        if let Some(socket) = options.pod_resources.clone() {
            let kubelet = kubelet.clone();
            tokio::spawn(async move { kubelet.ask(&socket).await });
        }
        let reader = options.reader(kubelet);
        Ok(server::run(listener, reader).await)
    })
}
