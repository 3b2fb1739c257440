//! Why a request gets the rule it gets: for `route trace`. Asks every match of every route on the host, with the same
//! predicates and the same order as `find`, but without its indexes. Does not print.

use serde::Serialize;

use super::matcher::{Mismatch, Position};
use super::rank::{HostRank, Rank, Tier, deciding_tier};
use super::{Hit, RequestKey, RouteEntry, RouteTable};
use crate::gateway::hostname::Hostname;
use crate::gateway::id::ObjectRef;
use crate::gateway::ir;

/// How a table sees one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The host that was looked up.
    pub host: String,
    /// Listeners whose hostname matches the host, in document order.
    pub listeners: Vec<ListenerVerdict>,
    /// Matches of the routes that may answer on this host, in order of precedence.
    pub candidates: Vec<Candidate>,
    /// Routes for this host that may not answer, since only listeners that lost it admit them.
    pub isolated: Vec<IsolatedRoute>,
}

/// What became of a listener whose hostname matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerVerdict {
    /// The Gateway within which it competes.
    pub gateway: ObjectRef,
    /// The object that declares it.
    pub source: ObjectRef,
    /// Its section name.
    pub name: String,
    /// Its hostname; none for any.
    pub hostname: Option<Hostname>,
    /// Whether it owns the host.
    pub outcome: ListenerOutcome,
}

/// Whether a listener owns a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ListenerOutcome {
    /// It does; its routes answer.
    Owns,
    /// A listener of the same Gateway has this more specific hostname.
    LostTo(Hostname),
}

/// One match of a rule that may answer on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// The route.
    pub route: ObjectRef,
    /// Index in its `spec.rules`.
    pub rule: usize,
    /// `spec.rules[].name`.
    pub rule_name: Option<String>,
    /// Index in the rule's `matches`.
    pub match_index: usize,
    /// The most specific hostname of the route that matches; none when it names no host.
    pub hostname: Option<Hostname>,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The request gets its rule.
    Chosen,
    /// It covers the request, but the chosen one comes first, by this.
    Lost(Tier),
    /// It does not cover the request.
    Missed(Missed),
}

/// The first part of a match that the request does not meet. Names only: values may be secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Missed {
    /// A GRPCRoute match, but the content type is not `application/grpc`.
    NotGrpc,
    /// The path.
    Path,
    /// The method.
    Method,
    /// The header of this name.
    Header(String),
    /// The query parameter of this name.
    Query(String),
}

/// A route that names the host but is not admitted by a listener that owns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IsolatedRoute {
    /// The route.
    pub route: ObjectRef,
    /// The listeners that match the host and admit the route, as positions in [`Explanation::listeners`].
    pub listeners: Vec<usize>,
}

impl Explanation {
    /// The match whose rule the request gets; none means 404.
    pub fn chosen(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.outcome == Outcome::Chosen)
    }
}

/// A matcher on its way to becoming a candidate.
struct Contender<'t> {
    place: (HostRank, Rank),
    entry: &'t RouteEntry,
    hostname: Option<&'t Hostname>,
    position: Position,
}

impl RouteTable {
    /// Explains what [`find`](Self::find) does with a request.
    pub fn explain(&self, key: &RequestKey<'_>) -> Explanation {
        self.explain_with_hit(key).0
    }

    /// The explanation with the rule that its chosen candidate stands for.
    pub(super) fn explain_with_hit(&self, key: &RequestKey<'_>) -> (Explanation, Option<Hit<'_>>) {
        let listeners: Vec<(usize, ListenerVerdict)> = self.verdicts(key.host);
        let mut contenders = Vec::new();
        let mut isolated = Vec::new();
        for entry in &self.routes {
            let Some(hostname) = best_hostname(entry, key.host) else { continue };
            let admitting: Vec<usize> = (0..listeners.len()).filter(|at| entry.listeners.contains(&listeners[*at].0)).collect();
            if admitting.iter().any(|at| listeners[*at].1.outcome == ListenerOutcome::Owns) {
                let rank = HostRank::of(hostname);
                let positions = entry.matchers.clone().map(Position::new);
                contenders.extend(positions.map(|position| Contender {
                    place: (rank, self.matchers.rank(position)),
                    entry,
                    hostname,
                    position,
                }));
            } else if !admitting.is_empty() {
                isolated.push(IsolatedRoute { route: entry.object.clone(), listeners: admitting });
            }
        }
        contenders.sort_by_key(|contender| contender.place);
        let (candidates, chosen) = self.outcomes(&contenders, key);
        let listeners = listeners.into_iter().map(|(_, verdict)| verdict).collect();
        let hit = chosen.map(|position| self.hit(position));
        (Explanation { host: key.host.to_owned(), listeners, candidates, isolated }, hit)
    }

