//! The server: how it is assembled, starts, runs its background tasks, and stops.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_core::{Clock, Nanos};
use tidegate_limiter::SystemClock;
use tidegate_redis::Address;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::{
    control::{
        flow::{Flow, Pushed},
        pages,
    },
    decide::{
        limits::{self, Capacity, Limits},
        observers::DecisionObservers,
        service::{InForce, Service},
        shared::SharedStore,
        throttle::{THROTTLE, Throttle},
    },
    edges::{
        http::{self, App, Plane, hosts::Hosts},
        resp::{self, Reactors, RespConfig, RespStats, Shared},
        sentinel::{self, TokenServer},
        spoe::{self, Agent},
    },
    envoy::decide::DescriptorService,
    listen::{
        access::Door,
        connections::{Acceptor, Bounds},
        peers::Peers,
        security::ListenerSecurity,
        strangers::Strangers,
    },
    observe::{
        audit::Audit,
        history,
        metrics::{ConnectionStats, Events, Metrics, SentinelStats, SpoeStats},
        occupancy::{self, Occupancy},
        trace::Trace,
    },
    rules::{Keeping, file::RulesFile, is_sensible},
    serve::{
        follow::follow,
        options::Options,
        reload::{Reload, ReloadOrder},
        sources::{Loaded, Sources},
        start_error::{StartError, StoreOptionError},
        state::State,
    },
};
#[cfg(feature = "grpc")]
use crate::{observe::metrics::XdsStats, serve::xds};

/// The maximum number of connections of the control plane. Above it, the connection that was idle longest is closed.
const ADMIN_CONNECTIONS: usize = 256;

/// An order to a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Reload the rules file, even if it has not changed.
    Reload,
    /// Stop. A second time: without waiting for requests in progress. A third time: without waiting for the write of the
    /// state.
    Stop,
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All requests in progress were answered, and the state was written.
    Complete,
    /// Some connections were closed early: the grace was over, or a second stop came. The state was written.
    Cut,
    /// The state could not be written. The file is as it was after the last write.
    Unsaved,
}

/// A server that is listening.
pub struct Server {
    options: Options,
    security: ListenerSecurity,
    service: Arc<Service>,
    app: Arc<App>,
    events: Arc<Events>,
    stats: Arc<RespStats>,
    reload: Reload,
    #[cfg(feature = "grpc")]
    control_planes: Vec<xds::Client>,
    reload_orders: (mpsc::Sender<ReloadOrder>, mpsc::Receiver<ReloadOrder>),
    attempts: watch::Receiver<u64>,
    state: Option<Arc<State>>,
    http: Serving,
    admin: Serving,
    resp: Option<(SocketAddr, Reactors)>,
    grpc: Serving,
    spoe: Serving,
    sentinel: Serving,
    stop_http: watch::Sender<bool>,
}

