//! `grpc.reflection`, v1 and v1alpha: programs such as grpcurl learn the services and their
//! messages from the server.
//!
//! The generated types come without descriptors. `descriptors.bin` has them, compiled from the
//! files in `proto`: the parts of Envoy's messages without the options that only check values. A
//! test compiles the files again and compares; `TIDEGATE_WRITE=1` writes the result. Another test
//! holds it to the generated types.

use std::{convert::Infallible, pin::Pin};

use http::{Request, Response};
use hyper::body::Incoming;
use tonic::{body::Body, codegen::Service};
use tonic_reflection::server::Builder;

use super::messages::Messages;

/// The descriptors of Envoy's services and of all that they use.
const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");

/// A service whose type does not matter.
pub(super) type Erased = Box<dyn Fn(Request<Messages<Incoming>>) -> Answer + Send + Sync>;
type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Both versions of the service.
pub(super) struct Reflection {
    services: [(&'static str, Erased); 2],
}

impl Reflection {
    pub fn new() -> Self {
        let builder = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let v1 = builder().build_v1().expect("a test builds the same");
        let v1alpha = builder().build_v1alpha().expect("a test builds the same");
        Self {
            services: [
                ("grpc.reflection.v1.ServerReflection", erased(v1)),
                ("grpc.reflection.v1alpha.ServerReflection", erased(v1alpha)),
            ],
        }
    }

    /// The service of this name.
    pub fn service(&self, name: &str) -> Option<&Erased> {
        self.services
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, service)| service)
    }
}

fn erased<S>(service: S) -> Erased
where
    S: Service<Request<Messages<Incoming>>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    Box::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move { service.call(request).await })
    })
}
