//! What a pasted credential is. Pure: text in, verdict out. No verdict holds any of the text but the parts of a tunnel
//! credential that are no secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::gateway::token::{InvalidTunnelToken, TunnelToken};

/// Kinds of credentials that people have at hand when a tunnel token is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Kind {
    /// What the dashboard shows as the token of a tunnel.
    TunnelToken,
    /// The JSON file of a locally managed tunnel.
    CredentialsFile,
    /// An API token of a user or an account.
    ApiToken,
    /// The key that may do everything.
    GlobalApiKey,
    /// The key for origin certificates.
    OriginCaKey,
    /// Id or secret of an Access service token.
    AccessServiceToken,
    /// `cert.pem` of `cloudflared tunnel login`.
    LoginCertificate,
    /// Some other PEM file.
    Pem,
    /// A signed session of Access.
    Jwt,
    /// A tunnel's id alone.
    TunnelId,
    /// An id of an account or a zone.
    AccountOrZoneId,
    /// Meant as a tunnel token, but damaged or wrapped in something.
    MangledPaste,
    /// Nothing at all.
    Empty,
    /// Something else.
    Unknown,
}

impl Kind {
    /// The kind in words.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::TunnelToken => "tunnel token",
            Self::CredentialsFile => "tunnel credentials file",
            Self::ApiToken => "Cloudflare API token",
            Self::GlobalApiKey => "Cloudflare Global API Key",
            Self::OriginCaKey => "Cloudflare Origin CA key",
            Self::AccessServiceToken => "Cloudflare Access service token",
            Self::LoginCertificate => "cert.pem of `cloudflared tunnel login`",
            Self::Pem => "PEM file",
            Self::Jwt => "JSON Web Token",
            Self::TunnelId => "tunnel id",
            Self::AccountOrZoneId => "account or zone id",
            Self::MangledPaste => "mangled paste of a tunnel token",
            Self::Empty => "nothing",
            Self::Unknown => "unknown",
        }
    }

    /// Whether a connector can register with it as it is.
    pub(crate) const fn is_tunnel_credential(self) -> bool {
        matches!(self, Self::TunnelToken | Self::CredentialsFile)
    }

    /// What it is good for.
    const fn good_for(self) -> &'static str {
        match self {
            Self::TunnelToken => "running a tunnel: the Secret that tunnelTokenSecretRef names, or TUNNEL_TOKEN of `serve`",
            Self::CredentialsFile => "running a tunnel: accepted wherever a tunnel token is",
            Self::ApiToken => "the Cloudflare API (DNS, tunnel documents, Access): the credential of a GatewayClassConfig",
            Self::GlobalApiKey => "everything in every account of its user; use an API token with the permissions needed instead",
            Self::OriginCaKey => "issuing origin certificates, nothing else",
            Self::AccessServiceToken => "getting a client past Access; it runs no tunnel",
            Self::LoginCertificate => "creating tunnels with cloudflared; it runs none",
            Self::Pem => "TLS",
            Self::Jwt => "one session of a user or service at Access",
            Self::TunnelId => "naming a tunnel; it is no credential",
            Self::AccountOrZoneId => "naming an account or a zone; it is no credential",
            Self::MangledPaste | Self::Empty | Self::Unknown => "nothing as it is",
        }
    }
}

/// What a text turned out to be.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// Its kind.
    pub(crate) kind: Kind,
    /// The tunnel credential in it, also when it is wrapped in something.
    pub(crate) token: Option<TunnelToken>,
    /// What it is good for.
    pub(crate) good_for: &'static str,
    /// What is wrong with it, or worth knowing.
    pub(crate) detail: Option<String>,
    /// What to do instead.
    pub(crate) remedy: Option<String>,
}

const GET_TOKEN: &str = "copy the token of the tunnel: Cloudflare dashboard, Networks, Tunnels, the tunnel, Configure; or `cloudflared tunnel token NAME`";

impl Verdict {
    fn new(kind: Kind) -> Self {
        let remedy = (!kind.is_tunnel_credential()).then(|| format!("for a tunnel, {GET_TOKEN}"));
        Self { kind, token: None, good_for: kind.good_for(), detail: None, remedy }
    }

    fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    fn token(self, token: TunnelToken) -> Self {
        Self { token: Some(token), ..self }
    }

    fn mangled(detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Kind::MangledPaste).detail(detail).remedy(remedy)
    }
}

/// Says what `text` is.
pub(crate) fn classify(text: &str) -> Verdict {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    if text.is_empty() {
        return Verdict::new(Kind::Empty);
    }
    match TunnelToken::from_any(text) {
        Ok(token) => {
            let kind = if text.starts_with('{') { Kind::CredentialsFile } else { Kind::TunnelToken };
            return intact(kind, text, token);
        }
        Err(InvalidTunnelToken::TooLong) => return Verdict::new(Kind::Unknown).detail("far longer than any credential"),
        Err(_) => {}
    }
    if text.starts_with('{') {
        return json(text);
    }
    if text.contains("-----BEGIN ") {
        return pem(text);
    }
    known_shape(text).or_else(|| wrapped(text)).unwrap_or_else(|| damaged(text))
}

