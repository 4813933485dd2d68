//! The parts of a server that its options describe.

use std::{path::PathBuf, sync::Arc};

use tidegate_core::Clock as _;
use tidegate_envoy::descriptors::{DescriptorService, Descriptors};
#[cfg(feature = "webhook")]
use tidegate_export::webhook::Webhook;
use tidegate_redis::Address;
#[cfg(feature = "webhook")]
use tidegate_service::observe::metrics::Events;
use tidegate_service::{
    decide::{
        limits::{Capacity, Limits},
        observers::DecisionObservers,
        service::Service,
        shared::SharedStore,
        throttle::Throttle,
        waits::{ServiceClock, Waits},
    },
    observe::{audit::Audit, history, trace::Trace, usage::Ledger},
    rules::{THROTTLE, is_sensible},
};

use crate::serve::{
    options::Options,
    sources::Loaded,
    start_error::{StartError, StoreOptionError},
    state::State,
};

/// The default name of this server: HOST-PID.
fn this_process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() {
        "host"
    } else {
        host.trim()
    };
    format!("{host}-{}", std::process::id())
}

/// How many servers are taken to share the store as long as nothing says how many do.
const UNKNOWN_NODES: u32 = 10;

/// The store in the options.
pub(super) fn shared_store(
    options: &Options,
) -> Result<Option<Arc<SharedStore>>, StoreOptionError> {
    let Some(address) = &options.store else {
        return Ok(None);
    };
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
        address = address
            .with_password_file(path)
            .map_err(StoreOptionError::Address)?;
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

/// The ledger of usage.
pub(super) fn observers(options: &Options) -> Result<DecisionObservers, StartError> {
    let open = |path: PathBuf| {
        Ledger::open(path.clone(), options.usage_max)
            .map_err(|source| StartError::Usage { path, source })
    };
    Ok(DecisionObservers {
        usage: options.usage.clone().map(open).transpose()?.map(Arc::new),
        ..DecisionObservers::default()
    })
}

/// The sender of reached thresholds, if there is a webhook.
#[cfg(feature = "webhook")]
pub(super) fn webhook(
    options: &Options,
    events: &Events,
) -> Result<Option<Arc<Webhook>>, StartError> {
    let to = |url| Webhook::to(url, Arc::clone(&events.webhook)).map_err(StartError::Threads);
    Ok(options.webhook.clone().map(to).transpose()?.map(Arc::new))
}

#[cfg(not(feature = "webhook"))]
pub(super) fn refuse_webhook(options: &Options) -> Result<(), StartError> {
    match options.webhook {
        None => Ok(()),
        Some(_) => Err(StartError::Threads(std::io::Error::other(
            "--webhook needs the feature `webhook`",
        ))),
    }
}

pub(super) fn descriptor_service(options: &Options, service: &Arc<Service>) -> DescriptorService {
    let Options {
        envoy_consume,
        envoy_headers,
        envoy_request_headers,
        envoy_modes,
        vendor_headers,
        ..
    } = options;
    DescriptorService::new(
        Arc::clone(service),
        *envoy_consume,
        envoy_headers.clone(),
        envoy_request_headers.clone(),
        *envoy_modes,
        *vendor_headers,
    )
}

pub(super) fn make_service(
    options: &Options,
    loaded: Loaded,
    state: Option<&State>,
    shared: Option<Arc<SharedStore>>,
    (clock, observers): (Arc<dyn ServiceClock>, DecisionObservers),
) -> Result<Service, StartError> {
    let hash_keys = |name: &str| state.and_then(|state| state.hash_keys(name));
    let Loaded {
        rules,
        of_protocols,
    } = loaded;
    let Options {
        max_keys,
        max_memory,
        container_memory: container,
        top_keys,
        ..
    } = *options;
    let capacity = Capacity {
        max_keys,
        max_memory,
        container,
        top_keys,
    };
    // Limits in a store, or restored from a file, are not fresh.
    let is_fresh = shared.is_none() && state.is_none();
    let trace = options
        .trace_keys
        .map(|share| Arc::new(Trace::new(share, options.trace_memory, is_fresh)));
    let observers = DecisionObservers {
        trace: trace.clone(),
        clock: Some(Arc::clone(&clock) as _),
        ..observers
    };
    let limits = match shared {
        Some(store) => Limits::shared_over(store, rules, capacity, clock.now())?,
        None => Limits::new(rules, capacity, hash_keys, clock.now())?,
    };
    let limits = limits.observed_by(observers.clone());
    let throttle = Throttle::new(limits.throttle_keys(), hash_keys(THROTTLE))
        .map_err(StartError::Throttle)?
        .allowing(options.throttle.clone())
        .with_top_keys(top_keys)
        .observed_by(&observers);
    let in_force = of_protocols.in_force(limits, None);
    let audit = match options.audit.clone() {
        None => Audit::default(),
        Some(path) => Audit::appending_to(path.clone())
            .map_err(|source| StartError::Audit { path, source })?,
    };
    let mut service = Service::new(in_force, throttle, clock)
        .with_reservations(options.max_reservations)
        .with_trace(trace);
    service.waits = Waits::new(options.max_waiting, options.max_waiting_per_key);
    service.history = history::History::new(options.history_memory);
    service.audit = audit;
    service.needs = options.envoy_await_rules.then_some(Descriptors::has_rules);
    Ok(service)
}
