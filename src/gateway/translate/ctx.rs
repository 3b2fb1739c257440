//! What every pass shares: the snapshot, the findings so far, and which planes depend on something unread. No decisions here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::HashSet;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::PlaneId;
use crate::gateway::finding::{Code, Finding, Scope};
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::pattern::{self, InvalidPattern};
use crate::gateway::snapshot::{Coverage, Snapshot};

/// First parameter of the passes.
pub(super) struct Ctx<'s> {
    pub(super) snapshot: &'s Snapshot,
    pub(super) findings: Vec<Finding>,
    /// Kinds that could not be read and that a plane depends on.
    pub(super) unread: BTreeMap<PlaneId, BTreeSet<Kind>>,
    /// Expressions that were compiled: rules repeat them, and it is the most expensive thing that is asked of a match.
    patterns: BTreeMap<String, Option<InvalidPattern>>,
    /// Texts that many rules repeat, such as `/`.
    texts: HashSet<Arc<str>>,
}

impl<'s> Ctx<'s> {
    pub(super) fn new(snapshot: &'s Snapshot) -> Self {
        Self { snapshot, findings: Vec::new(), unread: BTreeMap::new(), patterns: BTreeMap::new(), texts: HashSet::default() }
    }

    /// Reports something about a whole object.
    pub(super) fn report(&mut self, code: Code, object: &ObjectRef, field: impl Into<String>, message: impl Into<String>) {
        self.findings.push(Finding::new(code, object, field, message));
    }

    /// Reports something about one parentRef or listener.
    pub(super) fn report_in(
        &mut self,
        scope: Scope,
        code: Code,
        object: &ObjectRef,
        field: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.findings.push(Finding::new(code, object, field, message).scope(scope));
    }

    /// A text, shared with those who have asked for the same.
    pub(super) fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&shared));
        shared
    }

    /// Why an expression cannot be used, if it cannot.
    pub(super) fn invalid_pattern(&mut self, expression: &str) -> Option<InvalidPattern> {
        if let Some(known) = self.patterns.get(expression) {
            return known.clone();
        }
        let error = pattern::anchored(expression).err();
        self.patterns.insert(expression.to_owned(), error.clone());
        error
    }

    /// Whether there may be objects of the kind that we were not shown.
    pub(super) fn cannot_read(&self, kind: Kind) -> bool {
        matches!(self.snapshot.coverage(kind), Coverage::Unreadable(_) | Coverage::Forbidden)
    }

    /// Notes that what a plane serves depends on a kind, which matters only when the kind could not be read.
    pub(super) fn depends(&mut self, plane: &PlaneId, kind: Kind) {
        if self.cannot_read(kind) {
            self.unread.entry(plane.clone()).or_default().insert(kind);
        }
    }
}

/// When an object was created, for precedence by age. One without a time, as in a file, is the newest.
pub(super) fn created(meta: &ObjectMeta) -> Timestamp {
    meta.creation_timestamp.as_ref().map_or(Timestamp::MAX, |time| time.0)
}

/// Its name.
pub(super) fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

/// Its namespace.
pub(super) fn namespace(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or_default()
}
