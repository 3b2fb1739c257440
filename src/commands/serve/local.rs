//! `serve local`: controller logic and data plane in one process, from files. Its own edge, or another one.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueHint;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::args::{LogArgs, Remote, TunnelArgs, WorkerArgs};
use super::direct::{DirectArgs, Listeners, Ports};
use super::life::{self, Signals};
use super::overview::{Example, Overview};
use super::reload::{BackendArg, Backends, Said, is_servable};
use crate::cluster::objects::Manifests;
use crate::cluster::watch::{self as files, Update};
use crate::commands::Context;
use crate::commands::exit::ExitCode;
use crate::commands::from_file::FromFile;
use crate::commands::lint::plural;
use crate::commands::output::{Block, Cell, Help as _, Tone, View as _};
use crate::commands::plane::{Judged, nothing_servable};
use crate::edge::{self, Edge};
use crate::gateway::ir::RouteConfig;
use crate::proxy::admin;
use crate::proxy::connector::{self, Connector, EdgeSource, Protocol, Roots};
use crate::proxy::drain::{self, Steps};
use crate::proxy::http::{Plane, plane};
use crate::proxy::metrics::Metrics;
use crate::proxy::table::compile::compile;
use crate::proxy::workers::Workers;

/// Serve a folder of manifests on this machine
///
/// Controller logic and data plane in one process: no cluster, and without --edge no Cloudflare account. Prints where every
/// hostname leads and one curl line to try. Follows edits of the files without dropping a request; an edit that cannot be read
/// keeps what serves. Ctrl-C drains and ends; a second Ctrl-C ends at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  # Try it: an edge on this machine and an echo server for every Service
  kubectl cftunnel serve local --from-file examples/quickstart --demo-backends

  # With a server of your own behind one of the Services
  kubectl cftunnel serve local --from-file manifests/ --backend shop/web:80=127.0.0.1:3000

  # A gateway for the Internet: through Cloudflare, with the token of a tunnel
  kubectl cftunnel serve local --from-file manifests/ --edge cloudflare --token-file token

  # A gateway without any tunnel
  kubectl cftunnel serve local --from-file manifests/ --no-tunnel --direct 0.0.0.0:8080")]
pub(crate) struct Args {
    #[command(flatten)]
    from: FromFile,
    /// Where a Service's port is; may be repeated. Wins over EndpointSlices in the files
    #[arg(long = "backend", value_name = "NS/NAME:PORT=HOST:PORT")]
    backends: Vec<BackendArg>,
    /// Start an echo server for every Service port that a route leads to
    #[arg(long)]
    demo_backends: bool,
    /// Where the built-in edge takes requests
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", conflicts_with = "edges")]
    listen: SocketAddr,
    /// Where the built-in edge takes tunnel connections, of other connectors too; TCP and UDP
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", hide_default_value = true, conflicts_with = "edges")]
    tunnel_listen: SocketAddr,
    /// Write the built-in edge's certificate here, for other connectors (PEM)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "edges")]
    edge_ca_out: Option<PathBuf>,
    /// Where /healthz, /readyz and /metrics are, or `off`; 127.0.0.1:9901 or, when that is taken, a free port
    #[arg(long, value_name = "ADDR|off")]
    admin: Option<AdminArg>,
    /// No tunnel at all, only --direct and --direct-tls
    #[arg(long, conflicts_with_all = ["edges", "listen", "tunnel_listen", "edge_ca_out"])]
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdminArg {
    Off,
    At(SocketAddr),
}

impl FromStr for AdminArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|_| format!("{text:?} is neither an address such as 127.0.0.1:9901 nor `off`"))
    }
}

/// Time without any connection after which that is said.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn run(context: Context, args: Args) -> anyhow::Result<ExitCode> {
    args.logs.init()?;
    let context = args.logs.voice(context);
    let ports = args.direct.read(args.no_tunnel)?;
    let remote = args.tunnel.remote()?;
    let manifests = args.from.clone().read(context)?;
    life::block_on(serve(context, args, remote, ports, manifests))
}

