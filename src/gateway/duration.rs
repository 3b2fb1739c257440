//! Durations as the Gateway API writes them (GEP-2257): a small subset of what other parsers take, and nothing else.

use std::str::FromStr;
use std::time::Duration;

/// A duration by GEP-2257: one to four parts of up to five digits and a unit of `h`, `m`, `s` or `ms`, such as `1m30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatewayDuration(Duration);

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration: one to four parts of up to five digits and a unit (h, m, s, ms), such as 1m30s")]
pub struct InvalidDuration(String);

impl GatewayDuration {
    /// Its length.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Its length in milliseconds, the finest unit there is. At most four times 99999 hours, so it always fits.
    pub const fn as_millis(self) -> u64 {
        self.0.as_secs() * 1000 + self.0.subsec_millis() as u64
    }

    /// Whether it is zero, which for a timeout means "no limit".
    pub const fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

impl FromStr for GatewayDuration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidDuration(text.chars().take(64).collect());
        let (mut rest, mut total, mut parts) = (text, Duration::ZERO, 0);
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if !(1..=5).contains(&digits) || parts == 4 {
                return Err(invalid());
            }
            let number: u64 = rest[..digits].parse().map_err(|_| invalid())?;
            rest = &rest[digits..];
            let (unit, length) = if rest.starts_with("ms") {
                (Duration::from_millis(1), 2)
            } else {
                match rest.bytes().next() {
                    Some(b'h') => (Duration::from_secs(3600), 1),
                    Some(b'm') => (Duration::from_secs(60), 1),
                    Some(b's') => (Duration::from_secs(1), 1),
                    _ => return Err(invalid()),
                }
            };
            total += unit * u32::try_from(number).map_err(|_| invalid())?;
            rest = &rest[length..];
            parts += 1;
        }
        if parts == 0 { Err(invalid()) } else { Ok(Self(total)) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gep_2257_durations_are_read() {
        for (text, millis) in [
            ("0s", 0),
            ("0h0m0s0ms", 0),
            ("10s", 10_000),
            ("1h", 3_600_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("99999h", 359_996_400_000),
            ("1s1s1s1s", 4000),
            ("1h1m1s1ms", 3_661_001),
        ] {
            assert_eq!(text.parse::<GatewayDuration>().map(GatewayDuration::as_millis), Ok(millis), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in ["", "1", "1.5s", "-1s", "1d", "1us", "s", "100000s", "1s1s1s1s1s", " 1s", "1s ", "1S", "١s", "1msm"] {
            assert!(text.parse::<GatewayDuration>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn reading_agrees_with_the_expression_of_the_gep(text in "[0-9hms]{0,14}") {
            let spec = regex::Regex::new("^([0-9]{1,5}(h|m|s|ms)){1,4}$").expect("the expression of GEP-2257");
            prop_assert_eq!(text.parse::<GatewayDuration>().is_ok(), spec.is_match(&text), "{}", text);
        }
    }
}