fn intact(kind: Kind, text: &str, token: TunnelToken) -> Verdict {
    let mut verdict = Verdict::new(kind);
    let secret_bytes = token.secret.expose().len();
    if text.contains(char::is_whitespace) && kind == Kind::TunnelToken {
        verdict.detail =
            Some("there is white space inside, as from a wrapped line; it is ignored here, but not by every program".into());
    } else if secret_bytes != 32 {
        verdict.detail = Some(format!("the secret has {secret_bytes} bytes, 32 are usual; the edge decides"));
    }
    verdict.token(token)
}

fn json(text: &str) -> Verdict {
    let Ok(Value::Object(object)) = serde_json::from_str(text) else {
        return Verdict::mangled("the JSON is cut off or damaged", "copy the whole credentials file again");
    };
    let has = |key: &str| object.contains_key(key);
    if has("a") && has("t") && has("s") {
        let encoded = STANDARD.encode(text);
        if let Ok(token) = encoded.parse::<TunnelToken>() {
            return Verdict::mangled("a tunnel token that somebody has decoded", "encode it again with base64, or copy it again")
                .token(token);
        }
    }
    if has("AccountTag") || has("TunnelID") || has("TunnelSecret") {
        let reason = TunnelToken::from_credentials_json(text).err().map_or_else(String::new, |e| e.to_string());
        return Verdict::mangled(reason.replace("tunnel token", "credentials file"), "copy the whole credentials file again");
    }
    if has("client_id") && has("client_secret") {
        return Verdict::new(Kind::AccessServiceToken);
    }
    Verdict::new(Kind::Unknown).detail("JSON without the fields of a credentials file (AccountTag, TunnelID, TunnelSecret)")
}

fn pem(text: &str) -> Verdict {
    if text.contains("BEGIN ARGO TUNNEL TOKEN") {
        return Verdict::new(Kind::LoginCertificate)
            .remedy(format!("run `cloudflared tunnel token NAME` with it, or {GET_TOKEN}"));
    }
    let what = if text.contains("PRIVATE KEY-----") { "a private key" } else { "a certificate" };
    Verdict::new(Kind::Pem).detail(what)
}

/// Credentials that are told by their outer shape alone.
fn known_shape(text: &str) -> Option<Verdict> {
    let all = |text: &str, f: fn(&u8) -> bool| text.bytes().all(|b| f(&b));
    let hex = |text: &str| all(text, u8::is_ascii_hexdigit);
    let word = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if !text.bytes().all(|b| b.is_ascii_graphic()) {
        return access_headers(text);
    }
    let kind = match text {
        _ if text.starts_with("cfut_") && word(text) => {
            return Some(Verdict::new(Kind::ApiToken).detail("owned by a user").with_length(text.len()));
        }
        _ if text.starts_with("cfat_") && word(text) => {
            return Some(Verdict::new(Kind::ApiToken).detail("owned by an account").with_length(text.len()));
        }
        _ if text.starts_with("cfk_") && word(text) => return Some(Verdict::new(Kind::GlobalApiKey).with_length(text.len())),
        _ if text.starts_with("v1.0-") && text.len() > 100 => Kind::OriginCaKey,
        _ if uuid::Uuid::try_parse(text.trim_end_matches(".cfargotunnel.com")).is_ok() && text.len() != 32 => Kind::TunnelId,
        _ if text.len() == 32 && hex(text) => Kind::AccountOrZoneId,
        _ if text.len() == 37 && hex(text) => Kind::GlobalApiKey,
        _ if text.strip_suffix(".access").is_some_and(|id| id.len() == 32 && hex(id)) => {
            return Some(Verdict::new(Kind::AccessServiceToken).detail("its client id"));
        }
        _ if text.len() == 64 && hex(text) => {
            return Some(Verdict::new(Kind::AccessServiceToken).detail("probably its client secret: 64 hex digits"));
        }
        _ if text.starts_with("eyJ") && text.split('.').count() == 3 => Kind::Jwt,
        _ if text.len() == 40 && word(text) && !text.starts_with("eyJ") => Kind::ApiToken,
        _ => return None,
    };
    Some(Verdict::new(kind))
}

impl Verdict {
    /// Says so when a prefixed credential does not have its length: a prefix, 40 characters and 8 of checksum.
    fn with_length(self, length: usize) -> Self {
        let prefix = if self.kind == Kind::GlobalApiKey { 4 } else { 5 };
        if length >= prefix + 40 { self } else { self.detail("shorter than such a credential is: it may be cut off") }
    }
}

