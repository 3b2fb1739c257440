//! What one request does, drawn from chance by the client and carried to the backend in the query, so that both ends know what
//! has to come of it.

use std::time::Duration;

use crate::chance::Chance;

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Unique in a run; both bodies follow from it.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) method: &'static str,
    pub(crate) host: &'static str,
    /// What the backend answers.
    pub(crate) status: u16,
    pub(crate) upload: Option<Upload>,
    /// Bytes of the response.
    pub(crate) down: usize,
    /// Whether the response comes without a length.
    pub(crate) chunked: bool,
    /// Before the head of the response.
    pub(crate) head_pause: Duration,
    /// Between pieces of the response, at the backend.
    pub(crate) drip: Duration,
    /// For each piece of the request's body, at the backend.
    pub(crate) read_pause: Duration,
    /// For each piece of the response, at the client.
    pub(crate) client_pause: Duration,
    pub(crate) end: End,
    /// When the client walks away.
    pub(crate) cancel: Option<Duration>,
    /// Whether the client speaks h2c to the edge.
    pub(crate) h2c: bool,
}

/// Which conversation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Http,
    Grpc,
    /// With this many messages.
    WebSocket(u64),
}

/// The body of a request.
#[derive(Clone, Debug)]
pub(crate) struct Upload {
    pub(crate) len: usize,
    pub(crate) chunked: bool,
    /// Between pieces, at the client.
    pub(crate) pause: Duration,
}

/// How the backend ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Whole,
    /// Breaks its connection in the middle of the body.
    Midway,
    /// Breaks its connection instead of an answer, the first time that it sees the request.
    BeforeHead,
}

/// Host of the routes to HTTP/1.1 backends.
pub(crate) const APP: &str = "app.soak.test";
/// Host of the route to an h2c backend.
pub(crate) const H2C: &str = "h2c.soak.test";
/// Host of the GRPCRoute.
pub(crate) const GRPC: &str = "grpc.soak.test";

impl Plan {
    fn get(id: u64) -> Self {
        Self {
            id,
            kind: Kind::Http,
            method: "GET",
            host: APP,
            status: 200,
            upload: None,
            down: 0,
            chunked: false,
            head_pause: Duration::ZERO,
            drip: Duration::ZERO,
            read_pause: Duration::ZERO,
            client_pause: Duration::ZERO,
            end: End::Whole,
            cancel: None,
            h2c: false,
        }
    }

    /// A request whose answer takes `pause`: to be in flight when something happens.
    pub(crate) fn slow(id: u64, pause: Duration) -> Self {
        Self { head_pause: pause, down: 4096, ..Self::get(id) }
    }

    /// The next request; `grpc` when such calls have a route and a transport that carries trailers.
    pub(crate) fn draw(id: u64, chance: &mut Chance, grpc: bool) -> Self {
        let mut plan = Self::get(id);
        let millis = |chance: &mut Chance, low, high| Duration::from_millis(chance.between(low, high));
        match chance.between(0, 1000) {
            0..300 => plan.down = chance.size(1, 4096),
            300..400 => (plan.down, plan.chunked) = (chance.size(1, 65_536), true),
            400..500 => plan.down = chance.size(8192, 262_144),
            500..506 => (plan.down, plan.chunked) = (chance.size(1 << 20, 4 << 20), chance.percent(50)),
            506..560 => (plan.method, plan.down) = ("HEAD", chance.size(1, 1 << 20)),
            560..610 => plan.status = 204,
            610..640 => (plan.status, plan.down) = ([304, 404, 500][chance.between(0, 3) as usize], 64),
            640..760 => plan.upload(chance, "POST", 65_536, false),
            760..810 => plan.upload(chance, "POST", 65_536, true),
            810..830 => plan.upload(chance, "PUT", 1 << 20, chance.clone().percent(50)),
            830..850 => (plan.head_pause, plan.down) = (millis(chance, 300, 3000), 1024),
            850..865 => (plan.drip, plan.down) = (millis(chance, 20, 200), chance.size(65_536, 262_144)),
            865..872 => {
                plan.upload(chance, "POST", 262_144, true);
                plan.read_pause = millis(chance, 20, 150);
            }
            872..879 => {
                plan.upload(chance, "POST", 131_072, false);
                plan.upload.iter_mut().for_each(|u| u.pause = Duration::from_millis(60));
            }
            879..886 => (plan.client_pause, plan.down) = (millis(chance, 10, 60), chance.size(262_144, 1 << 20)),
            886..900 => plan.kind = Kind::WebSocket(chance.between(1, 12)),
            900..920 => plan.canceled(chance),
            920..927 => (plan.end, plan.down, plan.chunked) = (End::Midway, 50_000, chance.percent(50)),
            927..932 => plan.end = End::BeforeHead,
            932..960 => (plan.host, plan.down) = (H2C, chance.size(1, 262_144)),
            960..1000 if grpc => (plan.kind, plan.host, plan.down) = (Kind::Grpc, GRPC, chance.size(1, 65_536)),
            _ => plan.down = chance.size(1, 65_536),
        }
        if matches!(plan.status, 204 | 304) {
            plan.down = 0;
        }
        plan.h2c = plan.kind == Kind::Http && chance.percent(5);
        plan
    }

