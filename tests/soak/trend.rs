//! Whether a figure stays where it is: the first tenth after the warm-up against the last, and a straight line through all.

use std::time::Duration;

/// Figures over time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series(Vec<(f64, f64)>);

/// How far a figure may move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Of its own size.
    pub(crate) share: f64,
    /// And this much besides, in its unit.
    pub(crate) fixed: f64,
}

/// What became of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trend {
    /// Median of the first tenth after the warm-up.
    pub(crate) first: f64,
    /// Median of the last tenth.
    pub(crate) last: f64,
    /// The most there ever was.
    pub(crate) most: f64,
    /// Growth from the end of the warm-up to the end, by least squares.
    pub(crate) growth: f64,
}

impl Series {
    pub(crate) fn add(&mut self, at: Duration, value: f64) {
        self.0.push((at.as_secs_f64(), value));
    }

    pub(crate) fn latest(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, value)| *value)
    }

    /// The trend after `warm_up`; `None` while there are too few figures for one.
    pub(crate) fn trend(&self, warm_up: Duration) -> Option<Trend> {
        let steady: Vec<_> = self.0.iter().copied().filter(|(at, _)| *at >= warm_up.as_secs_f64()).collect();
        let tenth = (steady.len() / 10).max(1);
        if steady.len() < 10 {
            return None;
        }
        let most = self.0.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let (first, last) = (median(&steady[..tenth]), median(&steady[steady.len() - tenth..]));
        let span = steady[steady.len() - 1].0 - steady[0].0;
        Some(Trend { first, last, most, growth: slope(&steady) * span })
    }
}

impl Trend {
    /// Whether it is flat, with that much room. Both measures must say that it grows for it to count as growth: the tenths are
    /// blind to the middle, and a line leans on outliers.
    pub(crate) fn is_flat(&self, room: Room) -> bool {
        let most = self.first * room.share + room.fixed;
        self.last - self.first <= most || self.growth <= most
    }
}

fn median(points: &[(f64, f64)]) -> f64 {
    let mut values: Vec<_> = points.iter().map(|(_, value)| *value).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let mean = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).sum::<f64>() / n;
    let (mean_at, mean_value) = (mean(|p| p.0), mean(|p| p.1));
    let both: f64 = points.iter().map(|(at, value)| (at - mean_at) * (value - mean_value)).sum();
    let spread: f64 = points.iter().map(|(at, _)| (at - mean_at).powi(2)).sum();
    if spread > 0.0 { both / spread } else { 0.0 }
}
