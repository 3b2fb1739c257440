//! What a connector says when it registers a connection, and what the edge answers (tunnel-protocol §6.1, §6.2, §6.4).
//! Values and their layouts; the calls that carry them are in [`super::rpc`].

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use uuid::Uuid;

use super::WireError;
use super::message::{Builder, StructAt, StructReader};
use crate::gateway::token::TunnelSecret;

/// The arguments of `registerConnection`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The account that owns the tunnel.
    pub account_tag: String,
    /// The tunnel's secret; travels as it is, under TLS.
    pub tunnel_secret: TunnelSecret,
    /// The tunnel.
    pub tunnel_id: Uuid,
    /// Which of the connector's connections this is, from 0.
    pub conn_index: u8,
    /// Everything else.
    pub options: ConnectionOptions,
}

/// What a connector says about itself and this connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// The connector.
    pub client: ClientInfo,
    /// Local address of the connection to the edge. Informational.
    pub origin_local_ip: Option<IpAddr>,
    /// Always false today.
    pub replace_existing: bool,
    /// Always 0 today.
    pub compression_quality: u8,
    /// Failed tries since this connection was last registered.
    pub num_previous_attempts: u8,
}

/// The connector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientInfo {
    /// Made anew by each process and the same on all of its connections; the dashboard shows it as connector id.
    pub client_id: Uuid,
    /// What the connector can do (tunnel-protocol §6.3). The order means nothing.
    pub features: Vec<String>,
    /// The connector's version.
    pub version: String,
    /// Operating system and architecture, as in `linux_amd64`.
    pub arch: String,
}

/// The edge's answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionResponse {
    /// Refused.
    Error {
        /// For people, except for `EDUPCONN`: this connector already has a connection to that edge server.
        cause: String,
        /// How long to wait before the next try, if the edge says.
        retry_after: Option<Duration>,
        /// Whether another try can succeed at all.
        should_retry: bool,
    },
    /// Registered.
    Details {
        /// The edge's id of the connection, for logs.
        uuid: Uuid,
        /// Code of the data centre.
        location: String,
        /// Whether the edge pushes configuration, rather than expects ours.
        remotely_managed: bool,
    },
}

/// The cause by which the edge says that this connector already has a connection to the same server.
pub const DUPLICATE_CONNECTION: &str = "EDUPCONN";

/// Data words and pointers of the params struct of `registerConnection`.
pub(super) const PARAMS: (usize, usize) = (1, 3);

impl Registration {
    pub(super) fn write(&self, b: &mut Builder, params: StructAt) {
        let auth = b.init_struct(params, 0, 0, 2);
        b.set_text(auth, 0, self.account_tag.as_bytes());
        b.set_data(auth, 1, self.tunnel_secret.expose());
        b.set_data(params, 1, self.tunnel_id.as_bytes());
        b.set_u8(params, 0, self.conn_index);
        let options = b.init_struct(params, 2, 1, 2);
        self.options.write(b, options);
    }

    pub(super) fn read(params: &StructReader<'_>) -> Result<Self, WireError> {
        let auth = params.pointer_to_struct(0)?;
        Ok(Self {
            account_tag: auth.text(0, "accountTag")?.to_owned(),
            tunnel_secret: TunnelSecret::new(auth.data(1)?.to_vec()),
            tunnel_id: uuid(params.data(1)?, "tunnelId")?,
            conn_index: params.u8(0),
            options: ConnectionOptions::read(&params.pointer_to_struct(2)?)?,
        })
    }
}

impl ConnectionOptions {
    fn write(&self, b: &mut Builder, options: StructAt) {
        let client = b.init_struct(options, 0, 0, 4);
        b.set_data(client, 0, self.client.client_id.as_bytes());
        b.set_texts(client, 1, self.client.features.iter().map(String::as_str));
        b.set_text(client, 2, self.client.version.as_bytes());
        b.set_text(client, 3, self.client.arch.as_bytes());
        if let Some(ip) = self.origin_local_ip {
            // As Go holds addresses: 16 bytes, IPv4 mapped.
            let ip = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            b.set_data(options, 1, &ip.octets());
        }
        b.set_bit(options, 0, self.replace_existing);
        b.set_u8(options, 1, self.compression_quality);
        b.set_u8(options, 2, self.num_previous_attempts);
    }

    fn read(options: &StructReader<'_>) -> Result<Self, WireError> {
        let client = options.pointer_to_struct(0)?;
        let features = client.list(1)?;
        Ok(Self {
            client: ClientInfo {
                client_id: uuid(client.data(0)?, "clientId")?,
                features: features.iter().map(|f| f.text(0, "features").map(str::to_owned)).collect::<Result<_, _>>()?,
                version: client.text(2, "version")?.to_owned(),
                arch: client.text(3, "arch")?.to_owned(),
            },
            origin_local_ip: ip(options.data(1)?),
            replace_existing: options.bit(0),
            compression_quality: options.u8(1),
            num_previous_attempts: options.u8(2),
        })
    }
}

impl ConnectionResponse {
    /// Data words and pointers.
    pub(super) const LAYOUT: (usize, usize) = (1, 1);

    /// Whether this is the refusal of a second connection to one edge server.
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Error { cause, .. } if cause == DUPLICATE_CONNECTION)
    }

    pub(super) fn write(&self, b: &mut Builder, response: StructAt) {
        match self {
            Self::Error { cause, retry_after, should_retry } => {
                b.set_u16(response, 0, 0);
                let error = b.init_struct(response, 0, 2, 1);
                b.set_text(error, 0, cause.as_bytes());
                let nanos = retry_after.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
                b.set_u64(error, 0, nanos.cast_unsigned());
                b.set_bit(error, 64, *should_retry);
            }
            Self::Details { uuid, location, remotely_managed } => {
                b.set_u16(response, 0, 1);
                let details = b.init_struct(response, 0, 1, 2);
                b.set_data(details, 0, uuid.as_bytes());
                b.set_text(details, 1, location.as_bytes());
                b.set_bit(details, 0, *remotely_managed);
            }
        }
    }

    pub(super) fn read(response: &StructReader<'_>) -> Result<Self, WireError> {
        let body = response.pointer_to_struct(0)?;
        match response.u16(0) {
            0 => {
                let nanos = body.u64(0).cast_signed();
                Ok(Self::Error {
                    cause: body.text(0, "cause")?.to_owned(),
                    retry_after: u64::try_from(nanos).ok().filter(|n| *n > 0).map(Duration::from_nanos),
                    should_retry: body.bit(64),
                })
            }
            1 => Ok(Self::Details {
                // For logs alone: an id of another form does not cost the connection.
                uuid: uuid(body.data(0)?, "uuid").unwrap_or_default(),
                location: body.text(1, "locationName")?.to_owned(),
                remotely_managed: body.bit(0),
            }),
            _ => Err(WireError::Field("result")),
        }
    }
}

fn uuid(bytes: &[u8], name: &'static str) -> Result<Uuid, WireError> {
    Uuid::from_slice(bytes).map_err(|_| WireError::Field(name))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(v4.into());
    }
    let v6 = Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?);
    Some(v6.to_canonical())
}
