//! The server as a whole: what it is made of, how it starts, what it does beside answering, how it stops.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_core::{Clock, Nanos};
use tidegate_limiter::SystemClock;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{
    http::{self, App, HttpConfig},
    limits::Limits,
    metrics::{Events, Metrics},
    options::Options,
    reload::Reload,
    resp::{self, Reactors, RespConfig, RespStats, Shared},
    rules::{self, Keeping, MAX_DEADLINE, Rules},
    service::Service,
    shared::SharedStore,
    start_error::StartError,
    state::State,
    throttle::Throttle,
};

/// What a running server may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Load the rules file again, changed or not.
    Reload,
    /// Stop; a second time: without waiting for requests under way; a third time: without waiting for the state to be
    /// written.
    Stop,
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything under way was answered, and the state written.
    Complete,
    /// Some connections were cut off: the grace was over, or a second stop came.
    Cut,
}

/// A server that listens.
pub struct Server {
    options: Options,
    service: Arc<Service>,
    app: Arc<App>,
    events: Arc<Events>,
    reload: Reload,
    state: Option<Arc<State>>,
    http: Option<(SocketAddr, JoinHandle<()>)>,
    resp: Option<(SocketAddr, Reactors)>,
    stop_http: watch::Sender<bool>,
}

impl Server {
    /// Reads the rules and the state, and starts to listen, on the system's clock. To be called within a tokio runtime.
    ///
    /// # Errors
    /// When any of it cannot be had: see [`StartError`].
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let events = Arc::new(Events::default());
        let state = State::open(options.state.clone(), &events)?;
        // Time does not run backwards across a restart.
        let floor = state.as_ref().map_or(Nanos::ZERO, State::written_at);
        Self::assemble(options, state, events, Arc::new(SystemClock::not_before(floor))).await
    }

    /// As [`start`](Self::start), on a clock of the caller's.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_on(options: Options, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        let events = Arc::new(Events::default());
        let state = State::open(options.state.clone(), &events)?;
        Self::assemble(options, state, events, clock).await
    }

    async fn assemble(
        options: Options,
        state: Option<State>,
        events: Arc<Events>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        if options.http.is_none() && options.resp.is_none() {
            return Err(StartError::NothingToServe);
        }
        let shared = shared_store(&options)?;
        let keeping = if shared.is_some() { Keeping::Store } else { Keeping::Memory };
        let started = clock.now();
        let reload = Reload::new(options.rules.clone(), Arc::clone(&events));
        let rules = match &options.rules {
            Some(path) => rules::load_to_serve(path, keeping)?,
            None => rules::example(),
        };
        let service = Arc::new(make_service(&options, rules, state.as_ref(), shared, clock)?);
        events.rules_loaded_at.store(started.get(), Ordering::Relaxed);
        if let Some(state) = &state {
            state.restore(&service);
        }
        let stats = Arc::new(RespStats::default());
        let metrics = Metrics::new(Arc::clone(&service), Arc::clone(&events), Arc::clone(&stats));
        let app = Arc::new(App { service: Arc::clone(&service), metrics, ready: AtomicBool::new(true) });
        let (stop_http, stopped) = watch::channel(false);
        // Both addresses are taken before either is served.
        let http = match &options.http {
            Some(address) => Some(listen("http", address).await?),
            None => None,
        };
        let resp = match &options.resp {
            Some(address) => Some(listen("resp", address).await?),
            None => None,
        };
        let http = http.map(|(listener, address)| {
            let config = HttpConfig { max_connections: options.max_connections };
            let router = http::router(Arc::clone(&app));
            let serve = http::serve(listener, router, config, Arc::clone(&events), stopped);
            (address, tokio::spawn(serve))
        });
        let resp = match resp {
            Some((listener, address)) => {
                let config = RespConfig {
                    password: options.resp_password.clone(),
                    max_connections: options.max_connections,
                    idle_timeout: (!options.resp_idle_timeout.is_zero())
                        .then(|| options.resp_idle_timeout.into()),
                    threads: options.resp_threads,
                    port: address.port(),
                };
                let runtime = service.store().map(|_| tokio::runtime::Handle::current());
                let shared = Shared { service: Arc::clone(&service), config, started, stats, runtime };
                let refused =
                    |e: io::Error| StartError::Resources(format!("the RESP listener cannot run: {e}"));
                let listener = listener.into_std().map_err(refused)?;
                Some((address, resp::start(&listener, &Arc::new(shared)).map_err(refused)?))
            }
            None => None,
        };
        Ok(Self { options, service, app, events, reload, state: state.map(Arc::new), http, resp, stop_http })
    }

    /// Where HTTP listens.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|(address, _)| *address)
    }

    /// Where the Redis protocol listens.
    #[must_use]
    pub fn resp_address(&self) -> Option<SocketAddr> {
        self.resp.as_ref().map(|(address, _)| *address)
    }

    /// Tells each time that the rules file has been loaded again, or refused: how often by now.
    #[must_use]
    pub fn reloads(&self) -> watch::Receiver<u64> {
        self.reload.attempts()
    }

    /// The limits.
    #[must_use]
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Serves until told to stop: follows the rules file, writes the state at intervals and at the end. When the sender of
    /// the orders is dropped the server stops, too.
    pub async fn run(mut self, mut orders: mpsc::Receiver<Order>) -> Ended {
        let mut look = interval(self.options.reload_interval.max(Duration::from_millis(1)));
        let mut write = interval(self.options.state_interval.max(Duration::from_millis(1)));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        write.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once: nothing has been used yet that was not just read.
        write.tick().await;
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::Reload) => self.reload.now(&self.service).await,
                    Some(Order::Stop) | None => break,
                },
                _ = look.tick() => self.reload.if_changed(&self.service).await,
                _ = write.tick() => self.write_state().await,
            }
        }
        tracing::info!("stopping: no new connections; finishing what is under way");
        let ended = self.stop(&mut orders).await;
        // A second order to stop (which may be the first one, passed on twice) does not cost the state; a third one says
        // that the disk is not worth waiting for.
        let third = async {
            if ended == Ended::Complete {
                stop_again(&mut orders).await;
            }
            stop_again(&mut orders).await;
        };
        tokio::select! {
            () = self.write_state() => {}
            () = third => tracing::warn!("told to stop a third time: the state may not be written"),
        }
        tracing::info!(complete = ended == Ended::Complete, "stopped");
        ended
    }

    async fn write_state(&self) {
        if let Some(state) = &self.state {
            let (state, service) = (Arc::clone(state), Arc::clone(&self.service));
            // A panic while writing was told by the panic itself.
            let _ = tokio::task::spawn_blocking(move || state.write(&service)).await;
        }
    }

    async fn stop(&mut self, orders: &mut mpsc::Receiver<Order>) -> Ended {
        self.app.ready.store(false, Ordering::Release);
        // Nobody may be listening for it; then there is nothing to stop.
        let _ = self.stop_http.send(true);
        if let Some((_, reactors)) = &self.resp {
            reactors.drain();
        }
        let (http, resp) = (&mut self.http, &mut self.resp);
        let finished = async {
            if let Some((_, http)) = http {
                let _ = http.await;
            }
            if let Some((_, reactors)) = resp {
                reactors.ended().await;
            }
        };
        let ended = tokio::select! {
            in_time = timeout(self.options.grace, finished) => {
                if in_time.is_ok() { Ended::Complete } else { Ended::Cut }
            }
            () = stop_again(orders) => Ended::Cut,
        };
        if ended == Ended::Cut {
            let open = self.events.http_connections.load(Ordering::Relaxed);
            tracing::warn!(http_connections = open, "some connections did not end in time and are cut off");
            if let Some((_, http)) = &mut self.http {
                http.abort();
                let _ = http.await;
            }
            if let Some((_, reactors)) = &mut self.resp {
                reactors.abort();
                reactors.ended().await;
            }
        }
        ended
    }
}

