//! The soak: the real binary under constant load, faults all the while, and a client that checks every body.
//!
//! Two tunnels at once, one served by a connector pinned to HTTP/2, one by connectors on `auto` that move between QUIC and
//! HTTP/2 as a GRPCRoute comes and goes; of the latter one stays and one is replaced again and again, as a rollout does.
//! Edges, backends and clients live in this process, so that of every lost request it is known which connection carried it
//! and whether that was cut on purpose. See `ledger` for what may be lost.
//!
//! Settings, all by environment: `SOAK_SECONDS` (10: a smoke test), `SOAK_RATE` (requests a second, all together),
//! `SOAK_SEED`, `SOAK_BIN` (the binary), `SOAK_STORM=1` (nothing but reconnects), `SOAK_SABOTAGE=body|loss` (to see that it
//! is noticed).

#![expect(clippy::print_stdout, reason = "a log is what it is run for")]

mod backend;
mod body;
mod chance;
mod child;
mod client;
mod fault;
mod ledger;
mod plan;
mod report;
mod routes;
mod site;
mod trend;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::time::{Instant, sleep, timeout};

use chance::Chance;
use child::Folder;
use fault::Weather;
use plan::Plan;
use report::Figures;
use site::Site;

/// What is asked for.
#[derive(Debug)]
struct Settings {
    total: Duration,
    rate: u64,
    seed: u64,
    storm: bool,
    sabotage: Option<String>,
}

impl Settings {
    fn read() -> anyhow::Result<Self> {
        let number = |name: &str, otherwise: u64| match std::env::var(name) {
            Ok(text) => text.parse().with_context(|| format!("{name} is no number: {text:?}")),
            Err(_) => Ok(otherwise),
        };
        let total = Duration::from_secs(number("SOAK_SECONDS", 10)?);
        let rate = number("SOAK_RATE", if total > Duration::from_secs(10) { 200 } else { 100 })?;
        ensure!(rate >= 2, "SOAK_RATE must be 2 at least");
        Ok(Self {
            total,
            rate,
            seed: number("SOAK_SEED", rand::random::<u32>().into())?,
            storm: std::env::var_os("SOAK_STORM").is_some(),
            sabotage: std::env::var("SOAK_SABOTAGE").ok(),
        })
    }
}

fn main() -> ExitCode {
    // As other tests do: a filter that does not name this one leaves it out.
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if arguments.iter().any(|a| a == "--list") {
        println!("soak: test");
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|a| !a.starts_with('-') && !"soak".contains(a.as_str())) {
        return ExitCode::SUCCESS;
    }
    // Fails only when one is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let run = || {
        let settings = Settings::read()?;
        tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(soak(settings))
    };
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn soak(settings: Settings) -> anyhow::Result<bool> {
    let Settings { total, rate, seed, .. } = settings;
    println!(
        "soak of {} s at {rate} requests/s, SOAK_SEED={seed}{}",
        total.as_secs(),
        if settings.storm { ", storm" } else { "" }
    );
    let (chance, folder) = (Chance::new(seed), Arc::new(Folder::new()?));
    let http2 = Site::start("http2", "http2", &chance.fork(10), &folder).await?;
    let auto = Site::start("auto", "auto", &chance.fork(11), &folder).await?;
    let sites = [http2, auto];
    let weather = Weather { start: Instant::now(), total, always: settings.storm };
    let mut background = tokio::task::JoinSet::new();
    for (site, tag) in sites.iter().zip(20..) {
        background.spawn(Arc::clone(site).watch());
        background.spawn(Arc::clone(site).reload());
        background.spawn(Arc::clone(site).load(rate / 2, chance.fork(tag)));
        background.spawn(fault::run(Arc::clone(site), weather, chance.fork(tag + 10)));
        let seen = Arc::clone(&site.seen);
        background.spawn(async move { seen.forget().await });
    }
    sabotage(settings.sabotage.as_deref(), &sites)?;
    let mut rollout = tokio::spawn(rollout(Arc::clone(&sites[1]), Arc::clone(&folder), total));
    let mut figures = [Figures::default(), Figures::default()];
    let mut told = 0;
    while weather.start.elapsed() < total {
        sleep(Duration::from_secs(1)).await;
        let at = weather.start.elapsed();
        for (site, figures) in sites.iter().zip(&mut figures) {
            figures.add(at, site.with(site.name, async |proxy| proxy.sample()).await?);
        }
        if at.as_secs() / 10 > told {
            told = at.as_secs() / 10;
            println!("{}", report::line(at, &weather.to_string(), &pairs(&sites, &figures)));
        }
        // At once: what happened around it is still in the log above.
        for site in &sites {
            site.ledger.take_told().iter().for_each(|what| println!("{:5.0}s {}: {what}", at.as_secs_f64(), site.name));
        }
        while let Some(ended) = background.try_join_next() {
            ended.context("a task of the harness failed")?;
        }
    }
    sites.iter().for_each(|site| site.quiet.cancel());
    let ended = match timeout(Duration::from_secs(120), &mut rollout).await {
        Ok(ended) => ended?,
        Err(_) => Err(anyhow::anyhow!("the last connector that was replaced does not end")),
    };
    let extra = ended?;
    for site in &sites {
        let extra = if site.name == "auto" { Some(extra.as_str()) } else { None };
        if let Err(error) = finish(site, extra).await {
            site.ledger.failed(&format!("the end: {error:#}"));
        }
    }
    let (lines, well) = report::summary(total, &pairs(&sites, &figures));
    println!("\nsummary of {} s, SOAK_SEED={seed}", total.as_secs());
    for site in &sites {
        site.ledger.take_told().iter().for_each(|what| println!("  {}: {what}", site.name));
    }
    lines.iter().for_each(|line| println!("  {line}"));
    println!("soak: {}", if well { "ok" } else { "FAILED" });
    Ok(well)
}

