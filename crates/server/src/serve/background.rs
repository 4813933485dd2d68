//! Tasks that run in the background until the server stops.

use std::{sync::Arc, time::Duration};

use tidegate_service::{
    decide::{limits, service::Service},
    flow::Flow,
    observe::ticks::ticks,
};
use tokio::task::spawn_blocking;

/// Calls `act` now and after each period, until the future is dropped.
pub(super) async fn every(period: Duration, mut act: impl FnMut()) {
    let mut ticks = ticks(period);
    loop {
        ticks.tick().await;
        act();
    }
}

/// Moves memory between limits that share it, until the future is dropped.
pub(super) async fn divide_memory(service: Arc<Service>) {
    let mut division = limits::Division::default();
    let mut ticks = ticks(limits::DIVIDE_EVERY);
    loop {
        ticks.tick().await;
        if service.limits().max_memory().is_none() {
            continue;
        }
        let its = Arc::clone(&service);
        // Moving many keys takes a while. A panic logs itself, and the limits then stay as they
        // are.
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

/// Ends reservations and what operators gave single keys for a time, and has calendars follow the
/// system's time, until the future is dropped.
pub(super) async fn end_what_is_due(service: Arc<Service>) {
    let mut ticks = ticks(Duration::from_secs(1));
    for tick in 0_u64.. {
        ticks.tick().await;
        service.follow_wall_clock();
        service.record_lost_orders();
        service.end_overrides_due();
        // Every half minute also for servers that have stopped.
        service.expire_reservations(tick.is_multiple_of(30)).await;
    }
}

/// Writes the hours of programs that report, until the future is dropped.
pub(super) async fn keep_hours(service: Arc<Service>, flow: Arc<Flow>) {
    let mut ticks = ticks(Duration::from_secs(30));
    loop {
        ticks.tick().await;
        let (flow, now) = (Arc::clone(&flow), service.now());
        // A panic logs itself, and the file then stays as it is.
        if spawn_blocking(move || flow.hours.write(&flow.reports, now))
            .await
            .is_err()
        {
            return;
        }
    }
}