    fn upload(&mut self, chance: &mut Chance, method: &'static str, most: usize, chunked: bool) {
        self.method = method;
        self.upload = Some(Upload { len: chance.size(1, most), chunked, pause: Duration::ZERO });
        self.down = chance.size(1, 2048);
    }

    /// A client that walks away: before the head, in the middle of the body, or in the middle of its own.
    fn canceled(&mut self, chance: &mut Chance) {
        match chance.between(0, 3) {
            0 => self.head_pause = Duration::from_secs(5),
            1 => (self.down, self.drip) = (262_144, Duration::from_millis(200)),
            _ => {
                self.upload(chance, "POST", 262_144, chance.clone().percent(50));
                self.upload.iter_mut().for_each(|u| (u.len, u.pause) = (262_144, Duration::from_millis(100)));
            }
        }
        self.cancel = Some(Duration::from_millis(chance.between(1, 600)));
    }

    /// Whether the backend answers with bytes; how many.
    pub(crate) fn body_len(&self) -> usize {
        if self.method == "HEAD" { 0 } else { self.down }
    }

    /// The target of the request. `Backend` reads it back.
    pub(crate) fn target(&self) -> String {
        let Self { id, status, down, .. } = self;
        let millis = |d: Duration| d.as_millis();
        let end = match self.end {
            End::Whole => "whole",
            End::Midway => "midway",
            End::BeforeHead => "before-head",
        };
        let up = self.upload.as_ref().map_or(0, |u| u.len);
        format!(
            "/soak?id={id}&status={status}&down={down}&chunked={}&up={up}&head={}&drip={}&read={}&end={end}",
            u8::from(self.chunked),
            millis(self.head_pause),
            millis(self.drip),
            millis(self.read_pause),
        )
    }

    /// What it is, for a person who reads about a violation.
    pub(crate) fn describe(&self) -> String {
        let Self { method, host, .. } = self;
        match self.kind {
            Kind::Http => format!("{method} {host}{}", self.target()),
            Kind::Grpc => format!("gRPC call {} with {} bytes", self.id, self.down),
            Kind::WebSocket(messages) => format!("WebSocket {} with {messages} messages", self.id),
        }
    }
}

impl Plan {
    /// Reads [`Plan::target`] back, as far as it is the backend's business.
    pub(crate) fn read(method: &http::Method, query: &str) -> Option<Self> {
        let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let number = |name: &str| value(name)?.parse::<u64>().ok();
        let size = |name: &str| usize::try_from(number(name)?).ok();
        let millis = |name: &str| number(name).map(Duration::from_millis);
        let mut plan = Self::get(number("id")?);
        plan.method = match method.as_str() {
            "HEAD" => "HEAD",
            "POST" => "POST",
            "PUT" => "PUT",
            _ => "GET",
        };
        plan.status = u16::try_from(number("status")?).ok()?;
        plan.down = size("down")?;
        plan.chunked = number("chunked")? == 1;
        plan.head_pause = millis("head")?;
        plan.drip = millis("drip")?;
        plan.read_pause = millis("read")?;
        let up = size("up")?;
        plan.upload = (up > 0).then_some(Upload { len: up, chunked: false, pause: Duration::ZERO });
        plan.end = match value("end")? {
            "midway" => End::Midway,
            "before-head" => End::BeforeHead,
            _ => End::Whole,
        };
        Some(plan)
    }
}