/// Until somebody who told the server to stop does so again.
async fn stop_again(orders: &mut mpsc::Receiver<Order>) {
    while let Some(order) = orders.recv().await {
        if order == Order::Stop {
            return;
        }
    }
    // Nobody can any more.
    std::future::pending::<()>().await;
}

/// The store that the options name.
fn shared_store(options: &Options) -> Result<Option<Arc<SharedStore>>, StartError> {
    let Some(address) = &options.store else { return Ok(None) };
    let refuse = |what: String| Err(StartError::Store(what));
    if options.state.is_some() {
        return refuse(
            "--state and --store exclude each other: the store keeps the limits; leave --state out".into(),
        );
    }
    let prefix = &options.store_prefix;
    if prefix.is_empty() || prefix.len() > 64 || prefix.contains([':', '{', '}']) {
        let rule = "1 to 64 bytes without `:`, which parts a key, or braces, which would put all keys on one node of a cluster";
        return refuse(format!("--store-prefix is `{prefix}`; it must be {rule}"));
    }
    if options.store_deadline.is_zero() || options.store_deadline > MAX_DEADLINE {
        return refuse("--store-deadline must be above 0 and at most 5s".into());
    }
    let open = |address| SharedStore::new(address, prefix, options.store_deadline);
    match address.parse().and_then(open) {
        Ok(store) => Ok(Some(Arc::new(store))),
        Err(error) => refuse(format!("--store: {error}")),
    }
}

fn make_service(
    options: &Options,
    rules: Rules,
    state: Option<&State>,
    shared: Option<Arc<SharedStore>>,
    clock: Arc<dyn Clock>,
) -> Result<Service, StartError> {
    let hash_keys = |name: &str| state.and_then(|state| state.hash_keys(name));
    let throttle = Throttle::new(options.max_keys, hash_keys(crate::service::THROTTLE))
        .map_err(|e| StartError::Resources(format!("CL.THROTTLE: {e}")))?;
    let limits = match shared {
        Some(store) => Limits::shared_over(store, rules, options.max_keys, clock.now())?,
        None => Limits::new(rules, options.max_keys, hash_keys, clock.now())?,
    };
    Ok(Service::new(limits, throttle, clock))
}

async fn listen(
    option: &'static str,
    address: &str,
) -> Result<(tokio::net::TcpListener, SocketAddr), StartError> {
    let refused = |source| StartError::Listen { option, address: address.to_owned(), source };
    let listener = tokio::net::TcpListener::bind(address).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    Ok((listener, address))
}
