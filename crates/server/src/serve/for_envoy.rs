//! What a server does for Envoy besides its listener: it follows control planes, and shows and
//! sends counters.

use std::{sync::Arc, time::Duration};

use tidegate_envoy::{
    descriptors::DescriptorService,
    grpc::{GrpcStats, Reference},
    xds::{self, XdsStats},
};
use tidegate_export::statsd::Statsd;
use tidegate_service::{
    observe::metrics::{Events, Metrics},
    rules::reload::ReloadOrder,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use crate::serve::{options::Options, sources::Sources};

/// How long the last counters may take when the server stops.
const LAST_COUNTERS: Duration = Duration::from_secs(1);

/// The clients of control planes and of `StatsD`.
pub(super) struct ForEnvoy {
    control_planes: Vec<xds::Client>,
    statsd: Option<Statsd>,
}

impl ForEnvoy {
    /// Makes the clients in the options, and adds their metrics.
    pub fn new(
        options: &Options,
        sources: &Sources,
        rates: &Arc<DescriptorService>,
        events: &Arc<Events>,
        reload: &mpsc::Sender<ReloadOrder>,
        grpc: Arc<GrpcStats>,
        metrics: &mut Metrics,
    ) -> Self {
        let each = options.envoy_xds.iter().zip(&sources.discovered);
        let control_planes: Vec<_> = each
            .map(|(source, discovered)| xds::Client {
                source: source.clone(),
                discovered: Arc::clone(discovered),
                stats: Arc::new(XdsStats::new(&source.origin)),
                service: Arc::clone(rates.service()),
                reload: reload.clone(),
                merge_domains: options.envoy_modes.merge_domains,
            })
            .collect();
        let stats: Vec<_> = control_planes
            .iter()
            .map(|client| Arc::clone(&client.stats))
            .collect();
        metrics.add(Arc::new(xds::ControlPlanes(stats)));
        let has_files = options.envoy_config.is_some();
        let (rates, events) = (Arc::clone(rates), Arc::clone(events));
        let reference = Arc::new(Reference {
            rates,
            events,
            grpc,
            has_files,
        });
        if options.envoy_metric_names {
            metrics.add_without_prefix(Arc::clone(&reference) as _);
        }
        let statsd = options
            .envoy_statsd
            .clone()
            .map(|address| Statsd::new(address, Box::new(move || reference.read())));
        Self {
            control_planes,
            statsd,
        }
    }

    /// Follows the control planes in the background, and sends counters until [`Sending::end`].
    pub fn start(self, background: &mut JoinSet<()>) -> Sending {
        for control_plane in self.control_planes {
            background.spawn(control_plane.follow());
        }
        let (until, end) = oneshot::channel();
        Sending {
            until,
            task: self.statsd.map(|statsd| tokio::spawn(statsd.follow(end))),
        }
    }
}

/// Counters on their way to `StatsD`.
pub(super) struct Sending {
    until: oneshot::Sender<()>,
    task: Option<JoinHandle<()>>,
}

impl Sending {
    /// Sends the last counters.
    pub async fn end(self) {
        drop(self.until);
        if let Some(task) = self.task {
            // Counters are not worth more time.
            let _ = timeout(LAST_COUNTERS, task).await;
        }
    }
}