    /// The listeners that match the host, with their positions in the document.
    fn verdicts(&self, host: &str) -> Vec<(usize, ListenerVerdict)> {
        let matches = |l: &&ir::Listener| l.hostname.as_ref().is_none_or(|h| h.matches(host));
        let matching: Vec<&ir::Listener> = self.listeners.iter().filter(matches).collect();
        let outcome = |listener: &ir::Listener| {
            let rivals = matching.iter().filter(|rival| rival.gateway == listener.gateway);
            match rivals.map(|rival| (HostRank::of(rival.hostname.as_ref()), rival)).min_by_key(|(rank, _)| *rank) {
                Some((_, rival)) if rival.hostname != listener.hostname => {
                    rival.hostname.clone().map_or(ListenerOutcome::Owns, ListenerOutcome::LostTo)
                }
                _ => ListenerOutcome::Owns,
            }
        };
        let verdict = |listener: &ir::Listener| ListenerVerdict {
            gateway: listener.gateway.clone(),
            source: listener.source.clone(),
            name: listener.name.clone(),
            hostname: listener.hostname.clone(),
            outcome: outcome(listener),
        };
        let positioned = self.listeners.iter().enumerate().filter(|(_, listener)| matches(listener));
        positioned.map(|(position, listener)| (position, verdict(listener))).collect()
    }

    fn outcomes(&self, contenders: &[Contender<'_>], key: &RequestKey<'_>) -> (Vec<Candidate>, Option<Position>) {
        let mut winner: Option<&Contender<'_>> = None;
        let mut candidates = Vec::with_capacity(contenders.len());
        for contender in contenders {
            let matcher = self.matchers.get(contender.position);
            let outcome = match (matcher.check(key), winner) {
                (Err(mismatch), _) => Outcome::Missed(missed(mismatch)),
                (Ok(()), None) => {
                    winner = Some(contender);
                    Outcome::Chosen
                }
                (Ok(()), Some(winner)) => Outcome::Lost(deciding_tier(
                    (winner.place.0, winner.place.1, &winner.entry.object),
                    (contender.place.0, contender.place.1, &contender.entry.object),
                )),
            };
            let rule = &self.rules[matcher.rule as usize];
            candidates.push(Candidate {
                route: contender.entry.object.clone(),
                rule: rule.index,
                rule_name: rule.name.as_deref().map(str::to_owned),
                match_index: contender.place.1.position as usize,
                hostname: contender.hostname.cloned(),
                outcome,
            });
        }
        (candidates, winner.map(|contender| contender.position))
    }
}

/// The most specific hostname of the route that matches; the inner none stands for a route without hostnames. Less specific
/// ones of the same route can change nothing: its matches are the same.
fn best_hostname<'t>(entry: &'t RouteEntry, host: &str) -> Option<Option<&'t Hostname>> {
    if entry.hostnames.is_empty() {
        return Some(None);
    }
    let matching = entry.hostnames.iter().filter(|hostname| hostname.matches(host));
    matching.min_by_key(|hostname| HostRank::of(Some(hostname))).map(Some)
}

fn missed(mismatch: Mismatch<'_>) -> Missed {
    match mismatch {
        Mismatch::NotGrpc => Missed::NotGrpc,
        Mismatch::Path => Missed::Path,
        Mismatch::Method => Missed::Method,
        Mismatch::Header(name) => Missed::Header(name.as_str().to_owned()),
        Mismatch::Query(name) => Missed::Query(name.to_owned()),
    }
}