fn pairs<'a>(sites: &'a [Arc<Site>; 2], figures: &'a [Figures; 2]) -> [(&'a Site, &'a Figures); 2] {
    [(&*sites[0], &figures[0]), (&*sites[1], &figures[1])]
}

/// Breaks something that has to be noticed.
fn sabotage(what: Option<&str>, sites: &[Arc<Site>; 2]) -> anyhow::Result<()> {
    match what {
        None => {}
        Some("body") => sites[0].seen.corrupt.store(true, Ordering::Relaxed),
        // A cut that nobody answers for.
        Some("loss") => sites.iter().for_each(|site| site.ledger.forget_cuts()),
        Some(other) => anyhow::bail!("SOAK_SABOTAGE={other} is unknown; use body or loss"),
    }
    Ok(())
}

/// Replaces the second connector of a site again and again: the next one serves before the last one is told to end. Returns
/// the name of the one that is left.
async fn rollout(site: Arc<Site>, folder: Arc<Folder>, total: Duration) -> anyhow::Result<String> {
    let life = (total / 3).clamp(Duration::from_secs(5), Duration::from_secs(75));
    let mut n = 0;
    site.join(&folder, "roll-0").await?;
    loop {
        tokio::select! {
            () = sleep(life) => {}
            () = site.quiet.cancelled() => return Ok(format!("roll-{n}")),
        }
        n += 1;
        site.join(&folder, &format!("roll-{n}")).await?;
        if let Err(error) = site.leave(&format!("roll-{}", n - 1)).await {
            site.ledger.failed(&format!("replacement {n}: {error:#}"));
        }
        site.figures.replaced.fetch_add(1, Ordering::Relaxed);
    }
}

/// After the load: nothing is left in flight, and connectors that are told to end lose nothing that is.
async fn finish(site: &Arc<Site>, extra: Option<&str>) -> anyhow::Result<()> {
    let tasks = &site.tasks;
    tasks.close();
    timeout(Duration::from_secs(90), tasks.wait()).await.context("requests that do not end")?;
    settled(site).await?;
    site.with(site.name, async |proxy| {
        proxy.wait_for("cftunnel_connector_connections_registered", |n| n == 4.0).await?;
        proxy.wait_for("cftunnel_proxy_requests_in_flight", |n| n == 0.0).await?;
        proxy.wait_for("cftunnel_proxy_websocket_sessions", |n| n == 0.0).await
    })
    .await?;
    let before = site.ledger.counts();
    let asked = (0..20).map(|_| {
        let (site, plan) = (Arc::clone(site), Plan::slow(site.id(), Duration::from_secs(2)));
        tokio::spawn(async move { site.ask(plan).await })
    });
    let asked: Vec<_> = asked.collect();
    sleep(Duration::from_millis(700)).await;
    site.with(site.name, async |proxy| proxy.check_log()).await?;
    let (left, extra_left) = tokio::join!(site.leave(site.name), async {
        match extra {
            Some(name) => site.leave(name).await,
            None => Ok(()),
        }
    });
    left.and(extra_left)?;
    for task in asked {
        task.await?;
    }
    settled(site).await?;
    let after = site.ledger.counts();
    ensure!(after.fine == before.fine + 20, "{} of 20 requests in flight at SIGTERM were served", after.fine - before.fine);
    Ok(())
}

/// Waits until every loss is judged.
async fn settled(site: &Site) -> anyhow::Result<()> {
    let judged = async {
        while site.ledger.open() > 0 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(30), judged).await.context("losses that nobody judges")
}