impl Server {
    /// Reads the rules and the state, and starts to listen, with the system's clock. Call it within a tokio runtime.
    ///
    /// # Errors
    /// When a part cannot start: see [`StartError`].
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let events = Arc::new(Events::default());
        let state = State::open(options.state.clone(), SystemClock::new().now(), &events)?;
        // Time must not run backwards across a restart.
        let floor = state.as_ref().map_or(Nanos::ZERO, State::written_at);
        Self::assemble(options, state, events, Arc::new(SystemClock::not_before(floor))).await
    }

    /// Like [`start`](Self::start), with a given clock.
    ///
    /// # Errors
    /// The same as [`start`](Self::start).
    pub async fn start_on(options: Options, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        let events = Arc::new(Events::default());
        let state = State::open(options.state.clone(), clock.now(), &events)?;
        Self::assemble(options, state, events, clock).await
    }

    async fn assemble(
        options: Options,
        state: Option<State>,
        events: Arc<Events>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        let asked = [&options.http, &options.resp, &options.grpc, &options.spoe, &options.sentinel];
        if asked.into_iter().all(Option::is_none) {
            return Err(StartError::NothingToServe);
        }
        let shared = shared_store(&options)?;
        let keeping = if shared.is_some() { Keeping::Store } else { Keeping::Memory };
        let started = clock.now();
        let sources = Sources::of(&options);
        let reload = Reload::new(sources.clone(), Arc::clone(&events));
        let loaded = sources.load(keeping)?;
        let service = Arc::new(make_service(&options, loaded, state.as_ref(), shared, clock)?);
        let rates = Arc::new(descriptor_service(&options, &service));
        events.rules_loaded_at.store(started.get(), Ordering::Relaxed);
        if let Some(state) = &state {
            state.restore(&service);
        }
        let stats = Arc::new(RespStats::default());
        let (stop_http, stopped) = watch::channel(false);
        let security = ListenerSecurity::open(&options)?;
        let mut metrics = Metrics::new(Arc::clone(&service), Arc::clone(&events), Arc::clone(&stats));
        let [grpc, spoe, sentinel] =
            listen_for_peers(&options, &rates, &mut metrics, &security, &stopped).await?;
        let origins = options.http_origins.clone();
        // All addresses are bound before any is served.
        let http = listen_if_on(&options, "http", options.http.as_deref()).await?;
        let admin = listen_if_on(&options, "admin", options.admin.as_deref()).await?;
        let resp = listen_if_on(&options, "resp", options.resp.as_deref()).await?;
        let door = |option, listener: &Option<(_, SocketAddr)>, has_password| match listener {
            Some((_, address)) => security.door(option, *address, has_password),
            // A listener that does not exist has no clients.
            None => Ok(Door::new(Arc::clone(&security.access), false)),
        };
        let doors = [door("http", &http, false)?, door("admin", &admin, false)?];
        let resp_door = door("resp", &resp, options.resp_password.is_some())?;
        let reload_orders = mpsc::channel(1);
        #[cfg(feature = "grpc")]
        let control_planes = control_planes(&options, &sources, &service, &reload_orders.0, &mut metrics);
        if let Some(telemetry) = &options.telemetry {
            telemetry.export(metrics.sources());
        }
        let app = Arc::new(App {
            service: Arc::clone(&service),
            rates,
            metrics,
            events: Arc::clone(&events),
            flow: Arc::new(Flow { pushed: Pushed::open(options.flow_rules.as_deref())?, ..Flow::default() }),
            doors,
            rules_file: Arc::new(RulesFile::new(sources, options.rules_writable)),
            reload: reload_orders.0.clone(),
            ready: AtomicBool::new(true),
            trace_readers: Arc::new(Semaphore::new(1)),
            rules_thread: http::RulesThread::start().map_err(StartError::Threads)?,
            origins,
            hosts: Hosts::new(&options.admin_hosts),
            telemetry: options.telemetry.clone(),
        });
        let serve_http = |listener: Option<(_, SocketAddr)>, plane, stats: &Arc<ConnectionStats>| {
            let (listener, address) = listener?;
            let (name, most) = match plane {
                Plane::Data => ("http", options.max_connections),
                Plane::Admin => ("admin", options.max_connections.min(ADMIN_CONNECTIONS)),
            };
            let bounds = Bounds { max_connections: most, ..bounds(&options, &security, name) };
            let paths = http::Paths::new(Arc::clone(&app), plane, pages::routes());
            let (service, stats) = (Arc::clone(&service), Arc::clone(stats));
            let connections = Acceptor::new(listener, bounds, service, Arc::clone(&stats), stopped.clone());
            let serve = http::serve(connections, paths, security.of(name), stats, stopped.clone());
            Some((address, tokio::spawn(serve)))
        };
        let http = serve_http(http, Plane::Data, &events.http);
        let admin = serve_http(admin, Plane::Admin, &events.admin);
        let resp = match resp {
            Some(listener) => {
                let stats = Arc::clone(&stats);
                Some(serve_resp(listener, &options, resp_door, &security, &service, started, stats)?)
            }
            None => None,
        };
        Ok(Self {
            options,
            security,
            service,
            app,
            events,
            stats,
            attempts: reload.attempts(),
            reload,
            #[cfg(feature = "grpc")]
            control_planes,
            reload_orders,
            state: state.map(Arc::new),
            http,
            admin,
            resp,
            grpc,
            spoe,
            sentinel,
            stop_http,
        })
    }

    /// The address of HTTP.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|(address, _)| *address)
    }

    /// The address of the control plane.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(address, _)| *address)
    }

    /// The address of the Redis protocol.
    pub fn resp_address(&self) -> Option<SocketAddr> {
        self.resp.as_ref().map(|(address, _)| *address)
    }

    /// The address of gRPC.
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().map(|(address, _)| *address)
    }

    /// The address of SPOE.
    pub fn spoe_address(&self) -> Option<SocketAddr> {
        self.spoe.as_ref().map(|(address, _)| *address)
    }

    /// The address of the token server for Sentinel's clients.
    pub fn sentinel_address(&self) -> Option<SocketAddr> {
        self.sentinel.as_ref().map(|(address, _)| *address)
    }

    /// Signals each reload of the rules file, successful or not, with the number of reloads so far.
    pub fn reloads(&self) -> watch::Receiver<u64> {
        self.attempts.clone()
    }

    /// The service with the limits.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Serves until an order says to stop: follows the rules file, and writes the state at intervals and at the end. The server
    /// also stops when the sender of the orders is dropped. Nothing that may hang, such as a disk, keeps it from stopping.
    pub async fn run(self, mut orders: mpsc::Receiver<Order>) -> Ended {
        let Self {
            options,
            security,
            service,
            app,
            events,
            stats,
            reload,
            state,
            http,
            admin,
            resp,
            grpc,
            spoe,
            sentinel,
            stop_http,
            ..
        } = self;
        let mut background = JoinSet::new();
        let (reload_now, reload_orders) = self.reload_orders;
        background.spawn(reload.follow(Arc::clone(&service), options.reload_interval, reload_orders));
        let (reload_locks, reloads) = watch::channel(0);
        background.spawn(follow(security, options.reload_interval, reloads, Arc::clone(&events)));
        if let Some(state) = &state {
            let (state, service) = (Arc::clone(state), Arc::clone(&service));
            background.spawn(state.write_at_intervals(service, options.state_interval));
        }
        #[cfg(feature = "grpc")]
        for control_plane in self.control_planes {
            background.spawn(control_plane.follow());
        }
        background.spawn(watch_occupancy(Arc::clone(&service)));
        background.spawn(keep_history(Arc::clone(&service), Arc::clone(&app), stats));
        background.spawn(divide_memory(Arc::clone(&service)));
        background.spawn(end_what_is_due(Arc::clone(&service)));
        while let Some(Order::Reload) = orders.recv().await {
            // If a request is already waiting, that is enough.
            let _ = reload_now.try_send(None);
            reload_locks.send_modify(|orders| *orders += 1);
            if let Some(store) = service.store() {
                store.store().refresh();
            }
        }
        tracing::info!("stopping: no new connections; finishing requests in progress");
        // A step that hangs continues in its own thread and ends with the process.
        background.shutdown().await;
        let stopping = Instant::now();
        let mut listeners = Listeners { app, events, http, admin, resp, grpc, spoe, sentinel, stop_http };
        let ended = listeners.stop(options.grace, &mut orders).await;
        let Some(state) = state else {
            tracing::info!(complete = ended == Ended::Complete, "stopped");
            return ended;
        };
        // A second stop, which may be the first one delivered twice, must not cost the state. A third one means that the disk
        // is not worth waiting for.
        let third = async {
            if ended == Ended::Complete {
                stop_again(&mut orders).await;
            }
            stop_again(&mut orders).await;
        };
        let left = options.grace.saturating_sub(stopping.elapsed());
        let is_saved = tokio::select! {
            is_saved = state.write_last(service, left) => is_saved,
            () = third => {
                tracing::warn!("stop was requested a third time: the state may not be written");
                false
            }
        };
        tracing::info!(complete = ended == Ended::Complete, is_saved, "stopped");
        if is_saved { ended } else { Ended::Unsaved }
    }
}

