//! The server: how it is assembled, starts, runs its background tasks, and stops.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tidegate_core::{Clock as _, Nanos};
#[cfg(feature = "webhook")]
use tidegate_export::webhook::Webhook;
use tidegate_limiter::SystemClock;
use tidegate_listen::{
    access::Door,
    security::ListenerSecurity,
    sleepers::{PolledClock, Polling},
};
use tidegate_resp::{Reactors, RespStats};
use tidegate_service::{
    decide::{
        occupancy::{self, Occupancy},
        service::Service,
        waits::ServiceClock,
    },
    flow::Flow,
    observe::{
        history,
        metrics::{Events, Metrics},
        once_a_minute::OnceAMinute,
        usage::Ledger,
    },
    rules::{Keeping, reload::ReloadOrder},
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

#[cfg(feature = "grpc")]
use crate::serve::for_envoy::ForEnvoy;
#[cfg(not(feature = "webhook"))]
use crate::serve::parts::refuse_webhook;
#[cfg(feature = "webhook")]
use crate::serve::parts::webhook;
use crate::{
    control::{Conditions, ControlPlane, Marks, OneThread, Scrapes, pages::Streams},
    edges::http::{App, HttpStats, Plane, hosts::Hosts},
    serve::{
        background::{divide_memory, end_what_is_due, every, keep_hours},
        follow::follow,
        listeners::{Listeners, listener_security},
        metrics::Counted,
        options::Options,
        parts::{descriptor_service, make_service, observers, shared_store},
        reload::Reload,
        sources::Sources,
        start_error::StartError,
        state::State,
    },
};

/// The least time for the last write of the usage and of the hours of programs.
const LAST_WRITE: Duration = Duration::from_secs(1);

/// The longest time in which a stop sends the events that wait for the webhook.
#[cfg(feature = "webhook")]
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// An order to a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Reload the rules file, even if it has not changed.
    Reload,
    /// Stop. A second time: without waiting for requests in progress. A third time: without waiting
    /// for the write of the state.
    Stop,
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All requests in progress were answered, and the state was written.
    Complete,
    /// Some connections were closed early: the grace was over, or a second stop came. The state was
    /// written.
    Cut,
    /// The state could not be written. The file is as it was after the last write.
    Unsaved,
}

/// A server that is listening.
pub struct Server {
    options: Options,
    security: ListenerSecurity,
    control: Arc<ControlPlane>,
    stats: Arc<RespStats>,
    reload: Reload,
    #[cfg(feature = "grpc")]
    for_envoy: ForEnvoy,
    reload_orders: (mpsc::Sender<ReloadOrder>, mpsc::Receiver<ReloadOrder>),
    state: Option<Arc<State>>,
    usage: Option<Arc<Ledger>>,
    #[cfg(feature = "webhook")]
    webhook: Option<Arc<Webhook>>,
    /// Where each option listens: HOST:PORT or unix:PATH.
    places: Vec<(&'static str, String)>,
    /// All listeners but that of RESP, and what stops them.
    serving: JoinSet<()>,
    stop_serving: watch::Sender<bool>,
    resp: Option<Reactors>,
    /// What wakes callers in line, unless a test moves the clock.
    polling: Option<Polling>,
}

/// A future that this crate compiles, whoever awaits it.
type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Server {
    /// Reads the rules and the state, and starts to listen, with the system's clock. Call it within
    /// a tokio runtime.
    ///
    /// # Errors
    /// When a part cannot start: see [`StartError`].
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let events = Arc::new(Events::default());
        let state = State::open(options.state.clone(), SystemClock::new().now(), &events)?;
        // Time must not run backwards across a restart.
        let floor = state.as_ref().map_or(Nanos::ZERO, State::written_at);
        let (clock, polling) = PolledClock::start(SystemClock::not_before(floor));
        let mut server = Self::assembled(options, state, events, Arc::new(clock)).await?;
        server.polling = Some(polling);
        Ok(server)
    }

    /// Like [`start`](Self::start), with a given clock.
    ///
    /// # Errors
    /// The same as [`start`](Self::start).
    pub async fn start_on(
        options: Options,
        clock: Arc<dyn ServiceClock>,
    ) -> Result<Self, StartError> {
        let events = Arc::new(Events::default());
        let state = State::open(options.state.clone(), clock.now(), &events)?;
        Self::assembled(options, state, events, clock).await
    }

    /// [`assemble`](Self::assemble) in a box, as [`run`](Self::run) is.
    fn assembled(
        options: Options,
        state: Option<State>,
        events: Arc<Events>,
        clock: Arc<dyn ServiceClock>,
    ) -> Boxed<Result<Self, StartError>> {
        Box::pin(Self::assemble(options, state, events, clock))
    }

