//! The service: a key, a decision, and then the inner service or a denial.

use std::{
    borrow::Cow,
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header::RETRY_AFTER, request::Parts};
use tidegate_core::Decision;
use tidegate_limiter::{KeyedLimit, SystemClock, Timer};
use tower_service::Service;

use crate::{
    Builder, Denial, NoKey, Tell, TooManyRequests,
    headers::{Per, ceil_secs, quota, write_policy, write_state},
    key::KeySource,
};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");

/// A service behind a limit; from [`RateLimitLayer`](crate::RateLimitLayer).
pub struct RateLimit<S, L, K, C = fn(&Parts) -> u32, D = TooManyRequests, T = SystemClock> {
    inner: S,
    options: Arc<Builder<L, K, C, D, T>>,
}

impl<S, L, K, C, D, T> RateLimit<S, L, K, C, D, T> {
    pub(crate) fn new(inner: S, options: Arc<Builder<L, K, C, D, T>>) -> Self {
        Self { inner, options }
    }
}

impl<S: Clone, L, K, C, D, T> Clone for RateLimit<S, L, K, C, D, T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), options: Arc::clone(&self.options) }
    }
}

impl<S: fmt::Debug, L: fmt::Debug, K, C, D, T> fmt::Debug for RateLimit<S, L, K, C, D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("options", &self.options).finish()
    }
}

impl<S, B, R, L, K, C, D, T> Service<Request<B>> for RateLimit<S, L, K, C, D, T>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    L: KeyedLimit + 'static,
    K: KeySource + 'static,
    C: Fn(&Parts) -> u32 + Send + Sync + 'static,
    D: Denial<R> + 'static,
    T: Timer + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was polled ready is called, and its clone takes its place.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let options = Arc::clone(&self.options);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let decision = options.decide(&parts).await;
            if let Some(denied) = decision.filter(Decision::is_denied) {
                let mut response = options.denial.response(&denied);
                options.write(response.headers_mut(), &denied);
                return Ok(response);
            }
            let delay = decision.as_ref().map(Decision::delay).unwrap_or_default();
            if !delay.is_zero() {
                let start = options.timer.now().saturating_add(delay.into());
                options.timer.sleep_until(start).await;
            }
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            if let Some(admitted) = &decision {
                options.write(response.headers_mut(), admitted);
            }
            Ok(response)
        })
    }
}

impl<L, K, C, D, T> Builder<L, K, C, D, T>
where
    L: KeyedLimit,
    K: KeySource,
    C: Fn(&Parts) -> u32,
{
    /// The decision; `None` for a request that is not counted.
    async fn decide(&self, parts: &Parts) -> Option<Decision> {
        let key = match (self.key.key(parts), self.no_key) {
            (Some(key), _) => key,
            (None, NoKey::Shared) => Cow::default(),
            (None, NoKey::Admit) => return None,
            (None, NoKey::Deny) => {
                let limit = u32::try_from(quota(&self.limit.policy()).0).unwrap_or(u32::MAX);
                return Some(Decision::deny_for_good(limit, 0, 1, u64::MAX));
            }
        };
        Some(self.limit.decide(&key, (self.cost)(parts)).await)
    }

    /// Tells a client where it stands.
    fn write(&self, headers: &mut HeaderMap, decision: &Decision) {
        if let Some(wait) = decision.retry_after() {
            headers.entry(RETRY_AFTER).or_insert_with(|| ceil_secs(wait).into());
        }
        let told = match self.tell {
            Tell::Always => true,
            Tell::Denials => decision.is_denied(),
            Tell::Never => false,
        };
        if !told {
            return;
        }
        let (quota, per) = quota(&self.limit.policy());
        // A key with a policy of its own: its window is not known here.
        let (quota, per) =
            if decision.limit() == quota { (quota, per) } else { (decision.limit(), Per::Time) };
        let (mut policy, mut state) = (String::new(), String::new());
        write_policy(&mut policy, self.name.as_str(), quota, per);
        write_state(&mut state, self.name.as_str(), decision);
        for (name, value) in [(POLICY, policy), (STATE, state)] {
            // A name is printable, so no value is ever refused. Another layer's limit stands beside this one.
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.append(name, value);
            }
        }
    }
}
