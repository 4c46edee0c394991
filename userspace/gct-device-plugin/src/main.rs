// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device plugin, and the hooks that container runtimes execute.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use gct_device_plugin::cdi::Host;
use gct_device_plugin::container::State;
use gct_device_plugin::dra::client::{Server, ServerOptions};
use gct_device_plugin::dra::plugin::Driver as ClaimsDriver;
use gct_device_plugin::dra::publish::Publisher;
use gct_device_plugin::dra::DRIVER;
use gct_device_plugin::driver::Driver;
use gct_device_plugin::gpus::Offer;
use gct_device_plugin::keeper::Keeper;
use gct_device_plugin::mps::Control;
use gct_device_plugin::nri::plugin::Plugin;
use gct_device_plugin::place::Places;
use gct_device_plugin::profiles::{self, Config, Sharing};
use gct_device_plugin::records::Share;
use gct_device_plugin::registration::Registration;
use gct_device_plugin::service::Service;
use gct_device_plugin::{bundle, cdi, groups, pods, runtime};
use gctd_ipc::paths::library_of;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::{watch, Mutex, Notify};
use tokio::task::JoinSet;

/// Most bytes of a container's state. Its annotations are the pod's author's.
const STATE_BYTES_MAX: u64 = 1 << 20;

/// Shares GPUs among the containers of a Kubernetes node.
#[derive(Debug, Parser)]
#[command(name = "gct-device-plugin", version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Announce the profiles to the kubelet.
    Serve(Box<Serve>),
    /// Make a container's group (a createRuntime hook; reads the container's state).
    Bind(Bind),
    /// Remove a container's group (a poststop hook; reads the container's state).
    Release(Places),
    /// Be the OCI runtime: take a container's processes from their MPS server before it is killed.
    Runtime(Box<runtime::Options>),
}

#[derive(Debug, Args)]
struct Serve {
    /// The file of profiles.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/gctgroup/profiles.toml"
    )]
    profiles: PathBuf,

    /// The kubelet's folder.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet: PathBuf,

    /// Directory for the CDI specs.
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    cdi: PathBuf,

    /// Directory with the driver's device nodes.
    #[arg(long, value_name = "DIR", default_value = "/dev")]
    devices: PathBuf,

    /// The host's devices.
    #[arg(long, value_name = "DIR", default_value = "/sys")]
    sys: PathBuf,

    /// The root file system on the host with the driver's libraries.
    #[arg(long, value_name = "DIR", default_value = "/")]
    driver_root: PathBuf,

    /// Where this program sees that. Default: the same.
    #[arg(long, value_name = "DIR")]
    driver_seen: Option<PathBuf>,

    /// The program that the runtime executes as hook. Default: this one.
    #[arg(long, value_name = "PATH")]
    hook: Option<PathBuf>,

    /// The library of the user-space mode. Default: libgct_preload.so beside this program, else in
    /// ../lib/gctgroup, else in ../lib.
    #[arg(long, value_name = "PATH", requires = "dir")]
    preload: Option<PathBuf>,

    /// The program that starts and asks MPS daemons.
    #[arg(long, value_name = "PATH", default_value = "nvidia-cuda-mps-control")]
    mps_control: PathBuf,

    /// Directory for the MPS daemons.
    #[arg(long, value_name = "DIR", default_value = "/run/gctgroup-mps")]
    mps: PathBuf,

    /// What MPS daemons have as /dev/shm already: mount nothing. Default: a tmpfs for each.
    #[arg(long, value_name = "DIR")]
    mps_shm: Option<PathBuf>,

    /// The runtime's socket for plugins, for [nri].
    #[arg(long, value_name = "PATH", default_value = "/var/run/nri/nri.sock")]
    nri: PathBuf,

    /// Seconds between two looks at the tree and the pods.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    interval: Duration,

    /// This node's name, for [dra]. Default: $NODE_NAME.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,

    #[command(flatten)]
    server: ServerOptions,

    #[command(flatten)]
    places: Places,
}