/// The two headers of a service token, as Access shows them for copying.
fn access_headers(text: &str) -> Option<Verdict> {
    let lower = text.to_ascii_lowercase();
    (lower.contains("cf-access-client-id") || lower.contains("cf-access-client-secret"))
        .then(|| Verdict::new(Kind::AccessServiceToken))
}

/// A sound token inside something: quotes, an assignment, a command line, another layer of base64.
fn wrapped(text: &str) -> Option<Verdict> {
    let quotes = ['"', '\'', '`', '\u{201c}', '\u{201d}', '\u{2018}', '\u{2019}', '<', '>'];
    let bare: String = text.chars().filter(|c| !is_invisible(*c)).collect();
    if let (true, Ok(token)) = (bare.len() != text.len(), bare.parse::<TunnelToken>()) {
        return Some(
            Verdict::mangled("there are invisible characters inside", "copy the token again, as plain text").token(token),
        );
    }
    if let Ok(token) = bare.trim_matches(quotes).parse::<TunnelToken>() {
        return Some(Verdict::mangled("there are quotes around the token", "store the token without the quotes").token(token));
    }
    if let Some(token) = bare.strip_suffix('%').and_then(|t| t.parse::<TunnelToken>().ok()) {
        return Some(
            Verdict::mangled("the `%` at the end is zsh's mark for a missing line end", "store the token without it")
                .token(token),
        );
    }
    let words = bare.split(|c: char| c.is_whitespace() || quotes.contains(&c) || matches!(c, ':' | ',' | ';'));
    let words = words.map(|w| {
        w.split_once('=')
            .filter(|(name, value)| is_name(name) && !name.starts_with("eyJ") && !value.is_empty())
            .map_or(w, |(_, value)| value)
    });
    if let Some(token) = words.filter(|w| w.len() > 60).find_map(|w| w.parse::<TunnelToken>().ok()) {
        let detail = "the token is one word of this: a command line, an assignment or a field was copied with it";
        return Some(Verdict::mangled(detail, "store the token alone: the long word that starts with `eyJ`").token(token));
    }
    let inner = decode(text)?;
    let inner = std::str::from_utf8(&inner).ok()?.trim();
    if let Ok(token) = TunnelToken::from_any(inner) {
        let detail = "base64 was applied once more, as for the `data` of a Secret";
        return Some(Verdict::mangled(detail, "use `stringData`, or encode it only once").token(token));
    }
    if inner.bytes().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace()) {
        let kind = known_shape(inner)?.kind;
        return (!matches!(kind, Kind::TunnelId | Kind::AccountOrZoneId))
            .then(|| Verdict::new(kind).detail("encoded with base64, as in the `data` of a Secret"));
    }
    None
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{a0}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{feff}')
        || c.is_control()
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    STANDARD.decode(text).ok()
}