async fn serve(
    context: Context,
    args: Args,
    remote: Option<Remote>,
    ports: Ports,
    manifests: Manifests,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let mut registry = Registry::default();
    let workers = args.workers.start()?;
    let options = plane::Options { workers: workers.count(), ..plane::Options::new(Metrics::register(&mut registry)) };
    let plane = Plane::new(options);
    let metrics = connector::Metrics::register(&mut registry);

    let quic_pinned = args.tunnel.protocol() == Protocol::Quic;
    let mut backends = Backends::new(args.backends.clone(), args.demo_backends, quic_pinned).await?;
    let mut said = Said::new(context);
    let judged = backends.judge(&manifests).await?;
    let config = match &judged.config {
        Ok(config) if is_servable(config) => config.clone(),
        _ => return Err(nothing_servable(&judged, manifests.file_count())),
    };
    said.say(&judged, &plane.apply(&config)?.refusals);

    let tunnel = if args.no_tunnel { None } else { Some(Tunnel::start(&args, remote, metrics, &plane, &workers).await?) };
    let direct = ports.start(&plane, &workers)?;
    let draining = watch::Sender::new(false);
    let stop = CancellationToken::new();
    let admin = start_admin(&args, &plane, registry, tunnel.as_ref(), &draining, &stop).await?;
    show(context, &config, admin)?;

    let mut local = Local { context, plane, tunnel, direct, backends, said, config };
    local.announce_direct()?;
    let code = local.until_told(&mut signals, files::spawn(manifests)).await?;
    let code = match code {
        Some(code) => code,
        None => local.drain(&mut signals, &draining, args.tunnel.grace_period).await,
    };
    stop.cancel();
    Ok(code)
}

/// The tunnel, and its far end.
struct Tunnel {
    connector: Connector,
    config: connector::Config,
    /// Ours, when there is no other.
    edge: Option<Edge>,
    up: bool,
    /// When to say that it is still not up.
    complain_at: Instant,
}

impl Tunnel {
    async fn start(
        args: &Args,
        remote: Option<Remote>,
        metrics: connector::Metrics,
        plane: &Arc<Plane>,
        workers: &Workers,
    ) -> anyhow::Result<Self> {
        let (config, edge) = match remote {
            Some(remote) => (args.tunnel.remote_config(remote, metrics, workers.clone()), None),
            None => Self::built_in(args, metrics, workers.clone()).await?,
        };
        let connector = connector::spawn(config.clone(), Arc::clone(plane), plane.needs_trailers())?;
        Ok(Self { connector, config, edge, up: false, complain_at: Instant::now() + PATIENCE })
    }

    async fn built_in(
        args: &Args,
        metrics: connector::Metrics,
        workers: Workers,
    ) -> anyhow::Result<(connector::Config, Option<Edge>)> {
        // A token matters only to another connector, which has to find the port.
        let token = if args.tunnel_listen.port() == 0 { None } else { args.tunnel.token()? };
        let config = edge::Config { clients: args.listen, tunnel: args.tunnel_listen, token };
        let edge = Edge::start(config).await.help("--listen chooses another address; 127.0.0.1:0 takes any port that is free")?;
        if let Some(path) = &args.edge_ca_out {
            std::fs::write(path, edge.ca_pem()).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let roots = Roots::from_pem(edge.ca_pem().as_bytes(), "the built-in edge's certificate")?;
        let source = EdgeSource::Static(vec![edge.tunnel_addr().into()]);
        let config = args.tunnel.config(edge.token().clone(), source, roots, metrics, workers);
        Ok((config, Some(edge)))
    }

    /// What happens next. May be dropped and called again without losing anything.
    ///
    /// # Errors
    /// When the tunnel has failed for good.
    async fn next(&mut self) -> anyhow::Result<News> {
        let mut registered = self.connector.registered();
        tokio::select! {
            up = registered.wait_for(|n| *n > 0), if !self.up => {
                drop(up.context("the tunnel connector is gone")?);
                self.up = true;
                Ok(News::Up)
            }
            () = tokio::time::sleep_until(self.complain_at), if !self.up => {
                self.complain_at = Instant::now() + PATIENCE * 3;
                Ok(News::StillDown)
            }
            error = self.connector.failed() => Err(error.into()),
        }
    }
}

/// What is worth saying about a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// The first connection is registered.
    Up,
    /// None is, after all this time.
    StillDown,
}

