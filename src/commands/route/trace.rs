//! `route trace`: which rule gets a request, and why the others do not. The table explains itself; this only asks and shows.

use http::Method;

use super::request::{HeaderArg, TracedRequest};
use super::view::{Answer, Report};
use crate::commands::Context;
use crate::commands::exit::ExitCode;
use crate::commands::from_file::{self, FromFile};
use crate::commands::output::{OutputArgs, Tone, fail};
use crate::commands::plane::{judge, nothing_servable, options};
use crate::gateway::ir::RouteConfig;
use crate::proxy::http::{Inbound, Plane, Serve as _, Via, plane};
use crate::proxy::metrics::Metrics;
use crate::proxy::table::compile::compile;
use crate::proxy::table::{Action, RouteTable};

/// Show which rule would serve a request, and why the others would not
///
/// Answers from files with the code that routes: the listener that owns the host and those that lost it, every candidate in order
/// of precedence with the point on which it lost, filters, backend shares, and the final status.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl cftunnel route trace GET http://shop.example.com/cart --from-file examples/quickstart

  # With headers; a gRPC call is a POST with its content type
  kubectl cftunnel route trace GET http://shop.example.com/ -H 'X-Canary: 1' --from-file manifests/
  kubectl cftunnel route trace POST http://grpc.example.com/demo.Echo/Say -H 'Content-Type: application/grpc' --from-file examples/grpc

  # In CI: exits with 1 when another rule, or another status, is the answer
  kubectl cftunnel route trace GET http://shop.example.com/cart --from-file manifests/ --expect shop/cart/0
  kubectl cftunnel route trace GET http://shop.example.com/admin --from-file manifests/ --expect 404")]
pub(crate) struct Args {
    /// The method, such as GET
    #[arg(value_name = "METHOD")]
    method: Method,
    /// The URL as the client has it
    #[arg(value_name = "URL", value_hint = clap::ValueHint::Url)]
    url: String,
    /// A header of the request; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<HeaderArg>,
    #[command(flatten)]
    from: FromFile,
    /// What must be the answer: [NAMESPACE/]ROUTE[/RULE], with the rule's index or name, or a status such as 404
    #[arg(long, value_name = "ANSWER")]
    expect: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(context: Context, args: Args) -> anyhow::Result<ExitCode> {
    let request = TracedRequest::new(args.method, &args.url, args.headers)?;
    let manifests = args.from.read(context)?;
    let judged = judge(&manifests, options(false, std::collections::BTreeMap::new()), &[]);
    from_file::warn(context, &judged.problems);
    let config = judged
        .config
        .as_ref()
        .map_err(|reasons| fail("the verdict depends on objects that cannot be read", reasons.join("\n")))?;
    if config.listeners.is_empty() {
        return Err(nothing_servable(&judged, manifests.file_count()));
    }
    let table = compile(config)?.table;
    let location = location(&request, config, &table)?;
    let report = Report::new(&request, config, &table, judged.knows_endpoints, location);
    context.out.show(&report, args.output.format)?;
    match args.expect {
        Some(expected) if !meets(&report.answer, &expected) => {
            context.out.remark("unexpected", Tone::Bad, &format!("expected {expected}, the answer is {}", report.answer));
            Ok(ExitCode::Problems)
        }
        _ => Ok(ExitCode::Fine),
    }
}

/// Where the request is redirected to: the request path itself answers, which for a redirect asks nobody else.
fn location(request: &TracedRequest, config: &RouteConfig, table: &RouteTable) -> anyhow::Result<Option<String>> {
    if !table.find(&request.key()).is_some_and(|hit| matches!(hit.rule.action, Action::Redirect(_))) {
        return Ok(None);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let plane = Plane::new(plane::Options::new(Metrics::register(&mut prometheus_client::registry::Registry::default())));
        plane.apply(config)?;
        let via = Via::Tunnel { connection: 0, trailers: true };
        let inbound = Inbound { authority: request.host.clone(), websocket: false, via };
        let response = plane.serve(inbound, request.to_http()).await;
        Ok(response.headers().get(http::header::LOCATION).map(|l| String::from_utf8_lossy(l.as_bytes()).into_owned()))
    })
}

/// Whether an answer is what `--expect` says.
fn meets(answer: &Answer, expected: &str) -> bool {
    if let Ok(status) = expected.parse::<u16>() {
        return answer.status == Some(status);
    }
    let Some(chosen) = &answer.rule else { return false };
    let rule = |text: &str| text.parse() == Ok(chosen.rule) || chosen.rule_name.as_deref() == Some(text);
    match &expected.split('/').collect::<Vec<_>>()[..] {
        [name] => *name == chosen.name,
        [namespace, name] if *namespace == chosen.namespace && *name == chosen.name => true,
        [name, index] => *name == chosen.name && rule(index),
        [namespace, name, index] => *namespace == chosen.namespace && *name == chosen.name && rule(index),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::Chosen;
    use super::*;

    #[test]
    fn expectations_name_a_route_a_rule_or_a_status() {
        let rule =
            Chosen { namespace: "shop".into(), name: "web".into(), kind: "HTTPRoute", rule: 1, rule_name: Some("cart".into()) };
        let answer = Answer { status: None, rule: Some(rule), text: String::new(), location: None };
        for expected in ["web", "shop/web", "shop/web/1", "shop/web/cart", "web/1", "web/cart"] {
            assert!(meets(&answer, expected), "{expected}");
        }
        for expected in ["api", "other/web", "shop/web/0", "web/other", "404", "a/b/c/d", ""] {
            assert!(!meets(&answer, expected), "{expected}");
        }
        let answer = Answer { status: Some(404), rule: None, text: String::new(), location: None };
        assert!(meets(&answer, "404") && !meets(&answer, "500") && !meets(&answer, "web"));
    }
}
