//! A real Envoy between clients and a backend, with `tidegate serve` as its rate limit service.
#![cfg(all(feature = "grpc", feature = "servers"))]

mod envoy;
#[path = "../program/mod.rs"]
mod program;
mod rlqs;
mod rls;
mod web;
