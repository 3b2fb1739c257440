//! Endpoints of a Service's port, from its EndpointSlices (X33).

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::ServicePort;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::ctx::{Ctx, name, namespace};
use crate::gateway::finding::Code;
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::lookup::Lookup;
use crate::gateway::snapshot::Snapshot;

/// The label that says which Service a slice is of.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Every slice, sorted by the Service that it is of.
pub(super) struct Endpoints<'s> {
    slices: Vec<(Service<'s>, &'s EndpointSlice)>,
    /// Where those of each Service begin.
    first: Lookup<Service<'s>, usize>,
}

/// Namespace and name.
type Service<'a> = (&'a str, &'a str);

impl<'s> Endpoints<'s> {
    pub(super) fn new(snapshot: &'s Snapshot) -> Self {
        let dialed = snapshot.endpoint_slices.iter().filter(|(_, slice)| slice.address_type != "FQDN");
        let labelled = dialed.filter_map(|(id, slice)| {
            let service = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
            Some(((id.namespace(), service.as_str()), slice))
        });
        let mut slices = Vec::with_capacity(snapshot.endpoint_slices.len());
        slices.extend(labelled);
        slices.sort_by_key(|(service, _)| *service);
        let mut first = Lookup::with_capacity(slices.len());
        slices.iter().enumerate().rev().for_each(|(at, (service, _))| first.insert(*service, at));
        Self { slices, first }
    }

    /// Ready endpoints of a port, sorted, without duplicates; where none is ready, those that still serve while they terminate.
    pub(super) fn of(&self, ctx: &mut Ctx<'s>, service: Service<'_>, port: &ServicePort) -> Vec<SocketAddr> {
        let (mut ready, mut draining) = (Vec::new(), Vec::new());
        let first = self.first.get(&service).copied().unwrap_or(self.slices.len());
        for (_, slice) in self.slices[first..].iter().take_while(|(of, _)| *of == service) {
            let Some(number) = port_in(slice, port) else { continue };
            for (index, endpoint) in slice.endpoints.iter().enumerate() {
                let conditions = endpoint.conditions.as_ref();
                let list = if conditions.and_then(|c| c.ready).unwrap_or(true) {
                    &mut ready
                } else if conditions.is_some_and(|c| c.serving == Some(true) && c.terminating == Some(true)) {
                    &mut draining
                } else {
                    continue;
                };
                if let Some(address) = address(ctx, slice, index, endpoint) {
                    list.push(SocketAddr::new(address, number));
                }
            }
        }
        let mut endpoints = if ready.is_empty() { draining } else { ready };
        endpoints.sort_unstable();
        endpoints.dedup();
        endpoints
    }
}

/// The number of a Service's port in a slice, joined by name; an unnamed port has the empty name in both.
fn port_in(slice: &EndpointSlice, port: &ServicePort) -> Option<u16> {
    let wanted = port.name.as_deref().unwrap_or_default();
    let found = slice.ports.iter().flatten().find(|p| {
        p.name.as_deref().unwrap_or_default() == wanted && p.protocol.as_deref().is_none_or(|protocol| protocol == "TCP")
    })?;
    // A port without a number means every port of the endpoint: the one that the Service aims at.
    let number = found.port.unwrap_or(match port.target_port {
        Some(IntOrString::Int(number)) => number,
        _ => port.port,
    });
    u16::try_from(number).ok().filter(|p| *p > 0)
}

/// The address to dial: the first, as the others are the same endpoint.
fn address(ctx: &mut Ctx<'_>, slice: &EndpointSlice, index: usize, endpoint: &Endpoint) -> Option<IpAddr> {
    let text = endpoint.addresses.first()?;
    let problem = match text.parse::<IpAddr>() {
        Ok(address) if dialable(address) => return Some(address),
        Ok(address) if ctx.snapshot.options.allow_loopback_endpoints && address.to_canonical().is_loopback() => {
            return Some(address);
        }
        Ok(address) => format!("{address} is an address that no Pod can have"),
        Err(_) => format!("{:?} is no IP address", text.chars().take(64).collect::<String>()),
    };
    let id = ObjectRef::new(Kind::EndpointSlice, namespace(&slice.metadata), name(&slice.metadata));
    let field = format!("endpoints[{index}].addresses[0]");
    ctx.report(Code::EndpointAddressRefused, &id, field, problem);
    None
}

/// Whether the API server would take the address: loopback, link-local and the like would lead back into the plane's own Pod or to
/// its node, such as a cloud's metadata service.
fn dialable(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            !(v4.is_loopback() || v4.is_link_local() || v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast())
        }
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast()),
    }
}
