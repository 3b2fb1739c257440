//! `token`: looks at tunnel credentials. Shows whose they are, never the secret.

mod classify;

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::ValueHint;
use serde::Serialize;
use serde_json::Value;

use self::classify::{Verdict, classify};
use super::Context;
use super::exit::ExitCode;
use super::output::{Block, Cell, OutputArgs, Tone, View, fail};
use crate::cluster::{files, manifest};

/// Look at tunnel tokens
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Parse(ParseArgs),
}

/// Say what a credential is: tunnel token, credentials file, API token, mangled paste, …
///
/// Reads standard input, a file, or the manifest of a Secret. Shows the account, the tunnel and a fingerprint of the secret; the
/// secret itself is never shown. Exits with 1 when it is no tunnel credential.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  # Paste it, then Ctrl-D
  kubectl cftunnel token parse

  # The token in a Secret of the cluster
  kubectl get secret cf-token -o yaml | kubectl cftunnel token parse

  # The account that a credentials file belongs to
  kubectl cftunnel token parse --file credentials.json -o json | jq -r .account")]
struct ParseArgs {
    /// File with the credential or the Secret; standard input when absent. Never the credential itself: arguments are public
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Key within a Secret
    #[arg(long, value_name = "KEY", default_value = "tunnel-token")]
    key: String,
    #[command(flatten)]
    output: OutputArgs,
    /// Where a credential must not be
    #[arg(hide = true, value_name = "CREDENTIAL")]
    given: Option<String>,
}

pub(crate) fn run(context: Context, args: Args) -> anyhow::Result<ExitCode> {
    let Verb::Parse(args) = args.verb;
    if args.given.is_some() {
        return Err(fail(
            "a credential is never an argument: every user of the machine can read those, and the shell keeps them",
            "give it on standard input or with --file; if others use this machine, roll it first",
        ));
    }
    let (name, text) = read(&args)?;
    let (source, text) = match secret(&name, &text, &args.key)? {
        Some(value) => (format!("{name}, {}", value.source), value.text),
        None => (name, text.to_string()),
    };
    let verdict = classify(&text);
    let code = if verdict.kind.is_tunnel_credential() { ExitCode::Fine } else { ExitCode::Problems };
    context.out.show(&Report::new(source, &verdict), args.output.format)?;
    Ok(code)
}

fn read(args: &ParseArgs) -> anyhow::Result<(String, Arc<str>)> {
    let read = match &args.file {
        Some(path) if path.as_os_str() != "-" => files::read_file(path),
        _ => files::read_stream("stdin", std::io::stdin().lock().take(u64::MAX)),
    };
    match read.text {
        Ok(text) => Ok((read.name.to_string(), text)),
        Err(reason) => Err(fail(format!("{}: {reason}", read.name), "a credential is one line of text, or a small JSON file")),
    }
}

/// A value taken out of a Secret.
struct SecretValue {
    source: String,
    text: String,
}

/// The value of `key`, when `text` is a Secret's manifest.
fn secret(name: &str, text: &str, key: &str) -> anyhow::Result<Option<SecretValue>> {
    if !text.contains("Secret") || !text.contains("kind") {
        return Ok(None);
    }
    let parsed = manifest::parse(&Arc::from(name), text);
    let secrets: Vec<_> = parsed.documents.iter().filter(|d| d.value["kind"] == "Secret").collect();
    let Some(first) = secrets.first() else {
        return match parsed.problems.first() {
            Some(problem) if !text.trim_start().starts_with("eyJ") => {
                Err(fail(format!("{problem}"), "the text looks like the manifest of a Secret, but it cannot be read as one"))
            }
            _ => Ok(None),
        };
    };
    let found = secrets.iter().find(|d| !d.value["data"][key].is_null() || !d.value["stringData"][key].is_null());
    let Some(document) = found else {
        let keys: Vec<&str> = ["data", "stringData"]
            .iter()
            .filter_map(|f| first.value[*f].as_object())
            .flat_map(|o| o.keys().map(String::as_str))
            .collect();
        let has = if keys.is_empty() { "it has no keys".to_owned() } else { format!("it has: {}", keys.join(", ")) };
        return Err(fail(
            format!("secret {} has no key {key:?}", first.value["metadata"]["name"].as_str().unwrap_or("without a name")),
            format!("{has}; name the key with --key"),
        ));
    };
    let named = document.value["metadata"]["name"].as_str().unwrap_or("without a name");
    let source = |field: &str| format!("secret {named}, {field}.{key}");
    // As the API server does it: stringData wins.
    if let Value::String(text) = &document.value["stringData"][key] {
        return Ok(Some(SecretValue { source: source("stringData"), text: text.clone() }));
    }
    let encoded = document.value["data"][key].as_str().unwrap_or_default();
    let encoded: String = encoded.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let bytes = STANDARD.decode(encoded).map_err(|_| {
        fail(
            format!("{} of secret {named} is not base64", source("data")),
            "put the token under stringData as it is, or encode it with base64",
        )
    })?;
    let text = String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("not text")).with_context(|| source("data"))?;
    Ok(Some(SecretValue { source: source("data"), text }))
}

/// What is shown of a credential.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    kind: classify::Kind,
    tunnel_credential: bool,
    source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tunnel_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret_fingerprint: Option<String>,
    good_for: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Report {
    fn new(source: String, verdict: &Verdict) -> Self {
        let token = verdict.token.as_ref();
        Self {
            kind: verdict.kind,
            tunnel_credential: verdict.kind.is_tunnel_credential(),
            source,
            account: token.map(|t| t.account_tag.clone()),
            tunnel_id: token.map(|t| t.tunnel_id.to_string()),
            cname: token.map(|t| format!("{}.cfargotunnel.com", t.tunnel_id)),
            endpoint: token.and_then(|t| t.endpoint.clone()),
            secret_fingerprint: token.map(|t| t.secret.fingerprint()),
            good_for: verdict.good_for,
            detail: verdict.detail.clone(),
            remedy: verdict.remedy.clone(),
        }
    }
}

impl View for Report {
    fn blocks(&self, wide: bool) -> Vec<Block> {
        let tone = if self.tunnel_credential { Tone::Good } else { Tone::Bad };
        let mut fields = vec![("Kind", Cell::new(self.kind.name(), tone))];
        let mut add = |name, value: Option<&String>| {
            if let Some(value) = value {
                fields.push((name, value.as_str().into()));
            }
        };
        add("Account", self.account.as_ref());
        add("Tunnel", self.tunnel_id.as_ref());
        add("CNAME", self.cname.as_ref());
        add("Endpoint", self.endpoint.as_ref());
        add("Secret", self.secret_fingerprint.as_ref());
        add("Detail", self.detail.as_ref());
        fields.push(("Good for", self.good_for.into()));
        if let Some(remedy) = &self.remedy {
            fields.push(("Do", remedy.as_str().into()));
        }
        if wide {
            fields.push(("Read from", self.source.as_str().into()));
        }
        vec![Block::Fields(fields)]
    }

    fn names(&self) -> Vec<String> {
        self.tunnel_id.iter().map(|id| format!("tunnel/{id}")).collect()
    }
}
