//! The listeners for programs with Alibaba Sentinel.

use std::sync::Arc;

use tidegate_sentinel::{
    programs::{Dashboard, Programs, serve_dashboard},
    stats::{DashboardStats, SentinelStats},
    token_server::{self, TokenServer},
};
use tidegate_service::{
    flow::Flow,
    observe::{metrics::Metrics, once_a_minute::OnceAMinute},
};

use crate::serve::{listeners::Listeners, start_error::StartError};

impl Listeners<'_> {
    pub async fn serve_sentinel(&mut self, metrics: &mut Metrics) -> Result<(), StartError> {
        const NAME: &str = "sentinel-token";
        let options = self.options;
        let Some((listener, address)) = self.listen(NAME, options.sentinel.as_deref()).await?
        else {
            return Ok(());
        };
        let door = self.security.door_by_address(NAME, address)?;
        let stats = Arc::new(SentinelStats::default());
        metrics.add(Arc::clone(&stats) as _);
        let connections = self.accept(NAME, listener, options.max_connections, &stats.connections);
        let server = TokenServer::new(
            Arc::clone(self.service),
            options.sentinel_max_qps,
            door,
            stats,
        );
        self.serving.spawn(token_server::serve(
            connections,
            server,
            self.stopped.clone(),
        ));
        Ok(())
    }

    /// Takes heartbeats of programs with Sentinel.
    pub async fn serve_dashboard(
        &mut self,
        flow: &Arc<Flow>,
        metrics: &mut Metrics,
    ) -> Result<(), StartError> {
        const NAME: &str = "sentinel-dashboard";
        let options = self.options;
        let Some((listener, address)) = self
            .listen(NAME, options.sentinel_dashboard.as_deref())
            .await?
        else {
            return Ok(());
        };
        let door = self.security.door_by_address(NAME, address)?;
        let stats = Arc::new(DashboardStats::default());
        metrics.add(Arc::clone(&stats) as _);
        let connections = self.accept(NAME, listener, options.max_connections, &stats.connections);
        let (flow, service) = (Arc::clone(flow), Arc::clone(self.service));
        let networks = options.sentinel_dashboard_networks.clone();
        let programs = Programs::new(flow, Arc::clone(&service), networks, self.stopped.clone());
        let refused = OnceAMinute::default();
        let dashboard = Dashboard {
            programs: Arc::new(programs),
            door,
            service,
            refused,
            stats,
        };
        self.serving.spawn(serve_dashboard(connections, dashboard));
        Ok(())
    }
}