/// Warns about limits that run out of room, until the future is dropped.
async fn watch_occupancy(service: Arc<Service>) {
    let mut occupancy = Occupancy::default();
    let mut ticks = interval(occupancy::EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        occupancy.look(&service);
    }
}

/// Records the history of each second, until the future is dropped.
async fn keep_history(service: Arc<Service>, app: Arc<App>, resp: Arc<RespStats>) {
    let mut ticks = interval(history::EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (http, resp) = (app.metrics.http.answers(), resp.latency.counts());
        let answers = std::array::from_fn(|bucket| http[bucket] + resp[bucket]);
        service.history().look(&service.limits(), answers, service.now());
    }
}

/// Moves memory between limits that share it, until the future is dropped.
async fn divide_memory(service: Arc<Service>) {
    let mut division = limits::Division::default();
    let mut ticks = interval(limits::DIVIDE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if service.limits().max_memory().is_none() {
            continue;
        }
        let its = Arc::clone(&service);
        // Moving many keys takes a while. A panic logs itself, and the limits then stay as they are.
        let Ok(looked) = spawn_blocking(move || {
            division.look(&its.limits(), its.throttle(), its.now());
            division
        })
        .await
        else {
            return;
        };
        division = looked;
    }
}

fn descriptor_service(options: &Options, service: &Arc<Service>) -> DescriptorService {
    DescriptorService::new(Arc::clone(service), options.envoy_consume, options.envoy_headers.clone())
        .with_vendor(options.vendor_headers)
        .with_modes(options.envoy_modes)
}