#[derive(Debug, Args)]
struct Bind {
    /// The profile.
    #[arg(long, value_name = "NAME")]
    profile: String,

    /// The GPU's index.
    #[arg(long, value_name = "INDEX")]
    gpu: u32,

    /// The number of the GPU's node. The container may have no other GPU's.
    #[arg(long, value_name = "NUMBER")]
    minor: Option<u32>,

    /// The container is a client of the GPU's MPS daemon.
    #[arg(long)]
    mps: bool,

    /// The claim's device that this is.
    #[arg(long, value_name = "NAME")]
    claim: Option<String>,

    /// The most containers of the profile on that GPU, where nobody else counts them.
    #[arg(long, value_name = "COUNT")]
    slots: Option<u32>,

    /// A limit on that GPU.
    #[arg(long = "limit", value_name = "FILE=VALUE")]
    limits: Vec<String>,

    #[command(flatten)]
    places: Places,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    let interval = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    match interval >= Duration::from_millis(100) {
        true => Ok(interval),
        false => Err("at least 0.1".to_owned()),
    }
}

fn main() -> ExitCode {
    let done = match Options::parse_from(runtime::command_line()).command {
        Command::Serve(options) => serve(*options),
        Command::Bind(options) => bind(&options),
        Command::Runtime(options) => runtime::run(&options),
        Command::Release(places) => state().and_then(|state| groups::release(&places, &state)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "gct-device-plugin: {}",
                gct_client::one_line(error.as_ref())
            );
            ExitCode::FAILURE
        }
    }
}

/// Reads the state that the runtime writes to its hook's input.
fn state() -> Result<State> {
    let mut text = Vec::new();
    io::stdin().take(STATE_BYTES_MAX).read_to_end(&mut text)?;
    State::parse(&text)
}

fn bind(options: &Bind) -> Result<()> {
    let limits = options.limits.iter().map(|limit| {
        let (file, value) = limit.split_once('=').context("A limit is FILE=VALUE")?;
        let limit = profiles::limit(file, value)?;
        Ok((limit.entry.name.to_owned(), limit.content.to_string()))
    });
    let share = Share {
        profile: options.profile.clone(),
        limits: limits.collect::<Result<_>>()?,
        mps: options.mps,
        claim: options.claim.clone(),
        slots: options.slots,
    };
    let state = state()?;
    let user_mode = options.places.dir.is_some();
    if user_mode || options.minor.is_some() {
        let config = bundle::Config::read(&state.bundle)?;
        if options.minor.is_some() {
            config.check_gpus()?;
        }
        if user_mode {
            config.preload(cdi::LIBRARY)?;
        }
    }
    groups::bind(&options.places, &state, options.gpu, &share)
}

fn serve(options: Serve) -> Result<()> {
    let host = Arc::new(host(&options)?);
    let config = profiles::read(&options.profiles)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(options, host, config))
}

fn host(options: &Serve) -> Result<Host> {
    let own = std::env::current_exe().context("The path of this program is unknown")?;
    let library = match options.places.dir {
        // A named one is a path of the host, which may not be seen from here.
        Some(_) => Some(match &options.preload {
            Some(path) => path.clone(),
            None => library_of(&own)?,
        }),
        None => None,
    };
    Ok(Host {
        specs: options.cdi.clone(),
        devices: options.devices.clone(),
        hook: options.hook.clone().unwrap_or(own),
        library,
        sys: options.sys.clone(),
        driver: driver(options),
        places: options.places.clone(),
        mps: Arc::new(Control {
            program: options.mps_control.clone(),
            folder: options.mps.clone(),
            shm: options.mps_shm.clone(),
        }),
    })
}

fn driver(options: &Serve) -> Driver {
    let root = options.driver_root.clone();
    Driver {
        seen: options.driver_seen.clone().unwrap_or(root.clone()),
        version: options.places.proc.join("driver/nvidia/version"),
        root,
    }
}

