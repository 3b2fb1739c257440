//! Expressions of matches: RE2 syntax, the whole value, bounded in size. One place, so that what the controller accepts is what
//! a plane compiles.

use regex::{Regex, RegexBuilder};

/// Most bytes that one compiled expression may take.
const MOST: usize = 256 * 1024;

/// Why an expression cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// It is not RE2 syntax, or has what RE2 leaves out: look-around and back references.
    #[error("{0}")]
    Syntax(String),
    /// It compiles to more than a plane should hold for one match.
    #[error("it compiles to more than {MOST} bytes")]
    TooLarge,
}

/// Compiles an expression that must match a whole value.
pub fn whole(pattern: &str) -> Result<Regex, InvalidPattern> {
    // On its own first: wrapped, `a)|(b` would compile to something else than it says.
    compile(pattern)?;
    compile(&format!("^(?:{pattern})$"))
}

fn compile(pattern: &str) -> Result<Regex, InvalidPattern> {
    RegexBuilder::new(pattern).size_limit(MOST).dfa_size_limit(MOST).build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => InvalidPattern::TooLarge,
        // The message draws the expression over several lines; its last line says what is wrong.
        error => {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default();
            InvalidPattern::Syntax(reason.strip_prefix("error: ").unwrap_or(reason).to_owned())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_value_must_match() {
        let pattern = whole("/a|/b").expect("an expression");
        assert!(pattern.is_match("/a") && pattern.is_match("/b") && !pattern.is_match("/ab") && !pattern.is_match("x/b"));
    }

    #[test]
    fn what_cannot_be_compiled_alone_is_refused() {
        for bad in ["a)|(b", "[", "(?=x)", r"(a)\1", "(?x)a # open comment", "*"] {
            assert!(matches!(whole(bad), Err(InvalidPattern::Syntax(_))), "{bad}");
        }
        assert_eq!(whole(r"(\w{1000}){1000}").map(|_| ()), Err(InvalidPattern::TooLarge));
    }
}