/// Ends reservations and what operators gave single keys for a time, until the future is dropped.
async fn end_what_is_due(service: Arc<Service>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for tick in 0_u64.. {
        ticks.tick().await;
        service.end_overrides_due();
        // Every half minute also for servers that have stopped.
        service.expire_reservations(tick.is_multiple_of(30)).await;
    }
}

/// The listeners, and how to stop them.
struct Listeners {
    app: Arc<App>,
    events: Arc<Events>,
    http: Serving,
    admin: Serving,
    resp: Option<(SocketAddr, Reactors)>,
    grpc: Serving,
    spoe: Serving,
    sentinel: Serving,
    /// Stops all listeners but that of RESP.
    stop_http: watch::Sender<bool>,
}

impl Listeners {
    async fn stop(&mut self, grace: Duration, orders: &mut mpsc::Receiver<Order>) -> Ended {
        self.app.ready.store(false, Ordering::Release);
        // Without a receiver, no listener is left to stop.
        let _ = self.stop_http.send(true);
        if let Some((_, reactors)) = &self.resp {
            reactors.drain();
        }
        let (http, admin, resp) = (&mut self.http, &mut self.admin, &mut self.resp);
        let (grpc, spoe, sentinel) = (&mut self.grpc, &mut self.spoe, &mut self.sentinel);
        let finished = async {
            for listener in [http, admin, grpc, spoe, sentinel] {
                if let Some((_, serving)) = listener {
                    let _ = serving.await;
                    // A task that has ended must not be awaited again.
                    *listener = None;
                }
            }
            if let Some((_, reactors)) = resp {
                reactors.ended().await;
            }
        };
        let ended = tokio::select! {
            in_time = timeout(grace, finished) => {
                if in_time.is_ok() { Ended::Complete } else { Ended::Cut }
            }
            () = stop_again(orders) => Ended::Cut,
        };
        if ended == Ended::Cut {
            let open = self.events.http.connections.load(Ordering::Relaxed);
            tracing::warn!(http_connections = open, "some connections did not end in time and are closed");
            let http = self.http.iter_mut().chain(&mut self.admin);
            let others = self.grpc.iter_mut().chain(&mut self.spoe).chain(&mut self.sentinel);
            for (_, listener) in http.chain(others) {
                listener.abort();
                let _ = listener.await;
            }
            if let Some((_, reactors)) = &mut self.resp {
                reactors.abort();
                reactors.ended().await;
            }
        }
        ended
    }
}

