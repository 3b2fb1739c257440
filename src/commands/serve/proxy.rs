//! `serve proxy`: the data plane alone. Its configuration arrives on the config API (X14, X15).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueHint;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::args::{LogArgs, Remote, TunnelArgs, WorkerArgs};
use super::direct::{DirectArgs, Ports};
use super::life::{self, Signals};
use crate::commands::Context;
use crate::commands::exit::ExitCode;
use crate::commands::output::{Help as _, Tone, fail};
use crate::proxy::config::{self, Credentials, Delivery, Files, LastGood};
use crate::proxy::drain::{self, Steps};
use crate::proxy::http::{Plane, plane};
use crate::proxy::metrics::Metrics;
use crate::proxy::{admin, connector};

/// Serve the configuration that a controller pushes
///
/// The data plane alone: connector and router. Registers with the edge once it has a configuration, pushed to its config API or,
/// when no controller comes, the last good one of an earlier run. Without any it ends after two minutes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  # As a controller starts it
  kubectl-cftunnel serve proxy --gateway-uid 6d2b… --token-file /token/tunnel-token --auth-token-file /auth/token \\
    --tls-cert-file /tls/tls.crt --tls-key-file /tls/tls.key --state-dir /var/lib/cftunnel")]
pub(crate) struct Args {
    /// Where configuration is pushed to, over TLS
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8081")]
    config_listen: SocketAddr,
    /// Certificate of the config API (PEM); read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    tls_cert_file: PathBuf,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    tls_key_file: PathBuf,
    /// The bearer token that a push must have
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    auth_token_file: PathBuf,
    /// UID of the Gateway that is served; a push for another one is refused
    #[arg(long, value_name = "UID")]
    gateway_uid: String,
    /// Folder for the last good configuration, encrypted; nothing is stored without it
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    state_dir: Option<PathBuf>,
    /// Where /healthz, /readyz and /metrics are, over plain HTTP
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:9901")]
    probe_listen: SocketAddr,
    /// How long to wait for a first configuration
    #[arg(long, value_name = "SECONDS", default_value = "120", hide = true)]
    config_wait: u64,
    /// No tunnel at all, only --direct and --direct-tls
    #[arg(long, conflicts_with = "edges")]
    no_tunnel: bool,
    #[command(flatten)]
    direct: DirectArgs,
    #[command(flatten)]
    tunnel: TunnelArgs,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    logs: LogArgs,
}

/// Time for a controller to push before a stored configuration serves.
const RESTORE_AFTER: Duration = Duration::from_secs(10);

pub(super) fn run(context: Context, args: Args) -> anyhow::Result<ExitCode> {
    args.logs.init()?;
    let context = args.logs.voice(context);
    let ports = args.direct.read(args.no_tunnel)?;
    let remote = if args.no_tunnel { None } else { Some(args.tunnel.connect_to("")?) };
    life::block_on(serve(context, args, remote, ports))
}