    async fn assemble(
        options: Options,
        state: Option<State>,
        events: Arc<Events>,
        clock: Arc<dyn ServiceClock>,
    ) -> Result<Self, StartError> {
        let asked = [
            &options.http,
            &options.resp,
            &options.grpc,
            &options.spoe,
            &options.sentinel,
        ];
        if asked.into_iter().all(Option::is_none) {
            return Err(StartError::NothingToServe);
        }
        let shared = shared_store(&options)?;
        let keeping = if shared.is_some() {
            Keeping::Store
        } else {
            Keeping::Memory
        };
        let started = clock.now();
        let sources = Sources::of(&options);
        let reload = Reload::new(sources.clone(), Arc::clone(&events));
        let loaded = sources
            .load(keeping)
            .map_err(|error| StartError::of_rules(error, &options))?;
        let observers = observers(&options)?;
        let usage = observers.usage.clone();
        #[cfg(feature = "webhook")]
        let webhook = webhook(&options, &events)?;
        #[cfg(feature = "webhook")]
        let observers = match webhook.clone() {
            None => observers,
            Some(webhook) => tidegate_service::decide::observers::DecisionObservers {
                on_threshold: Some(Arc::new(move |event| webhook.post(event))),
                ..observers
            },
        };
        #[cfg(not(feature = "webhook"))]
        refuse_webhook(&options)?;
        let service = Arc::new(make_service(
            &options,
            loaded,
            state.as_ref(),
            shared,
            (clock, observers),
        )?);
        let rates = Arc::new(descriptor_service(&options, &service));
        events
            .rules_loaded_at
            .store(started.get(), Ordering::Relaxed);
        if let Some(state) = &state {
            state.restore(&service);
        }
        let stats = Arc::new(RespStats::default());
        let (stop_serving, stopped) = watch::channel(false);
        let security = listener_security(&options)?;
        let http_stats = Arc::new(HttpStats::default());
        let mut metrics = Metrics::new();
        metrics.add(Arc::new(Counted {
            events: Arc::clone(&events),
            resp: Arc::clone(&stats),
        }));
        metrics.add(Arc::clone(&service) as _);
        metrics.add_to_scrapes(Arc::clone(&http_stats) as _);
        security
            .tls
            .iter()
            .for_each(|tls| metrics.add(Arc::clone(tls) as _));
        let mut listeners = Listeners {
            options: &options,
            service: &service,
            security: &security,
            stopped,
            places: Vec::new(),
            serving: JoinSet::new(),
        };
        #[cfg(feature = "grpc")]
        let grpc_stats = listeners.serve_grpc(&rates, &mut metrics).await?;
        #[cfg(not(feature = "grpc"))]
        listeners.refuse_grpc()?;
        listeners.serve_spoe(&mut metrics).await?;
        #[cfg(feature = "sentinel")]
        listeners.serve_sentinel(&mut metrics).await?;
        #[cfg(not(feature = "sentinel"))]
        listeners.refuse_sentinel()?;
        let flow = Arc::new(Flow::open(options.flow_rules.as_deref(), service.now())?);
        #[cfg(feature = "sentinel")]
        listeners.serve_dashboard(&flow, &mut metrics).await?;
        // All addresses are bound before any is served.
        let http = listeners.listen("http", options.http.as_deref()).await?;
        let admin = listeners.listen("admin", options.admin.as_deref()).await?;
        let resp = listeners.listen("resp", options.resp.as_deref()).await?;
        let door = |option, listener: &Option<(_, SocketAddr)>, has_password| match listener {
            Some((_, address)) => security.door(option, *address, has_password),
            // A listener that does not exist has no clients.
            None => Ok(Door::new(Arc::clone(&security.access), false)),
        };
        let doors = [door("http", &http, false)?, door("admin", &admin, false)?];
        let resp_door = door("resp", &resp, options.resp_password.is_some())?;
        let reload_orders = mpsc::channel(1);
        #[cfg(feature = "grpc")]
        let for_envoy = ForEnvoy::new(
            &options,
            &sources,
            &rates,
            &events,
            &reload_orders.0,
            grpc_stats,
            &mut metrics,
        );
        if let Some(telemetry) = &options.telemetry {
            telemetry.export(&metrics.sources);
        }
        let app = Arc::new(App {
            service: Arc::clone(&service),
            rates,
            stats: http_stats,
            doors,
            open_metrics: options.open_metrics,
            metrics_path: options.metrics_path.clone(),
            origins: options.http_origins.clone(),
            hosts: Hosts::new(&options.admin_hosts),
            dashboard: listeners.dashboard(),
            telemetry: options.telemetry.clone(),
            undecided: OnceAMinute::default(),
        });
        let control = Arc::new(ControlPlane {
            app,
            metrics: Arc::new(metrics),
            events,
            flow,
            rules_file: Arc::new(sources.rules_file(options.rules_writable)),
            reload: reload_orders.0.clone(),
            scrapes: Scrapes::start().map_err(StartError::Threads)?,
            conditions: Conditions::default(),
            marks: Marks::default(),
            tls: security.tls.clone(),
            streams: Streams::default(),
            trace_readers: Arc::new(Semaphore::new(1)),
            rules_thread: OneThread::start("tidegate-rules").map_err(StartError::Threads)?,
            rules_readers: Semaphore::new(2),
        });
        listeners.serve_http(http, &control, Plane::Data);
        listeners.serve_http(admin, &control, Plane::Admin);
        let resp = listeners.serve_resp(resp, resp_door, started, &stats)?;
        let Listeners {
            places, serving, ..
        } = listeners;
        Ok(Self {
            options,
            security,
            control,
            stats,
            reload,
            #[cfg(feature = "grpc")]
            for_envoy,
            reload_orders,
            state: state.map(Arc::new),
            usage,
            #[cfg(feature = "webhook")]
            webhook,
            places,
            serving,
            stop_serving,
            resp,
            polling: None,
        })
    }