/// Waits for another order to stop.
async fn stop_again(orders: &mut mpsc::Receiver<Order>) {
    while let Some(order) = orders.recv().await {
        if order == Order::Stop {
            return;
        }
    }
    // The sender is gone, so there can be no further order.
    std::future::pending::<()>().await;
}

/// The default name of this server: HOST-PID.
fn this_process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "host" } else { host.trim() };
    format!("{host}-{}", std::process::id())
}

/// How many servers are taken to share the store as long as nothing says how many do.
const UNKNOWN_NODES: u32 = 10;

/// The store in the options.
fn shared_store(options: &Options) -> Result<Option<Arc<SharedStore>>, StoreOptionError> {
    let Some(address) = &options.store else { return Ok(None) };
    let prefix = &options.store_prefix;
    if prefix.is_empty() || prefix.len() > 64 || prefix.contains([':', '{', '}']) {
        return Err(StoreOptionError::Prefix(prefix.clone()));
    }
    if !is_sensible(options.store_deadline) {
        return Err(StoreOptionError::Deadline);
    }
    let mut address: Address = address.parse().map_err(StoreOptionError::Address)?;
    if let Some(password) = &options.store_password {
        address = address.with_password(password);
    }
    if let Some(path) = &options.store_password_file {
        address = address.with_password_file(path).map_err(StoreOptionError::Address)?;
    }
    let name = options.name.clone().unwrap_or_else(this_process);
    let store = SharedStore::new(address, prefix, options.store_deadline, &name)
        .map_err(StoreOptionError::Address)?;
    match options.nodes {
        Some(nodes) => store.store().set_least_nodes(nodes),
        None => store.store().assume_nodes(UNKNOWN_NODES),
    }
    Ok(Some(Arc::new(store)))
}

fn make_service(
    options: &Options,
    loaded: Loaded,
    state: Option<&State>,
    shared: Option<Arc<SharedStore>>,
    clock: Arc<dyn Clock>,
) -> Result<Service, StartError> {
    let hash_keys = |name: &str| state.and_then(|state| state.hash_keys(name));
    let Loaded { rules, domains, tokens } = loaded;
    let Options { max_keys, max_memory, top_keys, .. } = *options;
    let capacity = Capacity { max_keys, max_memory, top_keys };
    // Limits in a store, or restored from a file, are not fresh.
    let is_fresh = shared.is_none() && state.is_none();
    let trace = options.trace_keys.map(|share| Arc::new(Trace::new(share, options.trace_memory, is_fresh)));
    let watchers = DecisionObservers { trace: trace.clone(), clock: Some(Arc::clone(&clock)) };
    let limits = match shared {
        Some(store) => Limits::shared_over(store, rules, capacity, clock.now())?,
        None => Limits::new(rules, capacity, hash_keys, clock.now())?,
    };
    let limits = limits.watched_by(watchers.clone());
    let throttle = Throttle::new(limits.throttle_keys(), hash_keys(THROTTLE))
        .map_err(StartError::Throttle)?
        .allowing(options.throttle.clone())
        .with_top_keys(top_keys)
        .watched_by(&watchers);
    let in_force = InForce::new(limits, domains, None).with_tokens(tokens);
    let audit = match options.audit.clone() {
        None => Audit::default(),
        Some(path) => {
            Audit::appending_to(path.clone()).map_err(|source| StartError::Audit { path, source })?
        }
    };
    let service = Service::new(in_force, throttle, clock).with_audit(audit);
    Ok(service
        .with_reservations(options.max_reservations)
        .with_history(options.history_memory)
        .with_trace(trace))
}

/// The clients of the control planes in the options.
#[cfg(feature = "grpc")]
fn control_planes(
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
        })
        .collect();
    metrics.add_xds(clients.iter().map(|client| Arc::clone(&client.stats)).collect());
    clients
}

/// A listener's address, and the task that serves it.
type Serving = Option<(SocketAddr, JoinHandle<()>)>;