async fn serve(context: Context, args: Args, remote: Option<Remote>, ports: Ports) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let mut registry = Registry::default();
    let workers = args.workers.start()?;
    let options = plane::Options { workers: workers.count(), ..plane::Options::new(Metrics::register(&mut registry)) };
    let plane = Plane::new(options);
    let metrics = connector::Metrics::register(&mut registry);
    let stop = CancellationToken::new();
    let _stop_on_return = stop.clone().drop_guard();

    let files =
        Files { certificate: args.tls_cert_file.clone(), key: args.tls_key_file.clone(), token: args.auth_token_file.clone() };
    let credentials =
        Arc::new(Credentials::read(files).help("the controller renders them into the Secrets cf-proxy-GATEWAY-tls and -auth")?);
    let last_good = match &args.state_dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot use the state folder {}", dir.display()))?;
            Some(LastGood::new(dir, &args.gateway_uid))
        }
        None => None,
    };
    let delivery = Delivery::new(Arc::clone(&plane), args.gateway_uid.as_str(), credentials, last_good);
    let probes = life::bind(args.probe_listen, "--probe-listen").await?;
    let pushes = life::bind(args.config_listen, "--config-listen").await?;
    tracing::info!(config = %pushes.local_addr()?, probes = %probes.local_addr()?, "Listening");

    let draining = watch::Sender::new(false);
    let registered = watch::Sender::new(0);
    let state = admin::State {
        plane: Arc::clone(&plane),
        registry: Arc::new(registry),
        registered: remote.is_some().then(|| registered.subscribe()),
        stale: delivery.stale(),
        draining: draining.subscribe(),
    };
    tokio::spawn(admin::serve(probes, state, stop.clone()));
    let mut api = tokio::spawn(config::serve(pushes, Arc::clone(&delivery), stop.clone()));

    tokio::select! {
        configured = first_config(&plane, &delivery, Duration::from_secs(args.config_wait)) => configured?,
        // Nothing was served: there is nothing to drain.
        () = signals.next() => return Ok(ExitCode::Fine),
        ended = &mut api => return Err(api_ended(ended)),
    }

    let listeners = ports.start(&plane, &workers)?;
    for (address, tls) in listeners.addresses() {
        tracing::info!(%address, tls, "Listening for requests");
    }
    let connector = match remote {
        Some(remote) => {
            let config = args.tunnel.remote_config(remote, metrics, workers.clone());
            let connector = connector::spawn(config, Arc::clone(&plane), plane.needs_trailers())?;
            tokio::spawn(copy(connector.registered(), registered));
            Some(connector)
        }
        None => None,
    };
    let failed = async {
        match &connector {
            Some(connector) => connector.failed().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = signals.next() => {}
        error = failed => return Err(error.into()),
        ended = &mut api => return Err(api_ended(ended)),
    }
    context.out.remark("note", Tone::Dim, "draining; once more to stop at once");
    let unregister = async {
        if let Some(connector) = &connector {
            connector.drain().await;
        }
    };
    let direct = &listeners.direct;
    let steps =
        Steps { unregister, idle: async { tokio::join!(direct.drain(), plane.idle()).0 }, stop: async { direct.close() } };
    Ok(tokio::select! {
        _ = drain::drain(&draining, args.tunnel.grace_period, steps) => ExitCode::Fine,
        () = signals.next() => ExitCode::Interrupted,
    })
}

/// Passes values on to those who subscribed before there was a connector.
async fn copy(mut from: watch::Receiver<usize>, to: watch::Sender<usize>) {
    loop {
        to.send_replace(*from.borrow_and_update());
        if from.changed().await.is_err() {
            return;
        }
    }
}

/// Waits for a configuration: pushed, or restored when nobody pushes.
async fn first_config(plane: &Plane, delivery: &Delivery, patience: Duration) -> anyhow::Result<()> {
    let mut version = plane.watch_version();
    let arrived = async {
        if delivery.restore_unless_pushed(RESTORE_AFTER.min(patience / 2)).await {
            tracing::warn!("Serving the stored configuration of an earlier run, since no controller has pushed one");
        }
        version.wait_for(Option::is_some).await.is_ok()
    };
    match tokio::time::timeout(patience, arrived).await {
        Ok(true) => Ok(()),
        _ => Err(fail(
            format!("no configuration has arrived within {} s, and there is none to restore", patience.as_secs()),
            "see the controller's log: it must reach the config API (--config-listen) with the certificate and token of this plane",
        )),
    }
}

/// The config API never ends by itself.
fn api_ended(ended: Result<Result<(), rustls::Error>, tokio::task::JoinError>) -> anyhow::Error {
    match ended {
        Ok(Err(error)) => anyhow::Error::new(error).context("the config API has ended"),
        Ok(Ok(())) => anyhow::anyhow!("the config API has ended"),
        Err(error) => anyhow::Error::new(error).context("the config API has ended"),
    }
}
