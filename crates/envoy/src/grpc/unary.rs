//! Calls with one message in each direction, as tonic's generated servers make them, with less
//! memory for each.

use std::{fmt, marker::PhantomData};

use bytes::Buf as _;
use prost::Message;
use tonic::{
    Request, Response, Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
    server::{Grpc, UnaryService},
};
use tonic_prost::ProstCodec;

/// What the buffers of a call hold before they grow, in bytes: more than usual questions and
/// answers have. tonic's 8 KiB for each make the allocator tidy up in every call.
const USUAL: usize = 512;
/// tonic's default: how many bytes of answers are encoded before some are sent.
const AT_ONCE: usize = 32 * 1024;

/// The handler of a call whose messages have at most `size` bytes.
pub(super) fn of_size<M, R>(size: usize) -> Grpc<ShortMessages<M, R>>
where
    M: Message + Send + 'static,
    R: Message + Default + Send + 'static,
{
    Grpc::new(ShortMessages(PhantomData)).max_decoding_message_size(size)
}

/// Messages of prost, with small buffers.
pub(super) struct ShortMessages<M, R>(PhantomData<fn() -> (M, R)>);

impl<M, R> Codec for ShortMessages<M, R>
where
    M: Message + Send + 'static,
    R: Message + Default + Send + 'static,
{
    type Encode = M;
    type Decode = R;
    type Encoder = <ProstCodec<M, R> as Codec>::Encoder;
    type Decoder = FromSlice<R>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<M, R>::raw_encoder(BufferSettings::new(USUAL, AT_ONCE))
    }

    fn decoder(&mut self) -> Self::Decoder {
        FromSlice(PhantomData)
    }
}

/// Decodes a message from one slice. tonic's buffer would be moved on for each number and text.
pub(super) struct FromSlice<R>(PhantomData<fn() -> R>);

impl<R: Message + Default> Decoder for FromSlice<R> {
    type Item = R;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<R>, Status> {
        let length = source.remaining();
        // tonic gives a whole message, in one piece.
        let message = source.chunk();
        debug_assert_eq!(message.len(), length);
        let message = R::decode(message).map_err(|error| Status::internal(error.to_string()))?;
        source.advance(length);
        Ok(Some(message))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(USUAL, AT_ONCE)
    }
}

impl<M, R> fmt::Debug for ShortMessages<M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShortMessages")
    }
}

/// A method of a service as a function.
pub(super) struct Method<F>(pub F);

impl<R, M, F, A> UnaryService<R> for Method<F>
where
    F: FnMut(Request<R>) -> A,
    A: Future<Output = Result<Response<M>, Status>>,
{
    type Response = M;
    type Future = A;

    fn call(&mut self, request: Request<R>) -> A {
        (self.0)(request)
    }
}
