//! Statuses as values, and how findings become conditions. Names are those of the Gateway API and of the reference documents.
//! Nothing here decides: a condition is what the findings of an object add up to.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;

use super::finding::{Code, Finding, limited};

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[expect(missing_docs, reason = "the three values of a Kubernetes condition")]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// What a finding says on a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The condition's type.
    pub r#type: &'static str,
    /// Its status.
    pub status: ConditionStatus,
    /// Its reason.
    pub reason: &'static str,
}

/// One condition of a status. The transition time is the writer's: a value has no history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Such as `Accepted`.
    pub r#type: &'static str,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The `metadata.generation` that was judged; absent for objects that come from files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// What goes on an object's `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Status {
    /// Of a GatewayClass.
    Class(ClassStatus),
    /// Of a Gateway or a ListenerSet.
    Listeners(ListenersStatus),
    /// Of a route of any kind.
    Route(RouteStatus),
}

/// Status of a GatewayClass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassStatus {
    /// Its conditions.
    pub conditions: Vec<Condition>,
}

/// Status of a Gateway or a ListenerSet; addresses are set by whoever knows the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenersStatus {
    /// Its conditions.
    pub conditions: Vec<Condition>,
    /// Accepted ListenerSets; on a Gateway only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attached_listener_sets: Option<usize>,
    /// Its listeners, in list order.
    pub listeners: Vec<ListenerStatus>,
}

/// Status of one listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerStatus {
    /// The section name.
    pub name: String,
    /// Routes attached to it.
    pub attached_routes: usize,
    /// The route kinds that it takes.
    pub supported_kinds: Vec<RouteGroupKind>,
    /// Its conditions.
    pub conditions: Vec<Condition>,
}

/// A kind of route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RouteGroupKind {
    /// API group.
    pub group: &'static str,
    /// Kind.
    pub kind: &'static str,
}

/// Status of a route: our entries only, one per parentRef that names a Gateway of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteStatus {
    /// The entries.
    pub parents: Vec<ParentStatus>,
}

/// What a route is to one parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentStatus {
    /// The parentRef as the route writes it, with the defaults of the schema.
    pub parent_ref: Arc<ParentRefStatus>,
    /// Ours.
    pub controller_name: Arc<str>,
    /// Conditions towards this parent.
    pub conditions: Vec<Condition>,
}

/// A parentRef on a status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentRefStatus {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace, when the parentRef names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// Section name, when the parentRef names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// Port, when the parentRef names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// The condition that marks a route which serves only in part. Its message starts as the Gateway API wants it.
const PARTIALLY_INVALID: &str = "PartiallyInvalid";

/// Adds findings up to conditions: those of `expected`, in order, which hold unless a finding says otherwise, then every other
/// one that a finding sets. Where several findings set one condition, the first [`Code`] gives status and reason and all give their message.
pub(super) fn fold(expected: &[Verdict], findings: &[&Finding], generation: Option<i64>) -> Vec<Condition> {
    let mut conditions: Vec<Condition> = Vec::with_capacity(expected.len());
    for verdict in expected {
        let condition = combined(verdict.r#type, findings, generation);
        conditions.push(condition.unwrap_or_else(|| condition_of(verdict, String::new(), generation)));
    }
    for verdict in findings.iter().flat_map(|f| f.code.verdicts()) {
        if conditions.iter().all(|c| c.r#type != verdict.r#type) {
            conditions.extend(combined(verdict.r#type, findings, generation));
        }
    }
    conditions
}

/// Whether a condition holds among some.
pub(super) fn holds(conditions: &[Condition], r#type: &str) -> bool {
    conditions.iter().any(|c| c.r#type == r#type && c.status == ConditionStatus::True)
}

fn combined(r#type: &str, findings: &[&Finding], generation: Option<i64>) -> Option<Condition> {
    let of_type = |code: Code| code.verdicts().iter().find(|v| v.r#type == r#type);
    let saying: Vec<&Finding> = findings.iter().copied().filter(|f| of_type(f.code).is_some()).collect();
    let verdict = of_type(saying.iter().map(|f| f.code).min()?)?;
    let mut message = String::new();
    if r#type == PARTIALLY_INVALID {
        let rules: BTreeSet<usize> = saying.iter().filter_map(|f| f.rule).collect();
        let rules: Vec<String> = rules.iter().map(usize::to_string).collect();
        let _ = write!(message, "Dropped Rule {}: ", rules.join(", "));
    }
    let mut seen = BTreeSet::new();
    for finding in saying {
        if seen.insert(finding.message.as_str()) {
            if seen.len() > 1 {
                message.push_str("; ");
            }
            message.push_str(&finding.message);
        }
    }
    Some(condition_of(verdict, limited(message, MOST_MESSAGE), generation))
}

/// Most bytes of a condition's message (Kubernetes `metav1.Condition`).
const MOST_MESSAGE: usize = 32 * 1024;

fn condition_of(verdict: &Verdict, message: String, generation: Option<i64>) -> Condition {
    Condition { r#type: verdict.r#type, status: verdict.status, reason: verdict.reason, message, observed_generation: generation }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::id::{Kind, ObjectRef};

    #[test]
    fn a_message_stays_within_what_kubernetes_takes() {
        let object = ObjectRef::new(Kind::HttpRoute, "a", "b");
        let finding =
            |rule| Finding::new(Code::FilterUnsupported, &object, "spec", format!("{rule}{}", "é".repeat(40_000))).rule(rule);
        let findings: Vec<Finding> = (0..100).map(finding).collect();
        assert!(findings.iter().all(|f| f.message.len() <= 1024 && f.message.ends_with("é ...")));
        let conditions = fold(&[], &findings.iter().collect::<Vec<_>>(), Some(3));
        assert_eq!(conditions.len(), 1);
        assert!(conditions[0].message.len() <= 32 * 1024 && conditions[0].message.starts_with("Dropped Rule 0, 1, "));
        assert_eq!(conditions[0].observed_generation, Some(3));
    }
}
