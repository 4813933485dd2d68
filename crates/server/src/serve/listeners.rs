//! The listeners: each is bound, and then served by its protocol.

use std::{net::SocketAddr, sync::Arc};

use tidegate_core::Nanos;
#[cfg(feature = "grpc")]
use tidegate_envoy::{
    descriptors::DescriptorService,
    grpc::{self, GrpcStats},
};
use tidegate_listen::{
    access::{Access, Door},
    connections::{Acceptor, Bounds},
    peers::Peers,
    security::ListenerSecurity,
    socket::{LOCAL, Listener},
    strangers::Strangers,
    tls::Tls,
};
use tidegate_resp::{self as resp, Reactors, RespConfig, RespStats, Shared};
use tidegate_service::{
    decide::service::Service,
    observe::metrics::{ConnectionStats, Metrics},
};
use tokio::{net::TcpListener, runtime::Handle, sync::watch, task::JoinSet};

use crate::{
    control::{ControlPlane, pages},
    edges::{
        http::{self, Plane},
        spoe::{self, Agent, SpoeStats},
    },
    serve::{options::Options, start_error::StartError},
};

/// The maximum number of connections of the control plane. Above it, the connection that was idle
/// longest is closed.
const ADMIN_CONNECTIONS: usize = 256;

/// TLS and access control as the options have them.
///
/// # Errors
/// When the files are invalid.
pub(super) fn listener_security(options: &Options) -> Result<ListenerSecurity, StartError> {
    let asks_for_certificates = options
        .tls
        .as_ref()
        .is_some_and(|files| files.client_ca.is_some());
    let access = Access::open(
        options.access.clone(),
        asks_for_certificates,
        options.tls_client_san.as_deref(),
    )
    .map_err(StartError::Access)?;
    let tls = options.tls.clone().map(Tls::open).transpose()?;
    Ok(ListenerSecurity {
        tls: tls.map(Arc::new),
        access: Arc::new(access),
        descriptors: Arc::default(),
        tls_listeners: options.tls_listeners.clone().into(),
        insecure: options.insecure,
    })
}

/// The listeners while the server starts.
pub(super) struct Listeners<'a> {
    pub options: &'a Options,
    pub service: &'a Arc<Service>,
    pub security: &'a ListenerSecurity,
    pub stopped: watch::Receiver<bool>,
    /// Where each option listens: HOST:PORT or unix:PATH.
    pub places: Vec<(&'static str, String)>,
    pub serving: JoinSet<()>,
}

