//! The type of a layer's response bodies: [`Body`], or the service's own type.

use bytes::Bytes;

use crate::body::{AtEnd, Body};

/// How a layer chooses the type of its bodies for a service with bodies of type `R`.
pub trait Bodies<R> {
    /// The type of the layer's bodies.
    type Body: OutOf<R>;
}

/// The layer's bodies are [`Body`], for any bodies of the service.
#[derive(Clone, Copy, Debug)]
pub struct Wrapped;

/// The layer's bodies have the type of the service's.
#[derive(Clone, Copy, Debug)]
pub struct Same;

impl<R: http_body::Body> Bodies<R> for Wrapped {
    type Body = Body<R>;
}

impl<R: OutOf<R>> Bodies<R> for Same {
    type Body = R;
}

/// A body made out of a service's body of type `R`.
pub trait OutOf<R> {
    /// The service's body. `end` is dropped when it ends.
    fn passed(body: R, end: Option<Box<dyn AtEnd>>, has_trailers: bool) -> Self;

    /// A refusal's text.
    fn of_text(text: Bytes) -> Self;
}

impl<R: http_body::Body> OutOf<R> for Body<R> {
    fn passed(body: R, end: Option<Box<dyn AtEnd>>, has_trailers: bool) -> Self {
        Self::passed(body, end, has_trailers)
    }

    fn of_text(text: Bytes) -> Self {
        Self::of_text(text)
    }
}

/// For types that can hold any body. Only a body whose end is observed takes a box.
#[cfg(any(feature = "axum", feature = "grpc", feature = "reqwest"))]
macro_rules! out_of_itself {
    ($body:ty, $boxed:path) => {
        impl OutOf<$body> for $body {
            fn passed(body: $body, end: Option<Box<dyn AtEnd>>, has_trailers: bool) -> Self {
                match end {
                    None => body,
                    end => $boxed(Body::passed(body, end, has_trailers)),
                }
            }

            fn of_text(text: Bytes) -> Self {
                $boxed(Body::<$body>::of_text(text))
            }
        }
    };
}

#[cfg(feature = "axum")]
out_of_itself!(axum::body::Body, axum::body::Body::new);
#[cfg(feature = "grpc")]
out_of_itself!(tonic::body::Body, tonic::body::Body::new);
#[cfg(feature = "reqwest")]
out_of_itself!(reqwest::Body, reqwest::Body::wrap);
