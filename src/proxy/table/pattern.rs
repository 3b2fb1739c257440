//! Texts that routes compare with, each kept once per document. How an expression is read is not decided here.

use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use regex::bytes::Regex;

use crate::gateway::pattern::{self, InvalidPattern};

/// Keeps each text once per document: routes repeat `/` and a few others over and over.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    literals: HashSet<Arc<str>>,
    built: HashMap<String, Result<Regex, InvalidPattern>>,
}

impl Patterns {
    /// A literal.
    pub(super) fn literal(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.literals.get(text) {
            return Arc::clone(known);
        }
        let literal: Arc<str> = text.into();
        self.literals.insert(Arc::clone(&literal));
        literal
    }

    /// An expression that must cover the whole value.
    pub(super) fn anchored(&mut self, expression: &str) -> Result<Regex, InvalidPattern> {
        if let Some(built) = self.built.get(expression) {
            return built.clone();
        }
        let built = pattern::anchored(expression);
        self.built.insert(expression.to_owned(), built.clone());
        built
    }
}