/// What happens next to a tunnel that there may be.
async fn next(tunnel: Option<&mut Tunnel>) -> anyhow::Result<News> {
    match tunnel {
        Some(tunnel) => tunnel.next().await,
        None => std::future::pending().await,
    }
}

/// Probes and metrics, where they were asked for; else where there is room.
async fn start_admin(
    args: &Args,
    plane: &Arc<Plane>,
    registry: Registry,
    tunnel: Option<&Tunnel>,
    draining: &watch::Sender<bool>,
    stop: &CancellationToken,
) -> anyhow::Result<Option<SocketAddr>> {
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, 9901));
    let listener = match args.admin {
        Some(AdminArg::Off) => return Ok(None),
        Some(AdminArg::At(address)) => life::bind(address, "--admin").await?,
        None => match life::bind(usual, "--admin").await {
            Ok(listener) => listener,
            Err(_) => life::bind((Ipv4Addr::LOCALHOST, 0).into(), "--admin").await?,
        },
    };
    let address = listener.local_addr()?;
    let state = admin::State {
        plane: Arc::clone(plane),
        registry: Arc::new(registry),
        registered: tunnel.map(|t| t.connector.registered()),
        stale: watch::Sender::new(false).subscribe(),
        draining: draining.subscribe(),
    };
    tokio::spawn(admin::serve(listener, state, stop.clone()));
    Ok(Some(address))
}

/// Prints the tables.
fn show(context: Context, config: &RouteConfig, admin: Option<SocketAddr>) -> anyhow::Result<()> {
    let mut blocks = Overview::new(config).blocks(false);
    if let Some(address) = admin {
        blocks.push(Block::Gap);
        blocks.push(Block::Line(Cell::new(
            format!("Readiness and metrics: http://{address}/readyz, http://{address}/metrics"),
            Tone::Dim,
        )));
    }
    Ok(context.out.blocks(&blocks)?)
}

/// What runs.
struct Local {
    context: Context,
    plane: Arc<Plane>,
    tunnel: Option<Tunnel>,
    direct: Listeners,
    backends: Backends,
    said: Said,
    config: RouteConfig,
}

impl Local {
    /// Serves until a signal; follows edits meanwhile.
    async fn until_told(
        &mut self,
        signals: &mut Signals,
        mut updates: watch::Receiver<Update>,
    ) -> anyhow::Result<Option<ExitCode>> {
        let mut watching = true;
        loop {
            tokio::select! {
                () = signals.next() => return Ok(None),
                changed = updates.changed(), if watching => match changed {
                    Ok(()) => {
                        let update = updates.borrow_and_update().clone();
                        self.reload(&update).await?;
                    }
                    // Standard input alone: nothing can change.
                    Err(_) => watching = false,
                },
                news = next(self.tunnel.as_mut()) => match (news?, &self.tunnel) {
                    (News::Up, Some(tunnel)) => self.announce(tunnel)?,
                    (News::StillDown, Some(tunnel)) => self.complain(tunnel),
                    (_, None) => {}
                },
            }
        }
    }

    /// Serves by the files as they are now, or says why not.
    async fn reload(&mut self, update: &Update) -> anyhow::Result<()> {
        let judged = self.backends.judge(&update.manifests).await?;
        self.take(judged)?;
        self.said.kept(update);
        Ok(())
    }

    /// Serves by what the core makes of the files, if it can be served.
    fn take(&mut self, judged: Judged) -> anyhow::Result<()> {
        let config = match &judged.config {
            // All that was there is gone: more likely a move under way than the wish to serve nothing.
            Ok(config) if config.listeners.is_empty() => {
                self.said.say(&judged, &[]);
                self.context.out.remark(
                    "warning",
                    Tone::Warn,
                    "no listener is left in the files; what was read before keeps serving",
                );
                return Ok(());
            }
            Ok(config) => config,
            Err(_) => {
                self.said.say(&judged, &[]);
                return Ok(());
            }
        };
        if *config == self.config {
            self.said.say(&judged, &[]);
            return Ok(());
        }
        let refusals = self.plane.apply(config)?.refusals;
        self.said.say(&judged, &refusals);
        let text =
            format!("applied the edit: {}, {}", plural(config.listeners.len(), "listener"), plural(config.routes.len(), "route"));
        self.context.out.remark("note", Tone::Good, &text);
        if let Ok(config) = judged.config {
            self.config = config;
        }
        Ok(())
    }