/// Starts to serve the programs that ask by their own protocols: Envoy, HAProxy and Sentinel's clients.
async fn listen_for_peers(
    options: &Options,
    rates: &Arc<DescriptorService>,
    metrics: &mut Metrics,
    security: &ListenerSecurity,
    stopped: &watch::Receiver<bool>,
) -> Result<[Serving; 3], StartError> {
    let grpc = listen_for_grpc(options, rates, metrics, security, stopped).await?;
    let spoe = listen_for_spoe(options, rates.service(), metrics, security, stopped).await?;
    let sentinel = listen_for_sentinel(options, rates.service(), metrics, security, stopped).await?;
    Ok([grpc, spoe, sentinel])
}

#[cfg(feature = "grpc")]
async fn listen_for_grpc(
    options: &Options,
    rates: &Arc<DescriptorService>,
    metrics: &mut Metrics,
    security: &ListenerSecurity,
    stopped: &watch::Receiver<bool>,
) -> Result<Serving, StartError> {
    use crate::{
        edges::grpc::{Shared, serve},
        observe::metrics::GrpcStats,
    };

    let Some(address) = &options.grpc else { return Ok(None) };
    let (listener, address) = listen(options, "grpc", address).await?;
    let door = security.door("grpc", address, false)?;
    let stats = Arc::new(GrpcStats::default());
    metrics.add_grpc(Arc::clone(&stats));
    let (service, its) = (Arc::clone(rates.service()), Arc::clone(&stats.connections));
    let connections =
        Acceptor::new(listener, bounds(options, security, "grpc"), service, its, stopped.clone());
    let shared = Shared { rates: Arc::clone(rates), stats, door, telemetry: options.telemetry.clone() };
    let serve = serve(connections, shared, security.of("grpc"), stopped.clone());
    Ok(Some((address, tokio::spawn(serve))))
}

#[cfg(not(feature = "grpc"))]
#[allow(clippy::unused_async, reason = "the same form as with gRPC")]
async fn listen_for_grpc(
    options: &Options,
    _rates: &Arc<DescriptorService>,
    _metrics: &mut Metrics,
    _security: &ListenerSecurity,
    _stopped: &watch::Receiver<bool>,
) -> Result<Serving, StartError> {
    if options.grpc.is_some() || !options.envoy_xds.is_empty() {
        return Err(StartError::NoGrpc);
    }
    Ok(None)
}

async fn listen_for_spoe(
    options: &Options,
    service: &Arc<Service>,
    metrics: &mut Metrics,
    security: &ListenerSecurity,
    stopped: &watch::Receiver<bool>,
) -> Result<Serving, StartError> {
    let Some(address) = &options.spoe else { return Ok(None) };
    let (listener, address) = listen(options, "spoe", address).await?;
    let door = security.door("spoe", address, false)?;
    let stats = Arc::new(SpoeStats::default());
    metrics.add_spoe(Arc::clone(&stats));
    let (its, counts) = (Arc::clone(service), Arc::clone(&stats.connections));
    let connections =
        Acceptor::new(listener, bounds(options, security, "spoe"), its, counts, stopped.clone());
    let agent = Agent { service: Arc::clone(service), door, stats };
    let serve = spoe::serve(connections, agent, security.of("spoe"), stopped.clone());
    Ok(Some((address, tokio::spawn(serve))))
}

async fn listen_for_sentinel(
    options: &Options,
    service: &Arc<Service>,
    metrics: &mut Metrics,
    security: &ListenerSecurity,
    stopped: &watch::Receiver<bool>,
) -> Result<Serving, StartError> {
    const NAME: &str = "sentinel-token";
    let Some(address) = &options.sentinel else { return Ok(None) };
    let (listener, address) = listen(options, NAME, address).await?;
    let door = security.door_by_address(NAME, address)?;
    let stats = Arc::new(SentinelStats::default());
    metrics.add_sentinel(Arc::clone(&stats));
    let (its, counts) = (Arc::clone(service), Arc::clone(&stats.connections));
    let connections = Acceptor::new(listener, bounds(options, security, NAME), its, counts, stopped.clone());
    let server = TokenServer::new(Arc::clone(service), options.sentinel_max_qps, door, stats);
    let serve = sentinel::serve(connections, server, stopped.clone());
    Ok(Some((address, tokio::spawn(serve))))
}

