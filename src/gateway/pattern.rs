//! Expressions of matches: RE2 syntax, anchored, bounded in size and linear in the value. The one place that builds them, so that
//! what the controller accepts is what a plane runs (X18).

use regex::bytes::{Regex, RegexBuilder};

/// Bytes that the compiled form of one expression may take. A search costs at most this times the length of the value, so the
/// bound is also what keeps an expression with nested repetitions from stalling other requests.
const SIZE_LIMIT: usize = 64 * 1024;

/// Bytes of lazily built automaton that one expression may cache per thread.
const CACHE_LIMIT: usize = 512 * 1024;

/// How deep groups may nest.
const NEST_LIMIT: u32 = 64;

/// Why an expression cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// Not an expression.
    #[error("expression {0:?} does not parse: {1}")]
    Syntax(String, String),
    /// Larger than this plane runs.
    #[error("expression {0:?} is too large: write it with shorter repetitions or fewer alternatives")]
    TooLarge(String),
}

/// Compiles an expression that must cover the whole value.
///
/// # Errors
/// When it is no expression, or a larger one than a plane runs.
pub fn anchored(expression: &str) -> Result<Regex, InvalidPattern> {
    // As in RE2 the classes \w, \d, \s and \b are those of ASCII; only an expression that needs Unicode (\p{…}, a non-ASCII
    // class) is read with it.
    build(expression, false).or_else(|_| build(expression, true)).map_err(|error| invalid(expression, &error))
}

fn build(expression: &str, unicode: bool) -> Result<Regex, regex::Error> {
    let build = |pattern: &str| {
        RegexBuilder::new(pattern)
            .unicode(unicode)
            .size_limit(SIZE_LIMIT)
            .dfa_size_limit(CACHE_LIMIT)
            .nest_limit(NEST_LIMIT)
            .build()
    };
    // `a)|(b` would leave the group that anchors it.
    if expression.contains(')') {
        build(expression)?;
    }
    build(&format!(r"\A(?:{expression})\z"))
}

fn invalid(expression: &str, error: &regex::Error) -> InvalidPattern {
    let shown = expression.chars().take(120).collect();
    match error {
        regex::Error::CompiledTooBig(_) => InvalidPattern::TooLarge(shown),
        other => {
            let text = other.to_string();
            let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("unknown reason");
            InvalidPattern::Syntax(shown, last.trim().trim_start_matches("error: ").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(expression: &str, value: &str) -> bool {
        anchored(expression).expect("an expression").is_match(value.as_bytes())
    }

    #[test]
    fn the_whole_value_must_match() {
        assert!(covers("a|ab", "ab") && covers("/v[0-9]+", "/v12") && covers("", ""));
        assert!(!covers("b", "abc") && !covers("(?m)a", "a\nb") && !covers("a", "a\n") && !covers("a|b", "ac"));
    }

    #[test]
    fn an_expression_cannot_leave_its_anchors() {
        for bad in ["a)|(b", "a)|(?:b", ")(", "(?x)a # b"] {
            assert!(matches!(anchored(bad), Err(InvalidPattern::Syntax(..))), "{bad}");
        }
        assert!(covers(r"a\)|[)]", "a)") && covers("(a)|(b)", "b") && !covers("(a)|(b)", "ab"));
    }

    #[test]
    fn classes_are_ascii_unless_unicode_is_asked_for() {
        assert!(covers(r"\d+", "12") && !covers(r"\d+", "١٢"));
        assert!(covers(r"\p{L}+", "äb") && covers("ä+", "ää") && covers(".*", "ä"));
    }

    #[test]
    fn common_expressions_fit_and_bombs_do_not() {
        for good in [
            "[a-z0-9-]{1,63}",
            "[^/]{1,253}",
            r"/users/\w{1,100}/(posts|likes)/\d{1,20}",
            r"\p{L}+",
            "(?i)mozilla.*(ios|android).*",
        ] {
            assert!(anchored(good).is_ok(), "{good}");
        }
        for bomb in ["(a{1,100}){1,100}{1,100}", "((a{0,100}){0,100}){0,100}", r"\p{L}{1,1000}"] {
            assert!(matches!(anchored(bomb), Err(InvalidPattern::TooLarge(_))), "{bomb}");
        }
        let deep = format!("{}a{}", "(".repeat(2000), ")".repeat(2000));
        assert!(anchored(&deep).is_err());
    }
}