impl Listeners<'_> {
    /// Binds the address of this option, or takes the passed socket; `None` without an address.
    pub async fn listen(
        &mut self,
        option: &'static str,
        address: Option<&str>,
    ) -> Result<Option<(Listener, SocketAddr)>, StartError> {
        let Some(address) = address else {
            return Ok(None);
        };
        let refused = |source| StartError::Listen {
            option,
            address: address.to_owned(),
            source,
        };
        let listener = match self.options.sockets.iter().find(|(name, _)| name == option) {
            Some((_, socket)) => {
                let socket = socket.try_clone().map_err(refused)?;
                socket.set_nonblocking(true).map_err(refused)?;
                TcpListener::from_std(socket).map(Listener::Tcp)
            }
            None => Listener::bind(address).await,
        };
        let listener = listener.map_err(refused)?;
        let (place, address) = match &listener {
            Listener::Tcp(listener) => {
                let address = listener.local_addr().map_err(refused)?;
                (address.to_string(), address)
            }
            Listener::Unix(..) => (address.to_owned(), LOCAL),
        };
        self.places.push((option, place));
        Ok(Some((listener, address)))
    }

    /// The address of the dashboard for a browser.
    pub fn dashboard(&self) -> Option<String> {
        let (_, place) = self.places.iter().find(|(option, _)| *option == "admin")?;
        if place.starts_with("unix:") {
            return Some(place.clone());
        }
        let s = if self.security.of("admin").tls.is_some() {
            "s"
        } else {
            ""
        };
        let host = match place.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_unspecified() => format!("HOST:{}", address.port()),
            _ => place.clone(),
        };
        Some(format!("http{s}://{host}/"))
    }

    /// The connections of a listener.
    pub(super) fn accept(
        &self,
        name: &'static str,
        listener: Listener,
        max_connections: usize,
        stats: &Arc<ConnectionStats>,
    ) -> Acceptor {
        let bounds = Bounds {
            name,
            max_connections,
            max_per_peer: self.options.max_connections_per_peer,
            write_timeout: self.options.http_write_timeout,
            descriptors: Arc::clone(&self.security.descriptors),
        };
        let (clock, stats) = (Arc::clone(self.service.clock()), Arc::clone(stats));
        Acceptor::new(listener, bounds, clock, stats, self.stopped.clone())
    }

    pub fn serve_http(
        &mut self,
        listener: Option<(Listener, SocketAddr)>,
        control: &Arc<ControlPlane>,
        plane: Plane,
    ) {
        let Some((listener, _)) = listener else {
            return;
        };
        let most = self.options.max_connections;
        let (name, most, stats) = match plane {
            Plane::Data => ("http", most, &control.events.http),
            Plane::Admin => ("admin", most.min(ADMIN_CONNECTIONS), &control.events.admin),
        };
        let (app, pages) = (Arc::clone(&control.app), pages::routes(Arc::clone(control)));
        let paths = http::Paths::new(app, plane, Arc::clone(control) as _, pages);
        let connections = self.accept(name, listener, most, stats);
        self.serving.spawn(http::serve(
            connections,
            paths,
            self.security.of(name),
            Arc::clone(stats),
            self.stopped.clone(),
        ));
    }

    #[cfg(feature = "grpc")]
    pub async fn serve_grpc(
        &mut self,
        rates: &Arc<DescriptorService>,
        metrics: &mut Metrics,
    ) -> Result<Arc<GrpcStats>, StartError> {
        let (options, security) = (self.options, self.security);
        let stats = Arc::new(GrpcStats::default());
        let Some((listener, address)) = self.listen("grpc", options.grpc.as_deref()).await? else {
            return Ok(stats);
        };
        let door = security.door("grpc", address, false)?;
        metrics.add(Arc::clone(&stats) as _);
        let connections = self.accept(
            "grpc",
            listener,
            options.max_connections,
            &stats.connections,
        );
        let shared = grpc::Shared {
            rates: Arc::clone(rates),
            stats: Arc::clone(&stats),
            door,
            telemetry: options.telemetry.clone(),
        };
        let max_age = options.grpc_max_age.map(|age| grpc::MaxAge {
            age,
            grace: options.grpc_max_age_grace,
        });
        self.serving.spawn(grpc::serve(
            connections,
            shared,
            security.of("grpc"),
            max_age,
            self.stopped.clone(),
        ));
        Ok(stats)
    }

    /// Refuses the options for Envoy that need gRPC.
    #[cfg(not(feature = "grpc"))]
    pub fn refuse_grpc(&self) -> Result<(), StartError> {
        let Options {
            grpc,
            envoy_xds,
            envoy_statsd,
            envoy_metric_names,
            ..
        } = self.options;
        let asks = grpc.is_some()
            || !envoy_xds.is_empty()
            || envoy_statsd.is_some()
            || *envoy_metric_names;
        if asks {
            return Err(StartError::NoGrpc);
        }
        if self.options.envoy_config.is_some() {
            tracing::warn!(
                "this program was built without gRPC (the feature `grpc`): the configuration for Envoy is served only as POST /json over HTTP"
            );
        }
        Ok(())
    }

    /// Refuses the options for Sentinel.
    #[cfg(not(feature = "sentinel"))]
    pub fn refuse_sentinel(&self) -> Result<(), StartError> {
        let Options {
            sentinel,
            sentinel_rules,
            sentinel_dashboard,
            ..
        } = self.options;
        if sentinel.is_some() || sentinel_rules.is_some() || sentinel_dashboard.is_some() {
            Err(StartError::NoSentinel)
        } else {
            Ok(())
        }
    }

    pub async fn serve_spoe(&mut self, metrics: &mut Metrics) -> Result<(), StartError> {
        let (options, security) = (self.options, self.security);
        let Some((listener, address)) = self.listen("spoe", options.spoe.as_deref()).await? else {
            return Ok(());
        };
        let door = security.door("spoe", address, false)?;
        let stats = Arc::new(SpoeStats::default());
        metrics.add(Arc::clone(&stats) as _);
        let connections = self.accept(
            "spoe",
            listener,
            options.max_connections,
            &stats.connections,
        );
        let agent = Agent {
            service: Arc::clone(self.service),
            door,
            stats,
        };
        self.serving.spawn(spoe::serve(
            connections,
            agent,
            security.of("spoe"),
            self.stopped.clone(),
        ));
        Ok(())
    }

    pub fn serve_resp(
        &self,
        listener: Option<(Listener, SocketAddr)>,
        door: Door,
        started: Nanos,
        stats: &Arc<RespStats>,
    ) -> Result<Option<Reactors>, StartError> {
        let Some((listener, address)) = listener else {
            return Ok(None);
        };
        let (options, service) = (self.options, self.service);
        let config = RespConfig {
            password: options.resp_password.clone(),
            max_connections: options.max_connections,
            idle_timeout: (!options.resp_idle_timeout.is_zero())
                .then(|| options.resp_idle_timeout.into()),
            threads: options.resp_threads,
            port: address.port(),
        };
        let shared = Shared {
            service: Arc::clone(service),
            door,
            tls: self.security.of("resp").tls,
            peers: Peers::new(options.max_connections_per_peer, config.max_connections),
            strangers: Strangers::new("resp"),
            descriptors: Arc::clone(&self.security.descriptors),
            started,
            stats: Arc::clone(stats),
            runtime: service.store().map(|_| Handle::current()),
            config,
        };
        resp::start(listener, &Arc::new(shared))
            .map(Some)
            .map_err(StartError::Threads)
    }
}