    /// The address of the listener of this option: `http`, `admin`, `resp`, `grpc`, `spoe`,
    /// `sentinel-token` or `sentinel-dashboard`. `None` if it is off or a Unix socket.
    pub fn address(&self, option: &str) -> Option<SocketAddr> {
        self.place(option)?.parse().ok()
    }

    /// Where the listener of this option is: an address, or `unix:PATH`.
    pub fn place(&self, option: &str) -> Option<&str> {
        self.places
            .iter()
            .find(|(name, _)| *name == option)
            .map(|(_, place)| place.as_str())
    }

    /// Signals each reload of the rules file, successful or not, with the number of reloads so far.
    pub fn reloads(&self) -> watch::Receiver<u64> {
        self.reload.attempts.subscribe()
    }

    /// The service with the limits.
    pub fn service(&self) -> &Arc<Service> {
        &self.control.app.service
    }

    /// Serves until an order says to stop: follows the rules file, and writes the state at
    /// intervals and at the end. The server also stops when the sender of the orders is dropped.
    /// Nothing that may hang, such as a disk, keeps it from stopping.
    ///
    /// The future is in a box so that this crate compiles it with all that it calls: the caller's
    /// crate would compile an `async fn`, at its own level of optimization.
    #[must_use]
    pub fn run(self, orders: mpsc::Receiver<Order>) -> Boxed<Ended> {
        Box::pin(self.run_to_the_end(orders))
    }

    async fn run_to_the_end(self, mut orders: mpsc::Receiver<Order>) -> Ended {
        let Self {
            options,
            control,
            state,
            ..
        } = self;
        let app = &control.app;
        let service = Arc::clone(&app.service);
        let mut background = JoinSet::new();
        let (reload_now, reload_orders) = self.reload_orders;
        background.spawn(self.reload.follow(
            Arc::clone(&service),
            options.reload_interval,
            reload_orders,
        ));
        let (reload_locks, reloads) = watch::channel(0);
        background.spawn(follow(
            self.security,
            options.reload_interval,
            reloads,
            Arc::clone(&control.events),
        ));
        if let Some(state) = &state {
            let (state, service) = (Arc::clone(state), Arc::clone(&service));
            background.spawn(state.write_at_intervals(service, options.state_interval));
        }
        #[cfg(feature = "grpc")]
        let sending = self.for_envoy.start(&mut background);
        // Warns about limits that run out of room.
        let (mut occupancy, its) = (Occupancy::default(), Arc::clone(&service));
        background.spawn(every(occupancy::EVERY, move || occupancy.look(&its)));
        let (its, http) = (Arc::clone(&service), Arc::clone(&app.stats));
        background.spawn(every(history::EVERY, move || {
            let (http, resp) = (http.answers(), self.stats.latency.counts());
            let answers = std::array::from_fn(|bucket| http[bucket] + resp[bucket]);
            its.limits()
                .record_second(its.history(), answers, its.now());
        }));
        let its = Arc::clone(&control);
        background.spawn(every(Duration::from_secs(1), move || {
            its.look_at_conditions();
        }));
        background.spawn(divide_memory(Arc::clone(&service)));
        background.spawn(end_what_is_due(Arc::clone(&service)));
        background.spawn(keep_hours(Arc::clone(&service), Arc::clone(&control.flow)));
        while let Some(Order::Reload) = orders.recv().await {
            // If a request is already waiting, that is enough.
            let _ = reload_now.try_send(None);
            reload_locks.send_modify(|orders| *orders += 1);
            if let Some(store) = service.store() {
                store.store().refresh();
            }
        }
        service.stop();
        if !options.drain.is_zero() {
            tracing::info!(
                drain = ?options.drain,
                "stopping soon: not ready any more; requests are answered until then"
            );
            tokio::select! {
                () = sleep(options.drain) => {}
                () = stop_again(&mut orders) => {}
            }
        }
        tracing::info!("stopping: no new connections; finishing requests in progress");
        // A step that hangs continues in its own thread and ends with the process.
        background.shutdown().await;
        let stopping = Instant::now();
        service.end_waits();
        // Without a receiver, no listener is left to stop.
        let _ = self.stop_serving.send(true);
        let open = || control.events.http.open.load(Ordering::Relaxed);
        let ended = stop_listeners(self.serving, self.resp, options.grace, &mut orders, open).await;
        #[cfg(feature = "grpc")]
        sending.end().await;
        let (flow, now) = (Arc::clone(&control.flow), service.now());
        let last = move || {
            flow.hours.write(&flow.reports, now);
            if let Some(usage) = self.usage {
                usage.finish();
            }
        };
        let left = options
            .grace
            .saturating_sub(stopping.elapsed())
            .max(LAST_WRITE);
        #[cfg(feature = "webhook")]
        let events = self.webhook.map(|webhook| {
            tokio::task::spawn_blocking(move || finish_webhook(&webhook, left.min(LAST_EVENTS)))
        });
        if timeout(left, tokio::task::spawn_blocking(last))
            .await
            .is_err()
        {
            tracing::error!("the last usage, or the hours of programs, were not written in time");
        }
        let events_sent = async {
            #[cfg(feature = "webhook")]
            if let Some(events) = events {
                // It ends within its own bound.
                let _ = events.await;
            }
        };
        let Some(state) = state else {
            events_sent.await;
            tracing::info!(complete = ended == Ended::Complete, "stopped");
            return ended;
        };
        // A second stop, which may be the first one delivered twice, must not cost the state. A
        // third one means that the disk is not worth waiting for.
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
        events_sent.await;
        tracing::info!(complete = ended == Ended::Complete, is_saved, "stopped");
        if is_saved { ended } else { Ended::Unsaved }
    }
}

