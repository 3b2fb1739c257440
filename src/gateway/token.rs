//! Tunnel credentials: the token that the dashboard hands out and the credentials file of older tunnels
//! (tunnel-protocol §1). The secret is shown as a fingerprint only, whatever is printed, logged or serialised.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use base64::engine::{DecodePaddingMode, general_purpose};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;
use zeroize::Zeroizing;

const LENIENT: GeneralPurposeConfig =
    general_purpose::PAD.with_decode_padding_mode(DecodePaddingMode::Indifferent).with_decode_allow_trailing_bits(true);
const STD: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, LENIENT);
const URL: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::URL_SAFE, LENIENT);

/// No token is anywhere near this long; more is refused before it is decoded.
const MAX_TEXT: usize = 16 * 1024;

/// The secret of a tunnel. Only its fingerprint can be shown.
#[derive(Clone)]
pub struct TunnelSecret(Zeroizing<Vec<u8>>);

impl TunnelSecret {
    /// Takes the raw bytes of a secret.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The raw bytes, for the registration message alone.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// `sha256:` and the first 8 bytes of the digest in hex: enough to compare two tokens, useless to guess one.
    pub fn fingerprint(&self) -> String {
        let digest = Sha256::digest(&*self.0);
        let mut text = String::from("sha256:");
        for byte in &digest[..8] {
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }
}

impl fmt::Debug for TunnelSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TunnelSecret({})", self.fingerprint())
    }
}

impl PartialEq for TunnelSecret {
    fn eq(&self, other: &Self) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for TunnelSecret {}

/// What a connector needs to register: whose account, which tunnel, and the secret that proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelToken {
    /// The account tag, 32 hex digits in practice.
    pub account_tag: String,
    /// The tunnel's id.
    pub tunnel_id: Uuid,
    /// The tunnel's secret.
    pub secret: TunnelSecret,
    /// The region the token pins, such as `us` or `fed`.
    pub endpoint: Option<String>,
}

/// Why a text is no tunnel token. Never holds any of the text, which may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTunnelToken {
    /// Nothing there.
    #[error("the tunnel token is empty")]
    Empty,
    /// Too much there.
    #[error("the tunnel token has more than {MAX_TEXT} bytes; this is some other file")]
    TooLong,
    /// Not base64.
    #[error("the tunnel token is not base64; copy it again, whole and without quotes")]
    Base64,
    /// Base64, but of something else.
    #[error("the tunnel token does not hold the JSON of a tunnel token; it may be cut off or a credential of another kind")]
    Json,
    /// A field that is not what it must be.
    #[error("the {0} in the tunnel token is missing or malformed")]
    Field(&'static str),
}

#[derive(Deserialize)]
struct TokenFields {
    a: Option<String>,
    t: Option<String>,
    s: Option<Zeroizing<String>>,
    e: Option<String>,
}

#[derive(Deserialize)]
struct CredentialsFields {
    #[serde(rename = "AccountTag")]
    account_tag: Option<String>,
    #[serde(rename = "TunnelSecret")]
    secret: Option<Zeroizing<String>>,
    #[serde(rename = "TunnelID")]
    tunnel_id: Option<String>,
    #[serde(rename = "Endpoint")]
    endpoint: Option<String>,
}

impl TunnelToken {
    /// Reads the JSON of a credentials file (tunnel-protocol §1.2).
    ///
    /// # Errors
    /// What is missing or malformed, without any of the text.
    pub fn from_credentials_json(json: &str) -> Result<Self, InvalidTunnelToken> {
        if json.len() > MAX_TEXT {
            return Err(InvalidTunnelToken::TooLong);
        }
        let f: CredentialsFields = serde_json::from_str(json).map_err(|_| InvalidTunnelToken::Json)?;
        Self::from_fields(f.account_tag, f.tunnel_id, f.secret, f.endpoint)
    }

    /// Reads either shape: a token, or the JSON of a credentials file.
    ///
    /// # Errors
    /// As [`FromStr`] and [`Self::from_credentials_json`].
    pub fn from_any(text: &str) -> Result<Self, InvalidTunnelToken> {
        let text = text.trim();
        if text.starts_with('{') { Self::from_credentials_json(text) } else { text.parse() }
    }

