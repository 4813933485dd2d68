//! What a server does for Envoy besides its listener: it follows control planes, and shows and sends counters.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::{
    decide::service::Service,
    observe::{
        metrics::{Events, Metrics, Reference, XdsStats},
        statsd::Statsd,
    },
    serve::{options::Options, reload::ReloadOrder, sources::Sources, xds},
};

/// Adds the counters of envoyproxy/ratelimit to the metrics if the options say so. Returns what sends them to `StatsD`.
pub(super) fn counters(
    options: &Options,
    service: &Arc<Service>,
    events: &Arc<Events>,
    metrics: &mut Metrics,
) -> Option<Statsd> {
    let (service, events, grpc) = (Arc::clone(service), Arc::clone(events), Arc::clone(&metrics.grpc));
    let reference = Arc::new(Reference { service, events, grpc, has_files: options.envoy_config.is_some() });
    if options.envoy_metric_names {
        metrics.add_reference(Arc::clone(&reference));
    }
    options.envoy_statsd.clone().map(|address| Statsd::new(address, reference))
}

/// The clients of the control planes in the options.
pub(super) fn control_planes(
    options: &Options,
    sources: &Sources,
    service: &Arc<Service>,
    reload: &mpsc::Sender<ReloadOrder>,
    metrics: &mut Metrics,
) -> Vec<xds::Client> {
    let each = options.envoy_xds.iter().zip(&sources.discovered);
    let clients: Vec<_> = each
        .map(|(source, discovered)| xds::Client {
            source: source.clone(),
            discovered: Arc::clone(discovered),
            stats: Arc::new(XdsStats::new(&source.origin)),
            service: Arc::clone(service),
            reload: reload.clone(),
            merge_domains: options.envoy_modes.merge_domains,
        })
        .collect();
    metrics.add_xds(clients.iter().map(|client| Arc::clone(&client.stats)).collect());
    clients
}
