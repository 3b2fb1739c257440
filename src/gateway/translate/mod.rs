//! From objects to what planes serve and what statuses say: the ordered passes, and nothing but their order.
//!
//! `translate` is total: no object makes it fail, what it cannot serve becomes a finding. It is pure: the same snapshot gives the
//! same bytes. What a single pass decides lives in the pass's own file.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use self::ctx::Ctx;
use self::plane::Planes;
use self::reference_grant::Grants;
use super::condition::Status;
use super::finding::Finding;
use super::id::{Kind, ObjectRef};
use super::ir::RouteConfig;
use super::snapshot::Snapshot;

mod attach;
mod backend;
mod class;
mod ctx;
mod endpoint;
mod filter;
mod gateway;
mod grpc_route;
mod http_route;
mod listener;
mod listener_set;
mod namespace;
mod plane;
mod reference_grant;
mod route;
mod rule;
mod shadow;
mod status;
mod timeout;

/// What a snapshot adds up to.
#[derive(Clone, Debug, Serialize)]
pub struct Translation {
    /// What each plane serves. While Gateways or their classes could not be read, a plane that is absent here is unknown, and not
    /// to be taken away.
    pub planes: BTreeMap<PlaneId, Plane>,
    /// Statuses of the objects that are ours to write on.
    #[serde(serialize_with = "statuses_as_list")]
    pub statuses: BTreeMap<ObjectRef, Status>,
    /// All that was diagnosed, by object.
    pub findings: Vec<Finding>,
}

/// Names a plane: the proxies that serve one Gateway, or share several.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlaneId {
    /// The only one: everything is served from this process.
    Local,
    /// Shared by the Gateways of a class.
    Class(String),
    /// Of one Gateway.
    Gateway {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl fmt::Display for PlaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Class(name) => write!(f, "class/{name}"),
            Self::Gateway { namespace, name } => write!(f, "gateway/{namespace}/{name}"),
        }
    }
}

impl Serialize for PlaneId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a plane is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Plane {
    /// Serve this.
    Ready(RouteConfig),
    /// Keep the last configuration: something it depends on could not be read.
    Held(Vec<Held>),
}

/// Why a plane keeps its last configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Held {
    /// The kind that could not be read.
    pub kind: Kind,
    /// Why.
    pub reason: String,
}

/// Judges a snapshot: what every plane serves, what goes on every status, and all findings.
pub fn translate(snapshot: &Snapshot) -> Translation {
    let mut ctx = Ctx::new(snapshot);
    let grants = Grants::new(snapshot);
    let classes = class::classes(&mut ctx);
    let gateways = gateway::gateways(&mut ctx, &classes);
    let mut topology = listener::topology(&mut ctx, &grants, gateways);
    let mut planes = Planes::new(&ctx, &topology);
    let routes = route::routes(&mut ctx, &grants, &mut topology, &mut planes);
    let planes = planes.finish(&mut ctx, &topology);
    ctx.findings.sort_by(in_order);
    ctx.findings.dedup();
    let statuses = status::statuses(&ctx, &classes, &topology, &routes);
    Translation { planes, statuses, findings: ctx.findings }
}

/// By object, then by place in it, so that what belongs together is together.
fn in_order(a: &Finding, b: &Finding) -> Ordering {
    let place = |f: &Finding| (f.scope, f.rule);
    a.object
        .cmp(&b.object)
        .then_with(|| place(a).cmp(&place(b)))
        .then_with(|| natural(&a.field, &b.field))
        .then_with(|| (a.code, &a.message).cmp(&(b.code, &b.message)))
}

/// Compares field paths so that index 10 comes after index 9.
fn natural(a: &str, b: &str) -> Ordering {
    fn parts(text: &str) -> impl Iterator<Item = (usize, &str)> {
        // A number sorts by its length first; a part that is no number has none.
        let split = text.split_inclusive(['[', ']']).map(|part| part.trim_end_matches([']', '[']));
        split.map(|part| (if part.bytes().all(|b| b.is_ascii_digit()) { part.len() } else { 0 }, part))
    }
    parts(a).cmp(parts(b)).then_with(|| a.cmp(b))
}

fn statuses_as_list<S: Serializer>(statuses: &BTreeMap<ObjectRef, Status>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Entry<'a> {
        object: &'a ObjectRef,
        status: &'a Status,
    }
    serializer.collect_seq(statuses.iter().map(|(object, status)| Entry { object, status }))
}