    /// The token as the dashboard shows it. A secret: for Secrets and for the built-in edge, never for output.
    pub fn encode(&self) -> Zeroizing<String> {
        let mut json = serde_json::json!({
            "a": self.account_tag,
            "t": self.tunnel_id.to_string(),
            "s": STANDARD.encode(self.secret.expose()),
        });
        if let Some(endpoint) = &self.endpoint {
            json["e"] = endpoint.as_str().into();
        }
        Zeroizing::new(STANDARD.encode(json.to_string()))
    }

    fn from_fields(
        account: Option<String>,
        tunnel: Option<String>,
        secret: Option<Zeroizing<String>>,
        endpoint: Option<String>,
    ) -> Result<Self, InvalidTunnelToken> {
        use InvalidTunnelToken::Field;
        let account_tag = account
            .filter(|a| !a.is_empty() && a.len() <= 64 && a.bytes().all(|b| b.is_ascii_alphanumeric()))
            .ok_or(Field("account tag"))?;
        let tunnel_id = tunnel.and_then(|t| Uuid::try_parse(&t).ok()).ok_or(Field("tunnel id"))?;
        let secret = secret
            .and_then(|s| decode(s.as_bytes()))
            .filter(|s| !s.is_empty())
            .map(TunnelSecret)
            .ok_or(Field("tunnel secret"))?;
        let endpoint = endpoint.filter(|e| !e.is_empty());
        if endpoint.as_ref().is_some_and(|e| e.len() > 32 || !e.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')) {
            return Err(Field("endpoint"));
        }
        Ok(Self { account_tag, tunnel_id, secret, endpoint })
    }
}

impl FromStr for TunnelToken {
    type Err = InvalidTunnelToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim().is_empty() {
            return Err(InvalidTunnelToken::Empty);
        }
        if text.len() > MAX_TEXT {
            return Err(InvalidTunnelToken::TooLong);
        }
        // White space inside is what a terminal or an editor puts into a long paste; Go's decoder passes over it too.
        let text: Zeroizing<Vec<u8>> = Zeroizing::new(text.bytes().filter(|b| !b.is_ascii_whitespace()).collect());
        let json = decode(&text).ok_or(InvalidTunnelToken::Base64)?;
        let f: TokenFields = serde_json::from_slice(&json).map_err(|_| InvalidTunnelToken::Json)?;
        Self::from_fields(f.a, f.t, f.s, f.e)
    }
}

fn decode(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    STD.decode(text).or_else(|_| URL.decode(text)).ok().map(Zeroizing::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> TunnelToken {
        TunnelToken {
            account_tag: "0123456789abcdef0123456789abcdef".into(),
            tunnel_id: Uuid::parse_str("11111111-2222-3333-4444-555555555555").expect("a uuid"),
            secret: TunnelSecret::new(b"secret-secret-secret-secret-1234".to_vec()),
            endpoint: None,
        }
    }

    #[test]
    fn both_shapes_and_both_alphabets_are_read() {
        let token = sample();
        let text = token.encode();
        assert_eq!(text.parse::<TunnelToken>(), Ok(token.clone()));
        assert_eq!(text.trim_end_matches('=').parse::<TunnelToken>(), Ok(token.clone()));
        let wrapped = format!("{}\r\n{}\n", &text[..40], &text[40..]);
        assert_eq!(wrapped.parse::<TunnelToken>(), Ok(token.clone()));
        let file = r#"{"AccountTag":"0123456789abcdef0123456789abcdef","TunnelSecret":"c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ=","TunnelID":"11111111-2222-3333-4444-555555555555"}"#;
        assert_eq!(TunnelToken::from_any(file), Ok(token));
    }

    #[test]
    fn nothing_shows_the_secret() {
        let token = sample();
        let shown = format!("{token:?}");
        assert!(!shown.contains("secret-secret") && !shown.contains("c2VjcmV0"), "{shown}");
        for bad in ["", "e30=", "bm90IGpzb24=", "%%%", "eyJhIjoiYSJ9"] {
            assert!(bad.parse::<TunnelToken>().is_err(), "{bad}");
        }
    }
}
