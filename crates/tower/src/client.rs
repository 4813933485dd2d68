//! The layers as middleware of `reqwest-middleware`, for clients of reqwest.

use std::{error::Error, fmt};

use async_trait::async_trait;
use http::{Extensions, request::Parts};
use reqwest::{Request, Response, ResponseBuilderExt};
use reqwest_middleware::{Middleware, Next, Result};
use tidegate_core::Decision;
use tidegate_limiter::Timer;

use crate::{
    RateLimitLayer, Reason,
    future::{After, finish},
    service::Admitted,
};
#[cfg(feature = "flow")]
use crate::{
    gate::{Entered, Stopped},
    options::no_decision,
};

/// Why a client did not send a request. [`reqwest_middleware::Error::Middleware`] holds it.
///
/// ```
/// # fn example(error: reqwest_middleware::Error) {
/// if let reqwest_middleware::Error::Middleware(error) = error
///     && let Some(limited) = error.downcast_ref::<tidegate_tower::NotSent>()
/// {
///     println!("{limited}, {:?}", limited.decision().retry_after());
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct NotSent {
    reason: Reason,
    name: String,
    decision: Decision,
}

impl NotSent {
    /// Why the request was not sent.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The name of the limit that denied the request.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The decision of that limit.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reason::NoKey => write!(
                f,
                "request not sent: it has no key for the limit {}",
                self.name
            ),
            Reason::StoreFailed => {
                write!(
                    f,
                    "request not sent: the limit {} got no reply from its store",
                    self.name
                )
            }
            _ => write!(
                f,
                "request not sent because of the limit {}: {}",
                self.name, self.decision
            ),
        }
    }
}

impl Error for NotSent {}

/// Limits a client: a denied request is not sent and fails with [`NotSent`]. With
/// [`max_wait`](crate::Builder::max_wait) the client waits for admission first.
#[async_trait]
impl<C: Timer + 'static> Middleware for RateLimitLayer<C> {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let options = self.options();
        let parts = head(&request, extensions)?;
        let mut verdict = options.decide_later(&parts).await;
        if let Some(refused) = &verdict.refused {
            let name = options.rules[refused.rule].name.as_str().to_owned();
            let not_sent = NotSent {
                reason: refused.reason,
                name,
                decision: refused.decision,
            };
            return Err(reqwest_middleware::Error::middleware(not_sent));
        }
        options.wait_out(&verdict).await;
        ended(
            Admitted::quiet(&mut verdict),
            next.run(request, extensions).await,
        )
    }
}

/// The part of a request that key sources and closures see.
fn head(request: &Request, extensions: &Extensions) -> Result<Parts> {
    let mut head = http::Request::builder()
        .method(request.method())
        .uri(request.url().as_str());
    if let Some(headers) = head.headers_mut() {
        headers.clone_from(request.headers());
    }
    let head = head
        .body(())
        .map_err(reqwest_middleware::Error::middleware)?;
    let (mut parts, ()) = head.into_parts();
    parts.extensions = extensions.clone();
    Ok(parts)
}

/// Gives back what the request holds when the response's body ends.
fn ended(
    after: impl After<reqwest::Body, reqwest::Body>,
    answer: Result<Response>,
) -> Result<Response> {
    let url = answer.as_ref().ok().map(|response| response.url().clone());
    let mut response = finish(after, answer.map(http::Response::from))?;
    if let Some(url) = url
        && let Ok(with_url) = http::Response::builder().url(url).body(())
    {
        response
            .extensions_mut()
            .extend(with_url.into_parts().0.extensions);
    }
    Ok(response.into())
}

/// Guards a client: each request enters a resource of the gate. A request that a rule blocks is not
/// sent and fails with [`Blocked`](tidegate_flow::Blocked).
#[cfg(feature = "flow")]
#[async_trait]
impl Middleware for crate::GateLayer {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let options = self.options();
        let parts = head(&request, extensions)?;
        let guard = match options.enter(&parts) {
            Ok(guard) => guard.ready().await,
            Err(Stopped::Blocked(blocked)) => {
                return Err(reqwest_middleware::Error::middleware(blocked));
            }
            Err(Stopped::NoResource) => {
                let not_sent = NotSent {
                    reason: Reason::NoKey,
                    name: "resource".to_owned(),
                    decision: no_decision(0),
                };
                return Err(reqwest_middleware::Error::middleware(not_sent));
            }
        };
        ended(
            Entered::new(options, guard),
            next.run(request, extensions).await,
        )
    }
}
