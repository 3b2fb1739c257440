//! Which GatewayClasses are ours, and which of those are accepted. What a Gateway of a class does is the next pass.

use std::collections::BTreeMap;

use super::ctx::{Ctx, name};
use crate::gateway::finding::Code;
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::resource::gateway_api::gateway_class::GatewayClass;
use crate::gateway::resource::{GatewayClassConfigSpec, Planes};
use crate::gateway::snapshot::{Coverage, DIRECT_CONTROLLER};

/// What a GatewayClass is to us.
#[derive(Clone, Debug)]
pub(super) enum Class<'s> {
    /// Ours and served.
    Accepted {
        planes: Planes,
        /// Tunnel of the class's shared plane, when it is known.
        tunnel_id: Option<&'s str>,
    },
    /// Ours, but refused.
    Refused,
    /// Another controller's: contributes nothing and gets no status (S3 "Routes attached to another implementation's Gateway").
    Foreign,
}

/// Judges every class.
pub(super) fn classes<'s>(ctx: &mut Ctx<'s>) -> BTreeMap<&'s str, Class<'s>> {
    let snapshot = ctx.snapshot;
    snapshot.gateway_classes.values().map(|class| (name(&class.metadata), judge(ctx, class))).collect()
}

fn judge<'s>(ctx: &mut Ctx<'s>, class: &'s GatewayClass) -> Class<'s> {
    let options = &ctx.snapshot.options;
    let id = ObjectRef::cluster(Kind::GatewayClass, name(&class.metadata));
    if class.spec.controller_name == DIRECT_CONTROLLER && options.controller_name != DIRECT_CONTROLLER {
        let message = "the direct listen mode is not part of this version; nothing of this class is served";
        ctx.report(Code::DirectModeUnsupported, &id, "spec.controllerName", message);
        return Class::Refused;
    }
    if class.spec.controller_name != options.controller_name {
        return Class::Foreign;
    }
    let Some(parameters) = &class.spec.parameters_ref else {
        return Class::Accepted { planes: Planes::Shared, tunnel_id: None };
    };
    let field = "spec.parametersRef";
    if (parameters.group.as_str(), parameters.kind.as_str()) != ("cf.k8s.lex.la", "GatewayClassConfig") {
        let message = format!("{} is no GatewayClassConfig of cf.k8s.lex.la", parameters.kind);
        ctx.report(Code::ClassParametersInvalid, &id, field, message);
        return Class::Refused;
    }
    let snapshot = ctx.snapshot;
    match snapshot.gateway_class_configs.get("", &parameters.name) {
        Some(config) => accepted(&config.spec),
        None if *snapshot.coverage(Kind::GatewayClassConfig) == Coverage::Complete => {
            let message = format!("there is no gatewayclassconfig {}", parameters.name);
            ctx.report(Code::ClassParametersInvalid, &id, field, message);
            Class::Refused
        }
        None => {
            let message = format!("cannot tell whether gatewayclassconfig {} exists", parameters.name);
            ctx.report(Code::ClassParametersUnknown, &id, field, message);
            Class::Accepted { planes: Planes::Shared, tunnel_id: None }
        }
    }
}

fn accepted(config: &GatewayClassConfigSpec) -> Class<'_> {
    Class::Accepted { planes: config.planes, tunnel_id: config.tunnel_id.as_deref() }
}
