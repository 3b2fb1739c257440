//! Timeouts of a rule: one deadline for the head of the response (X9, S3 "Interaction with spec.rules[].timeouts").

use super::rule::Rules;
use crate::gateway::duration::GatewayDuration;
use crate::gateway::finding::Code;

/// The stricter of the two that are set, in milliseconds; zero means no limit. One that does not parse is reported and left out.
pub(super) fn response_timeout(
    rules: &mut Rules<'_, '_>,
    rule: usize,
    request: Option<&str>,
    backend_request: Option<&str>,
) -> Option<u64> {
    [("request", request), ("backendRequest", backend_request)]
        .into_iter()
        .filter_map(|(field, text)| text.map(|text| (field, text)))
        .filter_map(|(field, text)| match text.parse::<GatewayDuration>() {
            Ok(duration) => (!duration.is_zero()).then(|| duration.as_millis()),
            Err(error) => {
                let message = format!("rule {rule} is served without timeouts.{field}: {error}");
                rules.report(Code::TimeoutInvalid, rule, format_args!("timeouts.{field}"), message);
                None
            }
        })
        .min()
}