    /// A request to try.
    fn example(&self) -> anyhow::Result<Option<Example>> {
        let table = compile(&self.config)?.table;
        Ok(Example::find(&self.config, &table))
    }

    /// Prints the line to try, now that it works.
    fn announce(&self, tunnel: &Tunnel) -> anyhow::Result<()> {
        let Some(example) = self.example()? else {
            self.context.out.remark("note", Tone::Dim, "the tunnel is up; no request could be made up that fits the matches");
            return Ok(());
        };
        let line = match &tunnel.edge {
            Some(edge) => example.curl(&format!("http://{}", reachable(edge.client_addr()))),
            None => {
                let cname = format!("{}.cfargotunnel.com", tunnel.config.token.tunnel_id);
                let text = format!("the tunnel is up; clients find it once {} is a proxied CNAME for {cname}", example.host());
                self.context.out.remark("note", Tone::Good, &text);
                example.public_curl()
            }
        };
        self.context.out.blocks(&[Block::Gap, Block::Line(Cell::new(line, Tone::Strong))])?;
        Ok(())
    }

    /// Says where the direct listeners are, and prints a line to try on each plain one.
    fn announce_direct(&self) -> anyhow::Result<()> {
        let mut blocks = vec![Block::Gap];
        let example = self.example()?;
        for (address, tls) in self.direct.addresses() {
            match &example {
                _ if tls => self.context.out.remark("note", Tone::Good, &format!("taking TLS on {address}")),
                Some(example) => {
                    let line = example.curl(&format!("http://{}", reachable(address)));
                    blocks.push(Block::Line(Cell::new(line, Tone::Strong)));
                }
                None => self.context.out.remark("note", Tone::Dim, &format!("taking requests on {address}")),
            }
        }
        if blocks.len() > 1 {
            self.context.out.blocks(&blocks)?;
        }
        Ok(())
    }

    /// Says why there is no connection yet.
    fn complain(&self, tunnel: &Tunnel) {
        let mut reasons: Vec<String> = tunnel.connector.connections().into_iter().filter_map(|c| c.last_error).collect();
        reasons.sort();
        reasons.dedup();
        let reasons = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
        self.context.out.remark("warning", Tone::Warn, &format!("no connection to the edge yet{reasons}; still trying"));
    }

    /// Ends in good order; at once on another signal.
    async fn drain(self, signals: &mut Signals, draining: &watch::Sender<bool>, grace: Duration) -> ExitCode {
        self.context.out.remark("note", Tone::Dim, "draining; once more to stop at once");
        let (plane, direct) = (self.plane, self.direct.direct);
        let (connector, edge) = self.tunnel.map(|tunnel| (tunnel.connector, tunnel.edge)).unzip();
        let steps = Steps {
            unregister: async {
                if let Some(connector) = &connector {
                    connector.drain().await;
                }
            },
            // A direct connection outlives its last request by a moment, in which the next one may be on its way.
            idle: async { tokio::join!(direct.drain(), plane.idle()).0 },
            stop: async {
                direct.close();
                if let Some(edge) = edge.flatten() {
                    edge.shutdown().await;
                }
            },
        };
        tokio::select! {
            _ = drain::drain(draining, grace, steps) => ExitCode::Fine,
            () = signals.next() => ExitCode::Interrupted,
        }
    }
}

/// An address that a client on this machine can use.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(a) if a.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, a.port()).into(),
        SocketAddr::V6(a) if a.ip().is_unspecified() => (std::net::Ipv6Addr::LOCALHOST, a.port()).into(),
        other => other,
    }
}
