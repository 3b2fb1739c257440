//! Whether a reference may cross namespaces (Gateway API ReferenceGrant).

use std::collections::BTreeMap;

use super::ctx::namespace;
use crate::gateway::resource::gateway_api::reference_grant::ReferenceGrantSpec;
use crate::gateway::resource::view::GATEWAY_GROUP;
use crate::gateway::snapshot::Snapshot;

/// Every grant, by the namespace that grants.
pub(super) struct Grants<'s>(BTreeMap<&'s str, Vec<&'s ReferenceGrantSpec>>);

/// Who refers: a kind of the Gateway API, in a namespace.
#[derive(Clone, Copy)]
pub(super) struct From<'a> {
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
}

/// What is referred to.
#[derive(Clone, Copy)]
pub(super) struct To<'a> {
    pub(super) group: &'a str,
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// Takes `core` for the core group, in the reference and in the grant: for backends only, where manifests rely on it
    /// (S3 "The core group spelling is tolerated in some references and not others").
    pub(super) lenient: bool,
}

impl<'s> Grants<'s> {
    pub(super) fn new(snapshot: &'s Snapshot) -> Self {
        let mut grants: BTreeMap<&str, Vec<&ReferenceGrantSpec>> = BTreeMap::new();
        for grant in snapshot.reference_grants.values() {
            grants.entry(namespace(&grant.metadata)).or_default().push(&grant.spec);
        }
        Self(grants)
    }

    /// Whether the reference stays in its namespace or is granted. A missing grant is a refusal even where grants were not
    /// given at all: what is not granted is not permitted.
    pub(super) fn permit(&self, from: From<'_>, to: To<'_>) -> bool {
        if from.namespace == to.namespace {
            return true;
        }
        let wanted = canonical(to.group, to.lenient);
        self.0.get(to.namespace).into_iter().flatten().any(|grant| {
            grant.from.iter().any(|f| f.group == GATEWAY_GROUP && f.kind == from.kind && f.namespace == from.namespace)
                && grant.to.iter().any(|t| {
                    canonical(&t.group, to.lenient) == wanted
                        && t.kind == to.kind
                        && t.name.as_ref().is_none_or(|name| name.is_empty() || name == to.name)
                })
        })
    }
}

fn canonical(group: &str, lenient: bool) -> &str {
    if lenient && group == "core" { "" } else { group }
}