fn serve_resp(
    (listener, address): (tokio::net::TcpListener, SocketAddr),
    options: &Options,
    door: Door,
    security: &ListenerSecurity,
    service: &Arc<Service>,
    started: Nanos,
    stats: Arc<RespStats>,
) -> Result<(SocketAddr, Reactors), StartError> {
    let config = RespConfig {
        password: options.resp_password.clone(),
        max_connections: options.max_connections,
        max_per_peer: options.max_connections_per_peer,
        idle_timeout: (!options.resp_idle_timeout.is_zero()).then(|| options.resp_idle_timeout.into()),
        threads: options.resp_threads,
        port: address.port(),
    };
    let runtime = service.store().map(|_| tokio::runtime::Handle::current());
    let peers = Peers::new(config.max_per_peer, config.max_connections);
    let tls = security.of("resp").tls;
    let descriptors = Arc::clone(&security.descriptors);
    let strangers = Strangers::new("resp");
    let service = Arc::clone(service);
    let shared =
        Shared { service, config, door, tls, peers, strangers, descriptors, started, stats, runtime };
    let refused = StartError::Threads;
    let listener = listener.into_std().map_err(refused)?;
    Ok((address, resp::start(&listener, &Arc::new(shared)).map_err(refused)?))
}

/// The bounds of the connections of a listener with this name.
fn bounds(options: &Options, security: &ListenerSecurity, name: &'static str) -> Bounds {
    Bounds {
        name,
        max_connections: options.max_connections,
        max_per_peer: options.max_connections_per_peer,
        write_timeout: options.http_write_timeout,
        descriptors: Arc::clone(&security.descriptors),
    }
}

async fn listen_if_on(
    options: &Options,
    option: &'static str,
    address: Option<&str>,
) -> Result<Option<(tokio::net::TcpListener, SocketAddr)>, StartError> {
    match address {
        Some(address) => listen(options, option, address).await.map(Some),
        None => Ok(None),
    }
}

async fn listen(
    options: &Options,
    option: &'static str,
    address: &str,
) -> Result<(tokio::net::TcpListener, SocketAddr), StartError> {
    let refused = |source| StartError::Listen { option, address: address.to_owned(), source };
    let listener = match options.sockets.iter().find(|(name, _)| name == option) {
        Some((_, socket)) => {
            let socket = socket.try_clone().map_err(refused)?;
            socket.set_nonblocking(true).map_err(refused)?;
            tokio::net::TcpListener::from_std(socket).map_err(refused)?
        }
        None => tokio::net::TcpListener::bind(address).await.map_err(refused)?,
    };
    let address = listener.local_addr().map_err(refused)?;
    Ok((listener, address))
}

#[cfg(test)]
mod tests {
    use tidegate_core::ManualClock;

    use super::*;
    use crate::serve::state::tests::on_a_disk_that_hangs;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_disk_that_hangs_does_not_keep_the_server_from_stopping() {
        let events = Arc::new(Events::default());
        let (state, release) = on_a_disk_that_hangs("server", &events);
        let options = Options {
            state_interval: Duration::from_millis(1),
            grace: Duration::ZERO,
            max_keys: 10,
            ..Options::default()
        };
        let clock = Arc::new(ManualClock::default());
        let server = Server::assemble(options, Some(state), Arc::clone(&events), clock).await.unwrap();
        let (orders, receiver) = mpsc::channel(1);
        let running = tokio::spawn(server.run(receiver));
        // A periodic write hangs by now.
        while events.state_writes_failed.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        orders.send(Order::Stop).await.unwrap();
        let ended = timeout(Duration::from_secs(20), running).await.expect("the server should stop");
        assert_eq!(ended.unwrap(), Ended::Unsaved);
        drop(release);
    }
}