/// Serves until SIGTERM or SIGINT. Groups stay: their containers run on.
async fn run(options: Serve, host: Arc<Host>, config: Config) -> Result<()> {
    let others = host.remove_others(&config);
    for purpose in others.with_context(|| format!("{}", host.specs.display()))? {
        eprintln!("gct-device-plugin: removed the CDI spec of {purpose}");
    }
    if host.driver.files().is_empty() {
        eprintln!(
            "gct-device-plugin: no libcuda of the loaded driver is below {}: containers get none",
            host.driver.seen.display()
        );
    }
    let tenants = Arc::default();
    let mut registrations = JoinSet::new();
    let mut announced = Vec::new();
    for profile in config.profiles {
        let (sender, slots) = watch::channel(Vec::new());
        let service = Service {
            profile: Arc::new(profile.clone()),
            slots,
            streams: Arc::default(),
            tenants: Arc::clone(&tenants),
            places: Arc::new(options.places.clone()),
            mps: Arc::clone(&host.mps),
        };
        registrations.spawn(Registration::new(service, &options.kubelet).run());
        announced.push((profile, sender));
    }
    let (sender, gpus) = watch::channel(Vec::new());
    let drivers = match &config.claims {
        Some(claims) => Some(claims_driver(&options, &host, gpus, claims.share)?),
        None => None,
    };
    let mut apart = Vec::new();
    apart.extend(config.claims.map(|claims| (claims, sender)));
    let plugin = config.annotations.map(|annotations| {
        let (sender, gpus) = watch::channel(Vec::new());
        apart.push((annotations.apart.clone(), sender));
        Plugin::new(Arc::clone(&host), annotations, gpus)
    });
    let keeper = Arc::new(Mutex::new(Keeper::new(host, announced, tenants, apart)));
    // A mistake in the profiles is one to start with. Later, when a GPU changes, the plugin goes
    // on.
    pass(&keeper, &options.kubelet).await?;
    if let Some((driver, publisher)) = drivers {
        registrations.spawn(driver.run(options.kubelet.clone()));
        registrations.spawn(async {
            publisher.run().await;
            Ok(())
        });
    }
    if let Some(plugin) = plugin {
        let socket = options.nri.clone();
        registrations.spawn(async move {
            plugin.run(&socket).await;
            Ok(())
        });
    }
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let keep = async {
        loop {
            tokio::time::sleep(options.interval).await;
            let _ = pass(&keeper, &options.kubelet).await;
        }
    };
    let done = tokio::select! {
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
        () = keep => Ok(()),
        Some(ended) = registrations.join_next() => ended?,
    };
    registrations.shutdown().await;
    done
}

/// Returns the driver of claims, and what publishes their GPUs.
fn claims_driver(
    options: &Serve,
    host: &Arc<Host>,
    gpus: watch::Receiver<Vec<Offer>>,
    share: Sharing,
) -> Result<(ClaimsDriver, Publisher)> {
    let own = || std::env::var("NODE_NAME").ok();
    let node = options.node.clone().or_else(own);
    let node = node.context("For [dra], name this node with --node or NODE_NAME")?;
    let server = Server::new(&options.server)?;
    let bell = Arc::new(Notify::new());
    let driver = ClaimsDriver {
        host: Arc::clone(host),
        server: server.clone(),
        node: node.clone(),
        gpus: gpus.clone(),
        share,
        bell: Arc::clone(&bell),
        endpoint: options
            .kubelet
            .join("plugins")
            .join(DRIVER)
            .join("dra.sock"),
    };
    let publisher = Publisher {
        server,
        node,
        driver: host.driver.clone(),
        gpus,
        bell,
        taints: true,
    };
    Ok((driver, publisher))
}

/// Does one pass in a thread, for the tree may take its time.
async fn pass(keeper: &Arc<Mutex<Keeper>>, kubelet: &Path) -> Result<()> {
    let pods = pods::list(kubelet).await;
    let mut keeper = Arc::clone(keeper).lock_owned().await;
    tokio::task::spawn_blocking(move || keeper.pass(pods.as_ref())).await?
}
