//! A real Envoy between clients and a backend, with `tidegate serve` as its rate limit service.
#![cfg(all(feature = "grpc", feature = "servers"))]

#[path = "../certificates/mod.rs"]
mod certificates;
mod envoy;
mod gateway;
#[path = "../program/mod.rs"]
mod program;
mod reference;
mod rlqs;
mod rls;
mod web;
