//! The response body: the inner service's body or the text of a refusal. When it ends, the layer
//! gives back what the request holds.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;

/// Observes a response body. It is dropped when the body ends or is dropped.
pub trait AtEnd: Send + Sync {
    /// The body has yielded these bytes.
    fn data(&mut self, _bytes: &[u8]) {}
    /// The body has yielded trailers.
    fn trailers(&mut self, _trailers: &HeaderMap) {}
    /// The body has ended, `well` or with an error. Not called if the body is dropped before its
    /// end.
    fn ended(&mut self, _well: bool) {}
}

pin_project! {
    /// The body of a response from a layer of this crate.
    ///
    /// When the body has been read to its end, has failed or is dropped, the layer gives back what
    /// the request holds (permits, an entry).
    pub struct Body<B> {
        #[pin]
        content: Content<B>,
        end: Option<Box<dyn AtEnd>>,
        // Trailers come after the last data frame.
        has_trailers: bool,
    }
}

pin_project! {
    #[project = ContentProjection]
    enum Content<B> {
        Inner { #[pin] body: B },
        // This crate's own.
        Told { text: Bytes },
    }
}

impl<B: http_body::Body> Body<B> {
    pub(crate) fn passed(body: B, mut end: Option<Box<dyn AtEnd>>, has_trailers: bool) -> Self {
        // A server often drops an empty body, or one with a `Content-Length`, without polling it to
        // its end.
        end_if_over(&body, &mut end, has_trailers);
        Self {
            content: Content::Inner { body },
            end,
            has_trailers,
        }
    }
}

impl<B> Body<B> {
    /// A body with a refusal's text.
    pub(crate) const fn of_text(text: Bytes) -> Self {
        Self {
            content: Content::Told { text },
            end: None,
            has_trailers: false,
        }
    }
}

fn end_if_over<B: http_body::Body>(
    inner: &B,
    end: &mut Option<Box<dyn AtEnd>>,
    has_trailers: bool,
) {
    if end.is_some()
        && (inner.is_end_stream() || (!has_trailers && inner.size_hint().exact() == Some(0)))
    {
        finish(end, true);
    }
}

fn finish(end: &mut Option<Box<dyn AtEnd>>, well: bool) {
    if let Some(mut end) = end.take() {
        end.ended(well);
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let mut inner = match this.content.project() {
            ContentProjection::Inner { body } => body,
            ContentProjection::Told { text } => {
                let text = std::mem::take(text);
                return Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(text))));
            }
        };
        let frame = ready!(inner.as_mut().poll_frame(context));
        match (&frame, this.end.as_deref_mut()) {
            (_, None) => {}
            (Some(Ok(frame)), Some(end)) => {
                if let Some(data) = frame.data_ref() {
                    end.data(data);
                }
                if let Some(trailers) = frame.trailers_ref() {
                    end.trailers(trailers);
                }
                end_if_over(&*inner, this.end, *this.has_trailers);
            }
            (Some(Err(_)), _) => finish(this.end, false),
            (None, _) => finish(this.end, true),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Inner { body } => body.is_end_stream(),
            Content::Told { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Inner { body } => body.size_hint(),
            Content::Told { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}

/// An empty body.
impl<B> Default for Body<B> {
    fn default() -> Self {
        Self::of_text(Bytes::new())
    }
}

impl<B> fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("is_refusal", &matches!(self.content, Content::Told { .. }))
            .finish_non_exhaustive()
    }
}