/// What is meant to be a token and is none; else unknown.
fn damaged(text: &str) -> Verdict {
    // Base64 of `{"`, with which every token starts.
    if let Some(rest) = text.strip_prefix("eyJ") {
        if rest[..].match_indices("eyJhIjoi").next().is_some() {
            return Verdict::mangled("two tokens, one behind the other", "store one of them");
        }
        let at = text.bytes().position(|b| !(b.is_ascii_alphanumeric() || b"+/=-_".contains(&b) || b.is_ascii_whitespace()));
        if let Some(at) = at {
            let detail = format!("character {} is none that a token can have", at + 1);
            return Verdict::mangled(detail, format!("copy it again, whole: {GET_TOKEN}"));
        }
        let detail = format!("it starts like a token but is cut off or has lost a part in between ({} characters)", text.len());
        return Verdict::mangled(detail, format!("copy it again, whole: {GET_TOKEN}"));
    }
    if let Some(at) = text.find("eyJhIjoi").filter(|_| text.len() > 100) {
        let detail = format!("a token seems to start at character {}, but it is damaged", text[..at].chars().count() + 1);
        return Verdict::mangled(detail, format!("copy it again, alone and whole: {GET_TOKEN}"));
    }
    if text.len() > 100 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b)) {
        return Verdict::mangled(
            "base64, but not of a tunnel token; its beginning may be missing",
            format!("copy it again, whole: {GET_TOKEN}"),
        );
    }
    Verdict::new(Kind::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::token::TunnelSecret;

    fn token() -> TunnelToken {
        TunnelToken {
            account_tag: "0123456789abcdef0123456789abcdef".into(),
            tunnel_id: uuid::Uuid::from_u128(0x1111_2222_3333_4444_5555_6666_7777_8888),
            secret: TunnelSecret::new(b"secret-secret-secret-secret-1234".to_vec()),
            endpoint: None,
        }
    }

    fn kind(text: &str) -> Kind {
        classify(text).kind
    }

    #[test]
    fn sound_credentials_are_known_by_their_kind() {
        let text = token().encode();
        assert_eq!(kind(&text), Kind::TunnelToken);
        assert_eq!(kind(&format!("\u{feff}{}\n", &*text)), Kind::TunnelToken);
        assert!(classify(&text).detail.is_none() && classify(&text).remedy.is_none());
        let file = r#"{"AccountTag":"0123456789abcdef0123456789abcdef","TunnelSecret":"c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ=","TunnelID":"11111111-2222-3333-4444-555555555555"}"#;
        assert_eq!(kind(file), Kind::CredentialsFile);
    }

    #[test]
    fn other_credentials_are_told_apart() {
        for (text, expected) in [
            ("", Kind::Empty),
            (" \n", Kind::Empty),
            ("YQSn-xWAQiiEh9qM58wZNnyQS7FUdoqGIUAbrh7T", Kind::ApiToken),
            ("cfut_YQSn1xWAQiiEh9qM58wZNnyQS7FUdoqGIUAbrh7T0011aaff", Kind::ApiToken),
            ("cfat_YQSn1xWAQiiEh9qM58wZNnyQS7FUdoqGIUAbrh7T0011aaff", Kind::ApiToken),
            ("cfk_YQSn1xWAQiiEh9qM58wZNnyQS7FUdoqGIUAbrh7T0011aaff", Kind::GlobalApiKey),
            ("c2547eb745079dac9320b638f5e225cf483cc", Kind::GlobalApiKey),
            ("88bf3b6d86161464f6509f7219099e57.access", Kind::AccessServiceToken),
            ("bdd31cbc4dec990953e39163fbbb194c93313ca9f0a6e420346af9d326b1d2a5", Kind::AccessServiceToken),
            ("CF-Access-Client-Id: 88bf.access\nCF-Access-Client-Secret: bdd3", Kind::AccessServiceToken),
            ("-----BEGIN ARGO TUNNEL TOKEN-----\nabc\n-----END ARGO TUNNEL TOKEN-----", Kind::LoginCertificate),
            ("-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----", Kind::Pem),
            ("11111111-2222-3333-4444-555555555555", Kind::TunnelId),
            ("11111111-2222-3333-4444-555555555555.cfargotunnel.com", Kind::TunnelId),
            ("0123456789abcdef0123456789abcdef", Kind::AccountOrZoneId),
            ("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln", Kind::Jwt),
            ("hello world", Kind::Unknown),
            ("{\"x\":1}", Kind::Unknown),
        ] {
            assert_eq!(kind(text), expected, "{text}");
        }
    }

    #[test]
    fn a_mangled_paste_says_what_happened_to_it() {
        let text = token().encode();
        let text = text.as_str();
        for (paste, says, whole) in [
            (format!("\"{text}\""), "quotes", true),
            (format!("{text}%"), "zsh", true),
            (format!("{}\u{200b}{}", &text[..30], &text[30..]), "invisible", true),
            (format!("cloudflared tunnel run --token {text}"), "one word", true),
            (format!("sudo cloudflared service install {text}"), "one word", true),
            (format!("TUNNEL_TOKEN={text}"), "one word", true),
            (format!("token: \"{text}\""), "one word", true),
            (STANDARD.encode(text), "once more", true),
            (String::from_utf8(STANDARD.decode(text).expect("base64")).expect("text"), "decoded", true),
            (text[..text.len() - 40].to_owned(), "cut off", false),
            (format!("{text}{text}"), "two tokens", false),
            (format!("{}…{}", &text[..30], &text[30..]), "character 31", false),
            (text[7..].to_owned(), "base64", false),
            ("{\"AccountTag\":\"0123\",\"TunnelSecret\":\"\"}".to_owned(), "missing", false),
            ("{\"AccountTag\":\"0123\"".to_owned(), "cut off", false),
        ] {
            let verdict = classify(&paste);
            assert_eq!(verdict.kind, Kind::MangledPaste, "{paste}");
            assert!(verdict.detail.as_ref().is_some_and(|d| d.contains(says)), "{paste}: {:?}", verdict.detail);
            assert_eq!(verdict.token.is_some(), whole, "{paste}");
            assert!(verdict.remedy.is_some(), "{paste}");
        }
    }

    #[test]
    fn no_verdict_holds_the_secret() {
        let text = token().encode();
        for paste in [text.to_string(), format!("'{}'", &*text), text[..90].to_owned()] {
            let shown = format!("{:?}", classify(&paste));
            assert!(!shown.contains("secret-secret") && !shown.contains(&text[40..80]), "{shown}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC*", cut in 0usize..200) {
            classify(&text);
            let token = token().encode();
            let mixed: String = token.chars().take(cut).chain(text.chars()).collect();
            classify(&mixed);
        }
    }
}
