//! What is told: a line every ten seconds, and the summary with the verdict.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::child::Sample;
use crate::ledger::{Cause, Counts};
use crate::site::Site;
use crate::trend::{Room, Series};

/// Everything measured of one process.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    rss: Series,
    pss: Series,
    fds: Series,
    threads: Series,
}

impl Figures {
    pub(crate) fn add(&mut self, at: Duration, sample: Sample) {
        self.rss.add(at, sample.rss);
        self.pss.add(at, sample.pss);
        self.fds.add(at, sample.fds);
        self.threads.add(at, sample.threads);
    }

    fn short(&self) -> String {
        let (rss, fds, threads) = (self.rss.latest() / 1024.0, self.fds.latest(), self.threads.latest());
        format!("rss {rss:5.1} fd {fds:3.0} thr {threads:2.0}")
    }

    /// One line for each figure, and whether it is flat. Runs of minutes get more room: the first tenth of one is seconds.
    fn judge(&self, name: &str, total: Duration, told: &mut Vec<String>) -> bool {
        let long = total >= Duration::from_secs(1800);
        let warm_up = (total / 10).max(Duration::from_secs(20));
        let memory = if long { Room { share: 0.1, fixed: 2048.0 } } else { Room { share: 0.3, fixed: 8192.0 } };
        let count = |fixed| Room { share: 0.1, fixed };
        let all = [
            ("RSS MiB", &self.rss, memory, 1024.0),
            ("PSS MiB", &self.pss, memory, 1024.0),
            ("fds", &self.fds, count(32.0), 1.0),
            ("threads", &self.threads, count(8.0), 1.0),
        ];
        let mut flat = true;
        for (what, series, room, unit) in all {
            let Some(trend) = series.trend(warm_up) else {
                told.push(format!("{name:<8} {what:<8} too few samples for a trend"));
                // A run that is meant to be judged has enough of them.
                flat &= total < Duration::from_secs(60);
                continue;
            };
            let fine = trend.is_flat(room);
            let [first, last, most, growth] = [trend.first, trend.last, trend.most, trend.growth].map(|v| v / unit);
            let verdict = if fine { "flat" } else { "GROWS" };
            told.push(format!(
                "{name:<8} {what:<8} first tenth {first:7.1}, last tenth {last:7.1}, most {most:7.1}, line {growth:+7.1}: {verdict}"
            ));
            flat &= fine;
        }
        flat
    }
}

/// The line of a moment.
pub(crate) fn line(at: Duration, weather: &str, sites: &[(&Site, &Figures)]) -> String {
    let mut counts = Counts::default();
    let mut planes = String::new();
    for (site, figures) in sites {
        counts.add(&site.ledger.counts());
        let state = site.edge.state();
        planes += &format!(" | {}: {} up {} reg {}", site.name, figures.short(), state.live().count(), state.registered_total);
    }
    let faults: u64 = sites.iter().map(|(site, _)| site.figures.faults.load(Ordering::Relaxed)).sum();
    let moves: u64 = sites.iter().map(|(site, _)| site.figures.moves.load(Ordering::Relaxed)).sum();
    format!(
        "{:5.0}s {weather} req {} fine {} lost {} UNEXPLAINED {} WRONG {} FAILED {} | faults {faults} moves {moves}{planes}",
        at.as_secs_f64(),
        counts.offered,
        counts.fine,
        counts.lost(),
        counts.unexplained,
        counts.wrong,
        counts.failures
    )
}

/// The summary, and whether all is well.
pub(crate) fn summary(total: Duration, sites: &[(&Site, &Figures)]) -> (Vec<String>, bool) {
    let mut told = Vec::new();
    let mut well = true;
    let mut row = |name: &str, c: &Counts| {
        let losses = Cause::ALL.map(|(cause, name)| format!("{name} {}", c.lost.get(&cause).unwrap_or(&0))).join(", ");
        told.push(format!(
            "{name:<8} offered {}, fine {}, broken by the backend {}, canceled {}, held back {}",
            c.offered, c.fine, c.broken, c.canceled, c.held_back
        ));
        told.push(format!("{name:<8} lost as the protocol has it: {} ({losses})", c.lost()));
        told.push(format!(
            "{name:<8} lost without a reason: {}, wrong: {}, other failures: {}",
            c.unexplained, c.wrong, c.failures
        ));
    };
    let mut all = Counts::default();
    for (site, _) in sites {
        let counts = site.ledger.counts();
        row(site.name, &counts);
        all.add(&counts);
    }
    row("all", &all);
    well &= all.violations() == 0 && all.fine > 0;
    for (site, figures) in sites {
        let read = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        let f = &site.figures;
        told.push(format!(
            "{:<8} registrations {}, moves between transports {}, faults {}, configurations {}, connectors replaced {}, idle connections closed by backends {}",
            site.name,
            site.edge.state().registered_total,
            read(&f.moves),
            read(&f.faults),
            read(&f.pushes),
            read(&f.replaced),
            read(&site.seen.closed_idle)
        ));
        well &= figures.judge(site.name, total, &mut told);
    }
    (told, well)
}