/// Waits until all listeners have ended, for at most the grace. `open` counts the connections of
/// HTTP.
async fn stop_listeners(
    mut serving: JoinSet<()>,
    mut resp: Option<Reactors>,
    grace: Duration,
    orders: &mut mpsc::Receiver<Order>,
    open: impl Fn() -> usize,
) -> Ended {
    if let Some(reactors) = &resp {
        reactors.drain();
    }
    let finished = async {
        while serving.join_next().await.is_some() {}
        if let Some(reactors) = &mut resp {
            reactors.ended().await;
        }
    };
    let in_time = tokio::select! {
        in_time = timeout(grace, finished) => in_time.is_ok(),
        () = stop_again(orders) => false,
    };
    if in_time {
        return Ended::Complete;
    }
    tracing::warn!(
        http_connections = open(),
        "some connections did not end in time and are closed"
    );
    serving.shutdown().await;
    if let Some(reactors) = &mut resp {
        reactors.abort();
        reactors.ended().await;
    }
    Ended::Cut
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

/// Sends the events that wait for the webhook, or names them.
#[cfg(feature = "webhook")]
fn finish_webhook(webhook: &Webhook, within: Duration) {
    for event in webhook.finish(within) {
        let tidegate_service::observe::reached::Reached {
            limit,
            key,
            percent,
            used,
            of,
            time_ms,
        } = event;
        tracing::warn!(
            limit,
            key,
            percent,
            used,
            of,
            time_ms,
            "an event was not sent to the webhook"
        );
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::clock::ManualTimer;

    use super::*;
    use crate::serve::state::tests::on_a_disk_that_hangs;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_disk_that_hangs_does_not_keep_the_server_from_stopping() {
        let events = Arc::new(Events::default());
        let (state, release) = on_a_disk_that_hangs(&events);
        let options = Options {
            state_interval: Duration::from_millis(1),
            grace: Duration::ZERO,
            max_keys: 10,
            ..Options::default()
        };
        let clock = Arc::new(ManualTimer::default());
        let server = Server::assemble(options, Some(state), Arc::clone(&events), clock)
            .await
            .unwrap();
        let (orders, receiver) = mpsc::channel(1);
        let running = tokio::spawn(server.run(receiver));
        // A periodic write hangs by now.
        while events.state_writes_failed.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        orders.send(Order::Stop).await.unwrap();
        let ended = timeout(Duration::from_secs(20), running)
            .await
            .expect("the server should stop");
        assert_eq!(ended.unwrap(), Ended::Unsaved);
        // The write that hung, and the last one.
        assert_eq!(events.state_writes_failed.load(Ordering::Relaxed), 2);
        assert_eq!(events.state_writes.load(Ordering::Relaxed), 0);
        drop(release);
    }
}
