//! What goes wrong, when: drawn from the seed. Calm minutes with a fault every second or so, then a storm in which connections
//! are cut or taken out of service as fast as they come back.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cftunnel::edge::{Kill, Refusal, Transport, Which};
use tokio::time::{Instant, sleep};

use crate::chance::Chance;
use crate::site::Site;

/// When storms blow: in the last fifth of each cycle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) start: Instant,
    pub(crate) total: Duration,
    /// Storm all the time: as many reconnects as can be.
    pub(crate) always: bool,
}

impl Weather {
    fn is_storm(self) -> bool {
        let cycle = (self.total / 2).min(Duration::from_secs(300)).as_secs_f64().max(1.0);
        self.always || self.start.elapsed().as_secs_f64() % cycle > 0.8 * cycle
    }

    /// UDP goes silent for longer than a connection lives without a sign: in long runs three times, in short ones once.
    fn long_silences(self) -> Vec<Duration> {
        let shares: &[f64] = if self.total >= Duration::from_secs(1800) { &[0.15, 0.45, 0.75] } else { &[0.6] };
        let shares = if self.total >= Duration::from_secs(60) { shares } else { &[] };
        shares.iter().map(|share| self.total.mul_f64(*share)).collect()
    }
}

/// Faults until the load ends.
pub(crate) async fn run(site: Arc<Site>, weather: Weather, mut chance: Chance) {
    let mut silences = if site.protocol == "auto" { weather.long_silences() } else { Vec::new() };
    silences.reverse();
    while !site.quiet.is_cancelled() {
        let quic = || site.edge.state().live().any(|session| session.transport == Transport::Quic);
        if silences.last().is_some_and(|at| weather.start.elapsed() >= *at) && quic() {
            silences.pop();
            silence(&site, Duration::from_secs(8)).await;
        } else if weather.is_storm() {
            storm(&site, &mut chance).await;
        } else {
            sleep(Duration::from_millis(chance.between(300, 2500))).await;
            calm(&site, &mut chance).await;
        }
    }
    let faults = site.edge.faults();
    faults.delay_registrations(Duration::ZERO);
    faults.delay_requests(Duration::ZERO);
    faults.silence_udp(false);
    faults.kill_mid_body(Kill { times: 0, after: 0 });
    faults.refuse(Refusal { times: 0, cause: String::new(), should_retry: true, retry_after: None });
}

/// Cuts or retires whatever is up, and leaves one connection: what can be kept is to be kept.
async fn storm(site: &Site, chance: &mut Chance) {
    let up: BTreeSet<u8> = site.edge.state().live().map(|session| session.index).collect();
    let spared = up.iter().nth(chance.between(0, 4) as usize % up.len().max(1)).copied();
    for index in up.into_iter().filter(|index| Some(*index) != spared) {
        let n = if chance.percent(70) { goaway(site, index) } else { cut(site, Which::Index(index)) };
        site.figures.faults.fetch_add(u64::from(n > 0), Ordering::Relaxed);
    }
    sleep(Duration::from_millis(chance.between(50, 250))).await;
}

/// One fault.
async fn calm(site: &Site, chance: &mut Chance) {
    let faults = site.edge.faults();
    let index = u8::try_from(chance.between(0, 4)).unwrap_or(0);
    let millis = |chance: &mut Chance, low, high| Duration::from_millis(chance.between(low, high));
    site.figures.faults.fetch_add(1, Ordering::Relaxed);
    match chance.between(0, 100) {
        0..30 => _ = cut(site, Which::Index(index)),
        30..55 => _ = goaway(site, index),
        55..58 => _ = cut(site, Which::All),
        58..61 => (0..4).for_each(|index| _ = goaway(site, index)),
        61..71 => faults.kill_mid_body(Kill { times: 1, after: chance.between(0, 100_000) }),
        71..79 => {
            let retry_after = chance.percent(50).then_some(Duration::from_secs(1));
            let cause = if chance.percent(50) { "EDUPCONN" } else { "busy" };
            let times = u32::try_from(chance.between(1, 3)).unwrap_or(1);
            faults.refuse(Refusal { times, cause: cause.into(), should_retry: true, retry_after });
            cut(site, Which::Index(index));
        }
        79..85 => {
            faults.delay_registrations(millis(chance, 300, 2000));
            cut(site, Which::Index(index));
            sleep(Duration::from_secs(3)).await;
            faults.delay_registrations(Duration::ZERO);
        }
        85..90 => {
            faults.delay_requests(millis(chance, 20, 200));
            sleep(Duration::from_secs(2)).await;
            faults.delay_requests(Duration::ZERO);
        }
        90..93 if site.protocol == "http2" => {
            // One of the edge's machines restarts: away, and not to be reached for a while.
            faults.reject_http2(true);
            cut(site, Which::Index(index));
            sleep(millis(chance, 300, 2500)).await;
            faults.reject_http2(false);
        }
        90..98 if site.protocol == "auto" => silence(site, millis(chance, 300, 2500)).await,
        _ => site.edge.push_config(i32::try_from(chance.between(1, 1 << 20)).unwrap_or(1), r#"{"ingress":[]}"#),
    }
}

fn cut(site: &Site, which: Which) -> usize {
    site.edge.drop_connections(which)
}

fn goaway(site: &Site, index: u8) -> usize {
    let n = site.edge.goaway(Which::Index(index));
    if n > 0 {
        site.ledger.hits(index);
    }
    n
}

async fn silence(site: &Site, length: Duration) {
    site.ledger.silenced(length);
    site.edge.faults().silence_udp(true);
    sleep(length).await;
    site.edge.faults().silence_udp(false);
}

impl fmt::Display for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_storm() { "storm" } else { "calm" })
    }
}
