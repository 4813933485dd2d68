//! A real Envoy between clients and a backend, with `tidegate serve` as its rate limit service.
#![cfg(all(feature = "grpc", feature = "servers"))]

#[path = "../integration/certificates/mod.rs"]
mod certificates;
mod envoy;
mod gateway;
mod holds;
mod kgateway;
#[path = "../integration/program/mod.rs"]
mod program;
mod quotas;
mod reference;
mod rlqs;
mod rls;
mod web;
