//! Namespaces and selectors over their labels. A namespace that was not given has unknown labels but one: its name.

use std::collections::BTreeMap;

use super::ctx::Ctx;
use crate::gateway::id::Kind;
use crate::gateway::resource::view::{FromNamespaces, Selector};

/// The label that every namespace has, with its name (KEP-2161).
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Which namespaces something is open to, parsed.
#[derive(Clone, Debug)]
pub(super) enum Opens<'s> {
    All,
    Same,
    None,
    Selector(Vec<Requirement<'s>>),
}

/// One requirement of a selector.
#[derive(Clone, Debug)]
pub(super) struct Requirement<'s> {
    key: &'s str,
    test: Test<'s>,
}

#[derive(Clone, Debug)]
enum Test<'s> {
    Equals(&'s str),
    In(&'s [String]),
    NotIn(&'s [String]),
    Exists,
    DoesNotExist,
}

/// Parses what a listener or a Gateway is open to; the reason when it does not parse.
pub(super) fn opens<'s>(from: FromNamespaces, selector: Option<&Selector<'s>>) -> Result<Opens<'s>, String> {
    match from {
        FromNamespaces::All => Ok(Opens::All),
        FromNamespaces::Same => Ok(Opens::Same),
        FromNamespaces::None => Ok(Opens::None),
        FromNamespaces::Selector => {
            let selector = selector.ok_or_else(|| "from: Selector has no selector".to_owned())?;
            requirements(selector).map(Opens::Selector)
        }
    }
}

/// Whether something of `owner`'s namespace that is open to `opens` takes what comes from `namespace`; none when labels that
/// decide it are not known.
pub(super) fn admits(ctx: &Ctx<'_>, opens: &Opens<'_>, owner: &str, namespace: &str) -> Option<bool> {
    match opens {
        Opens::All => Some(true),
        Opens::Same => Some(owner == namespace),
        Opens::None => Some(false),
        Opens::Selector(requirements) => selects(ctx, requirements, namespace),
    }
}

fn selects(ctx: &Ctx<'_>, requirements: &[Requirement<'_>], namespace: &str) -> Option<bool> {
    let object = ctx.snapshot.namespaces.get("", namespace);
    if object.is_none() && ctx.snapshot.is_complete(Kind::Namespace) {
        return Some(false);
    }
    let labels = object.map(|n| n.metadata.labels.as_ref());
    let mut verdict = Some(true);
    for requirement in requirements {
        let value = match (requirement.key, labels) {
            (NAME_LABEL, _) => Some(Some(namespace)),
            (key, Some(labels)) => Some(labels.and_then(|l: &BTreeMap<String, String>| l.get(key)).map(String::as_str)),
            (_, None) => None,
        };
        match value.map(|value| requirement.test.holds(value)) {
            Some(true) => {}
            Some(false) => return Some(false),
            None => verdict = None,
        }
    }
    verdict
}

impl Test<'_> {
    fn holds(&self, value: Option<&str>) -> bool {
        let among = |values: &[String]| value.is_some_and(|value| values.iter().any(|v| v == value));
        match self {
            Self::Equals(wanted) => value == Some(wanted),
            Self::In(values) => among(values),
            Self::NotIn(values) => !among(values),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
        }
    }
}

fn requirements<'s>(selector: &Selector<'s>) -> Result<Vec<Requirement<'s>>, String> {
    let labels = selector.labels.into_iter().flatten();
    let mut all: Vec<_> = labels.map(|(key, value)| Requirement { key, test: Test::Equals(value) }).collect();
    for expression in &selector.expressions {
        let values = expression.values;
        let test = match (expression.operator, values.is_empty()) {
            ("In", false) => Test::In(values),
            ("NotIn", false) => Test::NotIn(values),
            ("Exists", true) => Test::Exists,
            ("DoesNotExist", true) => Test::DoesNotExist,
            ("In" | "NotIn", true) => return Err(format!("{} {} has no values", expression.key, expression.operator)),
            ("Exists" | "DoesNotExist", false) => {
                return Err(format!("{} {} takes no values", expression.key, expression.operator));
            }
            (operator, _) => return Err(format!("{} has the unknown operator {operator:?}", expression.key)),
        };
        all.push(Requirement { key: expression.key, test });
    }
    Ok(all)
}
